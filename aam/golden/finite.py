"""Whether a measurement is made of numbers."""

from __future__ import annotations

import math

import torch

from aam.golden.measure import Measured


def first_not_finite(measured: Measured) -> str | None:
    """Name the first output, gradient or step whose values are not finite."""
    for kind, tensors in (("output", measured.stages), ("gradient", measured.gradients)):
        for name, value in tensors.items():
            if not bool(torch.isfinite(value).all()):
                return f"{kind} {name}"
    steps = (step for step, loss in enumerate(measured.losses, 1) if not math.isfinite(loss))
    step = next(steps, None)
    return None if step is None else f"loss of step {step}"
