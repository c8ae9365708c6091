"""Sensitivity, specificity and predictive values of two classes at a threshold.

Each is the share of correct predictions among the samples of a class, or among the samples with a
prediction; predictive values depend on the class frequencies. Intervals are jackknife intervals
over groups; with several studies a score is the random-effects mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from aam.arrays import Rows
from aam.evaluation.ensemble import Combined
from aam.evaluation.external_validation import exact_proportion
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import Score
from aam.evaluation.meta_analysis import resample
from aam.evaluation.metrics import accuracy


@dataclass(frozen=True)
class ThresholdScores:
    """Scores at a threshold of the probability of the positive class."""

    rule: str  # "default", "Youden's J" or "sensitivity 0.9"
    threshold: float | None  # threshold of the final model; None without a final model
    # sensitivity, specificity, positive_predictive_value and negative_predictive_value
    metrics: dict[str, Score]
    # thresholds of the folds, each chosen in its training set; empty for the default
    folds: list[float] = field(default_factory=list)


def score_thresholds(folds: Folds, combined: Combined) -> list[ThresholdScores]:
    """Score the ensemble at 0.5 and at the chosen threshold; empty unless there are two classes."""
    if len(folds.labels.classes) != 2:
        return []
    default_M = folds.scored(combined.predictions_MC).predicted
    scores = [ThresholdScores("default", 0.5, _scores(folds, combined, default_M))]
    if any(threshold is not None for threshold in combined.thresholds):
        # A fold without a chosen threshold uses 0.5, as the predicted classes do.
        chosen = [0.5 if threshold is None else threshold for threshold in combined.thresholds]
        positive_M = combined.predictions_MC[:, 1] >= np.array(chosen)[folds.fold_M - 1]
        rule = "Youden's J" if folds.sensitivity is None else f"sensitivity {folds.sensitivity:g}"
        metrics = _scores(folds, combined, positive_M.astype(np.int64))
        scores.append(ThresholdScores(rule, combined.ensemble.threshold, metrics, chosen))
    return scores


def _scores(folds: Folds, combined: Combined, predicted_M: Rows) -> dict[str, Score]:
    # Repeats are pooled: one of them may not predict a class.
    scored = folds.scored(combined.predictions_MC)
    scored = replace(scored, predicted=predicted_M, folds=(), repeats=())
    has_two_classes, scores = len(np.unique(scored.actual)) > 1, {}
    for name, codes_M, code in (
        ("sensitivity", scored.actual, 1),
        ("specificity", scored.actual, 0),
        ("positive_predictive_value", predicted_M, 1),
        ("negative_predictive_value", predicted_M, 0),
    ):
        scores[name], rows = Score(None), np.flatnonzero(codes_M == code)
        groups_M = folds.held_out.groups[rows]
        if len(rows) and has_two_classes:
            resampled = resample(scored.take(rows), groups_M, {"accuracy": accuracy})
            score = resampled.score()["accuracy"]
            # Too few studies have no summary.
            scores[name] = Score(resampled.values["accuracy"]) if score.value is None else score
        elif len(rows) and codes_M is scored.actual:  # as in the verdict on samples of one class
            right = float((predicted_M == scored.actual).mean())
            scores[name] = exact_proportion(right, len(np.unique(groups_M)))
    return scores
