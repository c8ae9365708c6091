"""Known faults of attention kernels, each identified by the wrong result it produces.

A fault is a hypothesis about what the kernel computed instead; it is named only where the result
equals that of the hypothesis. Sources: docs/stack.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from aam.network.numerics.probes import (
    ROUNDINGS,
    TF32_UNIT,
    Probe,
    ProbeInput,
    ProbeResult,
    difference,
    differences,
    expected_for_mask,
    tolerance,
    within_tolerance,
)


@dataclass(frozen=True)
class KernelFault:
    """Known fault of an attention kernel, with the source of its description if it has one."""

    name: str
    what: str
    remedy: str
    harmless: bool = False  # whether no model is affected


_OTHER = "use another backend (`--attn-implementation math` is the simplest one)"

FIRST_MASK = KernelFault(
    "first mask for all",
    "every sample is given the mask of the first one, as aotriton 0.7b to 0.8.1b does (PyTorch 2.5 "
    "and 2.6 for ROCm; ROCm/aotriton PR 68, pytorch issue 147460)",
    f"use an image with aotriton 0.8.2b or later, or {_OTHER}",
)
EMPTY = KernelFault(
    "wrong without members",
    "rows with nothing to attend to give NaN or other numbers instead of zeros, as before PyTorch "
    "2.5 (pytorch issue 103749) and with cuDNN on sm_90, which PyTorch prefers there",
    "nothing to do: the model never computes such rows",
    harmless=True,
)
TRANSPOSED = KernelFault(
    "transposed mask", "the mask is applied to queries instead of keys", _OTHER
)
IGNORED = KernelFault("mask ignored", "the mask has no effect", _OTHER)
INVERTED = KernelFault("inverted mask", "attention omits the members that exist", _OTHER)
NOTHING = KernelFault(
    "nothing computed",
    "the output is all zeros: the kernel did not run",
    "this PyTorch may not be compiled for this GPU; use another image or backend",
)
NAN_OUTPUT = KernelFault("output not finite", "the output holds NaN or infinity", _OTHER)
NAN_GRADIENT = KernelFault(
    "gradient not finite",
    "the gradient holds NaN or infinity where the output is right (seen with PyTorch 2.5.0 on "
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
    "right for tensors of their own, wrong for views of a packed one (ROCm/pytorch issue 3230)",
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
    "nothing to do where that was requested (`torch.set_float32_matmul_precision`)",
    harmless=True,
)
UNKNOWN = KernelFault("unknown fault", "the result is wrong in a way that is not known", _OTHER)

FAULTS = {
    fault.name: fault
    for fault in (FIRST_MASK, EMPTY, TRANSPOSED, IGNORED, INVERTED, NOTHING, NAN_OUTPUT,
                  NAN_GRADIENT, SCALED, GRADIENT, LAYOUT, RECOMPUTED, HALF, TF32, UNKNOWN)
}  # fmt: skip
"""Every fault by its name."""

Again = Callable[[], ProbeResult]


def identify_fault(
    probe: Probe, given: ProbeInput, result: ProbeResult, true: ProbeResult, again: Again
) -> KernelFault | None:
    """Return the fault of a result; None if it is right."""
    allowed, mask = tolerance(probe), given.mask_N11K
    errors = differences(result, true)
    if all(within_tolerance(part, allowed) for part in errors):
        return None
    if mask is not None:
        # Rows without members are the known harmless case, so the other rows decide.
        empty_N = ~mask.flatten(1).any(dim=1)
        inhabited = [
            difference(f[~empty_N], t[~empty_N])
            for f, t in zip(result.parts, true.parts, strict=True)
        ]
        if empty_N.any() and all(within_tolerance(part, allowed) for part in inhabited):
            return EMPTY
    if not all(part.finite for part in errors):
        right = within_tolerance(difference(result.parts[0], true.parts[0]), allowed)
        return NAN_GRADIENT if right else NAN_OUTPUT
    # Before the other faults: TF32 is a setting of PyTorch, and exceeds the tolerance of fp32
    # everywhere.
    if probe.dtype == "fp32" and all(
        within_tolerance(part, ROUNDINGS * TF32_UNIT) for part in errors
    ):
        return TF32
    fault = UNKNOWN
    if within_tolerance(errors[0], allowed):
        # Whether one factor explains every wrong gradient.
        fault = SCALED
        for f, t, part in zip(result.parts[1:], true.parts[1:], errors[1:], strict=True):
            slopes_N = torch.tensor(part.slopes_N, dtype=torch.float64)
            factor = slopes_N[(slopes_N - 1).abs().argmax()]
            if within_tolerance(part, allowed):
                continue
            if float(factor) == 0 or not within_tolerance(difference(f / factor, t), allowed):
                fault = GRADIENT
    elif not result.parts[0].any():
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
        for named, candidate in candidates:
            expected = expected_for_mask(given, candidate).parts[0]
            if within_tolerance(difference(result.parts[0], expected), allowed):
                return named
    if fault in (UNKNOWN, GRADIENT):
        # Last, since it runs the kernel once more.
        with suppress(RuntimeError):
            if all(within_tolerance(part, allowed) for part in differences(again(), true)):
                return LAYOUT
    return fault
