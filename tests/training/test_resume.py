"""Resumption: a stopped and resumed run ends with the files of an uninterrupted one.

Each part of a run is a process of its own (a fork of this one, which has imported everything) and
gets a real signal in the middle of one of its optimizer steps.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import aam.commands.pretrain
import aam.commands.train
from aam.contract.errors import CannotCreate, DataError, UsageError
from aam.contract.options.commands.studies import Simulate
from aam.data.simulation.files import write_study
from aam.data.simulation.simulate import simulate
from aam.distributed.signals import StopRequests
from aam.training import run_lock
from tests.support.commands import TINY, aam

USR1, KILL, INT = signal.SIGUSR1, signal.SIGKILL, signal.SIGINT
TERM, HUP = signal.SIGTERM, signal.SIGHUP
STOPPED = 75
NETWORK = ("--members", "transformer")
RUNS = {
    "pretraining": ("pretrain",),
    "regression": ("train", *NETWORK, "--metadata-column", "ph"),
    "classification": ("train", *NETWORK, "--metadata-column", "site", "--classifier"),
    "folds": ("train", *NETWORK, "--metadata-column", "ph", "--folds", "2"),
}
"""28 samples train in batches of 8: epochs of 4 steps, runs of 12; in a fold epochs of 2, of 6."""

Stop = tuple[int, signal.Signals]
STOPS: dict[bool, list[Stop]] = {
    # Stopped in step 1; in 4, the last of an epoch; in 5, its checkpoint being that of step 4; in
    # 7; in 8, which is done again from the end of the epoch before; in 9 and 12, the last of all.
    False: [(1, USR1), (3, TERM), (1, KILL), (3, INT), (1, KILL), (1, USR1), (3, KILL)],
    # Stopped in step 1; in 5, after an epoch; in the second step of the second fold, the last of an
    # epoch; in its third step; and in the one after the next.
    True: [(1, USR1), (4, KILL), (4, INT), (1, USR1), (2, KILL)],
}
"""Steps that a part of a run makes before its signal; of folds or of one model."""


def words(study_dir: Path, name: str, folder: Path, *more: object) -> list[str]:
    command, *task = RUNS[name]
    labels = ("--metadata", study_dir / "metadata.tsv", "--profile-features", 16)
    given = (
        *(command, *TINY, "--table", study_dir / "table.biom", "--tree", study_dir / "tree.nwk"),
        *("--epochs", 3, "--lr", 0.01, "--dropout", 0.2, "--output-dir", folder, *task),
        *(labels if command == "train" else ()),
        *("--resume-from", "auto", *more),
    )
    return [str(word) for word in given]


def part(line: Sequence[str], stop: Stop | None = None, ignored: Any = None) -> int:
    """Run `aam` in processes that get a signal in the n-th step; return the exit status.

    The signal reaches the data-loader workers too, as from a terminal or from Slurm. The status is
    negative if the signal ended the process, which ignores `ignored` as under nohup.
    """
    pid = os.fork()
    if pid == 0:
        os.setpgrp()
        if ignored is not None:
            signal.signal(ignored, signal.SIG_IGN)
        steps = [0]

        def count(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            # PyTorch initializes the state of an optimizer by a step with lr 0, when it loads one.
            steps[0] += optimizer.param_groups[0]["lr"] > 0
            if stop is not None and steps[0] == stop[0]:
                os.killpg(0, stop[1])

        register_optimizer_step_post_hook(count)
        status = 70
        try:
            status = aam(*line)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_parts(line: Sequence[str], stops: Sequence[Stop]) -> None:
    """Run `aam` in parts that are stopped one after the other, then to its end."""
    for stop in stops:
        assert part(line, stop) == (-KILL if stop[1] == KILL else STOPPED), stop
    assert part(line) == 0


def alike(first: Any, second: Any) -> bool:
    """Whether two contents of checkpoints are the same bit for bit."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(alike(first[k], second[k]) for k in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(alike, first, second))
    return bool(first == second)


def same_runs(one: Path, two: Path) -> None:
    """Check that two run folders hold the same models, metrics and tables."""
    for path in sorted(one.rglob("*.ckpt")):
        pair = [torch.load(f / path.relative_to(one), weights_only=True) for f in (one, two)]
        for key in ("epoch", "global_step", "state_dict", "optimizer_states", "lr_schedulers"):
            assert alike(pair[0][key], pair[1][key]), f"{path.relative_to(one)}: {key}"
    for path in sorted(one.rglob("*.tsv")):
        assert path.read_bytes() == (two / path.relative_to(one)).read_bytes(), path.name
    for path in sorted(one.rglob("metrics.csv")):
        assert metrics(path) == metrics(two / path.relative_to(one))


def metrics(path: Path) -> list[list[str]]:
    """Read the cells of metrics.csv, without the time that an epoch ended at."""
    rows = [line.split(",") for line in path.read_text().splitlines()]
    left_out = rows[0].index("seconds")
    return [row[:left_out] + row[left_out + 1 :] for row in rows]


@pytest.fixture(scope="module")
def whole(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the folder of a run that was never stopped, by name."""
    made: dict[str, Path] = {}

    def run(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / "run"
            assert part(words(study_dir, name, made[name])) == 0
        return made[name]

    return run


@pytest.fixture(scope="module")
def other_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other")
    options = Simulate(
        output_dir=folder, samples=36, asvs=90, length=60, richness=25, depth=900, subjects=12,
        seed=8,
    )  # fmt: skip
    write_study(simulate(options), options)
    return folder


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_stopped_at_the_edges_of_epochs_is_the_same(
    study_dir: Path, whole: Any, tmp_path: Path, name: str, workers: int
) -> None:
    in_parts(words(study_dir, name, tmp_path, "--num-workers", workers), STOPS[name == "folds"])
    same_runs(whole(name), tmp_path)


@pytest.mark.slow
def test_a_comparison_with_the_counts_alone_continues(study_dir: Path, tmp_path: Path) -> None:
    """Both networks train 12 steps; the second is stopped in its steps 2 and 7."""
    covariates = ("--categorical-columns", "site", "--categorical-embed-dim", 4)
    whole, parts = (
        words(study_dir, "regression", tmp_path / name, *covariates) for name in ("whole", "parts")
    )
    assert part(whole) == 0
    in_parts(parts, [(14, USR1), (5, KILL)])
    assert (tmp_path / "parts" / "counts-alone" / "predictions.tsv").is_file()
    same_runs(tmp_path / "whole", tmp_path / "parts")


def test_a_learning_rate_that_falls_on_plateaus_is_the_same(
    study_dir: Path, tmp_path: Path
) -> None:
    """An epoch has two optimizer steps, of two batches each."""
    options = ("--scheduler", "plateau", "--gradient-accumulation-steps", 2)
    whole, parts = (
        words(study_dir, "pretraining", tmp_path / n, *options) for n in ("whole", "parts")
    )
    assert part(whole) == 0
    in_parts(parts, [(1, USR1), (1, TERM), (1, KILL), (2, USR1)])
    same_runs(tmp_path / "whole", tmp_path / "parts")
    last = torch.load(tmp_path / "parts" / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["lr_schedulers"][0]["last_epoch"] == 3


def test_a_run_that_was_stopped_early_has_ended(study_dir: Path, tmp_path: Path) -> None:
    line = words(study_dir, "pretraining", tmp_path, "--epochs", 30, "--lr", 0.3, "--patience", 1)
    assert part(line) == 0
    before = metrics(tmp_path / "metrics.csv")
    assert len(before) < 30
    assert part(line) == 0
    assert metrics(tmp_path / "metrics.csv") == before
    assert part([*line, "--patience", "3"]) == 0
    assert metrics(tmp_path / "metrics.csv")[: len(before)] == before
    assert len(metrics(tmp_path / "metrics.csv")) > len(before) + 1


def test_a_signal_that_is_ignored_stops_nothing(study_dir: Path, tmp_path: Path) -> None:
    assert part(words(study_dir, "pretraining", tmp_path), (2, HUP), ignored=HUP) == 0


def test_a_stop_request_between_two_folds_stops_before_the_next(
    study_dir: Path, whole: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """SIGTERM comes while the trained model of the first fold predicts, when no step runs."""
    line = words(study_dir, "folds", tmp_path)
    progress = tmp_path / "progress.json"
    pid = os.fork()
    if pid == 0:

        def terminate(*_: Any) -> None:
            found = json.loads(progress.read_text()) if progress.exists() else {"fold": 0}
            if found["fold"] == 1 and found["step"] == found["steps"]:
                os.kill(os.getpid(), TERM)

        torch.nn.modules.module.register_module_forward_pre_hook(terminate)
        status = 70
        try:
            status = aam(*line)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == STOPPED
    message = f"Stopped after fold 1 of 2 by SIGTERM: the checkpoints in '{tmp_path}' are complete"
    assert message in capfd.readouterr().err
    assert not (tmp_path / "fold-2").exists()
    assert part(line) == 0
    same_runs(whole("folds"), tmp_path)


def test_a_second_interrupt_ends_the_process(study_dir: Path, tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            with StopRequests().handled():
                for pause in (0.0, 0.0, 1.1):  # a first one that arrives twice, and a second one
                    time.sleep(pause)
                    os.kill(os.getpid(), INT)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -INT


@pytest.mark.slow
@pytest.mark.parametrize("number", [USR1, KILL, INT, TERM, HUP])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", range(1, 13))
def test_a_run_stopped_at_any_step_by_any_signal_is_the_same(
    study_dir: Path, whole: Any, tmp_path: Path, step: int, workers: int, number: signal.Signals
) -> None:
    line = words(study_dir, "pretraining", tmp_path, "--num-workers", workers)
    if number == KILL:
        line += ["--checkpoint-every-n-steps", "1"]
    if step == 12 and number != KILL:  # what follows the last step is done before anything stops
        assert part(line, (step, number)) == 0
    else:
        in_parts(line, [(step, number)])
    same_runs(whole("pretraining"), tmp_path)


# Which run goes on, and where


def test_a_run_that_was_moved_keeps_its_best_model(study_dir: Path, tmp_path: Path) -> None:
    diverging = ("--lr", 1, "--warmup-fraction", 1, "--max-grad-norm", 0)

    def line(folder: Path, *more: object) -> list[str]:
        return words(study_dir, "pretraining", folder, *diverging, *more)

    assert part(line(tmp_path / "whole")) == 0
    rows = metrics(tmp_path / "whole" / "metrics.csv")
    losses = [float(row[rows[0].index("val_loss")]) for row in rows[1:]]
    assert losses[2] > min(losses[:2]), "the test needs a last epoch that is not the best"
    assert part(line(tmp_path / "first"), (9, USR1)) == STOPPED
    shutil.copytree(tmp_path / "first", tmp_path / "moved")
    elsewhere = line(tmp_path / "elsewhere", "--resume-from", tmp_path / "first")
    assert part(elsewhere) == 0
    same_runs(tmp_path / "whole", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "first")
    assert part(line(tmp_path / "moved")) == 0
    same_runs(tmp_path / "whole", tmp_path / "moved")


def test_a_resumed_run_has_the_options_and_the_split_of_before(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = words(study_dir, "regression", tmp_path)
    assert part(line, (3, USR1)) == STOPPED
    for option in (("--group-column", "subject"), ("--penalty", "0.3"), ("--dropout", "0.5")):
        assert aam(*line, *option) == UsageError.status
        assert f"has different options: {' '.join(option)} (was " in capsys.readouterr().err

    # A split that another version of this program might have made: two samples change sides.
    path = tmp_path / "splits.tsv"
    made = path.read_text().splitlines()
    first, second = (next(k for k, row in enumerate(made) if f"\t{side}\t" in row)
                     for side in ("train", "validation"))  # fmt: skip
    swapped = list(made)
    for here, there in ((first, second), (second, first)):
        swapped[here] = "\t".join([made[there].split("\t")[0], *made[here].split("\t")[1:]])
    path.write_text("\n".join(swapped) + "\n")
    free = ("--num-workers", "1", "--checkpoint-every-n-steps", "2", "--max-memory-gb", "4")
    assert part([*line, *free]) == 0
    assert sorted(path.read_text().splitlines()) == sorted(swapped) != sorted(made)


@pytest.mark.parametrize(
    ("line", "change", "reason"),
    [
        (1, ("epoch,", "era,"), "there is no column epoch"),
        (2, ("0,", "zero,"), "could not convert string to float: 'zero'"),
        (3, ("1,", "1,2,"), "the number of cells is not that of the columns"),
        (3, ("1,", '1"2,'), "could not convert string to float"),
    ],
)
def test_metrics_of_a_resumed_run_are_validated(
    study_dir: Path, whole: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    line: int, change: tuple[str, str], reason: str,
) -> None:  # fmt: skip
    shutil.copytree(whole("pretraining"), tmp_path / "run")
    path, last = tmp_path / "run/metrics.csv", tmp_path / "run/checkpoints/last.ckpt"
    content = torch.load(last, weights_only=True)
    del content["callbacks"]["EpochTable"]  # as in checkpoints of early versions
    torch.save(content, last)
    lines = path.read_text().splitlines()
    lines[line - 1] = lines[line - 1].replace(*change, 1)
    path.write_text("\n".join(lines) + "\n")
    again = [*words(study_dir, "pretraining", tmp_path / "run"), "--epochs", "4"]
    assert aam(*again) == DataError.status
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"metrics of the resumed run cannot be read: '{path}', line {line}, {reason}" in message


def test_a_resumed_run_has_the_input_of_before(
    study_dir: Path, other_study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = words(study_dir, "pretraining", tmp_path / "run")
    assert part(line, (5, USR1)) == STOPPED
    assert aam(*words(other_study, "pretraining", tmp_path / "run")) == DataError.status
    printed = capsys.readouterr().err
    assert f"has different input files: --table '{other_study / 'table.biom'}', SHA-256 " in printed
    assert "--pretrained-encoder" in printed
    shutil.copytree(study_dir, tmp_path / "copy")
    assert part(words(tmp_path / "copy", "pretraining", tmp_path / "run")) == 0


def test_pretraining_goes_on_with_another_study_as_a_new_run(
    study_dir: Path, other_study: Path, tmp_path: Path
) -> None:
    assert part(words(study_dir, "pretraining", tmp_path / "first")) == 0
    line = words(other_study, "pretraining", tmp_path / "second", "--embedding-dim", 12,
                 "--attention-heads", 5, "--pretrained-encoder", tmp_path / "first",
                 "--lr", 1e-30)  # fmt: skip
    assert part(line) == 0
    best = tmp_path / "first/checkpoints/best.ckpt", tmp_path / "second/checkpoints/last.ckpt"
    first, second = (torch.load(path, weights_only=True)["state_dict"] for path in best)
    assert alike(first, second)
    record = json.loads((tmp_path / "second" / "run.json").read_text())
    assert record["inputs"]["--pretrained-encoder"]["path"] == str(best[0])


def test_one_training_at_a_time_writes_to_a_folder(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = words(study_dir, "pretraining", tmp_path, "--epochs", 1)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with run_lock.locked(tmp_path):
            os.write(writing, b"locked")
            signal.pause()
    assert os.read(reading, 6) == b"locked"
    assert aam(*line) == CannotCreate.status
    printed = capsys.readouterr().err
    assert f"Another training writes to the run folder: '{tmp_path}', process {pid} on " in printed
    os.kill(pid, KILL)
    os.waitpid(pid, 0)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "notes.txt").touch()
    left = ["checkpoints/.last.4242.ckpt", "checkpoints/.best.another-node-7.ckpt", ".run.77.json"]
    for name in left:
        (tmp_path / name).write_text("of a process that was killed")
    assert aam(*line) == 0
    assert not any((tmp_path / name).exists() for name in left)
    assert (tmp_path / "notes.txt").exists()


def test_a_requeued_job_does_not_wait_for_the_lock_of_its_failed_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with run_lock.locked(tmp_path):
            os.write(writing, b"locked")
            signal.pause()
    os.read(reading, 6)
    try:
        with pytest.raises(CannotCreate), run_lock.locked(tmp_path):
            pass
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        with run_lock.locked(tmp_path) as held:
            assert not held
        monkeypatch.setenv("SLURM_JOB_ID", "13")
        with pytest.raises(CannotCreate):
            run_lock.check(tmp_path)
    finally:
        os.kill(pid, KILL)
        os.waitpid(pid, 0)
