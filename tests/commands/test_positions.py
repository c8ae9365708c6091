"""Arguments by position, files that are exchanged, and folders named after columns."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from aam.contract.options.command_line import parse
from aam.data.formats.tables import open_blocks
from tests.support.bench import DATA, USAGE, Bench
from tests.support.commands import aam

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("argv", "given"),
    [
        ("predict m t --output o", {"--model": "m", "--table": "t"}),
        ("importance m --table t --output o", {"--model": "m", "--table": "t"}),
        (
            "evaluate m t d ph --output o",
            {"--model": "m", "--table": "t", "--metadata": "d", "--metadata-column": "ph"},
        ),
        (
            "evaluate --predictions p d ph",
            {"--predictions": "p", "--metadata": "d", "--metadata-column": "ph"},
        ),
        ("inspect t d ph --study-column s", {"--metadata-column": "ph", "--study-column": "s"}),
    ],
)
def test_positions(argv: str, given: dict[str, str]) -> None:
    parsed = parse(argv.split())
    assert {flag: str(parsed.given[flag]) for flag in given} == given
    assert "--model" in given or "--model" not in parsed.given


def test_inspect_takes_the_studies_that_it_recommends(bench: Bench, capsys: Capture) -> None:
    args = (bench.good / "table.biom", bench.good / "metadata.tsv", "ph")
    assert aam("inspect", *args, "--study-column", "site") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "leave one study out ('site', 3 studies), 12 samples held out" in shown


@pytest.mark.parametrize("command", ["train", "inspect"])
def test_exchanged_table_and_metadata(bench: Bench, capsys: Capture, command: str) -> None:
    metadata = bench.good / "metadata.tsv"
    for table in (bench.good / "table.biom", bench.table(bench.counts)):
        assert aam(command, metadata, table, "ph") == USAGE
        shown = capsys.readouterr().err
        assert "swapped" in shown and str(table) in shown and str(metadata) in shown


@pytest.mark.parametrize("name", ["..", ".", "~", "~root", "a/b", "-x", " ph"])
def test_columns_that_no_folder_can_be_named_after(
    bench: Bench, capsys: Capture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (bench.work / "inner").mkdir()
    monkeypatch.chdir(bench.work / "inner")
    metadata = bench.metadata([["sample-id", name], *([row[0], row[1]] for row in bench.rows[1:])])
    before = sorted(bench.work.rglob("*"))
    files = ("--table", bench.good / "table.biom", "--metadata", metadata)
    assert aam("train", *files, f"--metadata-column={name}", "--members", "kernel") == USAGE
    assert "--output-dir" in capsys.readouterr().err
    assert sorted(bench.work.rglob("*")) == before


def test_the_folder_has_the_name_of_the_column(
    bench: Bench, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bench.work)
    _, *rows = bench.rows
    metadata = bench.metadata([["sample-id", "Height(cm)", "Weight"], *(row[:3] for row in rows)])
    files = (bench.good / "table.biom", metadata)
    # A name of which the column is the first word is nearer than one with other letters.
    assert aam("train", *files, "Height") == DATA
    assert "did you mean 'Height(cm)'?" in capsys.readouterr().err
    (bench.work / "Height(cm)").mkdir()
    (bench.work / "Height(cm)" / "mine.txt").write_text("mine")
    options = ("--members", "kernel", "--folds", 2)
    assert aam("train", *files, "Height(cm)", *options) == USAGE
    assert "mine.txt" in capsys.readouterr().err
    assert [path.name for path in (bench.work / "Height(cm)").iterdir()] == ["mine.txt"]
    (bench.work / "Height(cm)" / "mine.txt").unlink()
    assert aam("train", *files, "Height(cm)", *options) == 0
    assert (bench.work / "Height(cm)" / "scores.json").exists()


def test_files_that_are_no_text_are_named(bench: Bench, capsys: Capture) -> None:
    lines = bench.table(bench.counts).read_text()
    with zipfile.ZipFile(bench.work / "table.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    (bench.work / "plain.rds").write_bytes(b"X\n\0\0\0\3")
    (bench.work / "utf16.tsv").write_bytes(lines.encode("utf-16"))
    for name, named in (
        ("table.xlsx", "a spreadsheet"),
        ("plain.rds", ".rds"),
        ("utf16.tsv", "16"),
    ):
        assert aam("inspect", bench.work / name, bench.good / "metadata.tsv") == DATA
        of_table = capsys.readouterr().out
        assert aam("inspect", bench.good / "table.biom", bench.work / name) == DATA
        of_metadata = capsys.readouterr().out
        for shown in (of_table, of_metadata):
            assert named in " ".join(shown.split())


def test_a_column_of_sums_is_no_sample(bench: Bench, capsys: Capture) -> None:
    counts = bench.counts.copy()
    plain = open_blocks(bench.table(counts))
    counts["Total"] = counts.sum(axis=1)
    summed = open_blocks(bench.table(counts))
    assert "'Total' is the sum of the others" in capsys.readouterr().err
    assert summed.sample_ids == plain.sample_ids
    both = [next(table.blocks()).toarray() for table in (summed, plain)]
    assert np.array_equal(*both)
    # A sample of that name with reads of its own stays.
    counts.iloc[0, -1] += 1
    assert "Total" in open_blocks(bench.table(counts)).sample_ids
