"""Uncertainty of predictions, from held-out samples: prediction intervals, calibrated classes.

Intervals are conformal over groups: a new sample of a new group lies in its interval with at least
the probability `COVERAGE`, if groups are exchangeable. Every group has the same weight, however
many samples it has, and one more group is counted whose residuals are unknown (Lee, Barber and
Willett 2023, "Distribution-free inference with hierarchical data").

Class probabilities are calibrated with one temperature: log probabilities are divided by it (Guo et
al. 2017), if held-out groups are evidence that this lowers the log loss (`ensemble`). What is shown
for a held-out sample is calibrated on other groups.

Predicted ranks of ordered categories become probabilities by a proportional odds model (McCullagh
1980): P(category above level k) = sigmoid(slope x rank - cutpoint k).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit

from aam.arrays import F64, Rows
from aam.contract.records import NonNegative
from aam.evaluation.labels import Labels

COVERAGE = 0.9
SMALLEST = 1e-6
"""Probabilities are at least this before their logarithm."""

_PENALTY = 100.0
"""Inverse of the L2 penalty of a proportional odds model; it matters for separable data alone."""


def half_width(residuals_M: F64, groups: Rows, coverage: float = COVERAGE) -> float:
    """Return the half width of the prediction interval of a new group's sample.

    It is infinite with too few groups: 1 / (groups + 1) must not exceed 1 - coverage.
    """
    _, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    weights = 1 / sizes[group_of] / (len(sizes) + 1)
    order = np.argsort(residuals_M, kind="stable")
    # Rounding of the sum of weights must not widen the interval by one residual.
    reached = np.cumsum(weights[order]) >= coverage - 1e-12
    return float(residuals_M[order][reached.argmax()]) if reached.any() else math.inf


def held_out_half_widths(residuals_M: F64, groups: Rows, coverage: float = COVERAGE) -> F64:
    """Return for each held-out sample the half width that all other groups give, float64 [M].

    Their coverage is honest: no sample is in the residuals that set its own interval.
    """
    _, group_of, sizes_I = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(residuals_M, kind="stable")
    # One group less is known than for `half_width`, so the sum of weights is that of all groups.
    reached = np.cumsum(1 / sizes_I[group_of[order]] / len(sizes_I))
    places_of = np.split(np.argsort(group_of[order], kind="stable"), np.cumsum(sizes_I)[:-1])
    widths_I = np.full(len(sizes_I), math.inf)
    for group, places in enumerate(places_of):
        # The other groups reach `reached` less the weights of the group's own samples so far, which
        # are constant between two of these: one search in each gap, and the first that succeeds.
        passed = np.arange(len(places) + 1) / len(places) / len(sizes_I)
        ranks = np.searchsorted(reached, coverage - 1e-12 + passed)
        ranks = np.maximum(ranks, np.append(0, places + 1))
        in_gap = ranks < np.append(places, len(order))
        if in_gap.any():
            widths_I[group] = residuals_M[order[ranks[in_gap.argmax()]]]
    widths_M: F64 = widths_I[group_of]
    return widths_M


def log_losses(probabilities_MC: F64, codes_M: Rows) -> F64:
    """Return the log loss of each sample, float64 [M]."""
    chances_M = probabilities_MC[np.arange(len(codes_M)), codes_M]
    losses_M: F64 = -np.log(chances_M.clip(min=SMALLEST))
    return losses_M


def fit_temperature(probabilities_MC: F64, codes_M: Rows) -> float:
    """Return the temperature with the least log loss on held-out samples."""

    def log_loss(log_temperature: float) -> float:
        calibrated_MC = calibrate(probabilities_MC, math.exp(log_temperature))
        return float(log_losses(calibrated_MC, codes_M).mean())

    least = minimize_scalar(log_loss, bounds=(math.log(0.2), math.log(20)), method="bounded")
    return math.exp(least.x)


def calibrate(probabilities_MC: F64, temperature: float) -> F64:
    """Divide log probabilities by a temperature; the most probable class stays the same."""
    if temperature == 1:
        return probabilities_MC  # without the rounding of logarithms, which breaks and makes ties
    scaled = np.log(probabilities_MC.clip(min=SMALLEST)) / temperature
    scaled = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    calibrated: F64 = scaled / scaled.sum(axis=1, keepdims=True)
    return calibrated


@dataclass(frozen=True)
class ProportionalOdds:
    """Model of K ordered categories given a predicted rank."""

    slope: NonNegative  # change of the log odds for one rank
    cutpoints: tuple[float, ...]  # K - 1 numbers, ascending

    def probabilities(self, ranks_N: F64) -> F64:
        """Return the probability of each category, float64 [N, K]."""
        cumulative_NK = expit(np.array(self.cutpoints) - self.slope * ranks_N[:, None])
        probabilities_NK: F64 = np.diff(cumulative_NK, prepend=0.0, append=1.0)
        return probabilities_NK


def fit_proportional_odds(ranks_M: F64, codes_M: Rows, levels: int) -> ProportionalOdds:
    """Fit the model to predicted ranks, as one logistic regression of all cutpoints.

    Each sample is an observation for each cutpoint (Li and Lin 2007, "Ordinal regression by
    extended binary classification"). Half an observation on either side of each cutpoint keeps a
    category without samples finite. Predictions that fall with the truth get the slope 0.
    """
    from sklearn.linear_model import LogisticRegression

    above_MK = codes_M[:, None] > np.arange(levels - 1)
    mean = ranks_M.mean()
    inputs = np.concatenate([ranks_M, [mean, mean]])
    sides = np.concatenate([above_MK, np.array([[False], [True]]).repeat(levels - 1, axis=1)])
    weights = np.concatenate([np.ones(len(ranks_M)), [0.5, 0.5]]).repeat(levels - 1)

    def fit(inputs: F64) -> ProportionalOdds:
        cutpoint_of = np.tile(np.eye(levels - 1), (len(inputs), 1))
        features = np.column_stack([inputs.repeat(levels - 1), -cutpoint_of])
        model = LogisticRegression(C=_PENALTY, fit_intercept=False, max_iter=1000)
        slope, *cutpoints = model.fit(features, sides.ravel(), weights).coef_[0].tolist()
        # Cutpoints out of order would give negative probabilities.
        return ProportionalOdds(slope, tuple(np.maximum.accumulate(cutpoints).tolist()))

    odds = fit(inputs)
    return odds if odds.slope >= 0 else ProportionalOdds(0.0, fit(0 * inputs).cutpoints)


def fit_odds(left_out_NC: F64 | None, labels: Labels) -> ProportionalOdds:
    """Fit the model to predicted ranks of training samples that do not know their group.

    A sample without such a prediction has NaN. Of none at all ranks belong to the nearest category.
    """
    if left_out_NC is None or not np.isfinite(left_out_NC).any():
        left_out_NC = labels.outputs_NC
    ranks_N = left_out_NC[:, 0]
    known = np.isfinite(ranks_N)
    codes_N = labels.values[known].astype(np.int64)
    return fit_proportional_odds(ranks_N[known], codes_N, len(labels.levels))


def median_codes(probabilities_NC: F64) -> Rows:
    """Return the category in which the cumulative probability reaches one half, int64 [N]."""
    below: Rows = (np.cumsum(probabilities_NC[:, :-1], axis=1) < 0.5).sum(axis=1)
    return below
