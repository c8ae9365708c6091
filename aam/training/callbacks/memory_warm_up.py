"""Memory warm-up: the largest batch of the first epoch is computed before the first step.

PyTorch's GPU allocator keeps the blocks of earlier batches. Where batches grow during an epoch, a
replay of its rules reserves up to twice what is allocated; with the largest batch first it is a
fifth more. The order of the samples stays, and weights, metrics and random numbers are those of a
run without the warm-up. A GPU that is too small for the epoch fails at once.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from aam.data.batches import Batch
from aam.distributed.state_dict import local_tensor
from aam.numerics.device import is_gpu
from aam.training.data_loader import TrainingBatches
from aam.training.run_files.resume import Position
from aam.training.run_files.run_folder import Note
from aam.training.step import GradientStep


class MemoryWarmUp:
    """Forward and backward pass of the largest batch, once, before the first step of a process."""

    def __init__(
        self, step: GradientStep, optimizer: Optimizer, batches: TrainingBatches, note: Note
    ) -> None:
        self.step, self.optimizer, self.batches, self.note = step, optimizer, batches, note
        self._done = False

    def __call__(self, batch: Batch, position: Position) -> None:
        """Compute the largest batch of the epoch, and discard its gradients and metrics."""
        if self._done:
            return
        self._done = True
        task, epoch = self.step.task, position.epoch
        step = self.batches.largest_step(epoch)
        largest = self.batches[epoch, step].to(task.device)
        # Allocated before the backward pass, as in every step but the first, and freed after it.
        states = self._optimizer_states()
        sums = dict(task.train_sums)
        # The first step has to draw the dropout of a run without the warm-up.
        with torch.random.fork_rng([task.device] if is_gpu(task.device) else []):
            torch.autograd.backward(self.step.loss(largest))
        task.zero_grad()
        task.train_sums = sums
        del states
        facts = {"epoch": epoch + 1, "batch": step + 1, "asvs": len(largest.asvs_U)}
        self.note("memory_warm_up", facts)

    def _optimizer_states(self) -> list[Tensor]:
        """Return memory of the size that the optimizer allocates in its first step."""
        if self.optimizer.state:
            return []
        task = self.step.task
        trained = [local_tensor(p.detach()) for p in task.parameters() if p.requires_grad]
        return [torch.empty_like(tensor) for tensor in trained for _ in ("exp_avg", "exp_avg_sq")]
