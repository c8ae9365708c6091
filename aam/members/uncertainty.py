"""Uncertainty of predictions, from held-out samples: prediction intervals, calibrated classes.

Intervals are conformal over groups: a new sample of a new group lies in its interval with at least
the probability `COVERAGE`, if groups are exchangeable. Every group has the same weight, however
many samples it has, and one more group is counted whose residuals are unknown (Lee, Barber and
Willett 2023, "Distribution-free inference with hierarchical data").

Class probabilities are calibrated with one temperature: log probabilities are divided by it (Guo et
al. 2017). What is shown for a held-out sample is calibrated on other groups.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize_scalar

from aam.members.base import F64, Rows

COVERAGE = 0.9
_SMALLEST = 1e-6
"""Probabilities are at least this before their logarithm."""


def half_width(residuals_M: F64, groups: Rows, coverage: float = COVERAGE) -> float:
    """Return the half width of the prediction interval of a new group's sample.

    It is infinite with too few groups: 1 / (groups + 1) must not exceed 1 - coverage.

    Args:
        residuals_M: absolute errors of held-out samples.
        groups: int64 [M], group of each.
        coverage: probability to lie in the interval.
    """
    _, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    weights = 1 / sizes[group_of] / (len(sizes) + 1)
    order = np.argsort(residuals_M, kind="stable")
    reached = np.cumsum(weights[order]) >= coverage - 1e-12
    return float(residuals_M[order][reached.argmax()]) if reached.any() else math.inf


def held_out_half_widths(residuals_M: F64, groups: Rows, coverage: float = COVERAGE) -> F64:
    """Return for each held-out sample the half width that all other groups give, float64 [M]."""
    widths = np.empty(len(residuals_M))
    for group in np.unique(groups):
        own = groups == group
        widths[own] = half_width(residuals_M[~own], groups[~own], coverage)
    return widths


def fit_temperature(probabilities_MC: F64, codes_M: Rows) -> float:
    """Return the temperature with the least log loss on held-out samples."""
    rows = np.arange(len(codes_M))

    def log_loss(log_temperature: float) -> float:
        calibrated = calibrate(probabilities_MC, math.exp(log_temperature))
        return -float(np.log(calibrated[rows, codes_M].clip(min=_SMALLEST)).mean())

    found = minimize_scalar(log_loss, bounds=(math.log(0.2), math.log(20)), method="bounded")
    return math.exp(found.x)


def calibrate(probabilities_MC: F64, temperature: float) -> F64:
    """Divide log probabilities by a temperature; the most probable class stays the same."""
    scaled = np.log(probabilities_MC.clip(min=_SMALLEST)) / temperature
    scaled = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    calibrated: F64 = scaled / scaled.sum(axis=1, keepdims=True)
    return calibrated
