"""Steps after the training: none costs the model, the predictions, or another step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from aam import AAMRegressor, AamWarning
from aam.contract.errors import DataError
from aam.contract.options.commands import options_of
from aam.contract.options.groups import MEMBERS, MemberEntry
from aam.data.metadata import read_metadata
from tests.support.commands import aam, read
from tests.support.run_folders import make_study


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A simulated study, and registered members that fail after the training."""
    for name in ("failing", "undefined"):
        entry = MemberEntry(name, "fails after the training", f"tests.support.{name}_member")
        monkeypatch.setitem(MEMBERS, name, entry)
    options_of.cache_clear()
    make_study(tmp_path / "study", samples=60)
    yield tmp_path / "study"
    options_of.cache_clear()


def test_no_asv_is_in_five_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    asvs = ["".join(rng.choice([*"ACGT"], 60)) for _ in range(40)]
    rows = [[*rng.permutation([90, 40, 9, 5] + [0] * 16)] for _ in asvs]
    samples = [f"s{column}" for column in range(20)]
    lines = ("\t".join(map(str, (asv, *row))) for asv, row in zip(asvs, rows, strict=True))
    header = "\t".join(["#OTU ID", *samples])
    (tmp_path / "table.tsv").write_text("\n".join([header, *lines]) + "\n")
    labels = "".join(
        f"{name}\t{value}\n" for name, value in zip(samples, rng.normal(size=20), strict=True)
    )
    (tmp_path / "metadata.tsv").write_text(f"sample-id\ty\n{labels}")
    given = (tmp_path / "table.tsv", tmp_path / "metadata.tsv", "y", "--members", "kernel")
    run = tmp_path / "run"
    assert aam("train", *given, "--folds", 2, "--output-dir", run) == 0
    assert "No ASV is in 5 samples or more" in capsys.readouterr().err
    assert (read(run / "importance.tsv")[["q_associated", "q_conditional"]] == 1).all(axis=None)


@pytest.mark.medium
def test_a_failure_costs_its_own_result_alone(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, files = tmp_path / "run", ("--table", study / "table.biom")
    given = (*files, "--metadata", study / "metadata.tsv", "--metadata-column", "ph")
    words = ("--members", "failing", "--study-column", "site", "--output-dir", run)
    assert aam("train", *given, *words) == 0
    shown = capsys.readouterr()
    for result, reason in [
        ("comparison of the studies", "studies of nothing"),
        ("importance of ASVs", "importance of nothing"),
    ]:
        complete = "model and predictions are complete: ZeroDivisionError"
        assert f"warning: No {result}, {complete}, {reason}" in shown.err
    assert "the baseline" in shown.out
    assert not (run / "importance.tsv").exists()
    record = json.loads((run / "run.json").read_text())
    assert {"model", "predictions.tsv", "scores.json", "report.html"} <= {*record["files"]}
    assert aam("predict", *files, "--model", run, "--output", tmp_path / "p.tsv") == 0
    labels = read_metadata(study / "metadata.tsv")
    ph = [float(text) for text in labels.values("ph", list(labels.ids))]
    with pytest.warns(AamWarning, match="No importance of ASVs"):
        fitted = AAMRegressor(members="failing", repeats=1).fit(
            study / "table.biom", pd.Series(ph, labels.ids)
        )
    assert fitted.importance_.empty and fitted.scores_["verdict"]


def test_a_training_without_scores_keeps_model_and_predictions(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, files = tmp_path / "run", ("--table", study / "table.biom")
    given = (*files, "--metadata", study / "metadata.tsv", "--metadata-column", "ph")
    words = ("--members", "undefined", "--repeats", 1, "--output-dir", run)
    assert aam("train", *given, *words) == DataError.status
    shown = capsys.readouterr().err
    assert "warning: No scores, model and predictions are complete: ValueError" in shown
    assert f"The model has no scores: '{run}' has it and predictions" in shown.splitlines()[-1]
    assert len(read(run / "predictions.tsv")) == 60 and (run / "model" / "model.json").exists()
