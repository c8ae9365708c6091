"""Scaled dot-product attention with a selectable backend.

A backend is a name and a function. A network gets its backends as arguments, so a test can pass a
faulty backend. Attention weights have no dropout: on the CPU dropout disables the fused kernel and
is four times slower. Shape suffixes: see `aam.network.model`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from aam.contract.options.groups import AttnImplementation

Function = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""Queries, keys, values [N, H, K, E], and a mask [N, 1, 1, K] (True: attend) or None."""


@dataclass(frozen=True)
class Backend:
    """Implementation of attention."""

    name: str  # a value of --attn-implementation
    function: Function  # raises RuntimeError for a device, dtype or mask that it does not support


def _torch(kernel: str | None, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled dot-product attention by torch's `kernel`; None leaves the choice to torch."""
    if kernel is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    # The context is entered in each call: a context around the network is no longer active when
    # gradient checkpointing recomputes a block in the backward pass, and another kernel would run.
    with sdpa_kernel([getattr(SDPBackend, kernel)]):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


TORCH = (
    Backend("auto", partial(_torch, None)),
    Backend("flash", partial(_torch, "FLASH_ATTENTION")),
    Backend("mem_efficient", partial(_torch, "EFFICIENT_ATTENTION")),
    Backend("math", partial(_torch, "MATH")),
)
"""The backends of torch, in order of preference; auto leaves the choice to torch."""


@dataclass(frozen=True)
class Backends:
    """Backends of a network."""

    plain: Backend  # for batches in which all members of all sets exist
    masked: Backend  # for batches with a mask, because some backends support no mask


def backend_name(requested: AttnImplementation) -> str:
    """Return the name of the requested backend; "sdpa" is another name for "auto"."""
    return "auto" if requested == "sdpa" else requested


def named(name: AttnImplementation, backends: tuple[Backend, ...] = TORCH) -> Backend:
    """Return the requested attention backend."""
    return next(backend for backend in backends if backend.name == backend_name(name))


AUTO = Backends(named("auto"), named("auto"))  # the choice of torch


class AttentionMask(NamedTuple):
    """Mask of N sets of K members, made once for all layers."""

    attend_N11K: Tensor  # True for members that exist, and for all of a set without members
    inhabited_N111: Tensor  # True for a set with members

    @classmethod
    def of(cls, attend_NK: Tensor | None) -> AttentionMask | None:
        """Make the mask of the members that exist (True); None if all exist."""
        if attend_NK is None:
            return None
        # Some kernels compute 0/0 for a set without members, so such a set attends to everything
        # and its output is then set to 0.
        inhabited_N1 = attend_NK.any(dim=-1, keepdim=True)
        return cls((attend_NK | ~inhabited_N1)[:, None, None, :], inhabited_N1[:, None, None, :])


def attention(
    q_NHKE: Tensor,
    k_NHKE: Tensor,
    v_NHKE: Tensor,
    mask: AttentionMask | None = None,
    backends: Backends = AUTO,
) -> Tensor:
    """Compute scaled dot-product attention of each member of a set to all members.

    softmax(q k^T / sqrt(E)) v for each head (Vaswani et al. 2017, "Attention is all you need").

    >>> import torch
    >>> q_NHKE = torch.zeros(1, 1, 2, 4)
    >>> v_NHKE = torch.tensor([1.0, 3.0])[None, None, :, None].expand(1, 1, 2, 4)
    >>> attention(q_NHKE, q_NHKE, v_NHKE)[0, 0, :, 0]
    tensor([2., 2.])
    >>> mask = AttentionMask.of(torch.tensor([[True, False]]))
    >>> attention(q_NHKE, q_NHKE, v_NHKE, mask)[0, 0, :, 0]
    tensor([1., 1.])
    """
    # A rank may have no sets, and some kernels reject empty input. With `len` instead of `shape[0]`
    # the number of sets would be a constant of an exported graph.
    if v_NHKE.shape[0] == 0:
        return v_NHKE
    if mask is None:
        # Flash attention takes no mask, so a mask of ones would exclude the fastest kernel.
        return backends.plain.function(q_NHKE, k_NHKE, v_NHKE, None)
    out_NHKE = backends.masked.function(q_NHKE, k_NHKE, v_NHKE, mask.attend_N11K)
    # A product keeps the memory layout of the output; `masked_fill` would copy it.
    return out_NHKE * mask.inhabited_N111
