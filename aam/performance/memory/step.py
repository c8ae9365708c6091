"""Peak memory of a training step, predicted without a GPU and without the memory.

A step runs on fake tensors, which have shapes and no values, while `LiveStorages` counts the bytes
of all tensors. Gradients and the states of the optimizer exist before it, as in any later step. Of
several ranks the first is predicted, whose shard of a batch is the largest; its process group has
one process, and its collectives move nothing.
"""

from __future__ import annotations

import dataclasses
import importlib
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aam.contract.errors import Unavailable
from aam.data.batches import Batch
from aam.distributed.strategies import FSDP_ON_CPU, DTensor, local_tensor, shard
from aam.numerics.device import Precision
from aam.training.loop import clip_gradients, make_optimizer
from aam.training.module import TrainingModule

BLOCK = 512
"""Bytes to which PyTorch's GPU allocator rounds every tensor up."""


@dataclass(frozen=True)
class Parallel:
    """Number of ranks, and whether they shard the network (FSDP) or copy it (DDP)."""

    ranks: int = 1
    fsdp: bool = False


ONE_RANK = Parallel()


@contextmanager
def fake_process_group(parallel: Parallel) -> Iterator[DeviceMesh | None]:
    """Make a process group of the ranks without their processes; yield its mesh for FSDP."""
    if parallel.ranks == 1:
        yield None
        return
    if not FSDP_ON_CPU:
        raise Unavailable(
            "The memory of several ranks cannot be predicted with this PyTorch",
            f"PyTorch {torch.__version__}",
            "use PyTorch 2.6 or later",
        )
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # PyTorch 2.7 needs its kernels for collectives of tensors without values, 2.13 does not.
    importlib.import_module("torch.distributed._tools.fake_collectives")
    dist.init_process_group("fake", rank=0, world_size=parallel.ranks, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (parallel.ranks,)) if parallel.fsdp else None
    finally:
        dist.destroy_process_group()


def use_buckets(model: nn.Module) -> None:
    """Hold all gradients in one tensor, as views (DDP's `gradient_as_bucket_view`).

    The tensor exists from the beginning, and each gradient is copied there when it is complete.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    sizes = [p.numel() for p in trained]
    parts = torch.split(torch.empty(sum(sizes)), sizes)

    def keep(view: Tensor, parameter: Tensor) -> None:
        if parameter.grad is not None and parameter.grad is not view:
            view.copy_(parameter.grad)
            parameter.grad = view

    for parameter, part in zip(trained, parts, strict=True):
        hook = partial(keep, part.view_as(parameter))
        parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a training step of one rank, as the allocator counts them.

    Attributes:
        parameters, optimizer: bytes of weights and buffers, and of the optimizer's states.
        gradients: bytes of the gradients of all trained parameters.
        activations: bytes that the forward pass stores for the backward pass.
        peak: largest number of bytes at any time, with the batch and temporary tensors.
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
        model: module that is trained.
        loss: function that computes the forward pass and returns the loss.
        optimizer: function that makes the optimizer, after the model was sharded.
        max_grad_norm: norm at which gradients are clipped; 0: no clipping.
        accumulates: whether the gradients are added to those of an earlier batch.
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
    """Return the memory of a step of the workload that `make` builds."""
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
        # From here on as in any later step: weights, gradients and optimizer states exist.
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
            # With accumulated gradients those of an earlier batch exist beside the activations,
            # which is the larger peak.
            if not self.workload.accumulates:
                self.optimizer.zero_grad()
            with torch.autocast("cpu", self.dtype, enabled=self.mixed):
                loss = self.workload.loss()
            stored = after_forward()
            torch.autograd.backward(loss)
        if self.workload.max_grad_norm:
            clip_gradients(list(self.workload.model.parameters()), self.workload.max_grad_norm)
        self.optimizer.step()
        return stored


def fake(batch: Batch) -> Batch:
    """Return a batch of the same shapes without values."""
    shapes = {
        name: torch.empty(value.shape, dtype=value.dtype)
        for name, value in vars(batch).items()
        if isinstance(value, Tensor)
    }
    return dataclasses.replace(batch, **shapes)  # type: ignore[arg-type]


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count of the bytes of all storages that operations make, and of its maximum.

    Args:
        block: bytes to which the allocator rounds every tensor up.
    """

    def __init__(self, block: int = BLOCK) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.block = block
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> LiveStorages:
        # FSDP empties and refills the storages of gathered parameters with `resize_`, which is no
        # operation that the mode intercepts.
        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            resized = self._resize(storage, size)
            if storage._cdata in self._sizes:
                self._set(storage._cdata, size)
            return resized

        torch.UntypedStorage.resize_ = resize  # type: ignore[assignment,method-assign]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tell PyTorch not to wrap each operation for its compiler, which takes a tenth of all."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count the storages of its results."""
        if any(issubclass(found, DTensor) for found in types):
            return NotImplemented  # its operations on local tensors follow
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self._count(value.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            # By the storage and not the tensor: views share one, which lives as long as any of
            # them.
            weakref.finalize(storage, self._free, key)
            self._set(key, storage.nbytes())

    def _set(self, key: int, size: int) -> None:
        size = rounded(size, self.block)
        self.live += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self.live)

    def _free(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


def rounded(size: int, block: int) -> int:
    """Return a number of bytes rounded up to whole blocks.

    >>> rounded(1, 512), rounded(1024, 512)
    (512, 1024)
    """
    return -(-size // block) * block


def size_of(values: Iterable[Any], block: int) -> int:
    """Return the bytes of all tensors in `values`; of sharded ones the part of this rank."""
    tensors = [local_tensor(value) for value in values if isinstance(value, Tensor)]
    return sum(rounded(tensor.untyped_storage().nbytes(), block) for tensor in tensors)
