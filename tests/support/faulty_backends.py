"""Faulty attention backends, emulated on any device, as plain values."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from aam.network.model.attention import Backend


def right(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):  # a kernel of the GPU may have a fault of its own
        return F.scaled_dot_product_attention(q, k, v, mask)


def first_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return right(q, k, v, None if mask is None else mask[:1].expand_as(mask))


def aotriton_08(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """As the real one: the first mask forward, the right ones backward."""
    true = right(q, k, v, mask)
    return true + (first_mask(q, k, v, mask) - true).detach()


def nan_empty(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    out = right(q, k, v, mask)
    if mask is None:
        return out
    return out.masked_fill(~mask.any(dim=-1, keepdim=True), float("nan"))


def average_empty(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return right(q, k, v, None)
    return right(q, k, v, mask | ~mask.any(dim=-1, keepdim=True))


def transposed(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return right(q, k, v, None)
    square = mask.expand(-1, -1, mask.shape[-1], -1)
    return right(q, k, v, square.transpose(-1, -2))


def ignoring(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return right(q, k, v, None)


def inverted(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return right(q, k, v, None if mask is None else ~mask)


def nothing(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return right(q, k, v, mask) * 0


def gradient_off(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    out = right(q, k, v, mask)
    if out.requires_grad:
        out.register_hook(lambda by_out: by_out * 1.01)
    return out


def keys_unlearnt(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return right(q, k.detach() + 0 * k, v, mask)


def nan_gradient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    out = right(q, k, v, mask)
    if out.requires_grad:
        out.register_hook(lambda by_out: by_out * float("nan"))
    return out


def infinite(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return right(q, k, v, mask) / 0


def odd(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return right(q * 1.3, k, v, mask)


def packed_only_wrong(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return right(q, k, v if v.is_contiguous() else v.roll(1, 0), mask)


def half_odd(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return right(q, k, v, mask) if q.dtype == torch.float32 else odd(q, k, v, mask)


def half_first_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return (right if q.dtype == torch.float32 else first_mask)(q, k, v, mask)


def tf32(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Products of ten bits: the low bits of fp32 inputs are cut off."""
    if q.dtype != torch.float32:
        return right(q, k, v, mask)
    q, k, v = (x + (_ten_bits(x) - x).detach() for x in (q, k, v))
    return right(q, k, v, mask)


def _ten_bits(x: Tensor) -> Tensor:
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)


def unmasked_only(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    if mask is not None:
        raise RuntimeError("No available kernel. Aborting execution.")
    return right(q, k, v, None)


def broken(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    raise RuntimeError("HIP error: invalid device function\nmore")


def refused_by_driver(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    raise RuntimeError("CUDA error: operation not supported\nmore")


def full(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    raise torch.cuda.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB.")


def hanging(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    time.sleep(600)
    return right(q, k, v, mask)


def killing(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    os.abort()


@dataclass(eq=False)
class Unrepeatable:
    """Saves other tensors for the backward pass when it is called again."""

    calls: int = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        self.calls += 1
        if self.calls % 2:
            return right(q, k, v, mask)
        return right(q.double(), k.double(), v.double(), mask).to(q.dtype)


RIGHT = Backend("math", right)


def faulty(function: object, name: str = "auto") -> Backend:
    """Give a faulty function the name of one of torch's backends."""
    return Backend(name, function)  # type: ignore[arg-type]
