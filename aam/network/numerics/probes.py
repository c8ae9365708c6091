"""Probes of attention: inputs, expected results, tolerance of rounding; known faults of kernels.

Each probe has at least two sets with different masks: the known faulty kernels apply the mask of
the first set to all sets, and a probe with one set, or with one mask for all, passes on them.
Queries, keys and values are views of one packed tensor, as in the model's blocks, and the numbers
of members are not multiples of eight. The expected result is computed in float64 on the CPU from
the same rounded inputs, by the formula and not by one of the functions that are measured.

The output and each gradient are compared with the expected ones by two figures. The largest
difference, relative to the largest expected value, detects large errors of a few values. The slope
of the result on the expected result, for each set, detects small errors of all values: rounding is
unbiased, so the slope is far more precise than a single value. An error of one per cent is detected
even in bf16, which rounds values to 0.4 %. Shape suffixes: see `aam.network.model`.

A fault is a hypothesis about what the kernel computed instead; it is reported only if the kernel's
result equals the result under that hypothesis. Sources: docs/stack.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from aam.contract.options.groups import ModelOptions, SampleOptions
from aam.network.model.attention import Backend

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

MaskKind = Literal["none", "shared", "each", "empty", "recomputed"]
"""No mask; one mask for all sets; a mask for each set; the same, with an empty set; a mask for each
set, with attention recomputed in the backward pass (gradient checkpointing)."""

_NUCLEOTIDES = 150  # length of the sequences of usual studies of the 16S V4 region

ROUNDINGS = 8
"""Values that are rounded to the dtype on the longest way from the inputs to a gradient: scores,
weights, their gradients before and after the softmax, products of each, the result."""

TF32_TOLERANCE = ROUNDINGS * 2.0**-10  # TF32, to which some GPUs round fp32 products, has ten bits
SLOPE_FACTOR = 8  # the tolerance of a slope is the tolerance of a value divided by this


@dataclass(frozen=True)
class Shape:
    """Sizes of the attention in an encoder."""

    name: str  # name of the encoder
    sets: int  # N, at least 2
    heads: int  # H
    members: int  # K, of each set
    width: int  # E, of one head

    @classmethod
    def probed(cls, quick: bool, heads: int = 0, width: int = 0) -> tuple[Shape, ...]:
        """Return the sizes to probe: of the default model or with other heads; smaller if quick."""
        model, sample = ModelOptions(), SampleOptions()
        heads = heads or model.attention_heads
        width = width or model.embedding_dim // model.attention_heads
        patches = -(-_NUCLEOTIDES // model.nucleotide_patch)
        nucleotides = cls("nucleotide encoder", 4, heads, patches, width)
        samples = cls("sample encoder", 3, heads, 67 if quick else 321, width)
        if quick:
            return (nucleotides, samples)
        return (nucleotides, samples, replace(samples, sets=2, heads=1, members=sample.token_limit))


@dataclass(frozen=True)
class Difference:
    """Difference of a result, the output or a gradient, from the expected one."""

    largest: float  # relative to the largest expected value; NaN if a value is not finite
    slopes_N: tuple[float, ...]  # slope for each set; 1 if all expected values are zero
    finite: bool

    @classmethod
    def of(cls, result: Tensor, expected: Tensor) -> Difference:
        """Compare a result with the expected one."""
        finite = bool(result.isfinite().all())
        # Relative to the largest value: values near 0 have relative rounding errors of any size.
        scale = expected.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
        largest = float((result - expected).abs().max() / scale)
        result_NW, expected_NW = result.flatten(1), expected.flatten(1)
        power_N = expected_NW.square().sum(dim=1)
        slopes_N = torch.where(
            power_N > 0, (result_NW * expected_NW).sum(dim=1) / power_N.clamp_min(1e-300), 1.0
        )
        return cls(largest, tuple(slopes_N.tolist()), finite)

    def within(self, tolerance: float) -> bool:
        """Return whether rounding explains the difference."""
        slope_error = max(abs(slope - 1) for slope in self.slopes_N)
        small = self.largest <= tolerance and slope_error <= tolerance / SLOPE_FACTOR
        return self.finite and small


@dataclass(frozen=True)
class ProbeResult:
    """Output of attention, and its gradients by queries, keys and values."""

    tensors: tuple[Tensor, Tensor, Tensor, Tensor]  # each [N, H, K, E] in float64 on the CPU

    def differences(self, expected: ProbeResult) -> tuple[Difference, ...]:
        """Compare output and gradients with the expected ones."""
        return tuple(map(Difference.of, self.tensors, expected.tensors))


@dataclass(frozen=True)
class ProbeInput:
    """Inputs of a probe."""

    qkv_NK3HE: Tensor  # packed queries, keys and values, in the dtype of the probe
    upstream_NHKE: Tensor  # gradient of the loss by the output
    mask_N11K: Tensor | None  # True for members that exist; None: no mask is passed
    recomputed: bool = False  # whether attention runs under gradient checkpointing

    def expected(self, mask: Tensor | None) -> ProbeResult:
        """Compute attention of these inputs under a mask, their own or another one, in float64.

        out = softmax(Q K' / sqrt(E)) V, 0 for rows that attend to nothing (Vaswani et al. 2017).
        """
        packed = self.qkv_NK3HE.double().permute(2, 0, 3, 1, 4)
        q, k, v = (x_NHKE.clone().requires_grad_() for x_NHKE in packed.unbind(0))
        scores_NHKK = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if mask is not None:
            # The softmax of a row of -inf is NaN, and so is its gradient. Such rows get scores of 0
            # before the softmax and weights of 0 after it, so that both are 0.
            scores_NHKK = scores_NHKK.masked_fill(~mask, float("-inf"))
            empty = (~mask).all(dim=-1, keepdim=True)
            weights_NHKK = scores_NHKK.masked_fill(empty, 0.0).softmax(dim=-1)
            weights_NHKK = weights_NHKK.masked_fill(empty, 0.0)
        else:
            weights_NHKK = scores_NHKK.softmax(dim=-1)
        out = weights_NHKK @ v
        out.backward(self.upstream_NHKE.double())
        assert q.grad is not None and k.grad is not None and v.grad is not None
        return ProbeResult((out.detach(), q.grad, k.grad, v.grad))

    def run(self, backend: Backend, device: torch.device, packed: bool = True) -> ProbeResult:
        """Run attention forward and backward on a backend and device."""
        qkv = self.qkv_NK3HE.to(device).permute(2, 0, 3, 1, 4)
        mask = None if self.mask_N11K is None else self.mask_N11K.to(device)
        qkv = (qkv if packed else qkv.contiguous()).detach().requires_grad_()
        q, k, v = qkv.unbind(0)
        if self.recomputed:
            # This module imports PyTorch's compiler, so it is imported for these probes only.
            from torch.utils.checkpoint import checkpoint

            out = checkpoint(backend.function, q, k, v, mask, use_reentrant=False)
        else:
            out = backend.function(q, k, v, mask)
        out.backward(self.upstream_NHKE.to(device))
        assert qkv.grad is not None
        tensors = (out.detach(), *qkv.grad.unbind(0))
        # A kernel's error is raised at the next synchronization: here it belongs to this probe.
        if device.type != "cpu":
            torch.cuda.synchronize(device)
        output, by_q, by_k, by_v = (tensor.double().cpu() for tensor in tensors)
        return ProbeResult((output, by_q, by_k, by_v))


@dataclass(frozen=True)
class Probe:
    """One measurement: sizes, dtype and kind of mask."""

    shape: Shape
    dtype: str
    mask: MaskKind

    def __str__(self) -> str:
        return f"{self.dtype}, mask {self.mask}, {self.shape.name}"

    @property
    def tolerance(self) -> float:
        """Largest difference that rounding can make.

        Each of `ROUNDINGS` values is off by at most one unit of the dtype, and sums over K members
        are accumulated in float32, each addition off by one of its units at worst.

        >>> shape = Shape("sample encoder", sets=2, heads=1, members=64, width=16)
        >>> [f"{Probe(shape, dtype, 'each').tolerance:.0e}" for dtype in ("fp32", "bf16")]
        ['9e-06', '6e-02']
        """
        unit, fp32_unit = torch.finfo(DTYPES[self.dtype]).eps, torch.finfo(torch.float32).eps
        return ROUNDINGS * unit + self.shape.members * fp32_unit

    def make_input(self) -> ProbeInput:
        """Make the inputs on the CPU; the same for every backend and on every machine."""
        n, h, k, e = self.shape.sets, self.shape.heads, self.shape.members, self.shape.width
        # Drawn on the CPU and rounded once. The expected result is computed from the rounded
        # inputs, so a difference is an error of the backend and not of the dtype.
        generator = torch.Generator().manual_seed(1000 * k + n)
        dtype = DTYPES[self.dtype]
        qkv = torch.randn(n, k, 3, h, e, generator=generator).to(dtype)
        upstream = torch.randn(n, h, k, e, generator=generator).to(dtype)
        mask = None
        if self.mask != "none":
            # The first set is neither the largest nor the smallest, so its mask is wrong for any
            # other set.
            fractions = torch.tensor([0.6, 1.0, 0.3, 0.8])[torch.arange(n) % 4]
            sizes_N = (fractions * k).long().clamp(1, k)
            if self.mask == "shared":
                sizes_N[:] = int(sizes_N[0])
            if self.mask == "empty":
                sizes_N[-1] = 0
            mask = (torch.arange(k) < sizes_N[:, None])[:, None, None, :]
        return ProbeInput(qkv, upstream, mask, self.mask == "recomputed")

    @property
    def input_and_expected(self) -> tuple[ProbeInput, ProbeResult]:
        """Inputs and expected result; computed once for all backends."""
        return _input_and_expected(self)


@cache
def _input_and_expected(probe: Probe) -> tuple[ProbeInput, ProbeResult]:
    inputs = probe.make_input()
    return inputs, inputs.expected(inputs.mask_N11K)


@dataclass(frozen=True)
class KernelFault:
    """Known fault of an attention kernel."""

    name: str
    description: str  # what the kernel does wrong, with the source if there is one
    remedy: str
    harmless: bool = False  # whether no model is affected


_OTHER = "use another backend (`--attn-implementation math` is the simplest one)"

FIRST_MASK = KernelFault(
    "first mask for all",
    "every sample gets the mask of the first sample, as with aotriton 0.7b to 0.8.1b (PyTorch 2.5 "
    "and 2.6 for ROCm; ROCm/aotriton PR 68, pytorch issue 147460)",
    f"use an image with aotriton 0.8.2b or later, or {_OTHER}",
)
EMPTY = KernelFault(
    "wrong without members",
    "rows with nothing to attend to give NaN or other numbers instead of zeros, as before PyTorch "
    "2.5 (pytorch issue 103749) and with cuDNN, the default of PyTorch on sm_90",
    "nothing to do: the model never computes such rows",
    harmless=True,
)
TRANSPOSED = KernelFault(
    "transposed mask", "the mask is applied to queries instead of keys", _OTHER
)
IGNORED = KernelFault("mask ignored", "the mask has no effect", _OTHER)
INVERTED = KernelFault("inverted mask", "attention omits exactly the members that exist", _OTHER)
NOTHING = KernelFault(
    "nothing computed",
    "the output is all zeros: the kernel did not run",
    "this PyTorch may not be compiled for this GPU; use another image or backend",
)
NAN_OUTPUT = KernelFault("output not finite", "the output holds NaN or infinity", _OTHER)
NAN_GRADIENT = KernelFault(
    "gradient not finite",
    "the output is right, but the gradient holds NaN or infinity (seen with PyTorch 2.5.0 on "
    "gfx942: pytorch issue 138764)",
    _OTHER,
)
SCALED = KernelFault(
    "gradient off by a factor",
    "the output is right, the gradient too large or too small throughout",
    _OTHER,
)
GRADIENT = KernelFault("wrong gradient", "the output is right, the gradient is not", _OTHER)
LAYOUT = KernelFault(
    "wrong for packed input",
    "right for separate tensors, wrong for views of a packed tensor (ROCm/pytorch issue 3230)",
    _OTHER,
)
RECOMPUTED = KernelFault(
    "recomputation fails",
    "gradient checkpointing cannot repeat this backend (pytorch issue 144637)",
    "train with --no-gradient-checkpointing --asv-chunk 0, or use another backend",
)
HALF = KernelFault(
    "wrong in half precision",
    "right in fp32, wrong in a half precision",
    f"train with --mixed-precision none, or {_OTHER}",
)
TF32 = KernelFault(
    "TF32 in fp32",
    "products in fp32 are rounded to TF32, three digits instead of seven",
    "nothing to do if this was requested (`torch.set_float32_matmul_precision`)",
    harmless=True,
)
UNKNOWN = KernelFault(
    "unknown fault", "the result is wrong, and no known fault explains it", _OTHER
)

FAULTS = {
    fault.name: fault
    for fault in (FIRST_MASK, EMPTY, TRANSPOSED, IGNORED, INVERTED, NOTHING, NAN_OUTPUT,
                  NAN_GRADIENT, SCALED, GRADIENT, LAYOUT, RECOMPUTED, HALF, TF32, UNKNOWN)
}  # fmt: skip
"""Every fault by its name."""

Rerun = Callable[[], ProbeResult]


def identify_fault(probe: Probe, result: ProbeResult, run_unpacked: Rerun) -> KernelFault | None:
    """Return the fault of a result; None if it is right."""
    inputs, expected = probe.input_and_expected
    tolerance, mask = probe.tolerance, inputs.mask_N11K
    errors = result.differences(expected)
    if all(error.within(tolerance) for error in errors):
        return None
    output, *gradients = zip(result.tensors, expected.tensors, strict=True)
    if mask is not None:
        # Wrong rows without members are the known harmless case, so the other rows decide.
        empty_N = ~mask.flatten(1).any(dim=1)
        inhabited = [Difference.of(r[~empty_N], e[~empty_N]) for r, e in (output, *gradients)]
        if empty_N.any() and all(error.within(tolerance) for error in inhabited):
            return EMPTY
    if not all(error.finite for error in errors):
        return NAN_GRADIENT if Difference.of(*output).within(tolerance) else NAN_OUTPUT
    # Before the other faults: TF32 is a setting of PyTorch, and exceeds the tolerance of fp32
    # everywhere.
    if probe.dtype == "fp32" and all(error.within(TF32_TOLERANCE) for error in errors):
        return TF32
    fault = UNKNOWN
    if errors[0].within(tolerance):
        # Whether one factor explains every wrong gradient.
        fault = SCALED
        for (gradient, expected_gradient), error in zip(gradients, errors[1:], strict=True):
            slopes_N = torch.tensor(error.slopes_N, dtype=torch.float64)
            factor = slopes_N[(slopes_N - 1).abs().argmax()]
            if error.within(tolerance):
                continue
            rescaled = Difference.of(gradient / factor, expected_gradient)
            if float(factor) == 0 or not rescaled.within(tolerance):
                fault = GRADIENT
    elif not output[0].any():
        return NOTHING
    elif mask is not None:
        # Masks that a faulty kernel may have used instead of the right one.
        square = mask.expand(-1, -1, mask.shape[-1], -1)
        candidates: list[tuple[KernelFault, Tensor | None]] = [
            (FIRST_MASK, mask[:1].expand_as(mask)),
            (TRANSPOSED, square.transpose(-1, -2)),
            (IGNORED, None),
            (INVERTED, ~mask),
        ]
        for mask_fault, candidate in candidates:
            if Difference.of(output[0], inputs.expected(candidate).tensors[0]).within(tolerance):
                return mask_fault
    if fault in (UNKNOWN, GRADIENT):
        # Last, since it runs the kernel once more.
        with suppress(RuntimeError):
            if all(error.within(tolerance) for error in run_unpacked().differences(expected)):
                return LAYOUT
    return fault
