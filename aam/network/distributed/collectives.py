"""Collectives of training: all-gather of rows with their gradient, all-reduce, broadcast; FSDP.

With one rank each function returns its argument. All ranks call the same functions in the same
order, even a rank without rows. FSDP is PyTorch's `fully_shard` (FSDP 2): each parameter is
sharded, and parameters are gathered one transformer layer at a time. It runs on GPUs and, for
tests, on CPUs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from aam.contract.errors import AamError, DataError, Unavailable, UsageError
from aam.contract.options.groups import ScaleOptions
from aam.contract.version import __version__
from aam.data.study import Study
from aam.environment import SINGLE_RANK, RankGroup, Ranks, T
from aam.network.model.transformer import TransformerBlock
from aam.network.numerics.device import CONTROL_BACKEND, is_gpu
from aam.run_record import launched_by


def world_size() -> int:
    """Return the number of ranks in the process group, 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _Gather(torch.autograd.Function):
    """All-gather of rows in the order of ranks; its backward is a reduce-scatter of gradients."""

    @staticmethod
    def forward(ctx: Any, local_ND: Tensor, sizes: tuple[int, ...]) -> Tensor:
        ctx.sizes, longest = sizes, max(sizes)
        # PyTorch's all-gather needs tensors of one shape on every rank, even on a rank without
        # rows.
        padded = F.pad(local_ND.contiguous(), (0, 0, 0, longest - len(local_ND)))
        gathered = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(gathered, padded)
        return torch.cat([rows[:size] for rows, size in zip(gathered, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        sizes, rank = ctx.sizes, dist.get_rank()
        if dist.get_backend() != CONTROL_BACKEND:
            by_rank, longest = torch.split(grads[0].contiguous(), sizes), max(sizes)
            padded = [F.pad(rows, (0, 0, 0, longest - len(rows))) for rows in by_rank]
            shard = torch.empty_like(padded[rank])
            dist.reduce_scatter_tensor(shard, torch.cat(padded))
            return shard[: sizes[rank]], None
        # Gloo of older PyTorch has no reduce-scatter and does not add half precision.
        total = grads[0].contiguous()
        total = total.float() if total.dtype in (torch.bfloat16, torch.float16) else total.clone()
        dist.all_reduce(total)
        return torch.split(total, sizes)[rank].to(grads[0].dtype), None


def all_gather_rows(local_ND: Tensor, sizes: Sequence[int]) -> Tensor:
    """All-gather rows of all ranks, with a gradient that flows back to the rank of each row.

    The backward pass adds the gradients of all ranks. If the loss of each rank is its share of one
    sum, a row gets the gradient of the whole sum. `sizes` are the numbers of rows of the ranks.

    >>> all_gather_rows(torch.ones(2, 3), [2]).shape
    torch.Size([2, 3])
    """
    if len(sizes) == 1:
        return local_ND
    gathered: Tensor = _Gather.apply(local_ND, tuple(sizes))  # type: ignore[no-untyped-call]
    return gathered


def all_reduce_sum(value: Tensor) -> Tensor:
    """Return the sum of a tensor over the ranks, without gradient.

    >>> all_reduce_sum(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    if world_size() == 1:
        return value.detach()
    # A copy, since the all-reduce writes its result into the argument.
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


@dataclass(frozen=True)
class Communicator(RankGroup):
    """Collectives of small messages between the ranks; all ranks call them in the same order.

    >>> SINGLE_PROCESS.all_gather("gpu-1"), SINGLE_PROCESS.any_rank(False)
    (['gpu-1'], False)
    """

    ranks: Ranks = SINGLE_RANK  # rank of this process, and the world size
    # publishes the current step with the heartbeat of this rank
    publish_step: Callable[[int], None] = lambda step: None
    # gloo process group for small messages; None for one process
    control: dist.ProcessGroup | None = None

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        if self.control is not None:
            dist.barrier(group=self.control)

    def any_rank(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        if self.control is None:
            return flag
        flags = torch.tensor([flag], dtype=torch.int32)
        # On the CPU, by gloo: a collective of NCCL would make every step wait for the GPU.
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self.control)
        return bool(flags.item())

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in their order."""
        if self.control is None:
            return [value]
        values: list[Any] = [None] * self.ranks.world_size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def broadcast(self, value: T) -> T:
        """Return the value of rank 0."""
        if self.control is None:
            return value
        values: list[Any] = [value]
        dist.broadcast_object_list(values, group=self.control)
        first: T = values[0]
        return first

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in their order, on rank 0; nothing on the others."""
        if self.control is None:
            return [value]
        values: list[Any] | None = [None] * self.ranks.world_size if self.ranks.is_main else None
        dist.gather_object(value, values, group=self.control)
        return values or []

    def require_equal(self, values: Mapping[str, object], error: type[AamError]) -> None:
        """Raise an error if values differ between the ranks."""
        if self.control is None:
            return
        by_rank = self.all_gather({name: str(value) for name, value in values.items()})
        main = by_rank[0]
        for rank, rank_values in enumerate(by_rank):
            differences = [
                f"{name} {rank_values.get(name, 'nothing')} instead of {main.get(name, 'nothing')}"
                for name in sorted(rank_values.keys() | main.keys())
                if rank_values.get(name) != main.get(name)
            ]
            if differences:
                raise error(
                    f"Rank {rank} differs from rank 0",
                    ", ".join(differences),
                    "start all ranks with the same command, program and files",
                )

    def require_equal_options(self, values: Mapping[str, Any]) -> None:
        """Refuse ranks whose programs, libraries or options (by flag) differ."""
        programs = {
            "aam": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "Python": ".".join(map(str, sys.version_info[:2])),
        }
        # The launcher plans on each node of a job, and images and GPUs of nodes may differ.
        launch = launched_by(os.environ) or {}
        programs["image"] = str(launch.get("digest") or launch.get("place"))
        gpus = {str(gpu).partition(" at ")[0] for gpu in launch.get("gpus", ())}
        programs["GPUs"] = ", ".join(sorted(gpus))
        self.require_equal(programs | dict(values), UsageError)

    def require_equal_data(self, **data: Any) -> None:
        """Refuse ranks whose input or decisions differ; they compare digests, not arrays."""
        if self.control is not None:
            self.require_equal({name: digest(value) for name, value in data.items()}, DataError)


def digest(value: Any) -> str:
    """Return a short digest of arrays, tensors, texts and numbers, or of containers of these.

    >>> digest([1, 2]) == digest((1, 2)), digest([1, 2]) == digest([2, 1])
    (True, False)
    """
    sum_ = hashlib.blake2b(digest_size=6)
    _add(sum_, value)
    return sum_.hexdigest()


def _add(sum_: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        # With the shape, since arrays of different shapes may have the same bytes.
        sum_.update(f"{value.dtype} {value.shape} ".encode())
        sum_.update(np.ascontiguousarray(value).data)
    elif isinstance(value, csr_array):
        for array in (value.indptr, value.indices, value.data):
            _add(sum_, array)
    elif isinstance(value, Study) and (origin := value.origin) is not None:
        # A memory-mapped study: the header has the checksums of the store's files, so no rank reads
        # all files. The path is omitted, because it may differ between nodes.
        header = (origin.path / "store.json").read_text()
        _add(sum_, (header, origin.max_bp, origin.with_tree, origin.rows, value.distances))
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            _add(sum_, getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _add(sum_, key)
            _add(sum_, item)
    elif isinstance(value, (list, tuple)):
        sum_.update(f"{len(value)} ".encode())
        for item in value:
            _add(sum_, item)
    elif value is None or isinstance(value, (str, int, float, bool, Path, np.generic)):
        sum_.update(f"{value!r} ".encode())
    else:
        raise TypeError(f"no digest of {type(value).__name__}")


SINGLE_PROCESS = Communicator()  # communicator of a run with one process


try:
    from torch.distributed.tensor import DTensor as DTensor  # exported to other modules
except ImportError:  # PyTorch 2.4, in the image for MI50
    from torch.distributed._tensor import DTensor as DTensor  # type: ignore[attr-defined]


def local_tensor(value: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor itself if it is not sharded."""
    return value.to_local() if isinstance(value, DTensor) else value


try:
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    FSDP_ON_CPU = True
except ImportError:  # PyTorch 2.5
    FSDP_ON_CPU = False
    from torch.distributed._composable.fsdp import (  # type: ignore[attr-defined]
        fully_shard,
        register_fsdp_forward_method,
    )


def parallelize(
    module: nn.Module, scale: ScaleOptions, ranks: Ranks, device: torch.device
) -> nn.Module:
    """Move a module to the device and wrap it (DDP) or shard it (FSDP); return what to call."""
    if scale.fsdp and device.type == "cpu" and not FSDP_ON_CPU:
        raise Unavailable(
            "FSDP needs a GPU with this PyTorch",
            f"--fsdp on a CPU, PyTorch {torch.__version__}",
            "use --distributed, or PyTorch 2.6 or later",
        )
    module.to(device)
    if scale.fsdp:
        shard(module, init_device_mesh(device.type, (ranks.world_size,)))
        return module
    if ranks.world_size == 1:
        return module
    with warnings.catch_warnings():
        # PyTorch 2.13 deprecates it, but the replacement still sends all buffers at the start.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        # `freeze_unused` ensures that every trained parameter has a gradient in every step.
        return DistributedDataParallel(
            module,
            device_ids=[device] if is_gpu(device) else None,
            broadcast_buffers=False,  # they are equal on all ranks
            # Gradients are views of the buckets of the all-reduce, which saves copying them.
            gradient_as_bucket_view=True,
        )


def shard(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard a training module in place over a mesh, each transformer layer separately."""
    for block in module.modules():
        if isinstance(block, TransformerBlock):
            fully_shard(block, mesh=mesh)
            # The backward pass of a chunk of ASVs shards a layer again. If the forward pass of
            # another chunk is then recomputed, PyTorch 2.7 does not gather the layer; 2.13 does.
            block.register_forward_pre_hook(lambda layer, _: layer.unshard())
    # The layers come first: the root then shards the remaining parameters.
    fully_shard(module, mesh=mesh)
    # FSDP gathers parameters only in `forward`, but the validation calls another method.
    register_fsdp_forward_method(module, "validation_step")
