"""Memory warm-up: the largest batch of the first epoch is computed before the first step.

PyTorch's GPU allocator keeps the blocks of earlier batches. Where batches grow during an epoch, a
replay of its rules reserves up to twice what is allocated; with the largest batch first it is a
fifth more. The order of the samples stays, and weights, metrics and random numbers are those of a
run without the warm-up. A GPU that is too small for the epoch fails at once.
"""

from __future__ import annotations

import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from aam.data.batches import Batch
from aam.distributed.state_dict import local_tensor
from aam.numerics.device import is_gpu
from aam.training.callbacks.compilation import Note
from aam.training.data_loader import TrainingBatches
from aam.training.lightning_module import TrainingModule


class MemoryWarmUp(Callback):
    """Callback that computes the largest batch once, forward and backward, and discards it."""

    def __init__(self, batches: TrainingBatches, note: Note) -> None:
        self.batches, self.note = batches, note
        self._done = False

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Compute the largest batch of the epoch before the first step of this process."""
        if self._done:
            return
        self._done = True
        assert isinstance(pl_module, TrainingModule)
        step = self.batches.largest_step(trainer.current_epoch)
        largest = self.batches[trainer.current_epoch, step].to(pl_module.device)
        states = _optimizer_states(trainer, pl_module)
        sums = dict(pl_module.train_sums)
        devices = [pl_module.device] if is_gpu(pl_module.device) else []
        with torch.random.fork_rng(devices), warnings.catch_warnings():
            # Without a trainer the module logs nothing, and Lightning warns.
            warnings.filterwarnings("ignore", message=".*self.log.*")
            pl_module.trainer = None
            try:
                loss = trainer.strategy.training_step(largest, step)
            finally:
                pl_module.trainer = trainer
            assert isinstance(loss, Tensor)
            torch.autograd.backward(loss)
        pl_module.zero_grad()
        pl_module.train_sums = sums
        del states
        facts = {"epoch": trainer.current_epoch + 1, "batch": step + 1}
        self.note("memory_warm_up", facts | {"asvs": len(largest.asvs_U)})


def _optimizer_states(trainer: pl.Trainer, task: TrainingModule) -> list[Tensor]:
    """Return memory of the size that the first step of the optimizer allocates for its states."""
    if any(optimizer.state for optimizer in trainer.optimizers):
        return []
    trained = [local_tensor(p.detach()) for p in task.parameters() if p.requires_grad]
    return [torch.empty_like(tensor) for tensor in trained for _ in ("exp_avg", "exp_avg_sq")]
