"""Peak memory of a training step, predicted without a GPU and without the memory.

Two steps run on fake tensors, which have shapes and no values, while the bytes of live storages are
counted. The second step has the states of the optimizer. Shape suffixes: see `aam.data.batches`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer

from aam.data.batches import Batch
from aam.distributed.strategies import shard
from aam.numerics.precision import Precision
from aam.performance.memory.ranks import ONE_RANK, Parallel, fake_process_group, use_buckets
from aam.performance.memory.storages import BLOCK, LiveStorages, size_of
from aam.training.optimizer import clip_gradients, make_optimizer
from aam.training.training_module import TrainingModule


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a training step of one rank, as the allocator counts them.

    Attributes:
        parameters, optimizer: the weights and buffers, and the states of the optimizer.
        gradients: of all trained parameters.
        activations: stored by the forward pass for the backward pass.
        peak: the most at any time, with the batch and temporary tensors.
    """

    parameters: int
    optimizer: int
    gradients: int
    activations: int
    peak: int


@dataclass(frozen=True)
class StepWorkload:
    """A training step.

    Attributes:
        loss: computes the forward pass and returns the loss.
        optimizer: makes the optimizer, after the model was sharded.
        max_grad_norm: norm at which gradients are clipped; 0: no clipping.
        accumulates: the gradients are added to those of an earlier batch.
    """

    model: nn.Module
    loss: Callable[[], Tensor]
    optimizer: Callable[[], Optimizer]
    max_grad_norm: float = 0.0
    accumulates: bool = False


def training_workload(task: TrainingModule, batch: Batch) -> StepWorkload:
    """Return the training step of a module on a batch."""
    return StepWorkload(
        task.train(),
        lambda: task(batch),
        lambda: make_optimizer(task, task.loop),
        task.loop.max_grad_norm,
        task.loop.gradient_accumulation_steps > 1,
    )


def predict_step(
    make: Callable[[], StepWorkload],
    precision: Precision,
    block: int = BLOCK,
    foreach: bool = True,
    parallel: Parallel = ONE_RANK,
) -> StepMemory:
    """Return the memory of a step of the workload that `make` builds.

    Args:
        make: builds the workload; every tensor that it makes is fake.
        block: bytes to which the allocator rounds up.
        foreach: update all parameters at once, as optimizers do on GPUs.
        parallel: ranks, of which the memory of the first is returned.
    """
    with (
        fake_process_group(parallel) as mesh,
        FakeTensorMode(allow_non_fake_inputs=True),
        LiveStorages(block) as storages,
    ):
        workload = make()
        if mesh is not None:
            shard(workload.model, mesh)
        elif parallel.ranks > 1:
            use_buckets(workload.model)
        steps = TrainingSteps(workload, precision, foreach)
        steps.begin()
        before = storages.live
        storages.peak = before
        stored = steps.run(lambda: storages.live - before)
        model, states = workload.model, steps.optimizer.state.values()
        trained = [p for p in model.parameters() if p.requires_grad]
        return StepMemory(
            parameters=size_of([*model.parameters(), *model.buffers()], block),
            optimizer=size_of((value for state in states for value in state.values()), block),
            gradients=size_of(trained, block),
            activations=stored,
            peak=storages.peak,
        )


class TrainingSteps:
    """Training steps in the order of `aam.training.loop`: gradients end before the next step."""

    def __init__(self, workload: StepWorkload, precision: Precision, foreach: bool) -> None:
        self.workload = workload
        self.dtype = torch.float16 if precision == "fp16" else torch.bfloat16
        self.mixed = precision != "none"
        self.optimizer = workload.optimizer()
        for group in self.optimizer.param_groups:
            group["foreach"] = foreach

    def begin(self) -> None:
        """Make the gradients and the states of the optimizer, as a first step leaves them."""
        for parameter in self.workload.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.empty_like(parameter)
        self.optimizer.step()

    def run(self, after_forward: Callable[[], int] = lambda: 0) -> int:
        """Run one step and return the value of `after_forward`."""
        with warnings.catch_warnings():
            # PyTorch 2.13 renames its reduce-scatter.
            warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
            if not self.workload.accumulates:
                self.optimizer.zero_grad()
            with torch.autocast("cpu", self.dtype, enabled=self.mixed):
                loss = self.workload.loss()
            found = after_forward()
            torch.autograd.backward(loss)
        if self.workload.max_grad_norm:
            clip_gradients(list(self.workload.model.parameters()), self.workload.max_grad_norm)
        self.optimizer.step()
        return found


def fake(batch: Batch) -> Batch:
    """Return a batch of the same shapes without values."""
    shapes = {
        name: torch.empty(value.shape, dtype=value.dtype)
        for name, value in vars(batch).items()
        if isinstance(value, Tensor)
    }
    return dataclasses.replace(batch, **shapes)  # type: ignore[arg-type]
