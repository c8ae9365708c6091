"""Scores of models with confidence intervals, and paired differences, by bootstrap over groups.

Groups (infants, studies) are drawn with replacement, each with all its samples, since samples of a
group are not independent. A paired difference scores two models on the same draws.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from scipy.stats import NearConstantInputWarning

from aam.contract.options.study import TargetType
from aam.data.metrics import (
    CLASSIFICATION,
    ORDINAL,
    PROBABILITIES,
    REGRESSION,
    MetricFunction,
    ScoredPredictions,
)
from aam.members.base import F64, Rows

DRAWS = 1000
LEVEL = 0.95
"""Of the confidence intervals."""

SCORED: dict[TargetType, dict[str, MetricFunction]] = {
    "regression": {name: REGRESSION[name] for name in ("r2", "mae")},
    "classification": {"auc": PROBABILITIES["auc"], "accuracy": CLASSIFICATION["accuracy"]},
    "ordinal": {**ORDINAL, "accuracy": CLASSIFICATION["accuracy"]},
}
"""Metrics with an interval; the first compares models."""

TITLES = {"r2": "R²", "auc": "AUC", "weighted_kappa": "weighted kappa"}
"""Names of the metrics that compare models, in sentences."""


@dataclass(frozen=True)
class Score:
    """A metric or a difference of metrics with its confidence interval.

    `value` is None where the metric is not defined; the limits also with fewer than two groups.
    """

    value: float | None
    lower: float | None
    upper: float | None

    @property
    def beyond_noise(self) -> bool:
        """Whether the interval excludes 0."""
        if self.lower is None or self.upper is None:
            return False
        return self.lower > 0 or self.upper < 0


@dataclass(frozen=True)
class Draws:
    """Resamples of the groups: rows of each draw."""

    rows: tuple[Rows, ...]
    groups: int


def draw_groups(groups: Rows, seed: int, draws: int = DRAWS) -> Draws:
    """Draw groups (int64 [M], the group of each row) with replacement."""
    order = np.argsort(groups, kind="stable")
    names, sizes = np.unique(groups, return_counts=True)
    members = np.split(order, np.cumsum(sizes)[:-1])
    rng = np.random.default_rng(seed)
    if len(names) < 2:
        return Draws((), len(names))
    chosen = rng.integers(len(names), size=(draws, len(names)))
    return Draws(tuple(np.concatenate([members[k] for k in draw]) for draw in chosen), len(names))


@dataclass(frozen=True)
class Drawn:
    """Metrics of a model on all samples and on each draw.

    Attributes:
        scored: all samples.
        whole: metric -> value; NaN where it is not defined.
        draws: metric -> value of each draw, float64 [draws].
    """

    scored: ScoredPredictions
    whole: dict[str, float]
    draws: dict[str, F64]

    def score(self) -> dict[str, Score]:
        """Return each metric with its interval."""
        return {name: _interval(value, self.draws[name]) for name, value in self.whole.items()}

    def ahead_of(self, other: Drawn) -> tuple[str, Score]:
        """Return the first metric, and this model's minus the other's on the same draws."""
        name = next(iter(self.whole))
        difference = self.whole[name] - other.whole[name]
        return name, _interval(difference, self.draws[name] - other.draws[name])


def draw_metrics(scored: ScoredPredictions, draws: Draws) -> Drawn:
    """Compute the metrics of `SCORED` on all samples and on each draw."""
    functions = SCORED[scored.type]
    parts = [scored.take(rows) for rows in draws.rows]
    return Drawn(
        scored,
        {name: _metric(function, scored) for name, function in functions.items()},
        {
            name: np.array([_metric(function, part) for part in parts])
            for name, function in functions.items()
        },
    )


def _metric(function: MetricFunction, scored: ScoredPredictions) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NearConstantInputWarning)
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        return function(scored)


def _interval(whole: float, drawn: F64) -> Score:
    """Return the percentile interval of the defined draws."""
    if math.isnan(whole):
        return Score(None, None, None)
    defined = drawn[~np.isnan(drawn)]
    if len(defined) < 2:
        return Score(whole, None, None)
    lower, upper = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Score(whole, float(lower), float(upper))
