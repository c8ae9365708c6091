"""A run that is stopped and resumed ends with the files of one that never stopped.

Each part of a run is a process of its own (a fork of this one, which has imported everything) and
gets a real signal in the middle of one of its optimiser steps.
"""

from __future__ import annotations

import os
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
from aam.ranks.signals import Requests
from tests.commands import TINY, aam

USR1, KILL, INT = signal.SIGUSR1, signal.SIGKILL, signal.SIGINT
TERM, HUP = signal.SIGTERM, signal.SIGHUP
STOPPED = 75
RUNS = {
    "pretraining": ("pretrain",),
    "regression": ("train", "--metadata-column", "ph"),
    "classification": ("train", "--metadata-column", "site", "--classifier"),
}
"""29 samples train in batches of 8: epochs of 4 steps, runs of 12."""

Stop = tuple[int, signal.Signals]


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

        def count(*_: Any) -> None:
            steps[0] += 1
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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_stopped_at_the_edges_of_epochs_is_the_same(
    study_dir: Path, whole: Any, tmp_path: Path, name: str, workers: int
) -> None:
    # Stopped in step 1; in 4, the last of an epoch; in 5, its checkpoint being that of step 4; in
    # 7; in 8, which is done again from the end of the epoch before; in 9 and 12, the last of all.
    stops = [(1, USR1), (3, TERM), (1, KILL), (3, INT), (1, KILL), (1, USR1), (3, KILL)]
    line = words(study_dir, name, tmp_path, "--num-workers", workers)
    in_parts(line, stops)
    same_runs(whole(name), tmp_path)


def test_a_learning_rate_that_falls_on_plateaus_is_the_same(
    study_dir: Path, tmp_path: Path
) -> None:
    """An epoch has two optimiser steps, of two batches each."""
    options = ("--scheduler", "plateau", "--gradient-accumulation-steps", 2)
    whole, parts = (
        words(study_dir, "pretraining", tmp_path / n, *options) for n in ("whole", "parts")
    )
    assert part(whole) == 0
    in_parts(parts, [(1, USR1), (1, TERM), (1, KILL), (2, USR1)])
    same_runs(tmp_path / "whole", tmp_path / "parts")


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


def test_a_second_interrupt_ends_the_process(study_dir: Path, tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        with Requests().heard() as requests:
            for pause in (0.0, 0.0, 1.1):  # a first one that arrives twice, and a second one
                time.sleep(pause)
                os.kill(os.getpid(), INT)
            assert requests.received
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
