"""Folds, and scores of their held-out samples with confidence intervals and paired differences.

Intervals are those of a bootstrap over groups: groups (infants, studies) are drawn with
replacement, each with all its samples, since samples of a group are not independent. A paired
difference scores two models on the same resamples.

M held-out samples, I groups, Z resamples of a block; further shape suffixes: see `base`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from aam.arrays import F64, Rows
from aam.contract.options.study import TargetType
from aam.evaluation.metrics import (
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

DRAWS = 1000
SEED = 0
"""Seed of the bootstrap: `aam train`, `aam report` and `aam compare` have the same intervals."""

LEVEL = 0.95
"""Level of the confidence intervals."""

_BLOCK = 2**20
"""Resamples times samples that are scored at once, 8 MiB for each array."""

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
class BootstrapResamples:
    """Resamples of the groups, drawn again from the seed for each model."""

    group_M: Rows  # number of the group of each sample, from 0
    seed: int  # seed of the draws
    number: int  # number of draws; none with fewer than two groups

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


def resample_groups(
    groups: npt.NDArray[Any], seed: int = SEED, draws: int = DRAWS
) -> BootstrapResamples:
    """Draw groups with replacement.

    This is the cluster bootstrap (Field and Welsh 2007, doi:10.1111/j.1467-9868.2007.00593.x). The
    groups of the M samples are names, or numbers in their order: samples in another order have the
    same draws. There are none of a single group.
    """
    names, group_M = np.unique(groups, return_inverse=True)
    return BootstrapResamples(group_M, seed, draws if len(names) > 1 else 0)


def joint_groups(
    groups_of: Sequence[Mapping[str, str]], sample_ids: Sequence[str]
) -> npt.NDArray[np.str_]:
    """Return the groups by which samples of several runs are resampled, str [M].

    Samples that share a group in any of the runs, also through other samples, are resampled
    together: the result does not depend on the order of the runs. A sample without a group in one
    of them is its own.

    >>> joint_groups([{"a": "x", "b": "x"}, {"b": "y", "c": "y"}], ["a", "b", "c", "d"]).tolist()
    ['a', 'a', 'a', 'd']
    """
    pairs = [(k, g.get(name, name)) for name in sample_ids for k, g in enumerate(groups_of)]
    nodes = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    numbers = np.array([nodes[pair] for pair in pairs]).reshape(len(sample_ids), -1)
    rows = np.repeat(np.arange(len(sample_ids)), numbers.shape[1])
    shape = len(sample_ids), len(nodes)
    member_MI = sparse.csr_array((np.ones(numbers.size), (rows, numbers.ravel())), shape)
    _, component_M = connected_components(member_MI @ member_MI.T, directed=False)
    names: dict[int, str] = {}
    for component, row in zip(component_M.tolist(), range(len(sample_ids)), strict=True):
        first = min(g.get(sample_ids[row], sample_ids[row]) for g in groups_of)
        names[component] = min(names.get(component, first), first)
    return np.array([names[component] for component in component_M.tolist()], dtype=np.str_)


@dataclass(frozen=True)
class ResampledMetrics:
    """Metrics of a model on all samples and on each draw."""

    scored: ScoredPredictions  # all samples
    whole: dict[str, float]  # metric -> value; NaN where it is not defined
    draws: dict[str, F64]  # metric -> value of each draw, float64 [draws]

    def score(self) -> dict[str, Score]:
        """Return each metric with its interval."""
        return {name: _interval(value, self.draws[name]) for name, value in self.whole.items()}

    def equals(self, other: ResampledMetrics) -> bool:
        """Return whether the first metric is that of the other model, also on each draw."""
        name = next(iter(self.whole))
        same = np.array_equal(self.draws[name], other.draws[name], equal_nan=True)
        return same and self.whole[name] == other.whole[name]

    def paired_difference(self, other: ResampledMetrics) -> tuple[str, Score]:
        """Return the first metric, and this model's minus the other's on the same draws."""
        name = next(iter(self.whole))
        difference = self.whole[name] - other.whole[name]
        return name, _interval(difference, self.draws[name] - other.draws[name])


def resample_metrics(scored: ScoredPredictions, draws: BootstrapResamples) -> ResampledMetrics:
    """Compute the metrics of `SCORED` on all samples and on each draw.

    The type of the predictions chooses the metrics.
    """
    metrics = SCORED[scored.type]
    # Ranks within folds of a resample are further from the truth than those of all samples, by an
    # amount that no interval of these draws corrects: 83 of 120 covered a correlation of 0.95.
    without = {"spearman"} if scored.folds else set()
    blocks: dict[str, list[F64]] = {name: [np.empty(0)] for name in metrics}
    for weights_ZM in draws.weights():
        for name, metric in metrics.items():
            if name in without:
                continue
            blocks[name].append(metric(scored, weights_ZM))
    return ResampledMetrics(
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
