"""Accuracy of a probe: differences from the expected result and the tolerance of rounding.

Two figures for each of output and gradients. The largest difference, in units of the largest true
value, finds what is wrong in some places. The slope of the result over the expected one, set by
set, finds a small error everywhere: rounding is not biased, so a slope is known far better than a
single value, and an error of one per cent shows even in bf16, whose values are rounded to 0.4 %.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aam.numerics.probes import DTYPES, Probe, ProbeResult

ROUNDINGS = 8
"""Values that are rounded to the dtype on the longest way from the inputs to a gradient: scores,
weights, their gradients before and after the softmax, products of each, the result."""

TF32_UNIT = 2.0**-10
"""Unit of the format with ten bits that some GPUs round products in fp32 to."""

SLOPE_FACTOR = 8
"""The tolerance of a slope is this part of that of a value."""


@dataclass(frozen=True)
class Difference:
    """Difference of one part of a result from the expected one.

    Attributes:
        largest: largest difference over the largest true value; NaN where one is not finite.
        slopes_N: slope of the result over the expected one in each set; 1 where all expected
            values are zero.
    """

    largest: float
    slopes_N: tuple[float, ...]
    finite: bool


def tolerance(probe: Probe) -> float:
    """Return the largest difference that rounding can make.

    Each of `ROUNDINGS` values is off by at most one unit of the dtype, and sums over K members are
    accumulated in float32, each addition off by one of its units at worst.

    Args:
        probe: the probe, whose dtype and number of members decide.

    Returns:
        Difference relative to the largest true value, above 0.

    >>> from aam.numerics.probes import Shape
    >>> shape = Shape("sample encoder", sets=2, heads=1, members=64, width=16)
    >>> [f"{tolerance(Probe(shape, dtype, 'each')):.0e}" for dtype in ("fp32", "bf16")]
    ['9e-06', '6e-02']
    """
    unit, single = torch.finfo(DTYPES[probe.dtype]).eps, torch.finfo(torch.float32).eps
    return ROUNDINGS * unit + probe.shape.members * single


def differences(found: ProbeResult, true: ProbeResult) -> tuple[Difference, ...]:
    """Compare output and gradients, in the order of `probes.PARTS`."""
    return tuple(difference(f, t) for f, t in zip(found.parts, true.parts, strict=True))


def difference(found: Tensor, true: Tensor) -> Difference:
    """Compare one part of a result, output or gradient, with the expected one.

    Args:
        found: result [N, H, K, E] in float64.
        true: expected result of the same shape.

    >>> true = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    >>> [round(slope, 6) for slope in difference(1.01 * true, true).slopes_N]
    [1.01]
    """
    finite = bool(found.isfinite().all())
    # Relative to the largest value: single values near 0 have rounding errors of any relative size.
    scale = true.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    largest = float((found - true).abs().max() / scale)
    flat_NW, true_NW = found.flatten(1), true.flatten(1)
    power_N = true_NW.square().sum(dim=1)
    slopes_N = torch.where(
        power_N > 0, (flat_NW * true_NW).sum(dim=1) / power_N.clamp_min(1e-300), 1.0
    )
    return Difference(largest, tuple(slopes_N.tolist()), finite)


def right(difference: Difference, allowed: float) -> bool:
    """Return whether rounding explains a difference."""
    leaning = max(abs(slope - 1) for slope in difference.slopes_N)
    return difference.finite and difference.largest <= allowed and leaning <= allowed / SLOPE_FACTOR
