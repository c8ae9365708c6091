"""Ids and groups with quotes, tabs and line ends, through every file of a run."""

from __future__ import annotations

import csv
from pathlib import Path

import biom
import pytest

from aam.contract.errors import DataError
from tests.support.commands import aam, read

ODD = ('"quoted"', 'in"side', '"start', "a\ttab", "a\nline", "a\rreturn", "'one'")


@pytest.mark.slow
def test_ids_and_groups_with_quotes_tabs_and_line_ends(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = biom.load_table(str(study_dir / "table.biom"))
    odd_of = dict(zip(table.ids(), ODD, strict=False))
    table.update_ids(odd_of, strict=False)
    with biom.util.biom_open(str(tmp_path / "table.biom"), "w") as stream:
        table.to_hdf5(stream, "test")
    with (study_dir / "metadata.tsv").open(newline="") as stream:
        header, types, *rows = csv.reader(stream, dialect="excel-tab")
    group = header.index("subject")
    groups = sorted({row[group] for row in rows})
    odd_group = dict(zip(groups, ODD, strict=False))
    for row in rows:
        row[0] = odd_of.get(row[0], row[0])
        row[group] = odd_group.get(row[group], row[group])
    with (tmp_path / "metadata.tsv").open("w", newline="") as stream:
        # The first column is quoted: a line that begins with # is a comment.
        csv.writer(stream, dialect="excel-tab", quoting=csv.QUOTE_ALL).writerows(
            [header, types, *rows]
        )
    given = ("--table", tmp_path / "table.biom", "--metadata", tmp_path / "metadata.tsv")
    column = ("--metadata-column", "ph", "--group-column", "subject")
    run, again = tmp_path / "run", tmp_path / "again"
    assert aam("train", *given, *column, "--folds", 3, "--output-dir", run) == 0
    shown = capsys.readouterr().err
    assert "No report" not in shown
    assert "ids with tabs or line ends cannot be written as the text format" in shown
    assert aam("train", *given, *column, "--splits", run / "splits.tsv", "--output-dir", again) == 0
    assert "No report" not in capsys.readouterr().err
    for name in ("splits.tsv", "predictions.tsv", "explanations.tsv"):
        assert (run / name).read_bytes() == (again / name).read_bytes()
    assert set(odd_of.values()) <= set(read(run / "splits.tsv")["sample-id"])
    assert set(odd_group.values()) <= set(read(run / "splits.tsv")["group"])
    assert aam("compare", run, again) == 0
    new = tmp_path / "new.tsv"
    assert aam("predict", "--model", run, *given[:2], "--output", new) == 0
    evaluated = ("--predictions", run / "predictions.tsv", "--metadata-column", "ph", *given[2:])
    assert aam("evaluate", *evaluated) == 0
    tree = (*given[:2], "--tree", study_dir / "tree.nwk")
    faith = ("--output", tmp_path / "faith.tsv", "--unifrac-metric", "faith_pd")
    assert aam("unifrac", *tree, *faith) == 0
    assert set(odd_of.values()) <= set(read(tmp_path / "faith.tsv")["sample-id"])
    assert aam("unifrac", *tree, "--output", tmp_path / "m.tsv") == DataError.status
    assert aam("unifrac", *tree, "--output", tmp_path / "m.h5") == 0
