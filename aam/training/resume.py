"""Exact resumption: the state that Lightning leaves out, and how a run goes on from a checkpoint.

A resumed run has the batches, dropout, learning rates, metrics and best model of one that was never
stopped, on however many ranks and in whatever folder it goes on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback

from aam.training.checkpoints import add_config
from aam.training.data_loader import EpochSampler
from aam.training.lightning_module import TrainingModule
from aam.training.losses import LossTerm
from aam.training.model_config import ModelConfig

_DROPOUT = 5
"""Second word of the seed of dropout; `data.batches` and `data_loader` have others."""

_SUMS = "train_sums"
"""Key of the training metrics of an unfinished epoch in a checkpoint."""


class ExactResume(Callback):
    """Stores what Lightning does not, goes on from it, and seeds every step.

    The dropout of a step depends on the seed, the epoch, the step and the rank alone, so there is
    no state of generators to carry over.

    Args:
        config: of the model, stored in each checkpoint.
        sampler: of the training batches.
        folder: of the checkpoints; those of the run that is resumed may lie elsewhere.
        patience: epochs without a better validation before training stops; 0 never stops.
        rank: of this process.
    """

    def __init__(
        self, config: ModelConfig, sampler: EpochSampler, folder: Path, patience: int, rank: int
    ) -> None:
        self.config, self.sampler, self.folder = config, sampler, folder
        self.patience, self.rank = patience, rank

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the config and the training metrics of the epoch so far."""
        assert isinstance(pl_module, TrainingModule)
        add_config(checkpoint, self.config)
        checkpoint[_SUMS] = {
            name: [float(part.total), float(part.number)]
            for name, part in pl_module.train_sums.items()
        }

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Go on with the next batch, the metrics so far, the best model and the patience left."""
        assert isinstance(pl_module, TrainingModule)
        loop = checkpoint["loops"]["fit_loop"]
        done = loop["epoch_loop.batch_progress"]["current"]["processed"]
        epoch = loop["epoch_progress"]["current"]["processed"]
        self.sampler.resume(epoch, done % self.sampler.steps)
        pl_module.train_sums = {
            name: LossTerm(*(torch.tensor(value, dtype=torch.float64) for value in sums))
            for name, sums in checkpoint.get(_SUMS, {}).items()
        }
        for key, state in checkpoint["callbacks"].items():
            if key.startswith("ModelCheckpoint"):
                _move(state, self.folder)
            elif key.startswith("EarlyStopping"):
                # Lightning would keep the patience of before, and train an epoch too many.
                state["patience"] = self.patience
                trainer.should_stop = 0 < self.patience <= state["wait_count"]

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed the generators of all devices for this step."""
        words = [self.config.plan.seed, _DROPOUT, trainer.current_epoch, batch_idx, self.rank]
        seed = np.random.SeedSequence(words).generate_state(1, np.uint64)[0]
        torch.manual_seed(int(seed) >> 1)


class PlateauStep(Callback):
    """Lowers the learning rate on a plateau before the epoch's checkpoint is written.

    Lightning does it afterwards, so that a resumed run would never see the epoch.
    """

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the validation loss to the scheduler."""
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau and config.monitor in trainer.callback_metrics:
                config.scheduler.step(trainer.callback_metrics[config.monitor])  # type: ignore[arg-type]


def _move(state: dict[str, Any], folder: Path) -> None:
    """Make the state of a ModelCheckpoint one of `folder`, where Lightning would drop its scores.

    Without its file a best model is forgotten.
    """
    place = os.path.realpath(folder)

    def moved(path: str) -> str:
        return os.path.join(place, os.path.basename(path)) if path else path

    there = os.path.exists(moved(state["best_model_path"]))
    state |= {
        "dirpath": place,
        "best_model_path": moved(state["best_model_path"]) if there else "",
        "best_model_score": state["best_model_score"] if there else None,
        "best_k_models": {moved(p): v for p, v in state["best_k_models"].items() if there},
        "kth_best_model_path": moved(state["kth_best_model_path"]) if there else "",
        "last_model_path": moved(state["last_model_path"]),
    }
