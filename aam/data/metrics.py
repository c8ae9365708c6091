"""Metrics of predictions against labels: numbers, classes, ordered classes; confusion matrix.

The metrics are those of scikit-learn and SciPy; AUC and weighted kappa are computed here for speed.
To add one, add an entry to `REGRESSION`, `CLASSIFICATION`, `ORDINAL` or `PROBABILITIES`;
`metrics.json` and `aam evaluate` then contain it. A metric that is not defined for the given
samples (R2 of one sample, AUC of one class) is None.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import NearConstantInputWarning, pearsonr, rankdata, spearmanr
from sklearn.metrics import (
    confusion_matrix,
    f1_score,
    median_absolute_error,
    r2_score,
    recall_score,
    root_mean_squared_error,
)

from aam.contract.options.study import TargetType

F64 = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Metrics = dict[str, float | None]


@dataclass(frozen=True)
class ScoredPredictions:
    """Predictions with the labels of the same samples; n samples.

    Attributes:
        actual, predicted: float64 [n] in the target's units, or int64 [n] codes of `classes`.
        folds: n names of folds; empty for a single fold.
        classes: C names; empty for a numeric target.
        probabilities: [n, C] or None.
        ordered: whether the codes are ranks.
    """

    actual: npt.NDArray[Any]
    predicted: npt.NDArray[Any]
    folds: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    probabilities: F64 | None = None
    ordered: bool = False

    @property
    def type(self) -> TargetType:
        """What was predicted; it decides the metrics."""
        if not self.classes:
            return "regression"
        return "ordinal" if self.ordered else "classification"

    def take(self, rows: Codes) -> ScoredPredictions:
        """Return the samples at `rows` (int [m])."""
        return ScoredPredictions(
            self.actual[rows],
            self.predicted[rows],
            tuple(self.folds[row] for row in rows) if self.folds else (),
            self.classes,
            None if self.probabilities is None else self.probabilities[rows],
            self.ordered,
        )


def nearest_level(ranks: F64, levels: Sequence[str]) -> Codes:
    """Return the code of the level nearest to each rank."""
    return np.rint(ranks).clip(0, len(levels) - 1).astype(np.int64)


MetricFunction = Callable[[ScoredPredictions], float]
"""Metric of one or more samples; NaN where it is not defined."""


def _of_arrays(function: Callable[..., Any], **options: Any) -> MetricFunction:
    return lambda scored: float(function(scored.actual, scored.predicted, **options))


def _r2(scored: ScoredPredictions) -> float:
    if np.ptp(scored.actual) == 0:
        return math.nan
    return float(r2_score(scored.actual, scored.predicted))


def _correlation(function: Callable[..., Any]) -> MetricFunction:
    def correlation(scored: ScoredPredictions) -> float:
        if np.ptp(scored.actual) == 0 or np.ptp(scored.predicted) == 0:
            return math.nan
        return float(function(scored.actual, scored.predicted)[0])

    return correlation


def _balanced_accuracy(scored: ScoredPredictions) -> float:
    """Return the mean recall of the classes that occur."""
    present = np.unique(scored.actual)
    return float(
        recall_score(
            scored.actual, scored.predicted, labels=present, average="macro", zero_division=0
        )
    )


def _weighted_kappa(scored: ScoredPredictions) -> float:
    """Return Cohen's kappa with quadratic weights; it is not defined for a single true rank.

    It is Lin's concordance correlation of the ranks. A bootstrap needs thousands of calls, and
    `sklearn.metrics.cohen_kappa_score` takes 0.9 ms for one.
    """
    actual, predicted = scored.actual, scored.predicted
    if np.ptp(actual) == 0:
        return math.nan
    by_chance = actual.var() + predicted.var() + (actual.mean() - predicted.mean()) ** 2
    return float(1 - np.square(actual - predicted).mean() / by_chance)


def _mean_absolute_error(scored: ScoredPredictions) -> float:
    return float(np.abs(scored.actual - scored.predicted).mean())


def _accuracy(scored: ScoredPredictions) -> float:
    return float((scored.actual == scored.predicted).mean())


def _auc(scored: ScoredPredictions) -> float:
    """Return the AUC of the second of two classes, or the mean of each class against the rest.

    It is computed from the ranks of the positive samples (Mann and Whitney): a bootstrap needs
    thousands of calls, and `sklearn.metrics.roc_auc_score` takes 1.3 ms for one.
    """
    assert scored.probabilities is not None
    codes = [1] if len(scored.classes) == 2 else range(len(scored.classes))
    each = []
    for code in codes:
        positive = scored.actual == code
        number = positive.sum()
        if 0 < number < len(positive):
            mean_rank = rankdata(scored.probabilities[:, code])[positive].mean()
            each.append((mean_rank - (number + 1) / 2) / (len(positive) - number))
    return float(np.mean(each)) if each else math.nan


REGRESSION: dict[str, MetricFunction] = {
    "r2": _r2,
    "mae": _mean_absolute_error,
    "rmse": _of_arrays(root_mean_squared_error),
    "median_error": _of_arrays(median_absolute_error),
    "pearson": _correlation(pearsonr),
    "spearman": _correlation(spearmanr),
}
"""Metrics of numbers in the target's units; r2 is 1 if perfect, below 0 if worse than the mean."""

CLASSIFICATION: dict[str, MetricFunction] = {
    "accuracy": _accuracy,
    "balanced_accuracy": _balanced_accuracy,
    # Of the classes that occur or were predicted.
    "macro_f1": _of_arrays(f1_score, average="macro", zero_division=0),
}
"""Metrics of predicted classes."""

ORDINAL: dict[str, MetricFunction] = {
    "weighted_kappa": _weighted_kappa,
    "mae_ranks": _mean_absolute_error,
}
"""Metrics of ordered classes: Cohen's kappa with quadratic weights, 1 if perfect and 0 for chance,
and the mean number of ranks between prediction and truth."""

PROBABILITIES: dict[str, MetricFunction] = {"auc": _auc}
"""Metrics of class probabilities, computed where there are some."""

METRICS: dict[TargetType, dict[str, MetricFunction]] = {
    "regression": REGRESSION,
    "classification": CLASSIFICATION,
    "ordinal": ORDINAL | CLASSIFICATION,
}


def compute_metrics(scored: ScoredPredictions) -> Metrics:
    """Return the number of samples (`samples`) and every metric of `scored`, by name."""
    functions = METRICS[scored.type] | ({} if scored.probabilities is None else PROBABILITIES)
    with warnings.catch_warnings():
        # Predictions of an untrained model hardly differ; small validation sets have as many
        # classes as samples. Neither is an error.
        warnings.simplefilter("ignore", NearConstantInputWarning)
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        values = {name: function(scored) for name, function in functions.items()}
    defined = {name: None if math.isnan(value) else value for name, value in values.items()}
    return {"samples": len(scored.actual), **defined}


def metrics_by_fold(scored: ScoredPredictions) -> dict[str, Metrics]:
    """Return the metrics of each fold, in the order of their numbers; empty without folds."""
    names = sorted(set(scored.folds), key=lambda name: (len(name), name))
    folds = np.array(scored.folds, dtype=str)
    return {name: compute_metrics(scored.take(np.flatnonzero(folds == name))) for name in names}


def summary(scored: ScoredPredictions, column: str) -> dict[str, Any]:
    """Return the content of `metrics.json`: all metrics, overall and by fold."""
    found: dict[str, Any] = {
        "column": column,
        "kind": scored.type,
        "overall": compute_metrics(scored),
        "folds": metrics_by_fold(scored),
    }
    if scored.classes:
        counts = confusion(scored.actual, scored.predicted, len(scored.classes))
        found["confusion"] = {"classes": list(scored.classes), "counts": counts.tolist()}
    return found


def confusion(actual: Codes, predicted: Codes, classes: int) -> Codes:
    """Return the confusion matrix: samples by class, int64 [C actual, C predicted]."""
    counts: Codes = confusion_matrix(actual, predicted, labels=np.arange(classes))
    return counts
