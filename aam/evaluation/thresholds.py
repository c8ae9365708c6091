"""Sensitivity, specificity and predictive values of two classes at a threshold.

Each is the part of right predictions among some samples: of those of a class, or of those with a
prediction, for which the frequency of the class counts. Its interval leaves out their groups in
turn; of several studies it is the random-effects mean.
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
    threshold: float | None  # of the model for new samples; None where none is fitted
    # sensitivity, specificity, positive_predictive_value and negative_predictive_value
    metrics: dict[str, Score]
    # thresholds of the folds, each chosen in its training part; empty of one that is not chosen
    folds: list[float] = field(default_factory=list)


def score_thresholds(folds: Folds, combined: Combined) -> list[ThresholdScores]:
    """Score the ensemble at 0.5 and at the chosen threshold; nothing but for two classes."""
    if len(folds.labels.classes) != 2:
        return []
    default_M = folds.scored(combined.predictions_MC).predicted
    scores = [ThresholdScores("default", 0.5, _scores(folds, combined, default_M))]
    chosen = [threshold for threshold in combined.thresholds if threshold is not None]
    if chosen and len(chosen) == len(combined.thresholds):
        positive_M = combined.predictions_MC[:, 1] >= np.array(chosen)[folds.fold_M - 1]
        rule = "Youden's J" if folds.sensitivity is None else f"sensitivity {folds.sensitivity:g}"
        metrics = _scores(folds, combined, positive_M.astype(np.int64))
        scores.append(ThresholdScores(rule, combined.ensemble.threshold, metrics, chosen))
    return scores


def _scores(folds: Folds, combined: Combined, predicted_M: Rows) -> dict[str, Score]:
    # Partitions of the samples are pooled: one of them may lack a prediction.
    scored = folds.scored(combined.predictions_MC)
    scored = replace(scored, predicted=predicted_M, folds=(), repeats=())
    several, scores = len(np.unique(scored.actual)) > 1, {}
    for name, codes_M, code in (
        ("sensitivity", scored.actual, 1),
        ("specificity", scored.actual, 0),
        ("positive_predictive_value", predicted_M, 1),
        ("negative_predictive_value", predicted_M, 0),
    ):
        scores[name], rows = Score(None), np.flatnonzero(codes_M == code)
        groups_M = folds.held_out.groups[rows]
        if len(rows) and several:
            drawn = resample(scored.take(rows), groups_M, {"accuracy": accuracy})
            score = drawn.score()["accuracy"]
            # Too few studies have no summary.
            scores[name] = Score(drawn.whole["accuracy"]) if score.value is None else score
        elif len(rows) and codes_M is scored.actual:  # as the verdict on samples of one class
            right = float((predicted_M == scored.actual).mean())
            scores[name] = exact_proportion(right, len(np.unique(groups_M)))
    return scores
