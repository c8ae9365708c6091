"""Known faults of attention kernels, each identified by the wrong result it produces.

A fault is a hypothesis about what the kernel computed instead; it is reported only if the kernel's
result equals the result under that hypothesis. Sources: docs/stack.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from aam.network.numerics.probes import TF32_TOLERANCE, Difference, Probe, ProbeResult


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
