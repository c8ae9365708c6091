"""Peak memory of a training step, predicted without a GPU and without the memory.

Two steps run on fake tensors, which have shapes and no values, while the bytes of live storages are
counted. The second step has the states of the optimizer. Shape suffixes: see `aam.data.batches`.
"""

from __future__ import annotations

import dataclasses
import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aam.contract.precision import Precision
from aam.data.batches import Batch
from aam.training.lightning_module import TrainingModule

BLOCK = 512
"""Bytes to which PyTorch's GPU allocator rounds every tensor up."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a training step, as the allocator counts them.

    Attributes:
        parameters, optimizer: the weights, and the states of the optimizer.
        gradients: of all trained parameters.
        activations: stored by the forward pass for the backward pass.
        peak: the most at any time, with the batch and temporary tensors.
    """

    parameters: int
    optimizer: int
    gradients: int
    activations: int
    peak: int


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count of the bytes of all storages that operations make, and of its maximum."""

    def __init__(self, block: int = BLOCK) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.block = block
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count the storages of its results."""
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self._count(value.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = size = -(-storage.nbytes() // self.block) * self.block
            weakref.finalize(storage, self._free, key)
            self.live += size
            self.peak = max(self.peak, self.live)

    def _free(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


def predict_step(
    make: Callable[[], TrainingModule],
    batch: Batch,
    precision: Precision,
    block: int = BLOCK,
    foreach: bool = True,
) -> StepMemory:
    """Return the memory of a step of the module that `make` builds, on a batch.

    Args:
        make: builds the module; every tensor that it makes is fake.
        batch: the largest batch of the run; its values are not read, its rows excepted.
        block: bytes to which the allocator rounds up.
        foreach: update all parameters at once, as optimizers do on GPUs.
    """
    with FakeTensorMode(allow_non_fake_inputs=True), LiveStorages(block) as storages:
        task = make().train()
        fake = _fake(batch)
        steps = TrainingSteps(task, precision, foreach)
        steps.run(fake)
        before = storages.live
        storages.peak = before
        stored = steps.run(fake, lambda: storages.live - before)
        size = _sizes(block)
        return StepMemory(
            parameters=size(task.parameters()),
            optimizer=size(
                value for state in steps.optimizer.state.values() for value in state.values()
            ),
            gradients=size(p.grad for p in task.parameters()),
            activations=stored,
            peak=storages.peak,
        )


class TrainingSteps:
    """Training steps in the order of Lightning: gradients live until the next backward pass."""

    def __init__(self, task: TrainingModule, precision: Precision, foreach: bool) -> None:
        self.task = task
        self.dtype = torch.float16 if precision == "fp16" else torch.bfloat16
        self.mixed = precision != "none"
        made = task.configure_optimizers()
        self.optimizer: torch.optim.Optimizer = made["optimizer"]
        for group in self.optimizer.param_groups:
            group["foreach"] = foreach

    def run(self, batch: Batch, after_forward: Callable[[], int] = lambda: 0) -> int:
        """Run one step and return the value of `after_forward`."""
        with torch.autocast("cpu", self.dtype, enabled=self.mixed), warnings.catch_warnings():
            # There is no trainer to log to.
            warnings.filterwarnings("ignore", message=".*self.log.*")
            loss = self.task.training_step(batch, 0)
        found = after_forward()
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.task.configure_gradient_clipping(self.optimizer, self.task.loop.max_grad_norm)
        self.optimizer.step()
        return found


def _fake(batch: Batch) -> Batch:
    """Return tensors of the same shapes; the rows keep values, which the target is read with."""
    shapes = {
        name: torch.empty(value.shape, dtype=value.dtype)
        for name, value in vars(batch).items()
        if isinstance(value, Tensor) and name != "rows_B"
    }
    return dataclasses.replace(batch, **shapes)  # type: ignore[arg-type]


def _sizes(block: int) -> Callable[[Iterable[Any]], int]:
    def size(values: Iterable[Any]) -> int:
        tensors = [value for value in values if isinstance(value, Tensor)]
        return sum(-(-t.untyped_storage().nbytes() // block) * block for t in tensors)

    return size
