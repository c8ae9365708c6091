"""Scores of models with confidence intervals, and paired differences, by bootstrap over groups.

Groups (infants, studies) are drawn with replacement, each with all its samples, since samples of a
group are not independent. A paired difference scores two models on the same draws.

Shape suffixes: M held-out samples, I groups, Z draws of a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from aam.contract.options.study import TargetType
from aam.data.metrics import (
    ResampledMetric,
    ScoredPredictions,
    accuracy,
    auc,
    mean_absolute_error,
    r2,
    root_mean_squared_error,
    spearman,
    value_of,
    weighted_kappa,
)
from aam.members.base import F64, Rows

DRAWS = 1000
LEVEL = 0.95
"""Level of the confidence intervals."""

_BLOCK = 2**20
"""Draws times samples that are scored at once, 8 MiB for each array."""

SCORED: dict[TargetType, dict[str, ResampledMetric]] = {
    "regression": {
        "r2": r2,
        "mae": mean_absolute_error,
        "rmse": root_mean_squared_error,
        "spearman": spearman,
    },
    "classification": {"auc": auc, "accuracy": accuracy},
    "ordinal": {
        "weighted_kappa": weighted_kappa,
        "mae_ranks": mean_absolute_error,
        "accuracy": accuracy,
    },
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
    """Resamples of the groups, drawn again from the seed for each model.

    Attributes:
        group_M: number of the group of each sample, from 0.
        seed: seed of the draws.
        number: number of draws; none with fewer than two groups.
    """

    group_M: Rows
    seed: int
    number: int

    @property
    def groups(self) -> int:
        """Number of groups I."""
        return int(self.group_M.max()) + 1

    def weights(self) -> Iterator[F64]:
        """Yield how often each draw has every sample, float64 [Z, M], in blocks of draws."""
        # The seed starts again for each model: a paired difference needs the same draws.
        rng = np.random.default_rng(self.seed)
        block = max(1, _BLOCK // len(self.group_M))
        for start in range(0, self.number, block):
            draws = min(block, self.number - start)
            chosen_ZI = rng.integers(self.groups, size=(draws, self.groups))
            chosen_ZI += self.groups * np.arange(draws)[:, None]
            times = np.bincount(chosen_ZI.ravel(), minlength=draws * self.groups)
            yield times.reshape(draws, -1)[:, self.group_M].astype(np.float64)


def draw_groups(groups: Rows, seed: int, draws: int = DRAWS) -> Draws:
    """Draw groups with replacement.

    This is the cluster bootstrap (Field and Welsh 2007, doi:10.1111/j.1467-9868.2007.00593.x).

    Args:
        groups: int64 [M], the group of each sample.
        seed: seed of the generator; models that are compared have the same one.
        draws: number of draws; there are none of a single group.

    >>> (weights_ZM,) = draw_groups(np.array([7, 7, 9]), seed=0, draws=100).weights()
    >>> weights_ZM.shape, bool((weights_ZM[:, 0] == weights_ZM[:, 1]).all())
    ((100, 3), True)
    """
    names, group_M = np.unique(groups, return_inverse=True)
    return Draws(group_M, seed, draws if len(names) > 1 else 0)


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

    def equals(self, other: Drawn) -> bool:
        """Return whether the first metric is that of the other model, also on each draw."""
        name = next(iter(self.whole))
        same = np.array_equal(self.draws[name], other.draws[name], equal_nan=True)
        return same and self.whole[name] == other.whole[name]

    def ahead_of(self, other: Drawn) -> tuple[str, Score]:
        """Return the first metric, and this model's minus the other's on the same draws."""
        name = next(iter(self.whole))
        difference = self.whole[name] - other.whole[name]
        return name, _interval(difference, self.draws[name] - other.draws[name])


def draw_metrics(scored: ScoredPredictions, draws: Draws) -> Drawn:
    """Compute the metrics of `SCORED` on all samples and on each draw.

    Args:
        scored: predictions and labels of M samples; their type chooses the metrics.
        draws: resamples of the groups of the same samples.

    >>> scored = ScoredPredictions(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0]))
    >>> drawn = draw_metrics(scored, draw_groups(np.arange(3), seed=0))
    >>> round(drawn.score()["mae"].value, 3), len(drawn.draws["mae"])
    (0.333, 1000)
    """
    metrics = SCORED[scored.type]
    blocks: dict[str, list[F64]] = {name: [np.empty(0)] for name in metrics}
    for weights_ZM in draws.weights():
        for name, metric in metrics.items():
            blocks[name].append(metric(scored, weights_ZM))
    return Drawn(
        scored,
        {name: value_of(metric, scored) for name, metric in metrics.items()},
        {name: np.concatenate(values) for name, values in blocks.items()},
    )


def _interval(whole: float, drawn: F64) -> Score:
    """Return the percentile interval of the defined draws."""
    if math.isnan(whole):
        return Score(None, None, None)
    # A draw that lacks a class has no AUC.
    defined = drawn[~np.isnan(drawn)]
    if len(defined) < 2:
        return Score(whole, None, None)
    lower, upper = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Score(whole, float(lower), float(upper))
