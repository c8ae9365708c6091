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
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from aam.contract.errors import DataError
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
from aam.data.splits import Split
from aam.data.targets import UNSCALED, TargetScale
from aam.members.base import F64, Labels, Rows
from aam.members.uncertainty import fit_odds, median_codes

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


_PARTS = 5
"""Parts of the groups of a single split, which stand for its folds in `Folds.parts_M`."""


@dataclass(frozen=True)
class Folds:
    """Labels of N samples, and the splits on which models are fitted and scored.

    The held-out samples are ordered by fold. A sample is held out in several folds where the splits
    file has it so.

    Raises:
        DataError: a split without test and validation samples, or some with test samples and some
            with validation samples alone.
    """

    labels: Labels  # labels of all N samples, in the units of the target
    splits: tuple[Split, ...]  # one split, or one per fold
    seed: int  # seed of the estimators
    group_column: str | None = None  # column of the metadata with the groups; None without groups
    # transform of a number; estimators are fitted to transformed labels
    scale: TargetScale = UNSCALED

    def __post_init__(self) -> None:
        """Check that every split has held-out samples of the same part."""
        for fold, split in enumerate(self.splits, start=1):
            if not len(split.held_out[1]):
                raise DataError(
                    "The split has no test or validation samples",
                    f"fold {fold}",
                    "check the splits",
                )
        if len({split.held_out[0] for split in self.splits}) > 1:
            raise DataError(
                "Some folds have test samples, others validation samples alone",
                f"{len(self.splits)} folds",
                "check the splits",
            )

    @property
    def part(self) -> str:
        """Name of the held-out part: "test" or "validation"."""
        return self.splits[0].held_out[0]

    @cached_property
    def fitted_rows(self) -> tuple[Rows, ...]:
        """Rows to which models are fitted: of each split, and last of all samples of the splits."""
        fitted = [training_rows(split) for split in self.splits]
        everything = np.unique(np.concatenate([*fitted, self.rows_M]))
        return (*fitted, everything)

    @cached_property
    def rows_M(self) -> Rows:
        """Rows of the held-out samples among all N."""
        return np.concatenate([split.held_out[1] for split in self.splits])

    @cached_property
    def fold_M(self) -> Rows:
        """Fold in which each sample is held out, from 1."""
        sizes = [len(split.held_out[1]) for split in self.splits]
        return np.repeat(np.arange(1, len(sizes) + 1), sizes)

    @cached_property
    def held_out(self) -> Labels:
        """Labels of the held-out samples."""
        return self.labels.take(self.rows_M)

    @property
    def parts_M(self) -> Rows:
        """Fold of each held-out sample; of a single split, one of five parts of groups."""
        if len(self.splits) > 1:
            return self.fold_M
        # A single split has no other folds from which weights and calibration could come.
        return np.unique(self.held_out.groups, return_inverse=True)[1] % _PARTS

    @cached_property
    def draws(self) -> BootstrapResamples:
        """Resamples of the groups of the held-out samples."""
        return resample_groups(self.held_out.groups)

    @cached_property
    def dummy_MC(self) -> F64:
        """Mean or class frequencies of the training samples of the fold of each held-out sample."""
        predicted_NC = self.labels.predicted_NC
        means = [predicted_NC[training_rows(split)].mean(axis=0) for split in self.splits]
        return np.stack(means)[self.fold_M - 1]

    @property
    def units(self) -> str:
        """Number and name of the units of the bootstrap ("42 groups of infant", "90 samples")."""
        unit = "samples" if self.group_column is None else f"groups of {self.group_column}"
        return f"{self.draws.groups} {unit}"

    def with_levels(self, predictions_MC: F64, left_out: Sequence[F64 | None]) -> F64:
        """Append the probability of each level to predicted ranks; other predictions stay.

        The model from a rank to the levels is fitted to predictions inside the training part of the
        fold. Held-out predictions of other folds would not do: their models were trained on the
        labels of this one (random labels in groups: weighted kappa 0.027, 500 studies).
        """
        if not self.labels.levels:
            return predictions_MC
        parts = []
        for k, rows in enumerate(self.fitted_rows[:-1]):
            ranks_M1 = predictions_MC[self.fold_M == k + 1]
            odds = fit_odds(left_out[k] if left_out else None, self.labels.take(rows))
            parts.append(np.hstack([ranks_M1, odds.probabilities(ranks_M1[:, 0])]))
        return np.concatenate(parts)

    def scored(self, predictions_MC: F64) -> ScoredPredictions:
        """Combine predictions of the held-out samples with their labels.

        Of ordered categories the median one is the prediction, see `with_levels`.
        """
        labels = self.held_out
        folds = tuple(str(fold) for fold in self.fold_M) if len(self.splits) > 1 else ()
        if labels.type == "regression":
            return ScoredPredictions(labels.values, predictions_MC[:, 0], folds)
        codes_M = labels.values.astype(np.int64)
        if labels.classes:
            predicted_M = predictions_MC.argmax(axis=1)
            return ScoredPredictions(codes_M, predicted_M, folds, labels.classes, predictions_MC)
        chances_MC = predictions_MC[:, 1:]
        predicted_M = median_codes(chances_MC)
        return ScoredPredictions(
            codes_M, predicted_M, folds, labels.levels, chances_MC, ordered=True
        )

    def drawn(self, predictions_MC: F64) -> ResampledMetrics:
        """Compute the metrics of predictions of the held-out samples, also on each draw."""
        return resample_metrics(self.scored(predictions_MC), self.draws)


def training_rows(split: Split) -> Rows:
    """Return the samples that an estimator may read: all of the split that are not held out.

    It needs no validation samples, since its hyper-parameters are chosen by leaving out groups.
    """
    if not len(split.test):
        return split.train
    return np.sort(np.concatenate([split.train, split.validation]))
