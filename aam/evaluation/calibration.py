"""Uncertainty of predictions from held-out samples: prediction intervals, calibrated classes.

Prediction intervals are conformal over groups: a new sample of a new group lies in its interval
with probability `COVERAGE` or more, if groups are exchangeable. Every group has the same weight,
regardless of its size, and one further group with unknown residuals is counted (Lee, Barber and
Willett 2023, "Distribution-free inference with hierarchical data").

Class probabilities are calibrated by temperature scaling: log probabilities are divided by one
temperature (Guo et al. 2017), if this significantly lowers the log loss of held-out groups
(`ensemble`). The probabilities of a held-out sample are calibrated on other groups.

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
"""Lower limit of probabilities before their logarithm."""

_PENALTY = 100.0
"""Inverse L2 penalty of a proportional odds model; it only matters for separable data."""


def half_width(residuals_M: F64, groups: Rows, coverage: float = COVERAGE) -> float:
    """Return the half width of the prediction interval for a sample of a new group.

    With too few groups it is infinite: 1 / (groups + 1) must not exceed 1 - coverage.
    """
    _, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    weights = 1 / sizes[group_of] / (len(sizes) + 1)
    order = np.argsort(residuals_M, kind="stable")
    # A rounding error of the sum must not widen the interval by one residual.
    reached = np.cumsum(weights[order]) >= coverage - 1e-12
    return float(residuals_M[order][reached.argmax()]) if reached.any() else math.inf


def held_out_half_widths(residuals_M: F64, groups: Rows, coverage: float = COVERAGE) -> F64:
    """Return the half width of each held-out sample from all other groups, float64 [M].

    Their coverage is unbiased, because no sample contributes to its own interval.
    """
    _, group_of, sizes_I = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(residuals_M, kind="stable")
    # One group fewer than in `half_width`, so the weights of all groups sum to 1.
    reached = np.cumsum(1 / sizes_I[group_of[order]] / len(sizes_I))
    positions_of = np.split(np.argsort(group_of[order], kind="stable"), np.cumsum(sizes_I)[:-1])
    widths_I = np.full(len(sizes_I), math.inf)
    for group, positions in enumerate(positions_of):
        # The weight of the other groups is `reached` minus the weight of this group's samples so
        # far. The latter is constant between two of them: search each gap, take the first success.
        passed = np.arange(len(positions) + 1) / len(positions) / len(sizes_I)
        ranks = np.searchsorted(reached, coverage - 1e-12 + passed)
        ranks = np.maximum(ranks, np.append(0, positions + 1))
        in_gap = ranks < np.append(positions, len(order))
        if in_gap.any():
            widths_I[group] = residuals_M[order[ranks[in_gap.argmax()]]]
    return widths_I[group_of]


def log_losses(probabilities_MC: F64, codes_M: Rows) -> F64:
    """Return the log loss of each sample, float64 [M]."""
    chances_M = probabilities_MC[np.arange(len(codes_M)), codes_M]
    return -np.log(chances_M.clip(min=SMALLEST))


def fit_temperature(probabilities_MC: F64, codes_M: Rows) -> float:
    """Fit the temperature with the lowest log loss on held-out samples."""

    def log_loss(log_temperature: float) -> float:
        calibrated_MC = calibrate(probabilities_MC, math.exp(log_temperature))
        return float(log_losses(calibrated_MC, codes_M).mean())

    least = minimize_scalar(log_loss, bounds=(math.log(0.2), math.log(20)), method="bounded")
    return math.exp(least.x)


def calibrate(probabilities_MC: F64, temperature: float) -> F64:
    """Calibrate by dividing log probabilities by a temperature; the top class stays the same."""
    if temperature == 1:
        return probabilities_MC  # rounding of logarithms would break and make ties
    scaled = np.log(probabilities_MC.clip(min=SMALLEST)) / temperature
    scaled = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return scaled / scaled.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class ProportionalOdds:
    """Proportional odds model: probabilities of K ordered categories from a predicted rank."""

    slope: NonNegative  # change of the log odds per rank
    cutpoints: tuple[float, ...]  # K - 1 numbers, ascending

    def probabilities(self, ranks_N: F64) -> F64:
        """Return the probability of each category, float64 [N, K]."""
        cumulative_NK = expit(np.array(self.cutpoints) - self.slope * ranks_N[:, None])
        return np.diff(cumulative_NK, prepend=0.0, append=1.0)


def fit_proportional_odds(ranks_M: F64, codes_M: Rows, levels: int) -> ProportionalOdds:
    """Fit the model to predicted ranks, as one logistic regression for all cutpoints.

    Each sample is an observation for each cutpoint (Li and Lin 2007, "Ordinal regression by
    extended binary classification"). Half an observation below and above each cutpoint keeps the
    cutpoints of empty categories finite. If predictions fall with the true ranks, the slope is 0.
    """
    from sklearn.linear_model import LogisticRegression

    above_MK = codes_M[:, None] > np.arange(levels - 1)
    mean = ranks_M.mean()
    inputs = np.concatenate([ranks_M, [mean, mean]])
    above = np.concatenate([above_MK, np.array([[False], [True]]).repeat(levels - 1, axis=1)])
    weights = np.concatenate([np.ones(len(ranks_M)), [0.5, 0.5]]).repeat(levels - 1)

    def fit(inputs: F64) -> ProportionalOdds:
        cutpoint_of = np.tile(np.eye(levels - 1), (len(inputs), 1))
        features = np.column_stack([inputs.repeat(levels - 1), -cutpoint_of])
        model = LogisticRegression(C=_PENALTY, fit_intercept=False, max_iter=1000)
        slope, *cutpoints = model.fit(features, above.ravel(), weights).coef_[0].tolist()
        # Cutpoints out of order would give negative probabilities.
        return ProportionalOdds(slope, tuple(np.maximum.accumulate(cutpoints).tolist()))

    odds = fit(inputs)
    return odds if odds.slope >= 0 else ProportionalOdds(0.0, fit(0 * inputs).cutpoints)


def fit_odds(left_out_NC: F64 | None, labels: Labels) -> ProportionalOdds:
    """Fit the model to leave-one-group-out predictions of the training samples' ranks.

    A sample without such a prediction has NaN. Without any, ranks map to the nearest category.
    """
    if left_out_NC is None or not np.isfinite(left_out_NC).any():
        left_out_NC = labels.outputs_NC
    ranks_N = left_out_NC[:, 0]
    predicted = np.isfinite(ranks_N)
    codes_N = labels.values[predicted].astype(np.int64)
    return fit_proportional_odds(ranks_N[predicted], codes_N, len(labels.levels))


def median_codes(probabilities_NC: F64) -> Rows:
    """Return the median category, in which the cumulative probability reaches 1/2, int64 [N]."""
    return (np.cumsum(probabilities_NC[:, :-1], axis=1) < 0.5).sum(axis=1)
