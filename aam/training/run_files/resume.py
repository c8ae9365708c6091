"""Exact resumption: checkpoint I/O, and callbacks for the state that Lightning leaves out.

A resumed run has the batches, dropout, learning rates, metrics and best model of a run without the
interruption, on any number of ranks and in any folder.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from aam.contract.files import atomic_write
from aam.distributed import sharded_checkpoint
from aam.training.data_loader import EpochSampler
from aam.training.lightning_module import TrainingModule
from aam.training.losses import LossTerm
from aam.training.model_config import ModelConfig
from aam.training.run_files import checkpoints

_DROPOUT = 5
"""Second word of the seed of dropout; `data.batches` and `data_loader` have others."""

_SUMS = "train_sums"
"""Key of the training metrics of an unfinished epoch in a checkpoint."""


class ExactResume(Callback):
    """Callback that saves and restores the further state of a run, and seeds every step.

    The dropout of a step depends on the seed, the epoch, the step and the rank alone, so the state
    of the generators is not saved.

    Args:
        folder: of the checkpoints; the resumed run may have another one.
        patience: epochs without a better validation before training stops; 0 never stops.
    """

    def __init__(
        self, config: ModelConfig, sampler: EpochSampler, folder: Path, patience: int, rank: int
    ) -> None:
        self.config, self.sampler, self.folder = config, sampler, folder
        self.patience, self.rank = patience, rank

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the model configuration and the training metrics of the current epoch."""
        assert isinstance(pl_module, TrainingModule)
        checkpoints.add_config(checkpoint, self.config)
        checkpoint[_SUMS] = {
            name: [float(part.total), float(part.number)]
            for name, part in pl_module.train_sums.items()
        }

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore the position in the epoch, the metrics, the best model and the patience."""
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
                _change_folder(state, self.folder)
            elif key.startswith("EarlyStopping"):
                # Lightning would restore the old patience, and train one epoch too many.
                state["patience"] = self.patience
                trainer.should_stop = 0 < self.patience <= state["wait_count"]

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed the generators of all devices for this step."""
        entropy = [self.config.plan.seed, _DROPOUT, trainer.current_epoch, batch_idx, self.rank]
        seed = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
        torch.manual_seed(int(seed) >> 1)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoint I/O with atomic writes: a killed run leaves the last complete file."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Write beside `path`, flush to the disk, rename; remove the shards that it replaces."""
        shards = Path(path).resolve() if sharded_checkpoint.is_sharded(Path(path)) else None
        with atomic_write(Path(path)) as temporary, temporary.open("wb") as stream:
            torch.save(checkpoint, stream)
            stream.flush()
            os.fsync(stream.fileno())
        if shards is not None:
            shutil.rmtree(shards, ignore_errors=True)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Read and validate a checkpoint, on the CPU."""
        return checkpoints.read(Path(path))[1]


class WithinEpochs(ModelCheckpoint):
    """Checkpoint every N optimizer steps, except after the last step of an epoch.

    A run resumed from there would skip the validation of the epoch; the checkpoint of the epoch is
    saved after the validation. The class name is part of the checkpoint format.
    """

    _step = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Store the step at which the run begins."""
        super().on_train_start(trainer, pl_module)
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, idx: int
    ) -> None:
        """Save, unless the epoch ends or gradients are still accumulated."""
        stepped, self._step = trainer.global_step != self._step, trainer.global_step
        if stepped and not trainer.is_last_batch:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, idx)


def _change_folder(state: dict[str, Any], folder: Path) -> None:
    """Set the folder of a ModelCheckpoint's state; Lightning drops the scores of another folder.

    A best model whose file does not exist is removed from the state.
    """
    target = os.path.realpath(folder)

    def moved(path: str) -> str:
        return os.path.join(target, os.path.basename(path)) if path else path

    exists = os.path.exists(moved(state["best_model_path"]))
    state |= {
        "dirpath": target,
        "best_model_path": moved(state["best_model_path"]) if exists else "",
        "best_model_score": state["best_model_score"] if exists else None,
        "best_k_models": {moved(p): v for p, v in state["best_k_models"].items() if exists},
        "kth_best_model_path": moved(state["kth_best_model_path"]) if exists else "",
        "last_model_path": moved(state["last_model_path"]),
    }
