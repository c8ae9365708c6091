"""Probes of attention: inputs as the model uses them, expected results, tolerance of rounding.

Each probe has at least two sets with masks of their own: the known faulty kernels apply the mask of
the first set to all, and a probe with one set, or with one mask for all, passes on them.
Queries, keys and values are views of one packed tensor, as in the model's blocks, and the numbers
of members are no multiples of eight. The expected result is computed in float64 on the CPU from
the same rounded inputs by the formula, not by one of the functions that are measured.

Two figures for each of output and gradients. The largest difference, in units of the largest true
value, finds what is wrong in some places. The slope of the result over the expected one, set by
set, finds a small error everywhere: rounding is not biased, so a slope is known far better than a
single value, and an error of one per cent shows even in bf16, whose values are rounded to 0.4 %.
Shape suffixes: see `aam.network.model`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from aam.contract.options.groups import ModelOptions, SampleOptions
from aam.network.model.attention import Backend

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

MaskKind = Literal["none", "shared", "each", "empty", "recomputed"]
MASKS: tuple[MaskKind, ...] = ("none", "shared", "each", "empty", "recomputed")
"""No mask; one for all sets; one for each set; one for each set, some sets without any member; one
for each set, and computed again in the backward pass (gradient checkpointing)."""

PARTS = ("output", "queries' gradient", "keys' gradient", "values' gradient")

_NUCLEOTIDES = 150  # length of a sequence of the usual studies of the 16S V4 region


@dataclass(frozen=True)
class Shape:
    """Sizes of a probe, those of the encoder `name`."""

    name: str
    sets: int  # N, at least 2
    heads: int  # H
    members: int  # K, of each set
    width: int  # E, of one head


@dataclass(frozen=True)
class Probe:
    """One measurement: sizes, dtype and kind of mask."""

    shape: Shape
    dtype: str
    mask: MaskKind

    def __str__(self) -> str:
        return f"{self.dtype}, mask {self.mask}, {self.shape.name}"


@dataclass(frozen=True)
class ProbeInput:
    """Inputs of a probe."""

    qkv_NK3HE: Tensor  # packed queries, keys and values, in the dtype of the probe
    upstream_NHKE: Tensor  # gradient of the loss by the output
    mask_N11K: Tensor | None  # True where a member exists; None: no mask is passed
    recomputed: bool = False  # whether it is computed under gradient checkpointing


@dataclass(frozen=True)
class ProbeResult:
    """Output and gradients by queries, keys and values, each [N, H, K, E] in float64 on the CPU."""

    parts: tuple[Tensor, Tensor, Tensor, Tensor]


def shapes(quick: bool, heads: int = 0, width: int = 0) -> tuple[Shape, ...]:
    """Return the sizes of the default model, or of `heads` of `width`; quick ones are smaller."""
    model, sample = ModelOptions(), SampleOptions()
    heads = heads or model.attention_heads
    width = width or model.embedding_dim // model.attention_heads
    patches = -(-_NUCLEOTIDES // model.nucleotide_patch)
    nucleotides = Shape("nucleotide encoder", 4, heads, patches, width)
    samples = Shape("sample encoder", 3, heads, 67 if quick else 321, width)
    if quick:
        return (nucleotides, samples)
    return (nucleotides, samples, replace(samples, sets=2, heads=1, members=sample.token_limit))


@cache
def probe_input(probe: Probe) -> ProbeInput:
    """Return the inputs of a probe on the CPU; the same for every backend and on every machine."""
    n, h, k, e = probe.shape.sets, probe.shape.heads, probe.shape.members, probe.shape.width
    # Drawn on the CPU and rounded once: the expected result is that of the rounded inputs, so a
    # difference is an error of the backend and not of the dtype.
    generator = torch.Generator().manual_seed(1000 * k + n)
    dtype = DTYPES[probe.dtype]
    qkv = torch.randn(n, k, 3, h, e, generator=generator).to(dtype)
    upstream = torch.randn(n, h, k, e, generator=generator).to(dtype)
    mask = None
    if probe.mask != "none":
        # The first set is neither the largest nor the smallest: its mask is wrong for any other.
        parts = torch.tensor([0.6, 1.0, 0.3, 0.8])[torch.arange(n) % 4]
        sizes_N = (parts * k).long().clamp(1, k)
        if probe.mask == "shared":
            sizes_N[:] = int(sizes_N[0])
        if probe.mask == "empty":
            sizes_N[-1] = 0
        mask = (torch.arange(k) < sizes_N[:, None])[:, None, None, :]
    return ProbeInput(qkv, upstream, mask, probe.mask == "recomputed")


@cache
def expected_result(probe: Probe) -> ProbeResult:
    """Return the expected result of a probe."""
    inputs = probe_input(probe)
    return expected_for_mask(inputs, inputs.mask_N11K)


def expected_for_mask(given: ProbeInput, mask: Tensor | None) -> ProbeResult:
    """Return the attention of `given` under `mask` (which may be another) in float64.

    out = softmax(Q K' / sqrt(E)) V, zeros for rows that attend to nothing (Vaswani et al. 2017).
    """
    packed = given.qkv_NK3HE.double().permute(2, 0, 3, 1, 4)
    q, k, v = (part.clone().requires_grad_() for part in packed.unbind(0))
    scores_NHKK = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if mask is not None:
        # The softmax of a row of -inf is NaN, and so is its gradient. Such rows get scores of 0
        # before the softmax and weights of 0 after it, which makes both 0.
        scores_NHKK = scores_NHKK.masked_fill(~mask, float("-inf"))
        empty = (~mask).all(dim=-1, keepdim=True)
        weights_NHKK = scores_NHKK.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)
    else:
        weights_NHKK = scores_NHKK.softmax(dim=-1)
    out = weights_NHKK @ v
    out.backward(given.upstream_NHKE.double())
    assert q.grad is not None and k.grad is not None and v.grad is not None
    return ProbeResult((out.detach(), q.grad, k.grad, v.grad))


def run_probe(
    backend: Backend, given: ProbeInput, device: torch.device, packed: bool = True
) -> ProbeResult:
    """Run a probe forward and backward on a backend and device."""
    qkv = given.qkv_NK3HE.to(device).permute(2, 0, 3, 1, 4)
    mask = None if given.mask_N11K is None else given.mask_N11K.to(device)
    qkv = qkv.detach().requires_grad_() if packed else qkv.contiguous().detach().requires_grad_()
    q, k, v = qkv.unbind(0)
    if given.recomputed:
        # Its module imports torch's compiler, which the other probes do without.
        from torch.utils.checkpoint import checkpoint

        out = checkpoint(backend.function, q, k, v, mask, use_reentrant=False)
    else:
        out = backend.function(q, k, v, mask)
    out.backward(given.upstream_NHKE.to(device))
    assert qkv.grad is not None
    parts = (out.detach(), *qkv.grad.unbind(0))
    # An error of a kernel is raised at the next synchronization: here it belongs to this probe.
    if device.type != "cpu":
        torch.cuda.synchronize(device)
    output, by_q, by_k, by_v = (part.double().cpu() for part in parts)
    return ProbeResult((output, by_q, by_k, by_v))


ROUNDINGS = 8
"""Values that are rounded to the dtype on the longest way from the inputs to a gradient: scores,
weights, their gradients before and after the softmax, products of each, the result."""

TF32_UNIT = 2.0**-10  # unit of the format with ten bits that some GPUs round products in fp32 to
SLOPE_FACTOR = 8  # the tolerance of a slope is this part of that of a value


@dataclass(frozen=True)
class Difference:
    """Difference of one part of a result from the expected one."""

    largest: float  # over the largest true value; NaN where one is not finite
    slopes_N: tuple[float, ...]  # of each set; 1 where all expected values are zero
    finite: bool


def tolerance(probe: Probe) -> float:
    """Return the largest difference that rounding can make.

    Each of `ROUNDINGS` values is off by at most one unit of the dtype, and sums over K members are
    accumulated in float32, each addition off by one of its units at worst.

    >>> shape = Shape("sample encoder", sets=2, heads=1, members=64, width=16)
    >>> [f"{tolerance(Probe(shape, dtype, 'each')):.0e}" for dtype in ("fp32", "bf16")]
    ['9e-06', '6e-02']
    """
    unit, single = torch.finfo(DTYPES[probe.dtype]).eps, torch.finfo(torch.float32).eps
    return ROUNDINGS * unit + probe.shape.members * single


def differences(result: ProbeResult, true: ProbeResult) -> tuple[Difference, ...]:
    """Compare output and gradients, in the order of `PARTS`."""
    return tuple(difference(f, t) for f, t in zip(result.parts, true.parts, strict=True))


def difference(result: Tensor, true: Tensor) -> Difference:
    """Compare one part of a result, output or gradient, with the expected one."""
    finite = bool(result.isfinite().all())
    # Relative to the largest value: single values near 0 have rounding errors of any relative size.
    scale = true.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    largest = float((result - true).abs().max() / scale)
    flat_NW, true_NW = result.flatten(1), true.flatten(1)
    power_N = true_NW.square().sum(dim=1)
    slopes_N = torch.where(
        power_N > 0, (flat_NW * true_NW).sum(dim=1) / power_N.clamp_min(1e-300), 1.0
    )
    return Difference(largest, tuple(slopes_N.tolist()), finite)


def within_tolerance(difference: Difference, allowed: float) -> bool:
    """Return whether rounding explains a difference."""
    leaning = max(abs(slope - 1) for slope in difference.slopes_N)
    return difference.finite and difference.largest <= allowed and leaning <= allowed / SLOPE_FACTOR
