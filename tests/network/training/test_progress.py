"""Progress: step, rate and time left in the log and progress.json, also after a resumption."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from aam.console import duration, track
from aam.contract.options.groups import LoopOptions
from aam.data.study import Study
from aam.network.batches import BatchPlan, TrainingBatches
from aam.network.inference.stored_networks import DiversityScale, ModelConfig
from aam.network.model.shape import NetworkShape
from aam.network.training.checkpoints import read_tensors, write_tensors
from aam.network.training.finite import FiniteCheck
from aam.network.training.module import GradientStep, LossWeights, TrainingModule
from aam.network.training.observers import Progress
from tests.support.commands import pretrain, read, train
from tests.support.rank_steps import train as train_loop

PLAN = BatchPlan(1, 200, 1024, mask_ratio=0.15, metric="unweighted")


def test_the_first_line_names_the_device_and_the_file_tells_the_progress(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    column = ("--folds", 2, "--epochs", 2)
    assert train(study_dir, tmp_path, "--penalty", 0, *column) == 0
    log = capsys.readouterr().err.splitlines()
    assert log[0] == f"Device: CPU, {torch.get_num_threads()} thread"
    found = json.loads((tmp_path / "progress.json").read_text())
    # 36 samples, two folds of 18, some of 18 validate: two batches of up to 8 an epoch.
    assert found["step"] == found["steps"] == 4
    assert (found["epoch"], found["epochs"]) == (2, 2)
    assert (found["fold"], found["folds"]) == (2, 2)
    assert found["samples_per_second"] > 0
    assert found["seconds_left"] == 0
    assert found["device"] == log[0].removeprefix("Device: ")
    assert found["updated"].endswith("+00:00")


def test_time_left_is_right_after_a_resumption(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The epochs before it took 100 hours each, on another node."""
    args = ("--tree", study_dir / "tree.nwk")
    assert pretrain(study_dir, tmp_path, *args, "--epochs", 2) == 0
    last = tmp_path / "checkpoints/last.ckpt"
    content = read_tensors(last)
    content["resume"]["seconds"] = 720_000.0
    write_tensors(last, content)
    capsys.readouterr()
    assert pretrain(study_dir, tmp_path, *args, "--epochs", 4, "--resume-from", tmp_path) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch ")]
    assert [line.split()[1] for line in lines] == ["3/4", "4/4"]
    assert "(8 d 8 h, " in lines[0]
    left = lines[0].rpartition(", ")[2]
    assert left.endswith(" s left)") and int(left.split()[0]) < 60
    assert "(8 d 8 h, 0 s left)" in lines[1]


class Slow(TrainingBatches):
    """Training batches that take long to read."""

    def __getitem__(self, key: tuple[int, int]):  # type: ignore[no-untyped-def]
        time.sleep(0.3)
        return super().__getitem__(key)


@pytest.mark.medium
def test_lines_appear_from_the_start_without_a_terminal(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = LoopOptions(epochs=2, batch_size=8)
    config = ModelConfig(
        "pretrain", NetworkShape(60, 8, 2, 1), "unweighted", PLAN, DiversityScale(), None, {}
    )
    batches = Slow(study, PLAN, np.arange(24), loop.batch_size, fresh_reads=True)
    table = tmp_path / "metrics.csv"
    progress = Progress(
        tmp_path / "progress.json", table, 24, "CPU", first_line=0.1, line_every=0.25
    )
    task = TrainingModule(config.network(), LossWeights(), loop, 6)
    step = GradientStep(task, task)
    check = FiniteCheck(step, (), tmp_path / "last.ckpt", lambda name, fact: None)
    train_loop(check, batches, observers=[progress])
    shown = capsys.readouterr().err.splitlines()
    lines = [line for line in shown if line.startswith("epoch ") and ", step " in line]
    assert lines[0].startswith("epoch 1/2, step 0/6, the first step is running for ")
    assert re.fullmatch(r"epoch [12]/2, step [1-6]/6, [\d.]+ samples/s, \d+ s left", lines[-1])
    found = json.loads((tmp_path / "progress.json").read_text())
    # Eight samples in 0.3 s and what the step takes.
    assert 0 < found["samples_per_second"] <= 8 / 0.3


def test_long_work_shows_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def slow():  # type: ignore[no-untyped-def]
        for item in range(4):
            time.sleep(0.05)
            yield item

    assert list(track(slow(), "Encoding ASVs", 4, "chunks", line_every=0.08)) == [0, 1, 2, 3]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Encoding ASVs: 2/4, ") and lines[0].endswith(" chunks/s, 0 s left")
    assert list(track(iter([1]), "Encoding ASVs", 1, "chunks")) == [1]
    assert capsys.readouterr().err == ""
    assert duration(59.7) == "1 min"


def test_early_stopping_and_the_chosen_epoch_are_reported(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--tree", study_dir / "tree.nwk", "--epochs", 9, "--patience", 2)
    # Steps too small for fp32: the loss stays what it is after the first epoch.
    assert pretrain(study_dir, tmp_path, *args, "--lr", 1e-30) == 0
    found = json.loads((tmp_path / "run.json").read_text())
    score = found["best"]["best_val_loss"]
    assert (found["epochs"], found["best"]["best_epoch"]) == (3, 1)
    assert read(tmp_path / "metrics.csv")["val_loss"].tolist() == pytest.approx([score] * 3)
    assert (
        "Stopped early after epoch 3 of 9: no better val_loss in 2 epochs (--patience). "
        f"Chosen: epoch 1 of 3, val_loss {score:.4g}.\n" in capsys.readouterr().err
    )
