"""Figures of predictions against the truth, from arrays to plain numbers.

A figure that is not defined on the samples at hand (R2 of one sample, AUC of one class) is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Metrics = dict[str, float | None]


@dataclass(frozen=True)
class ScoredPredictions:
    """Predictions with their truth; n samples.

    Attributes:
        actual, predicted: float64 [n] in the target's units, or int64 [n] codes of `classes`.
        folds: n names of folds; empty when there is one only.
        classes: C names; empty for a numeric target.
        probabilities: [n, C] or None.
    """

    actual: npt.NDArray[Any]
    predicted: npt.NDArray[Any]
    folds: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    probabilities: F64 | None = None

    def take(self, rows: Codes) -> ScoredPredictions:
        """Return the samples at `rows` (int [m])."""
        return ScoredPredictions(
            self.actual[rows],
            self.predicted[rows],
            tuple(self.folds[row] for row in rows) if self.folds else (),
            self.classes,
            None if self.probabilities is None else self.probabilities[rows],
        )


def compute_metrics(judged: ScoredPredictions) -> Metrics:
    """Return the figures of all samples of `judged`, whatever its kind."""
    if judged.classes:
        return classification(
            judged.actual, judged.predicted, len(judged.classes), judged.probabilities
        )
    return regression(judged.actual, judged.predicted)


def metrics_by_fold(judged: ScoredPredictions) -> dict[str, Metrics]:
    """Return the figures of each fold, in the order of their numbers; empty without folds."""
    names = sorted(set(judged.folds), key=lambda name: (len(name), name))
    labels = np.array(judged.folds, dtype=str)
    return {name: compute_metrics(judged.take(np.flatnonzero(labels == name))) for name in names}


def summary(judged: ScoredPredictions, column: str) -> dict[str, Any]:
    """Return everything measured, ready for JSON: what `metrics.json` holds."""
    found: dict[str, Any] = {
        "column": column,
        "kind": "classification" if judged.classes else "regression",
        "overall": compute_metrics(judged),
        "folds": metrics_by_fold(judged),
    }
    if judged.classes:
        counts = confusion(judged.actual, judged.predicted, len(judged.classes))
        found["confusion"] = {"classes": list(judged.classes), "counts": counts.tolist()}
    return found


def regression(actual: F64, predicted: F64) -> Metrics:
    """Measure numbers in the target's units.

    Args:
        actual: [n], n of 1 or more.
        predicted: [n].

    Returns:
        samples; r2 (coefficient of determination, 1 is perfect, below 0 worse than the mean);
        mae, rmse; median_error (median absolute error); pearson and spearman correlation.
    """
    error = predicted - actual
    spread = float(np.square(actual - actual.mean()).sum())
    return {
        "samples": len(actual),
        "r2": 1 - float(np.square(error).sum()) / spread if spread else None,
        "mae": float(np.abs(error).mean()),
        "rmse": math.sqrt(float(np.square(error).mean())),
        "median_error": float(np.median(np.abs(error))),
        "pearson": _correlation(actual, predicted),
        "spearman": _correlation(_ranks(actual), _ranks(predicted)),
    }


def classification(
    actual: Codes, predicted: Codes, classes: int, probabilities: F64 | None = None
) -> Metrics:
    """Measure classes.

    Args:
        actual: [n] codes, n of 1 or more.
        predicted: [n] codes.
        classes: number of classes, C.
        probabilities: [n, C].

    Returns:
        samples; accuracy; balanced_accuracy (mean recall of the classes that occur); macro_f1
        (over classes that occur or were predicted); auc (of the second class where there are two,
        else the mean of each class against the rest), only with probabilities.
    """
    counts = confusion(actual, predicted, classes)
    occur = counts.sum(axis=1) > 0
    recall = np.diag(counts)[occur] / counts.sum(axis=1)[occur]
    # F1 of a class is 2 TP / (samples of it + samples predicted as it). scikit-learn's f1_score
    # warns of every validation in which most samples have a class of their own.
    sizes = counts.sum(axis=0) + counts.sum(axis=1)
    f1 = 2 * np.diag(counts)[sizes > 0] / sizes[sizes > 0]
    found: Metrics = {
        "samples": len(actual),
        "accuracy": float(np.diag(counts).sum() / counts.sum()),
        "balanced_accuracy": float(recall.mean()),
        "macro_f1": float(f1.mean()),
    }
    if probabilities is not None:
        judged = range(1, 2) if classes == 2 else range(classes)
        each = [_auc(actual == code, probabilities[:, code]) for code in judged]
        known = [value for value in each if value is not None]
        found["auc"] = float(np.mean(known)) if known else None
    return found


def confusion(actual: Codes, predicted: Codes, classes: int) -> Codes:
    """Count samples by class, int64 [C actual, C predicted]."""
    cells = np.bincount(actual * classes + predicted, minlength=classes**2)
    return cells.reshape(classes, classes).astype(np.int64)


def encode_labels(labels: Sequence[str], classes: Sequence[str]) -> Codes:
    """Return the position of each label in `classes`; KeyError for one that is not there."""
    place = {name: code for code, name in enumerate(classes)}
    return np.array([place[label] for label in labels], dtype=np.int64)


def _auc(positive: npt.NDArray[np.bool_], score: F64) -> float | None:
    from sklearn.metrics import roc_auc_score

    if positive.all() or not positive.any():
        return None
    return float(roc_auc_score(positive, score))


def _correlation(one: F64, two: F64) -> float | None:
    one, two = one - one.mean(), two - two.mean()
    scale = math.sqrt(float(np.square(one).sum()) * float(np.square(two).sum()))
    return float((one * two).sum()) / scale if scale else None


def _ranks(values: F64) -> F64:
    """Rank with ties at their mean rank."""
    _, place, times = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(times)
    mean_rank: F64 = (ends - (times - 1) / 2)[place]
    return mean_rank
