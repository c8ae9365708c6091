"""`aam train --adjust-for`: associations and the score of the counts beyond metadata columns."""

from __future__ import annotations

import html
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from aam import console
from aam.contract.errors import DataError, UsageError
from aam.evaluation.scores import Scores
from tests.support.commands import aam, read


@pytest.mark.medium
def test_associations_are_adjusted_for_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the target explains all of it, a site nothing; the score beyond is stated."""
    study = ("--samples", 80, "--asvs", 90, "--output-dir", tmp_path / "study")
    assert aam("example", *study) == 0
    table = tmp_path / "study/table.biom"
    metadata = pd.read_csv(tmp_path / "study/metadata.tsv", sep="\t", index_col=0, skiprows=[1])
    metadata["copy"] = metadata["ph"] + np.random.default_rng(0).normal(0, 0.01, len(metadata))
    metadata.iloc[:7, metadata.columns.get_loc("site")] = np.nan
    metadata.to_csv(tmp_path / "m.tsv", sep="\t")
    args = ("train", "--table", table, "--metadata", tmp_path / "m.tsv")
    args = (*args, "--metadata-column", "ph", "--folds", 2, "--members", "kernel")
    named = {}
    for column in ("site", "copy"):
        folder = tmp_path / column
        assert aam(*args, "--output-dir", folder, "--adjust-for", column) == 0
        importance = read(folder / "importance.tsv")
        named[column] = int((importance["q_adjusted"] < 0.1).sum())
        plain = int((importance["q_associated"] < 0.1).sum())
        page = " ".join((folder / "report.html").read_text().split())
        beyond = Scores.read(folder / "scores.json").beyond
        assert beyond is not None and beyond.value is not None
        assert (beyond.beyond_noise and beyond.value > 0) == (column == "site")
        error = capsys.readouterr().err
        printed = " ".join(error.split())
        adjusted = f"; {named[column]} once the metadata columns of"
        assert adjusted in page
        assert html.escape(beyond.sentence, quote=False) in page.replace("&#39;", "'")
        assert beyond.sentence in printed
        missing = f"7 of {len(metadata)} samples have no value of"
        assert (missing in printed) == (column == "site")
    assert named["copy"] == 0 < named["site"] and plain > 0
    # `aam importance` shows the test that the model stores.
    assert aam("importance", "--model", tmp_path / "site", "--table", table,
               "--output", tmp_path / "i.tsv") == 0  # fmt: skip
    assert int((read(tmp_path / "i.tsv")["q_adjusted"] < 0.1).sum()) == named["site"]
    for column, status in (("nothing", DataError.status), ("ph", UsageError.status)):
        wrong = aam(*args, "--output-dir", tmp_path / "w", "--adjust-for", column)
        assert wrong == status and not (tmp_path / "w/run.json").exists()
    # A column without a value leaves no sample to the adjusted test, and the others stand.
    metadata.assign(empty="").to_csv(tmp_path / "m.tsv", sep="\t")
    written = io.StringIO()
    terminal = Console(file=written, force_terminal=True, width=200, color_system=None)
    monkeypatch.setattr(console, "console", terminal)
    assert aam(*args, "--output-dir", tmp_path / "e", "--adjust-for", "empty") == 0
    for step in ("Kernel, counts with empty", "Kernel, empty alone"):
        assert step in written.getvalue()
    importance = read(tmp_path / "e/importance.tsv")
    assert {"q_associated", "q_conditional"} < set(importance) and "q_adjusted" not in importance
    assert (tmp_path / "e/report.html").exists()
