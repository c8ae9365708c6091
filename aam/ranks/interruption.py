"""Stopping when asked to: a checkpoint at the next step, on all ranks at the same one.

Slurm sends a signal before the time is up, a scheduler that needs the node sends another. The
signal may reach one process, some or all, at different moments: after every step the processes ask
each other whether any has got one. One that comes before it is heard ends a process at once, so the
variable AAM_HEARS may name a file, which the first process keeps while it hears.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from aam.errors import Interrupted
from aam.ranks.team import Team

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


class Requests:
    """Remembers the first signal that asked this process to stop.

    Args:
        marker: a file that is there while signals are heard, for those who send them.
    """

    def __init__(self, marker: Path | None = None) -> None:
        self.received: signal.Signals | None = None
        self._marker = marker

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Take a signal (Python calls this between two instructions)."""
        self.received = self.received or signal.Signals(number)

    @contextmanager
    def heard(self) -> Iterator[Requests]:
        """Hear the signals while the block runs."""
        before = {number: signal.signal(number, self) for number in SIGNALS}
        try:
            yield self
        finally:
            if self._marker:
                self._marker.unlink(missing_ok=True)
            for number, handler in before.items():
                signal.signal(number, handler)

    def hear(self) -> None:
        """Take the signals from whoever has them, and say that they are heard."""
        for number in SIGNALS:
            signal.signal(number, self)
        if self._marker:
            self._marker.touch()


class StopTogether(Callback):
    """After each optimiser step, stops all ranks with a checkpoint if any was asked to stop.

    Nobody stops after the last step of an epoch: what judges it belongs to it, and a run that goes
    on would not make up for it. They stop before the next epoch instead.
    """

    def __init__(self, requests: Requests, team: Team, path: Path) -> None:
        self.requests, self.team, self.path = requests, team, path
        self._step, self._moved = -1, False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the signals back from Lightning, whose handler talks to other ranks at any time."""
        self.requests.hear()
        self._step, self._moved = trainer.global_step, False

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Stop if any rank was asked to; between two optimiser steps gradients would be lost."""
        if trainer.global_step == self._step:
            return
        self._step, self._moved = trainer.global_step, True
        self.team.reached(self._step)
        if not trainer.is_last_batch and self._asked():
            trainer.save_checkpoint(self.path)
            raise self._stopped()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop if any rank was asked to while the epoch before ended, which has been saved."""
        if self._moved and self._asked():
            raise self._stopped()

    def _asked(self) -> bool:
        return self.team.any(self.requests.received is not None)

    def _stopped(self) -> Interrupted:
        received = self.requests.received
        return Interrupted(
            f"Stopped at step {self._step}" + (f" by {received.name}" if received else ""),
            f"'{self.path}' is written",
            "go on with --resume-from auto",
        )
