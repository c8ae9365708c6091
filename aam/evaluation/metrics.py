"""Metrics of predictions against labels: numbers, classes, ordered classes; confusion matrix.

Metrics that rank the samples (AUC, Pearson, Spearman) only compare samples of the same fold. If a
fold holds out many samples of a class, few remain for training, so the mean predictions of the
folds run against the labels: over all pairs a constant prediction has an AUC far below 0.5 (Parker,
Gunter and Bedo 2007, "Stratification bias in low signal microarray studies"). The other metrics
compare each prediction with its own label and are sums over all samples; the baseline has an R2 and
a weighted kappa of at most 0.

In a repeated cross-validation, a metric is the mean over the repeats: the metric of averaged
predictions would score another model, a mean of several. With several studies, it is the mean over
the studies in which it is defined: pooled samples would also score differences between studies.

Functions with `weights_ZN` compute a metric of Z resamples at once, float64 [Z], from the weights
of the N samples in each resample (float64, at least 0). A metric that is not defined (R2 of one
sample, AUC of one class) is NaN there and None in a result.

To add a metric, add an entry to `METRICS` with title, direction, scale and value without skill;
scores, tables, intervals and the report read it (docs/how_to/add_a_metric.md).

Further shape suffixes: K folds, Y blocks of tied samples.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import entr, expit, logit
from sklearn.metrics import (
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
    median_absolute_error,
)

from aam.arrays import F64, Codes
from aam.contract.options.groups import TargetType
from aam.data.metadata import as_numbers
from aam.number_format import fixed, significant

Metrics = dict[str, float | None]

_LEAST_CHANCE = 1e-6
"""Smallest probability of the true class in a log loss, which keeps it finite."""


@dataclass(frozen=True)
class ScoredPredictions:
    """Predictions with the labels of the same N samples."""

    actual: npt.NDArray[Any]  # [N], numbers in the target's units, or int64 codes of `classes`
    predicted: npt.NDArray[Any]  # [N], as `actual`
    folds: tuple[str, ...] = ()  # N names; empty for a single fold
    classes: tuple[str, ...] = ()  # C names; empty for a numeric target
    probabilities: F64 | None = None  # [N, C]
    ordered: bool = False  # whether the codes are ranks
    repeats: tuple[str, ...] = ()  # N names; empty for a single partition into folds
    studies: tuple[str, ...] = ()  # N names; empty for a single study

    @classmethod
    def pooled(cls, folds: Sequence[ScoredPredictions]) -> ScoredPredictions:
        """Combine the predictions of several folds into one cross-validation.

        A fold of one class has no AUC of its own, but the combined folds have one.
        """
        first = folds[0]
        chances = [fold.probabilities for fold in folds if fold.probabilities is not None]
        return cls(
            np.concatenate([fold.actual for fold in folds]),
            np.concatenate([fold.predicted for fold in folds]),
            tuple(str(k) for k, fold in enumerate(folds, start=1) for _ in fold.actual),
            first.classes,
            np.concatenate(chances) if chances else None,
            first.ordered,
            studies=tuple(chain.from_iterable(fold.studies for fold in folds)),
        )

    @property
    def type(self) -> TargetType:
        """Type of the target, which decides the metrics."""
        if not self.classes:
            return "regression"
        return "ordinal" if self.ordered else "classification"

    @cached_property
    def fold_N(self) -> Codes:
        """Number of the fold of each sample."""
        if not self.folds:
            return np.zeros(len(self.actual), dtype=np.int64)
        return np.unique(self.folds, return_inverse=True)[1].astype(np.int64)

    @property
    def is_constant(self) -> bool:
        """Whether all samples of each fold have the same prediction, up to rounding."""
        values_NC = self.predicted[:, None] if self.probabilities is None else self.probabilities
        ranges = (np.ptp(values_NC[self.fold_N == k], axis=0).max() for k in np.unique(self.fold_N))
        return bool(max(ranges, default=0) <= 1e-9 * np.abs(values_NC).max(initial=0))

    def take(self, rows: Codes) -> ScoredPredictions:
        """Return the samples at `rows` (int [m])."""
        return ScoredPredictions(
            self.actual[rows],
            self.predicted[rows],
            tuple(self.folds[row] for row in rows) if self.folds else (),
            self.classes,
            None if self.probabilities is None else self.probabilities[rows],
            self.ordered,
            tuple(self.repeats[row] for row in rows) if self.repeats else (),
            tuple(self.studies[row] for row in rows) if self.studies else (),
        )

    @cached_property
    def partitions(self) -> tuple[tuple[Codes, ScoredPredictions], ...]:
        """Rows and predictions of each partition into folds."""
        return tuple(
            (rows, replace(self.take(rows), repeats=())) for rows in rows_of(self.repeats).values()
        )

    @cached_property
    def by_study(self) -> dict[str, tuple[Codes, ScoredPredictions]]:
        """Rows and predictions of each study, by its name."""
        return {
            study: (rows, replace(self.take(rows), studies=()))
            for study, rows in rows_of(self.studies).items()
        }

    @property
    def first(self) -> ScoredPredictions:
        """Predictions of the first repeat: each sample once."""
        return self.partitions[0][1] if self.repeats else self

    def value(self, metric: ResampledMetric) -> float:
        """Compute a metric of all samples, each counted once.

        >>> scored = ScoredPredictions(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0]))
        >>> scored.value(r2), round(scored.value(mean_absolute_error), 3)
        (0.5, 0.333)
        """
        return float(metric(self, np.ones((1, len(self.actual))))[0])

    def metrics(self) -> Metrics:
        """Return the number of samples (`samples`) and every metric by name; None if not defined.

        With several repeats a metric is their mean; with several studies, the mean over the studies
        in which it is defined.

        >>> metrics = ScoredPredictions(np.array([1.0, 2, 3]), np.array([1.0, 2, 4])).metrics()
        >>> metrics["samples"], metrics["r2"], metrics["median_error"]
        (3, 0.5, 0.0)
        """
        if self.studies or self.repeats:
            subsets = self.by_study.values() if self.studies else self.partitions
            metrics = [scored.metrics() for _, scored in subsets]
            means: Metrics = {}
            for name in metrics[0]:
                column = [value for row in metrics if (value := row[name]) is not None]
                is_defined = bool(column) if self.studies else len(column) == len(metrics)
                means[name] = float(np.mean(column)) if is_defined else None
            return means | {"samples": len((self if self.studies else self.first).actual)}
        values: dict[str, float] = {}
        with warnings.catch_warnings():
            # Small validation sets have as many classes as samples, and lack classes.
            warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
            warnings.filterwarnings("ignore", "y_pred contains classes not in y_true", UserWarning)
            warnings.filterwarnings("ignore", "A single label was found", UserWarning)
            for name, metric in METRICS.items():
                lacks = metric.of_probabilities and self.probabilities is None
                if self.type in metric.targets and not lacks:
                    values[name] = metric.function(self)
        defined = {name: None if math.isnan(value) else value for name, value in values.items()}
        return {"samples": len(self.actual), **defined}


def rows_of(names: Sequence[str]) -> dict[str, Codes]:
    """Return the rows of each name, in order of first appearance."""
    array = np.array(names, dtype=str)
    return {name: np.flatnonzero(array == name) for name in dict.fromkeys(names)}


MetricFunction = Callable[[ScoredPredictions], float]
ResampledMetric = Callable[[ScoredPredictions, F64], F64]


def over_partitions(metric: ResampledMetric) -> ResampledMetric:
    """Average a metric over the repeats of a cross-validation, and over studies."""

    @wraps(metric)
    def mean(scored: ScoredPredictions, weights_ZN: F64) -> F64:
        if scored.studies:
            subsets = scored.by_study.values()
            values_SZ = np.stack([mean(subset, weights_ZN[:, rows]) for rows, subset in subsets])
            defined_Z = (~np.isnan(values_SZ)).sum(axis=0)
            return _ratio(np.nansum(values_SZ, axis=0), defined_Z, defined_Z > 0)
        if not scored.repeats:
            return metric(scored, weights_ZN)
        values = [metric(subset, weights_ZN[:, rows]) for rows, subset in scored.partitions]
        mean_Z: F64 = np.mean(values, axis=0)
        return mean_Z

    return mean


@over_partitions
def r2(scored: ScoredPredictions, weights_ZN: F64) -> F64:
    """Compute the coefficient of determination, 1 - errors / variance around the resample's mean.

    NaN if all labels of the resample are the same.
    """
    # Centred first: the variance of large numbers as a difference of two sums loses precision.
    centred_N = scored.actual - scored.actual.mean()
    sum_Z = weights_ZN @ centred_N
    variance_Z = weights_ZN @ np.square(centred_N) - np.square(sum_Z) / weights_ZN.sum(axis=1)
    errors_Z = weights_ZN @ np.square(scored.actual - scored.predicted)
    # Checked on the values: the variance of equal labels may be a rounding error instead of 0.
    return 1 - _ratio(errors_Z, variance_Z, _varies(scored.actual, weights_ZN))


@over_partitions
def weighted_kappa(scored: ScoredPredictions, weights_ZN: F64) -> F64:
    """Compute Cohen's kappa with quadratic weights (Cohen 1968) of ordered classes.

    NaN if all true ranks of the resample are the same.
    """
    actual_N, predicted_N = (
        ranks.astype(np.float64) for ranks in (scored.actual, scored.predicted)
    )
    total_Z = weights_ZN.sum(axis=1)
    errors_Z = weights_ZN @ np.square(actual_N - predicted_N)
    # Mean squared difference between every true and every predicted rank.
    products_Z = (weights_ZN @ actual_N) * (weights_ZN @ predicted_N) / total_Z
    by_chance_Z = weights_ZN @ (np.square(actual_N) + np.square(predicted_N)) - 2 * products_Z
    return 1 - _ratio(errors_Z, by_chance_Z, _varies(actual_N, weights_ZN))


@over_partitions
def mean_absolute_error(scored: ScoredPredictions, weights_ZN: F64) -> F64:
    """Compute the mean absolute error of numbers, or of ranks."""
    mean_Z: F64 = weights_ZN @ np.abs(scored.actual - scored.predicted) / weights_ZN.sum(axis=1)
    return mean_Z


@over_partitions
def root_mean_squared_error(scored: ScoredPredictions, weights_ZN: F64) -> F64:
    """Compute the root of the mean squared error of numbers."""
    squares_N = np.square(scored.actual - scored.predicted)
    error_Z: F64 = np.sqrt(weights_ZN @ squares_N / weights_ZN.sum(axis=1))
    return error_Z


@over_partitions
def spearman(scored: ScoredPredictions, weights_ZN: F64) -> F64:
    """Compute Spearman's correlation of labels and predictions, ranked within folds.

    Ranks are divided by the size of the fold plus 1, so their mean is 1/2 in every fold. NaN if all
    labels or all predictions of each fold are the same.
    """

    def centred_ranks(values_N: npt.NDArray[Any]) -> F64:
        # One sort serves all resamples: only the weights differ, and ranks are sums of weights.
        # Tied samples have their mean rank.
        order, ties_Y, folds_K = _sorted_ties(values_N, scored.fold_N)
        size_ZY = np.add.reduceat(weights_ZN[:, order], ties_Y, axis=1)
        size_ZK = np.add.reduceat(size_ZY, folds_K, axis=1)
        fold_Y = np.repeat(np.arange(len(folds_K)), np.diff(folds_K, append=len(ties_Y)))
        lower_ZY = np.cumsum(size_ZY, axis=1) - size_ZY
        lower_ZY -= (np.cumsum(size_ZK, axis=1) - size_ZK)[:, fold_Y]
        rank_ZY = (lower_ZY + (size_ZY + 1) / 2) / (size_ZK[:, fold_Y] + 1)
        ranks_ZN = np.empty_like(weights_ZN)
        ranks_ZN[:, order] = np.repeat(rank_ZY, np.diff(ties_Y, append=len(order)), axis=1)
        return ranks_ZN - 0.5

    actual_ZN, predicted_ZN = centred_ranks(scored.actual), centred_ranks(scored.predicted)
    sizes_Z = np.sqrt(
        (weights_ZN * np.square(actual_ZN)).sum(axis=1)
        * (weights_ZN * np.square(predicted_ZN)).sum(axis=1)
    )
    products_Z = (weights_ZN * actual_ZN * predicted_ZN).sum(axis=1)
    return _ratio(products_Z, sizes_Z, sizes_Z > 0).clip(-1, 1)


@over_partitions
def accuracy(scored: ScoredPredictions, weights_ZN: F64) -> F64:
    """Compute the fraction of samples whose class is predicted correctly."""
    right_Z: F64 = weights_ZN @ (scored.actual == scored.predicted) / weights_ZN.sum(axis=1)
    return right_Z


@over_partitions
def auc(scored: ScoredPredictions, weights_ZN: F64) -> F64:
    """Compute the AUC of the second of two classes, or the mean over one-against-rest AUCs.

    NaN if no fold has a pair of two classes.

    >>> chances = np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.8, 0.2]])
    >>> codes = np.array([0, 0, 1, 1])
    >>> scored = ScoredPredictions(codes, chances.argmax(axis=1), (), ("no", "yes"), chances)
    >>> scored.value(auc)
    0.75
    """
    codes = [1] if len(scored.classes) == 2 else range(len(scored.classes))
    each_CZ = np.stack([class_auc(scored, code, weights_ZN) for code in codes])
    defined_Z = (~np.isnan(each_CZ)).sum(axis=0)
    return _ratio(np.nansum(each_CZ, axis=0), defined_Z, defined_Z > 0)


def class_auc(scored: ScoredPredictions, code: int, weights_ZN: F64) -> F64:
    """Compute the AUC of the class with number `code` against all other classes.

    The AUC is the fraction of concordant pairs, with ties counted half, among all pairs of a sample
    of the class and another sample of the same fold (the Mann-Whitney statistic, stratified by
    fold; `survival::concordance` in R pools strata in this way). A mean over the folds' AUCs would
    give a fold with one sample of the class as much weight as a fold with many.
    """
    assert scored.probabilities is not None
    order, ties_Y, folds_K = _sorted_ties(scored.probabilities[:, code], scored.fold_N)
    sorted_ZN = weights_ZN[:, order]
    positive_ZY = np.add.reduceat(sorted_ZN * (scored.actual == code)[order], ties_Y, axis=1)
    negative_ZY = np.add.reduceat(sorted_ZN, ties_Y, axis=1) - positive_ZY
    positive_ZK = np.add.reduceat(positive_ZY, folds_K, axis=1)
    negative_ZK = np.add.reduceat(negative_ZY, folds_K, axis=1)
    # Negative samples with lower values, minus the negative samples of other folds.
    lower_ZY = np.cumsum(negative_ZY, axis=1) - negative_ZY / 2
    earlier_ZK = np.cumsum(negative_ZK, axis=1) - negative_ZK
    concordant_Z = (positive_ZY * lower_ZY).sum(axis=1) - (positive_ZK * earlier_ZK).sum(axis=1)
    pairs_Z = (positive_ZK * negative_ZK).sum(axis=1)
    return _ratio(concordant_Z, pairs_Z, pairs_Z > 0)


@over_partitions
def mcfadden_r2(scored: ScoredPredictions, weights_ZN: F64) -> F64:
    """Compute McFadden's R² of class probabilities, 1 - log loss / log loss of the frequencies.

    The class frequencies are taken from the resample, as R² takes the mean from the resample
    (McFadden 1974). NaN with one class.
    """
    assert scored.probabilities is not None
    codes_N = scored.actual.astype(np.int64)
    chances_N = scored.probabilities[np.arange(len(codes_N)), codes_N]
    losses_Z = -weights_ZN @ np.log(chances_N.clip(_LEAST_CHANCE))
    counts_ZC = weights_ZN @ np.eye(len(scored.classes))[codes_N]
    shares_ZC = counts_ZC / counts_ZC.sum(axis=1, keepdims=True)
    entropy_Z = entr(shares_ZC).sum(axis=1) * counts_ZC.sum(axis=1)
    return 1 - _ratio(losses_Z, entropy_Z, _varies(codes_N, weights_ZN))


def _sorted_ties(values_N: npt.NDArray[Any], fold_N: Codes) -> tuple[Codes, Codes, Codes]:
    """Sort by fold and value; return the order, each tie's first sample, each fold's first tie."""
    order = np.lexsort((values_N, fold_N))
    begins_fold = np.diff(fold_N[order], prepend=-1) != 0
    begins_tie = begins_fold | (np.diff(values_N[order], prepend=np.nan) != 0)
    ties_Y = np.flatnonzero(begins_tie)
    return order, ties_Y, np.flatnonzero(begins_fold[ties_Y])


def _varies(values_N: npt.NDArray[Any], weights_ZN: F64) -> npt.NDArray[np.bool_]:
    """Return whether each resample has more than one value."""
    highest_Z = np.where(weights_ZN > 0, values_N, -np.inf).max(axis=1)
    lowest_Z = np.where(weights_ZN > 0, values_N, np.inf).min(axis=1)
    varies_Z: npt.NDArray[np.bool_] = lowest_Z < highest_Z
    return varies_Z


def _ratio(numerator_Z: F64, denominator_Z: F64, defined_Z: npt.NDArray[np.bool_]) -> F64:
    ratio_Z = np.full(len(numerator_Z), np.nan)
    np.divide(numerator_Z, denominator_Z, out=ratio_Z, where=defined_Z)
    return ratio_Z


def _pearson(scored: ScoredPredictions) -> float:
    """Compute the correlation of labels and predictions, centred within folds."""
    pair = np.stack([scored.actual, scored.predicted]).astype(np.float64)
    for fold in np.unique(scored.fold_N):
        rows = scored.fold_N == fold
        values = pair[:, rows]
        varies = np.ptp(values, axis=1, keepdims=True) > 0
        # Equal values differ from their rounded mean, and these differences would correlate.
        pair[:, rows] = np.where(varies, values - values.mean(axis=1, keepdims=True), 0)
    size = np.linalg.norm(pair[0]) * np.linalg.norm(pair[1])
    return float(np.clip(pair[0] @ pair[1] / size, -1, 1)) if size > 0 else math.nan


def _of_arrays(function: Callable[..., Any], **options: Any) -> MetricFunction:
    return lambda scored: float(function(scored.actual, scored.predicted, **options))


@dataclass(frozen=True)
class Scale:
    """Scale on which the error of a statistic is nearly symmetric, for its t interval."""

    name: str  # name in sentences; {title} stands for the metric's
    forward: Callable[[F64], F64]
    inverse: Callable[[F64], F64]
    slope: Callable[[float], float]  # derivative of `forward`
    # range of the statistic; the slope is infinite at finite ends
    low: float = -math.inf
    high: float = math.inf


LINEAR = Scale("its units", lambda value: value, lambda value: value, lambda value: 1.0)
PROPORTION = Scale("logit", logit, expit, lambda value: 1 / (value * (1 - value)), 0.0, 1.0)
# R² and kappa are 1 minus a ratio of errors to their spread.
RATIO = Scale(
    "logarithm of 1 - {title}",
    lambda value: -np.log1p(-value),
    lambda value: -np.expm1(-value),
    lambda value: 1 / (1 - value),
    high=1.0,
)
# A mean of few squares is more skewed than a logarithm can undo.
ERROR = Scale(
    "reciprocal root",
    lambda value: -2 / np.sqrt(value),
    lambda value: np.where(value < 0, 4 / np.square(value), np.inf),
    lambda value: value**-1.5,
    low=0.0,
)
LOGARITHM = Scale("logarithm", np.log, np.exp, lambda value: 1 / value, low=0.0)
CORRELATION = Scale("Fisher's z", np.arctanh, np.tanh, lambda value: 1 / (1 - value**2), -1.0, 1.0)


@dataclass(frozen=True)
class Metric:
    """Metric of predictions, with its properties for scores, tables, intervals and pages."""

    title: str  # name within a sentence, such as "weighted kappa"
    targets: tuple[TargetType, ...]  # types of target for which every run has the metric
    function: MetricFunction  # value of the metric, NaN if it is not defined
    resampled: ResampledMetric | None = None  # values of Z resamples at once, for an interval
    scale: Scale = LINEAR  # scale of the interval
    # value of predictions without information; None if the metric does not compare models. The
    # first metric of a type of target with this value decides the verdict
    no_skill: float | None = None
    higher_is_better: bool = True
    in_units: bool = False  # whether the metric has the units of the target, and so any size
    of_probabilities: bool = False  # whether the metric needs class probabilities

    @property
    def heading(self) -> str:
        """Title at the head of a column."""
        return self.title[0].upper() + self.title[1:]


def _resampled(
    title: str,
    targets: tuple[TargetType, ...],
    function: ResampledMetric,
    scale: Scale,
    **properties: Any,
) -> Metric:
    return Metric(
        title, targets, lambda scored: scored.value(function), function, scale, **properties
    )


_NUMBERS: tuple[TargetType, ...] = ("regression",)
_RANKS: tuple[TargetType, ...] = ("ordinal",)
_CLASSES: tuple[TargetType, ...] = ("ordinal", "classification")
_ERRORS: dict[str, Any] = {"higher_is_better": False, "in_units": True}

METRICS: dict[str, Metric] = {
    # 1 if perfect, below 0 if worse than the mean.
    "r2": _resampled("R²", _NUMBERS, r2, RATIO, no_skill=0.0),
    "mae": _resampled("MAE", _NUMBERS, mean_absolute_error, ERROR, **_ERRORS),
    "rmse": _resampled("RMSE", _NUMBERS, root_mean_squared_error, ERROR, **_ERRORS),
    "median_error": Metric("median error", _NUMBERS, _of_arrays(median_absolute_error), **_ERRORS),
    "pearson": Metric("Pearson", _NUMBERS, _pearson),
    "spearman": _resampled("Spearman", _NUMBERS, spearman, CORRELATION),
    # Cohen's kappa with quadratic weights, 1 if perfect and 0 for chance.
    "weighted_kappa": _resampled("weighted kappa", _RANKS, weighted_kappa, RATIO, no_skill=0.0),
    # Mean number of ranks between prediction and truth.
    "mae_ranks": _resampled(
        "MAE, ranks", _RANKS, mean_absolute_error, ERROR, higher_is_better=False
    ),
    "accuracy": _resampled("accuracy", _CLASSES, accuracy, PROPORTION),
    "balanced_accuracy": Metric("balanced accuracy", _CLASSES, _of_arrays(balanced_accuracy_score)),
    # Mean over the classes that occur or were predicted.
    "macro_f1": Metric(
        "macro F1", _CLASSES, _of_arrays(f1_score, average="macro", zero_division=0)
    ),
    "auc": _resampled("AUC", _CLASSES, auc, PROPORTION, no_skill=0.5, of_probabilities=True),
    # For several classes in several studies (`scored_metrics`).
    "mcfadden_r2": _resampled(
        "McFadden R²", (), mcfadden_r2, RATIO, no_skill=0.0, of_probabilities=True
    ),
}
"""Metrics by their names in `scores.json` and `metrics.json`, in the order of tables."""


def metric_text(name: str, value: float | None, digits: int = 3) -> str:
    """Format a metric; an en dash if it is not defined.

    Values from 100 on have fewer digits. Errors in units of the target have three significant
    digits below 0.01 and from a billion on.

    >>> metric_text("samples", 90.0), metric_text("r2", -0.0001), metric_text("mae", 0.0002)
    ('90', '0.000', '0.0002')
    """
    if value is None:
        return "\N{EN DASH}"
    if name == "samples":
        return f"{value:.0f}"
    extreme = 0 < abs(value) < 0.01 or abs(value) >= 1e9
    in_units = name in METRICS and METRICS[name].in_units
    return significant(value) if in_units and extreme else fixed(value, digits)


def summary(scored: ScoredPredictions, column: str) -> dict[str, Any]:
    """Compute the content of `metrics.json`: all metrics, overall and by fold.

    `studies` or `repeats` replace `folds` if there are several; the confusion matrix is of the
    first repeat.
    """
    rows = rows_of(scored.studies or scored.repeats or scored.folds)
    metrics: dict[str, Any] = {
        "column": column,
        "kind": scored.type,
        "overall": scored.metrics(),
        "studies" if scored.studies else "repeats" if scored.repeats else "folds": {
            # By length first, so that fold 10 follows fold 9.
            name: scored.take(rows[name]).metrics()
            for name in sorted(rows, key=lambda name: (len(name), name))
        },
    }
    if scored.classes:
        first = scored.first
        counts = confusion(first.actual, first.predicted, len(scored.classes))
        metrics["confusion"] = {"classes": list(scored.classes), "counts": counts.tolist()}
    return metrics


def confusion(actual: Codes, predicted: Codes, classes: int) -> Codes:
    """Count the samples by true class (row) and predicted class (column), int64 [C, C].

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    counts: Codes = confusion_matrix(actual, predicted, labels=np.arange(classes))
    return counts


FEW_VALUES, BINS = 6, 4
"""Most distinct numbers of a column that count as categories; number of bins of other numbers."""

UNKNOWN = "(missing)"


def rows_by(texts: Sequence[str]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the rows of each value ("" if it is missing), in the order of the values.

    More than `FEW_VALUES` different numbers are divided into `BINS` bins of about equal sizes.
    """
    numbers = as_numbers(texts)
    missing = sum(not text for text in texts)
    if len({*texts} - {""}) <= FEW_VALUES or np.isnan(numbers).sum() > missing:
        labels = np.array([text or UNKNOWN for text in texts])
        rows = {name: np.flatnonzero(labels == name) for name in sorted(set(labels.tolist()))}
    else:
        rows = quantile_bins(numbers, BINS)
        if len(unknown := np.flatnonzero(~np.isfinite(numbers))):
            rows[UNKNOWN] = unknown
    return rows


def quantile_bins(values: npt.NDArray[np.float64], number: int) -> dict[str, npt.NDArray[np.int64]]:
    """Divide values, at least one of them finite, at their quantiles into at most `number` bins.

    Ranges have four significant digits, or more if four do not distinguish them; values that are
    not finite have no bin.

    >>> {name: rows.tolist() for name, rows in quantile_bins(np.arange(4.0), 2).items()}
    {'0 to 1.5': [0, 1], '1.5 to 3': [2, 3]}
    """
    finite = np.isfinite(values)
    edges = np.unique(np.quantile(values[finite], np.linspace(0, 1, number + 1)))
    bins = np.where(finite, np.searchsorted(edges[1:-1], values, side="right"), -1)
    formatted = ([f"{edge:.{digits}g}" for edge in edges] for digits in (4, 8, 12, 17))
    # 17 digits are exact.
    names = next(texts for texts in formatted if len(set(texts)) == len(edges))
    return {
        f"{low} to {high}": np.flatnonzero(bins == bin_number)
        for bin_number, (low, high) in enumerate(pairwise(names))
    }
