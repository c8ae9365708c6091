"""Known faults of attention kernels, each with the signature by which it is recognised.

A signature is a hypothesis about what was computed instead: it is held against the answer, so a
fault is named only where its own wrong answer was found. Sources: docs/stack.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from aam.stack.judge import (
    ROUNDINGS,
    TF32_UNIT,
    Difference,
    difference,
    differences,
    right,
    tolerance,
)
from aam.stack.probes import Answer, Probe, Question, true_answer


@dataclass(frozen=True)
class Fault:
    """Something that a backend computes wrong.

    Attributes:
        name: for tables and records.
        what: what was computed, for people.
        remedy: what can be done about it.
        harmless: no model is the worse for it; it counts where another backend is right.
    """

    name: str
    what: str
    remedy: str
    harmless: bool = False


_OTHER = "use another backend (`--attn-implementation math` is the simplest one)"

FIRST_MASK = Fault(
    "first mask for all",
    "every sample is given the mask of the first one, as aotriton 0.7b to 0.8.1b does (PyTorch 2.5 "
    "and 2.6 for ROCm; ROCm/aotriton PR 68, pytorch issue 147460)",
    f"use an image with aotriton 0.8.2b or later, or {_OTHER}",
)
NAN_EMPTY = Fault(
    "NaN without members",
    "rows with nothing to attend to give NaN instead of zeros, as before PyTorch 2.5 (pytorch "
    "issue 103749)",
    "nothing to do: the model never asks for such rows",
    harmless=True,
)
TRANSPOSED = Fault("transposed mask", "the mask is applied to queries instead of keys", _OTHER)
IGNORED = Fault("mask ignored", "the mask has no effect", _OTHER)
INVERTED = Fault("inverted mask", "what should be attended to is left out", _OTHER)
NOTHING = Fault(
    "nothing computed",
    "the output is all zeros: the kernel did not run",
    "this PyTorch may not be compiled for this GPU; use another image or backend",
)
NAN_OUTPUT = Fault("output not finite", "the output holds NaN or infinity", _OTHER)
NAN_GRADIENT = Fault(
    "gradient not finite",
    "the gradient holds NaN or infinity where the output is right (seen with PyTorch 2.5.0 on "
    "gfx942: pytorch issue 138764)",
    _OTHER,
)
SCALED = Fault("gradient off by a factor", "the output is right, the gradient too large or too "
               "small throughout", _OTHER)  # fmt: skip
GRADIENT = Fault("wrong gradient", "the output is right, the gradient is not", _OTHER)
LAYOUT = Fault(
    "wrong for packed input",
    "right for tensors of their own, wrong for views of a packed one (ROCm/pytorch issue 3230)",
    _OTHER,
)
RECOMPUTED = Fault(
    "recomputation fails",
    "gradient checkpointing cannot repeat this backend (pytorch issue 144637)",
    "train with --no-gradient-checkpointing, or use another backend",
)
HALF = Fault(
    "wrong in half precision",
    "right in fp32, wrong in a half precision",
    f"train with --mixed-precision none, or {_OTHER}",
)
TF32 = Fault(
    "TF32 in fp32",
    "products in fp32 are rounded to TF32, three digits instead of seven",
    "nothing to do where that was asked for (`torch.set_float32_matmul_precision`)",
    harmless=True,
)
UNKNOWN = Fault("unknown fault", "the answer is wrong in a way that is not known", _OTHER)

FAULTS = {
    fault.name: fault
    for fault in (FIRST_MASK, NAN_EMPTY, TRANSPOSED, IGNORED, INVERTED, NOTHING, NAN_OUTPUT,
                  NAN_GRADIENT, SCALED, GRADIENT, LAYOUT, RECOMPUTED, HALF, TF32, UNKNOWN)
}  # fmt: skip
"""Every fault by its name."""

Again = Callable[[], Answer]


def recognise(
    probe: Probe, question: Question, found: Answer, true: Answer, again: Again
) -> Fault | None:
    """Name what is wrong with an answer; None if nothing is.

    Args:
        again: asks the backend once more with tensors of their own instead of packed ones.
    """
    allowed = tolerance(probe)
    apart = differences(found, true)
    if all(right(part, allowed) for part in apart):
        return None
    if not all(part.finite for part in apart):
        return _not_finite(question, found, true, allowed)
    if probe.dtype == "fp32" and all(right(part, ROUNDINGS * TF32_UNIT) for part in apart):
        return TF32
    if not right(apart[0], allowed):
        named = _wrong_output(question, found, allowed)
    else:
        named = _wrong_gradient(found, true, apart, allowed)
    if named in (UNKNOWN, GRADIENT) and _right_apart(again, true, allowed):
        return LAYOUT
    return named


def _not_finite(question: Question, found: Answer, true: Answer, allowed: float) -> Fault:
    mask = question.mask_N11K
    if mask is not None:
        empty_N = ~mask.flatten(1).any(dim=1)
        inhabited = [
            difference(f[~empty_N], t[~empty_N])
            for f, t in zip(found.parts, true.parts, strict=True)
        ]
        if empty_N.any() and all(right(part, allowed) for part in inhabited):
            return NAN_EMPTY
    return NAN_GRADIENT if right(difference(found.parts[0], true.parts[0]), allowed) else NAN_OUTPUT


def _wrong_output(question: Question, found: Answer, allowed: float) -> Fault:
    output = found.parts[0]
    if not output.any():
        return NOTHING
    for fault, mask in _other_masks(question):
        if right(difference(output, true_answer(question, mask).parts[0]), allowed):
            return fault
    return UNKNOWN


def _other_masks(question: Question) -> list[tuple[Fault, Tensor | None]]:
    """Masks that a faulty kernel may have used instead of the right one."""
    mask = question.mask_N11K
    if mask is None:
        return []
    square = mask.expand(-1, -1, mask.shape[-1], -1)
    return [
        (FIRST_MASK, mask[:1].expand_as(mask)),
        (TRANSPOSED, square.transpose(-1, -2)),
        (IGNORED, None),
        (INVERTED, ~mask),
    ]


def _wrong_gradient(
    found: Answer, true: Answer, apart: tuple[Difference, ...], allowed: float
) -> Fault:
    """Tell a gradient that is off by one factor throughout from any other."""
    for f, t, part in zip(found.parts[1:], true.parts[1:], apart[1:], strict=True):
        slopes_N = torch.tensor(part.slopes_N, dtype=torch.float64)
        factor = slopes_N[(slopes_N - 1).abs().argmax()]
        if right(part, allowed):
            continue
        if float(factor) == 0 or not right(difference(f / factor, t), allowed):
            return GRADIENT
    return SCALED


def _right_apart(again: Again, true: Answer, allowed: float) -> bool:
    try:
        apart = differences(again(), true)
    except RuntimeError:
        return False
    return all(right(part, allowed) for part in apart)
