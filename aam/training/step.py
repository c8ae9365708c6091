"""Forward and backward pass of a batch: mixed precision, loss scaling, accumulation, ranks."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from aam.data.batches import Batch
from aam.numerics.precision import Precision
from aam.training.training_module import TrainingModule


@dataclass(frozen=True)
class GradientStep:
    """Computation of the gradients of an optimizer step, batch by batch.

    Attributes:
        task: the network with its losses.
        model: the module to call: `task`, or its wrapper of DDP.
        precision: "none" (fp32), "bf16" or "fp16".
        scaler: scaler of the loss in fp16 (Micikevicius et al. 2018, "Mixed precision training");
            it is disabled in other precisions, where its factor is 1.
        batches: number of batches of an optimizer step (--gradient-accumulation-steps), at least
            1; their losses are averaged.
    """

    task: TrainingModule
    model: nn.Module
    precision: Precision
    scaler: GradScaler
    batches: int = 1

    @classmethod
    def of(
        cls, task: TrainingModule, model: nn.Module, precision: Precision = "none", batches: int = 1
    ) -> GradientStep:
        """Build the computation for a precision; the loss scaler is enabled for fp16 alone."""
        scaler = GradScaler(task.device.type, enabled=precision == "fp16")
        return cls(task, model, precision, scaler, batches)

    def autocast(self) -> torch.autocast:
        """Return the context of mixed precision."""
        dtype = torch.float16 if self.precision == "fp16" else torch.bfloat16
        enabled, device = self.precision != "none", self.task.device.type
        # A cached weight of half precision would add up its gradients in half precision.
        return torch.autocast(device, dtype, enabled, cache_enabled=False)

    def loss(self, batch: Batch) -> Tensor:
        """Compute the forward pass."""
        with self.autocast():
            loss: Tensor = self.model(batch)
        return loss

    def add_gradients(self, batch: Batch, last: bool) -> Tensor:
        """Add the scaled gradients of a batch to those of the step, and return its loss.

        Args:
            last: whether the batch is the last one of its optimizer step.

        Returns:
            The unscaled loss of the batch, a scalar without gradient.
        """
        # DDP reduces the gradients of the ranks once, with the last batch; FSDP with every batch.
        local = not last and isinstance(self.model, DistributedDataParallel)
        with self.model.no_sync() if local else nullcontext():  # type: ignore[operator]
            loss = self.loss(batch)
            torch.autograd.backward(self.scaler.scale(loss / self.batches))
        return loss.detach()
