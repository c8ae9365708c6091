"""Files of a run folder after somebody edited them: each works, or is one sentence."""

from __future__ import annotations

import gzip
import json
import typing
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aam.contract.errors import AamError
from aam.contract.options import specs
from aam.contract.options.command_line import read_config
from aam.contract.options.commands import find
from aam.data.distances import read_embeddings, write_ordination
from aam.evaluation.splits import read_splits
from aam.report import methods, page
from aam.report.comparison import comparison
from aam.report.page import command_line
from aam.report.run import ReportInput, choose_colours, read_run
from aam.report.sections import tabulate
from aam.stack.profile import as_plain, read_profile
from tests.stack.test_profile import FORMATS
from tests.support.commands import aam
from tests.support.run_folders import make_run, make_study

HUGE = "1" + "0" * 400
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 1e308, float("nan"), 10**400, "", "a\0b", "\ud800"),
    *([], [1], {}, {"x": 1}, ["x"], [[]]),
)
"""Values that replace those of a JSON document."""

DEEP = b"[" * 200_000


def text_edits(content: bytes, delimiter: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield edited contents of a table: each by its name."""
    header, first, *rest = content.split(b"\n")
    cells = first.split(delimiter)
    yield "empty", b""
    yield "header alone", header + b"\n"
    yield "cut short", content[: len(content) * 2 // 3]
    yield "Latin-1", content + "\n\xe9".encode("latin-1")
    yield "NUL", content.replace(b"\n", b"\n\0", 1)
    yield "deep JSON", DEEP
    yield "a column less", content.replace(delimiter, b"", 1)
    yield "a cell more", content + delimiter.join([*cells, b"1"]) + b"\n"
    yield "a quote", header + b'\n"' + first + b"\n" + b"\n".join(rest)
    yield "the header twice", header + delimiter + header + b"\n"
    yield "rows twice", content + b"\n".join([first, *rest])
    names = header.split(delimiter)
    for place in range(min(len(cells), len(names), 7)):
        yield f"no column {place}", content.replace(names[place], b"other", 1)
        for value in (b"", b"x", b"nan", b"-inf", b"1e308", HUGE.encode(), b"x" * 140_000):
            edited = [*cells[:place], value, *cells[place + 1 :]]
            row = delimiter.join(edited)
            yield f"{value[:9]!r} in column {place}", b"\n".join([header, row, *rest])
            columns = (line.split(delimiter) for line in (first, *rest) if line)
            all_rows = [delimiter.join([*c[:place], value, *c[place + 1 :]]) for c in columns]
            yield f"{value[:9]!r} in all of column {place}", b"\n".join([header, *all_rows, b""])


def json_edits(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield documents in which one value is another, or absent."""
    yield from (("empty", b""), ("deep", DEEP), ("Latin-1", b'{"a": "\xe9"}'), ("number", b"1"))
    yield from (("half", content[: len(content) // 2]), ("long number", HUGE.encode() * 20))
    yield "deep value", b'{"options": ' + b'{"a":' * 500 + b"1" + b"}" * 501
    root = json.loads(content)
    for number, (container, key, place) in enumerate(list(_places(root, ""))):
        kept = container[key]
        for value in (VALUES[number % len(VALUES)], VALUES[number * 7 % len(VALUES)]):
            container[key] = value
            yield f"{place} = {str(value)[:20]!r}", json.dumps(root).encode()
        if isinstance(container, dict):
            del container[key]
            yield f"no {place}", json.dumps(root).encode()
        container[key] = kept


def _places(value: Any, place: str) -> Iterator[tuple[Any, Any, str]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield value, key, f"{place}.{key}"
        if isinstance(item, dict | list):
            yield from _places(item, f"{place}.{key}")


def failures(
    path: Path, edits: Iterator[tuple[str, bytes]], use: Callable[[], object]
) -> list[str]:
    """Edit a file in each way; return the edits that end with anything but an AamError."""
    kept, found = path.read_bytes(), []
    for name, edited in edits:
        path.write_bytes(edited)
        try:
            use()
        except AamError as error:
            if "\n" in str(error) or len(str(error)) > 2000:
                found.append(f"{name}: {error}")
        except Exception as error:
            found.append(f"{name}: {type(error).__name__} {error}")
    path.write_bytes(kept)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with every file that a report reads."""
    folder = tmp_path_factory.mktemp("edited")
    study = make_study(folder / "study", 24)
    run = make_run(folder / "run", folder / "study", study, "numbers", 3)
    ids = study.sample_ids
    rows = [f"{name}\t" + "\t".join("0" if name == o else "0.5" for o in ids) for name in ids]
    (run / "unifrac.tsv").write_text("\t" + "\t".join(ids) + "\n" + "\n".join(rows) + "\n")
    coordinates = np.random.default_rng(0).normal(size=(len(ids), 2))
    write_ordination(run / "ordination.txt", ids, coordinates, np.array([0.5, 0.25]))
    (run / "importance.tsv").write_text(
        "feature-id\teffect\tprevalence\trank_fold_1\trank_fold_2\n"
        "ACGT\t0.5\t0.1\t1\t2\nGGTT\t-0.5\t0.1\t2\t1\n"
    )
    scored = read_run(run).scored or pytest.fail("no predictions")
    found = scored.metrics()
    score = {"value": found["r2"], "lower": 0.4, "upper": None}
    model = {"metrics": {"r2": score, "mae": {"value": found["mae"]}}}
    confounder = {"column": "depth", "metric": "r2", **score, "other_form": False}
    difference = {"model": "ensemble", "reference": "forest", "sentence": "ahead"}
    inputs = {
        "columns": ["site"], "models": {"counts alone": {"r2": score}},
        "differences": [difference], "conclusion": "None.",
    }  # fmt: skip
    scores = {
        "verdict": {"sentence": "The model is better."},
        "samples": len(scored.actual),
        "models": {"ensemble": model, "forest": model, "guess": model},
        "differences": [difference], "inputs": inputs, "confounders": [confounder],
        "interval": {"coverage": 0.9, "half_width": 1.0, "covered": 0.9},
    }  # fmt: skip
    (run / "scores.json").write_text(json.dumps(scores))
    return run


def use(run: Path) -> None:
    """Read a run and make all of its report but the pictures, which take a second."""
    found = read_run(run)
    colours = choose_colours(found, None, (), ())
    given = ReportInput(found, colours)
    for part in (page.heading, page.measured_on, methods.input_rows, methods.fact_rows,
                 methods.option_rows, command_line):  # fmt: skip
        part(found)
    for of_report in (page.result_of, page.tiles, partial(tabulate, "predictions"),
                      partial(tabulate, "asvs")):  # fmt: skip
        of_report(given)
    list(page.missing(given))
    methods.paragraph(found), methods.bibtex(found)
    comparison([found, found])


RARELY_READ = ("ordination.txt", "splits.tsv", "embeddings.tsv", "unifrac.tsv", "importance.tsv",
               "fold-1/metrics.csv")  # fmt: skip
"""Tables that one part of a report reads."""


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "every"),
    [
        *(("predictions.tsv", 1), ("scores.json", 1), ("run.json", 5)),
        *(pytest.param(name, 1, marks=pytest.mark.nightly) for name in ("run.json", *RARELY_READ)),
    ],
)
def test_a_report_of_edited_files(whole: Path, name: str, every: int) -> None:
    """With every n-th of the edits."""
    path = whole / name
    if path.suffix == ".json":
        edits = json_edits(path.read_bytes())
    else:
        edits = text_edits(path.read_bytes(), b"," if path.suffix == ".csv" else b"\t")
    assert failures(path, islice(edits, 0, None, every), lambda: use(whole)) == []


def test_an_edited_run_record_gives_options_or_is_refused(whole: Path) -> None:
    path, specs_of = whole / "run.json", specs(typing.cast(type, find("train")))
    edits = json_edits(path.read_bytes())
    assert failures(path, edits, lambda: read_config(path, specs_of, "train")) == []


@pytest.mark.medium
@pytest.mark.parametrize("name", ["splits", "embeddings", "evaluate"])
def test_edited_tables_of_other_commands(whole: Path, name: str) -> None:
    path = whole / {"evaluate": "predictions.tsv"}.get(name, f"{name}.tsv")
    uses: dict[str, Callable[[], object]] = {
        "splits": lambda: read_splits(path, ["S01"])[0],
        "embeddings": lambda: read_embeddings(path),
        "evaluate": lambda: evaluate(path, whole.parent / "study" / "metadata.tsv"),
    }
    assert failures(path, text_edits(path.read_bytes(), b"\t"), uses[name]) == []


def evaluate(path: Path, metadata: Path) -> None:
    status = aam("evaluate", "--predictions", path, "--metadata", metadata,
                 "--metadata-column", "ph")  # fmt: skip
    assert status in (0, 65)


@pytest.mark.parametrize("source", FORMATS)
def test_an_edited_profile_is_shown_or_refused(tmp_path: Path, source: str) -> None:
    path = tmp_path / "profile"
    FORMATS[source](path)
    content = path.read_bytes()
    packed = content.startswith(b"\x1f\x8b")
    content = gzip.decompress(content) if packed else content
    edits = json_edits(content) if content.startswith(b"{") else text_edits(content, b",")
    assert failures(path, edits, lambda: as_plain(read_profile(path), 5)) == []
