"""A member that a test registers by one module and one entry works in every command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from aam.contract.errors import DataError, UsageError
from aam.contract.options.commands import options_of
from aam.contract.options.groups import MEMBERS, MemberEntry
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.splits import Split
from aam.members.member import TrainingSamples
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from tests.support.commands import aam, read
from tests.support.richness_member import MEMBER
from tests.support.run_folders import make_study


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A simulated study, and the registered member."""
    entry = MemberEntry("line", "linear regression on richness", "tests.support.richness_member")
    monkeypatch.setitem(MEMBERS, "richness", entry)
    options_of.cache_clear()
    make_study(tmp_path / "study", samples=60)
    yield tmp_path / "study"
    options_of.cache_clear()


def train(study: Path, folder: Path, *members: str) -> int:
    table = ("--table", study / "table.biom", "--metadata", study / "metadata.tsv")
    given = ("--metadata-column", "ph", "--output-dir", folder, "--members", *members)
    return aam("train", *table, *given)


def test_help_names_it(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert aam("train", "--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "richness: linear regression on richness." in shown
    assert "Choices: kernel, forest, transformer, richness." in shown


def test_an_unregistered_member_is_refused(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(study, tmp_path / "run", "evenness") == UsageError.status
    assert "--members: 'evenness'; give kernel" in capsys.readouterr().err


@pytest.mark.medium
def test_it_trains_predicts_and_reports(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also importance; it has nothing to export."""
    run, table = tmp_path / "run", ("--table", study / "table.biom")
    assert train(study, run, "richness", "kernel") == 0
    held_out = read(run / "predictions.tsv")
    assert sorted(held_out["fold"].unique()) == [1, 2, 3, 4, 5]
    assert held_out["richness_predicted"].nunique() > 5
    models = json.loads((run / "scores.json").read_text())["models"]
    assert list(models) == ["ensemble", "richness", "kernel", "guess"]
    predicted = tmp_path / "predicted.tsv"
    assert aam("predict", "--model", run, *table, "--output", predicted) == 0
    assert read(predicted)["richness_predicted"].nunique() > 5
    # Its part is the remainder of an explanation; of a model without others there is none.
    why, again = tmp_path / "why.tsv", ("--output", predicted, "--overwrite")
    assert aam("predict", "--model", run, *table, *again, "--explain", why) == 0
    assert set(read(why)["kind"]) == {"mean", "ASV", "others", "remainder"}
    assert train(study, tmp_path / "alone", "richness") == 0
    status = aam("predict", "--model", tmp_path / "alone", *table, *again, "--explain", why)
    assert status == DataError.status
    assert aam("report", "--run-dir", run) == 0
    assert "richness" in (run / "report.html").read_text()
    ranked = tmp_path / "importance.tsv"
    assert aam("importance", "--model", tmp_path / "alone", *table, "--output", ranked) == 0
    assert (read(ranked)["richness"] > 0).all()
    capsys.readouterr()
    command = ("export", "--model", tmp_path / "alone", "--output-dir", tmp_path / "onnx")
    assert aam(*command) == DataError.status
    (line,) = capsys.readouterr().err.splitlines()
    assert "The model has no network to export: " in line
    assert not (tmp_path / "onnx").exists()


@pytest.mark.parametrize(("samples", "asvs", "kept"), [(4_001, 10_001, 0), (4_001, 10, 2)])
def test_models_of_the_folds_of_a_large_study_are_not_kept(
    samples: int, asvs: int, kept: int
) -> None:
    """All samples are predicted, and the model for new samples remains."""
    rng = np.random.default_rng(0)
    counts = sparse.random_array((samples, asvs), density=min(0.5, 20 / asvs), rng=rng).tocsr()
    study = TrainingSamples(
        Samples(counts, np.ones((asvs, 4), np.uint8), None), AsvRelations(np.ones((asvs, 4)))
    )
    rows, none = np.arange(samples), np.arange(0)
    splits = tuple(Split(rows[rows % 2 != k], none, rows[rows % 2 == k]) for k in range(2))
    folds = Folds(Labels.of(rng.normal(size=samples), (), None), splits, 0)
    member = MEMBER.cross_validate(study, folds)
    assert len(member.fold_models) == kept
    assert member.model is not None
    assert member.predictions_MC.shape == (samples, 1)
