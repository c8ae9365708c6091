"""Ranks of a predicted step: the process group, the buckets of DDP and the shards of FSDP.

The process group has one process, and its collectives move nothing. Rank 0 is predicted, whose
shard of a batch is the largest.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from aam.contract.errors import Unavailable
from aam.distributed.strategies import FSDP_ON_CPU


@dataclass(frozen=True)
class Parallel:
    """Number of ranks, and whether they shard the network (FSDP) or copy it (DDP)."""

    ranks: int = 1
    fsdp: bool = False


ONE_RANK = Parallel()


@contextmanager
def fake_process_group(parallel: Parallel) -> Iterator[DeviceMesh | None]:
    """Make a process group of the ranks without their processes; yield its mesh for FSDP.

    Raises:
        Unavailable: PyTorch 2.5, which has no collectives of tensors without values.
    """
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
    for parameter, part in zip(trained, parts, strict=True):
        hook = partial(_keep, part.view_as(parameter))
        parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def _keep(view: Tensor, parameter: Tensor) -> None:
    if parameter.grad is not None and parameter.grad is not view:
        view.copy_(parameter.grad)
        parameter.grad = view
