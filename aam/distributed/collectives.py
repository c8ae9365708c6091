"""What ranks tell each other while they learn: rows gathered with their gradient, and sums.

With one rank nothing is sent and every function returns what it was given. All ranks call the same
functions in the same order, also those that have nothing to tell.
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


def ranks() -> int:
    """Return the number of ranks that have joined."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _Gather(torch.autograd.Function):
    """Rows of all ranks, one rank's after the other; their gradients add up over the ranks."""

    @staticmethod
    def forward(ctx: Any, own_ND: Tensor, sizes: tuple[int, ...]) -> Tensor:
        ctx.sizes, longest = sizes, max(sizes)
        padded = F.pad(own_ND.contiguous(), (0, 0, 0, longest - len(own_ND)))
        found = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(found, padded)
        return torch.cat([rows[:size] for rows, size in zip(found, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        sizes, rank = ctx.sizes, dist.get_rank()
        parts, longest = torch.split(grads[0].contiguous(), sizes), max(sizes)
        if dist.get_backend() == "nccl":
            padded = [F.pad(p, (0, 0, 0, longest - len(p))) for p in parts]
            own = torch.empty_like(padded[rank])
            dist.reduce_scatter_tensor(own, torch.cat(padded))
            return own[: sizes[rank]], None
        # Gloo of the older PyTorch has no reduce-scatter and adds no half precision.
        total = grads[0].contiguous()
        total = total.float() if total.dtype in (torch.bfloat16, torch.float16) else total.clone()
        dist.all_reduce(total)
        return torch.split(total, sizes)[rank].to(grads[0].dtype), None


def gather_rows(own_ND: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the rows of all ranks; a gradient flows back to the rank that each row is of.

    The backward pass adds the gradients of all ranks: where every rank's loss is its share of one
    sum, each row gets the gradient of the whole sum.

    Args:
        own_ND: this rank's rows, maybe none.
        sizes: number of rows of every rank.
    """
    if len(sizes) == 1:
        return own_ND
    gathered: Tensor = _Gather.apply(own_ND, tuple(sizes))  # type: ignore[no-untyped-call]
    return gathered


def add_up(own: Tensor) -> Tensor:
    """Return the sum of a tensor over the ranks; no gradient."""
    if ranks() == 1:
        return own.detach()
    total = own.detach().clone()
    dist.all_reduce(total)
    return total


def gather_arrays(own: npt.NDArray[np.float64], device: torch.device) -> npt.NDArray[np.float64]:
    """Return the arrays [n, C] of all ranks, joined along the first axis; n may differ."""
    if ranks() == 1:
        return own
    rows = torch.as_tensor(own, dtype=torch.float64, device=device)
    number = torch.zeros(ranks(), dtype=torch.int64, device=device)
    number[dist.get_rank()] = len(rows)
    sizes = add_up(number).tolist()
    joined: npt.NDArray[np.float64] = gather_rows(rows, sizes).cpu().numpy()
    return joined
