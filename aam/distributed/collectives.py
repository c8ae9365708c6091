"""Collectives of training: all-gather of rows with their gradient, and all-reduce of sums.

With one rank each function returns its argument. All ranks call the same functions in the same
order, also those without rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from aam.numerics.device import CONTROL_BACKEND


def world_size() -> int:
    """Return the number of ranks in the process group, 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _Gather(torch.autograd.Function):
    """All-gather of rows in the order of ranks; backward is a reduce-scatter of the gradients."""

    @staticmethod
    def forward(ctx: Any, local_ND: Tensor, sizes: tuple[int, ...]) -> Tensor:
        ctx.sizes, longest = sizes, max(sizes)
        # All-gather of PyTorch needs parts of one shape on every rank, also on one without rows.
        padded = F.pad(local_ND.contiguous(), (0, 0, 0, longest - len(local_ND)))
        found = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(found, padded)
        return torch.cat([rows[:size] for rows, size in zip(found, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        sizes, rank = ctx.sizes, dist.get_rank()
        parts, longest = torch.split(grads[0].contiguous(), sizes), max(sizes)
        if dist.get_backend() != CONTROL_BACKEND:
            padded = [F.pad(p, (0, 0, 0, longest - len(p))) for p in parts]
            shard = torch.empty_like(padded[rank])
            dist.reduce_scatter_tensor(shard, torch.cat(padded))
            return shard[: sizes[rank]], None
        # Gloo of the older PyTorch has no reduce-scatter and adds no half precision.
        total = grads[0].contiguous()
        total = total.float() if total.dtype in (torch.bfloat16, torch.float16) else total.clone()
        dist.all_reduce(total)
        return torch.split(total, sizes)[rank].to(grads[0].dtype), None


def all_gather_rows(local_ND: Tensor, sizes: Sequence[int]) -> Tensor:
    """All-gather rows, with a gradient that flows back to the rank of each row.

    The backward pass adds the gradients of all ranks. If the loss of each rank is its share of one
    sum, a row has the gradient of that sum.

    Args:
        local_ND: the rows of this rank, N >= 0.
        sizes: number of rows of each rank, in the order of the ranks.

    Returns:
        The rows of all ranks, in the order of the ranks.

    >>> all_gather_rows(torch.ones(2, 3), [2]).shape
    torch.Size([2, 3])
    """
    if len(sizes) == 1:
        return local_ND
    gathered: Tensor = _Gather.apply(local_ND, tuple(sizes))  # type: ignore[no-untyped-call]
    return gathered


def all_reduce_sum(value: Tensor) -> Tensor:
    """Return the sum of a tensor over the ranks, without gradient.

    Args:
        value: tensor of the same shape and type on every rank, on the device of the process group.

    >>> all_reduce_sum(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    if world_size() == 1:
        return value.detach()
    # A copy, since the all-reduce writes its result into the argument.
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


def all_gather_arrays(
    local: npt.NDArray[np.float64], device: torch.device
) -> npt.NDArray[np.float64]:
    """All-gather arrays along the first axis.

    Args:
        local: float64 [n, C] of this rank; n may differ between ranks.
        device: device of the process group's backend.

    Returns:
        float64, the rows of all ranks in the order of the ranks; the same on every rank.
    """
    if world_size() == 1:
        return local
    rows = torch.as_tensor(local, dtype=torch.float64, device=device)
    number = torch.zeros(world_size(), dtype=torch.int64, device=device)
    number[dist.get_rank()] = len(rows)
    sizes = all_reduce_sum(number).tolist()
    joined: npt.NDArray[np.float64] = all_gather_rows(rows, sizes).cpu().numpy()
    return joined
