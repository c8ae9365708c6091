"""Resumption: a stopped and resumed run ends with the files of an uninterrupted one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from aam.network.training.checkpoints import read_tensors
from aam.pipeline.stop_requests import StopRequests
from tests.support.commands import aam
from tests.support.resumed_runs import (
    HUP,
    INT,
    KILL,
    STOPPED,
    TERM,
    USR1,
    Stop,
    alike,
    arguments_of,
    part,
)

STOPS: dict[bool, list[Stop]] = {
    # Stopped in step 1; in 4, the last of an epoch; in 5, its checkpoint being that of step 4; in
    # 7; in 8, which is done again from the end of the epoch before; in 9 and 12, the last of all.
    False: [(1, USR1), (3, TERM), (1, KILL), (3, INT), (1, KILL), (1, USR1), (3, KILL)],
    # Stopped in step 1; in 5, after an epoch; in the second step of the second fold, the last of an
    # epoch; in its third step; and in the one after the next.
    True: [(1, USR1), (4, KILL), (4, INT), (1, USR1), (2, KILL)],
}
"""Steps that a part of a run makes before its signal; of folds or of one model."""

SIGNALS = (USR1, KILL, INT, TERM, HUP)


def in_parts(line: Sequence[str], stops: Sequence[Stop]) -> None:
    """Run `aam` in parts that are stopped one after the other, then to its end."""
    for stop in stops:
        assert part(line, stop) == (-KILL if stop[1] == KILL else STOPPED), stop
    assert part(line) == 0


def same_runs(one: Path, two: Path) -> None:
    """Check that two run folders hold the same models, metrics and tables."""
    for path in sorted(one.rglob("*.ckpt")):
        pair = [read_tensors(f / path.relative_to(one)) for f in (one, two)]
        assert alike(pair[0]["state_dict"], pair[1]["state_dict"]), path.relative_to(one)
        states = [content["resume"] for content in pair]
        for key in (
            "progress",
            "best",
            "epochs_without_improvement",
            "sums",
            "optimizer",
            "scaler",
        ):
            assert alike(states[0][key], states[1][key]), f"{path.relative_to(one)}: {key}"
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
    """Return the folder of a run that was never stopped, by name.

    It runs in this process, whose forks then need not import what it imported: 2 of the 2.7 seconds
    of a pretraining.
    """
    made: dict[str, Path] = {}

    def run(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / "run"
            assert aam(*arguments_of(study_dir, name, made[name])) == 0
        return made[name]

    return run


@pytest.mark.medium
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "name",
    [
        *("pretraining", "folds"),
        pytest.param("regression", marks=pytest.mark.nightly),
        pytest.param("classification", marks=pytest.mark.nightly),
    ],
)
def test_a_run_stopped_at_the_edges_of_epochs_is_the_same(
    study_dir: Path, whole: Any, tmp_path: Path, name: str, workers: int
) -> None:
    unstopped = whole(name)
    in_parts(
        arguments_of(study_dir, name, tmp_path, "--num-workers", workers), STOPS[name == "folds"]
    )
    same_runs(unstopped, tmp_path)


@pytest.mark.slow
def test_a_comparison_with_the_counts_alone_continues(study_dir: Path, tmp_path: Path) -> None:
    """Both networks train 12 steps; the second is stopped in its steps 2 and 7."""
    covariates = ("--categorical-columns", "site", "--categorical-embed-dim", 4)
    whole, parts = (
        arguments_of(study_dir, "regression", tmp_path / name, *covariates)
        for name in ("whole", "parts")
    )
    assert part(whole) == 0
    in_parts(parts, [(14, USR1), (5, KILL)])
    assert (tmp_path / "parts" / "counts-alone" / "metrics.csv").is_file()
    same_runs(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.medium
def test_a_run_that_was_stopped_early_has_ended(study_dir: Path, tmp_path: Path) -> None:
    line = arguments_of(
        study_dir, "pretraining", tmp_path, "--epochs", 30, "--lr", 0.3, "--patience", 1
    )
    assert part(line) == 0
    before = metrics(tmp_path / "metrics.csv")
    assert len(before) < 30
    assert part(line) == 0
    assert metrics(tmp_path / "metrics.csv") == before
    assert part([*line, "--patience", "3"]) == 0
    assert metrics(tmp_path / "metrics.csv")[: len(before)] == before
    assert len(metrics(tmp_path / "metrics.csv")) > len(before) + 1


def test_a_signal_that_is_ignored_stops_nothing(study_dir: Path, tmp_path: Path) -> None:
    assert part(arguments_of(study_dir, "pretraining", tmp_path), (2, HUP), ignored=HUP) == 0


@pytest.mark.medium
@pytest.mark.parametrize("fold", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_stop_request_after_the_steps_of_a_fold_stops_before_what_follows(
    study_dir: Path, whole: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], fold: int
) -> None:
    """SIGTERM comes while the trained model of a fold predicts, when no step runs."""
    unstopped, line = whole("folds"), arguments_of(study_dir, "folds", tmp_path)
    progress = tmp_path / "progress.json"
    pid = os.fork()
    if pid == 0:

        def terminate(*_: Any) -> None:
            found = json.loads(progress.read_text()) if progress.exists() else {"fold": 0}
            if found["fold"] == fold and found["step"] == found["steps"]:
                os.kill(os.getpid(), TERM)

        torch.nn.modules.module.register_module_forward_pre_hook(terminate)
        status = 70
        try:
            status = aam(*line)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == STOPPED
    shown = capfd.readouterr().err
    sentence = f"Stopped after fold {fold} of 2 by SIGTERM: the checkpoints in '{tmp_path}' are"
    assert sentence in shown
    assert not (tmp_path / f"fold-{fold + 1}").exists()
    assert not (tmp_path / "scores.json").exists()
    assert part(line) == 0
    same_runs(unstopped, tmp_path)


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


def test_a_request_at_the_end_of_a_training_reaches_the_handler_that_follows() -> None:
    received = []
    before = signal.signal(TERM, lambda number, frame: received.append(number))
    try:
        with StopRequests().handled() as stop, stop.handled():
            os.kill(os.getpid(), TERM)
            assert not received
    finally:
        signal.signal(TERM, before)
    assert received == [TERM]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no compiler")
def test_a_handler_in_c_stays(tmp_path: Path) -> None:
    """R, around Python, has handlers of its own; Python returns None for them."""
    (tmp_path / "own.c").write_text(
        """#include <signal.h>
        #include <unistd.h>
        static void own(int number) { write(1, "in C\\n", 5); }
        __attribute__((constructor)) static void install(void) { signal(SIGUSR1, own); }"""
    )
    library = tmp_path / "own.so"
    compiled = ["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "own.c"]
    subprocess.run([str(word) for word in compiled], check=True)
    code = (
        "import os, signal\n"
        "from aam.pipeline.stop_requests import StopRequests\n"
        "with StopRequests().handled(): pass\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, "LD_PRELOAD": str(library)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "in C\n"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("workers", "number"),
    [
        (0, USR1),
        (0, KILL),
        *(
            pytest.param(workers, number, marks=pytest.mark.nightly)
            for workers, number in ((0, INT), (0, TERM), (0, HUP), *((2, s) for s in SIGNALS))
        ),
    ],
)
@pytest.mark.parametrize("step", range(1, 13))
def test_a_run_stopped_at_any_step_by_any_signal_is_the_same(
    study_dir: Path, whole: Any, tmp_path: Path, step: int, workers: int, number: signal.Signals
) -> None:
    unstopped = whole("pretraining")
    line = arguments_of(study_dir, "pretraining", tmp_path, "--num-workers", workers)
    if number == KILL:
        line += ["--checkpoint-every-n-steps", "1"]
    in_parts(line, [(step, number)])
    same_runs(unstopped, tmp_path)


# Which run goes on, and where


@pytest.mark.medium
def test_a_run_that_was_moved_keeps_its_best_model(study_dir: Path, tmp_path: Path) -> None:
    diverging = ("--lr", 1, "--warmup-fraction", 1, "--max-grad-norm", 0)

    def line(folder: Path, *more: object) -> list[str]:
        return arguments_of(study_dir, "pretraining", folder, *diverging, *more)

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
