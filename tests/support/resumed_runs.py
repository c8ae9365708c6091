"""Runs of `aam` that are stopped and resumed, for tests.

Each part of a run is a process of its own (a fork of this one, which has imported everything) and
gets a real signal in the middle of one of its optimizer steps.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from aam.commands import training as _training  # noqa: F401  imported before the forks
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


def arguments_of(study_dir: Path, name: str, folder: Path, *more: object) -> list[str]:
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
        signal.signal(HUP, signal.SIG_DFL)  # these tests may run under nohup
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


def alike(first: Any, second: Any) -> bool:
    """Whether two contents of checkpoints are the same bit for bit."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(alike(first[k], second[k]) for k in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(alike, first, second))
    return bool(first == second)
