"""Files of a run folder after somebody edited them: each works, or is one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aam.contract.errors import AamError
from aam.report.base import ReportInput
from aam.report.colours import choose_colours
from aam.report.comparison import comparison
from aam.report.models import compare_models
from aam.report.page import page
from aam.report.run import read_run
from tests.support.run_folders import make_run, make_study

HUGE = "1" + "0" * 400
VALUES: tuple[Any, ...] = (None, True, -1, 1e308, float("nan"), 10**400, "", "a\0b", "\ud800", [], [1], {}, {"x": 1}, ["x"], [[]])  # fmt: skip
"""Values that replace each value of a JSON document."""

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
    for place in range(min(len(cells), 7)):
        names = header.split(delimiter)
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
    for container, key, place in list(_places(root, "")):
        kept = container[key]
        for value in VALUES:
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
    for name, content in edits:
        path.write_bytes(content)
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
    shutil.copytree(run, run / "baseline")
    (run / "baseline" / "metrics.json").write_text('{"model": "random forest", "column": "ph"}')
    ids = study.sample_ids
    rows = [f"{name}\t" + "\t".join("0" if name == o else "0.5" for o in ids) for name in ids]
    (run / "unifrac.tsv").write_text("\t" + "\t".join(ids) + "\n" + "\n".join(rows) + "\n")
    (run / "importance.tsv").write_text(
        "feature-id\teffect\tprevalence\trank_fold_1\trank_fold_2\n"
        "ACGT\t0.5\t0.1\t1\t2\nGGTT\t-0.5\t0.1\t2\t1\n"
    )
    score = {"value": 0.5, "lower": 0.4, "upper": None}
    model = {"metrics": {"r2": score, "mae": {"value": 0.5}}, "weight": 0.5}
    confounder = {"column": "depth", "metric": "r2", **score, "other_form": False}
    difference = {"model": "ensemble", "reference": "forest", "sentence": "ahead"}
    inputs = {
        "columns": ["site"], "models": {"counts alone": {"r2": score}},
        "differences": [difference], "conclusion": "None.",
    }  # fmt: skip
    scores = {
        "models": {"ensemble": model, "forest": model, "constant": model},
        "differences": [difference], "inputs": inputs, "confounders": [confounder],
        "interval": {"coverage": 0.9, "half_width": 1.0, "covered": 0.9},
    }  # fmt: skip
    (run / "scores.json").write_text(json.dumps(scores))
    return run


def use(run: Path) -> None:
    found = read_run(run)
    colours = choose_colours(found, None, (), ())
    given = ReportInput(found, colours, "", compare_models(found))
    page(given, run / "report.html")
    comparison([found, found])


FILES = ("predictions.tsv", "splits.tsv", "embeddings.tsv", "unifrac.tsv", "importance.tsv", "fold-1/metrics.csv", "run.json", "scores.json", "baseline/metrics.json", "baseline/predictions.tsv")  # fmt: skip


@pytest.mark.medium
@pytest.mark.parametrize("name", FILES)
def test_a_report_of_edited_files(whole: Path, name: str) -> None:
    path = whole / name
    content = path.read_bytes()
    if path.suffix == ".json":
        edits = json_edits(content)
    else:
        edits = text_edits(content, b"," if path.suffix == ".csv" else b"\t")
    assert failures(path, edits, lambda: use(whole)) == []
