"""--logger: files and trackers that get the metrics and options of a run."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from aam.contract.errors import Unavailable
from aam.pipeline.loggers import LOGGERS, Logger, Status
from tests.support.commands import TINY, aam, pretrain, read, train

ABSENT = [name for name, of in LOGGERS.items() if importlib.util.find_spec(of.module) is None]


def test_files_of_a_run_have_its_metrics(study_dir: Path, tmp_path: Path) -> None:
    args = ("--epochs", 2, "--logger", "tensorboard")
    assert train(study_dir, tmp_path / "run", *args) == 0
    losses = read(tmp_path / "run" / "metrics.csv")["val_loss"].tolist()
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [one.value for one in events.Scalars("val_loss")] == pytest.approx(losses, rel=1e-5)
    plugin = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    values = plugin_data_pb2.HParamsPluginData.FromString(plugin).session_start_info.hparams
    assert values["embedding_dim"].number_value == 8


@pytest.mark.slow
def test_a_tracker_gets_options_losses_and_final_scores(study_dir: Path, tmp_path: Path) -> None:
    """MLflow keeps a run for each fold, and one with the scores of all members."""
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("alembic", reason="MLflow's database")
    run = tmp_path / "run"
    args = ("--members", "transformer", "forest", "--folds", 2, "--logger", "mlflow")
    assert train(study_dir, run, *args) == 0
    client = mlflow.tracking.MlflowClient(f"sqlite:///{run}/mlflow.db")
    experiment = client.get_experiment_by_name("aam")
    found = {one.info.run_name: one.data for one in client.search_runs([experiment.experiment_id])}
    assert set(found) == {"run/fold-1", "run/fold-2", "run"}
    losses = read(run / "fold-1" / "metrics.csv")["val_loss"]
    assert found["run/fold-1"].metrics["val_loss"] == pytest.approx(losses.iloc[-1], rel=1e-5)
    scores = json.loads((run / "scores.json").read_text())["models"]["forest"]["metrics"]
    assert found["run"].metrics["test_r2/forest"] == pytest.approx(scores["r2"]["value"])
    assert found["run"].params["embedding_dim"] == "8"


@pytest.mark.skipif(not ABSENT, reason="every tracker is installed")
def test_a_tracker_that_is_not_installed_is_refused(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("pretrain", "train"):
        args = ("--table", study_dir / "table.biom", "--output-dir", tmp_path / "run", *TINY)
        if command == "train":
            args += ("--metadata", study_dir / "metadata.tsv", "--metadata-column", "ph")
        assert aam(command, *args, "--penalty", 0, "--logger", ABSENT[0]) == Unavailable.status
        shown = " ".join(capsys.readouterr().err.split())
        assert f"--logger {ABSENT[0]} needs the package {LOGGERS[ABSENT[0]].module}" in shown
        assert not (tmp_path / "run").exists()


class Recorder(Logger):
    """Tracker that keeps which runs were opened and how they ended."""

    module, tracker = "json", True
    opened: ClassVar[list[tuple[str | None, int]]] = []
    closed: ClassVar[list[str]] = []

    def __init__(
        self, folder: Path, name: str, options: Mapping[str, Any], id: str | None, step: int
    ) -> None:
        self.opened.append((id, step))
        self.id = id or f"run-{len(self.opened)}"

    def close(self, status: Status) -> None:
        self.closed.append(status)


def test_a_resumed_run_goes_on_in_the_run_of_its_tracker(
    study_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LOGGERS, "mlflow", Recorder)
    run = tmp_path / "run"
    args = ("--tree", study_dir / "tree.nwk", "--epochs", 2, "--logger", "mlflow")
    (tmp_path / "stop").touch()
    monkeypatch.setenv("AAM_STOP_FILE", str(tmp_path / "stop"))
    assert pretrain(study_dir, run, *args) == 75
    monkeypatch.delenv("AAM_STOP_FILE")
    assert pretrain(study_dir, run, *args, "--resume-from", "auto") == 0
    assert Recorder.closed == ["stopped", "complete"]
    assert Recorder.opened == [(None, 0), ("run-1", 1)]


def test_a_measured_run_is_no_failed_one(
    study_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LOGGERS, "mlflow", Recorder)
    monkeypatch.setattr(Recorder, "closed", [])
    monkeypatch.setenv("AAM_STEP_LOG", str(tmp_path / "steps.jsonl"))
    monkeypatch.setenv("AAM_STEPS", "2")
    args = ("--tree", study_dir / "tree.nwk", "--logger", "mlflow")
    assert pretrain(study_dir, tmp_path / "run", *args) == 0
    assert len((tmp_path / "steps.jsonl").read_text().splitlines()) == 2
    assert Recorder.closed == ["stopped"]
