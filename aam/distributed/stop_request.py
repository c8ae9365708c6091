"""Stop on request: a checkpoint after the same optimizer step on all ranks.

A stop request (`aam.distributed.signals`) may reach one rank, some or all, at different moments, so
the ranks reduce a flag after every step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from aam.contract import stop_file
from aam.contract.errors import Interrupted
from aam.distributed.communicator import Communicator
from aam.distributed.signals import StopRequests


class StopOnRequest(Callback):
    """After each optimizer step, stops all ranks with a checkpoint if any has a stop request.

    After the last step of an epoch they stop before the next epoch instead: the validation belongs
    to the epoch, and a resumed run would not repeat it.
    """

    def __init__(self, requests: StopRequests, communicator: Communicator, path: Path) -> None:
        self.requests, self.communicator, self.path = requests, communicator, path
        self._first = self._step = -1
        self._moved = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Install the signal handlers again: those of Lightning start a collective at any time."""
        self.requests.install()
        self._first = self._step = trainer.global_step
        self._moved = False

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, idx: int
    ) -> None:
        """Stop if any rank has a request; between two optimizer steps gradients would be lost."""
        if trainer.global_step == self._step:
            return
        self._step, self._moved = trainer.global_step, True
        self.communicator.publish_step(self._step)
        if not trainer.is_last_batch and self._requested():
            trainer.save_checkpoint(self.path)
            raise self._stopped()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop if a request came while the epoch before ended, which has been saved."""
        if self._moved and self._requested():
            raise self._stopped()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count the steps of a fit that is complete; a run of folds has several."""
        self._count_steps()

    def _requested(self) -> bool:
        return self.communicator.any_rank(self.requests.pending)

    def _stopped(self) -> Interrupted:
        self._count_steps()
        return Interrupted(
            f"Stopped at step {self._step}{self.requests.by_signal}",
            f"'{self.path}' is written",
            "go on with --resume-from auto",
        )

    def _count_steps(self) -> None:
        if self.requests.file and self.communicator.ranks.is_main:
            stop_file.count_steps(self.requests.file, self._step - self._first)
