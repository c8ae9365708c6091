"""Scores of two classes at a threshold of the probability of the positive class.

Predictive values are those of the frequency of the class in the scored samples. Each score is a
part of some samples: of those of a class (sensitivity, specificity) or of those with a prediction
(predictive values). Its interval leaves out their groups in turn, as that of the accuracy does. Of
several studies it is the random-effects mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from aam.evaluation.ensemble import Combined
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import Score
from aam.evaluation.meta_analysis import resample
from aam.evaluation.metrics import ScoredPredictions, accuracy

TITLES = {
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "ppv": "Positive predictive value",
    "npv": "Negative predictive value",
}
"""Headings of the scores at a threshold."""


@dataclass(frozen=True)
class ThresholdScores:
    """Scores at a threshold of the probability of the positive class."""

    rule: str  # "default", "Youden's J" or "sensitivity 0.9"
    threshold: float | None  # of the model for new samples; None where none is fitted
    metrics: dict[str, Score]  # by the names of `TITLES`
    # thresholds of the folds, each chosen in its training part; empty of one that is not chosen
    folds: list[float] = field(default_factory=list)


def score_thresholds(folds: Folds, combined: Combined) -> list[ThresholdScores]:
    """Score the ensemble at 0.5 and at the chosen threshold; nothing but for two classes."""
    labels, scored = folds.held_out, folds.scored(combined.predictions_MC)
    if len(labels.classes) != 2:
        return []
    scores = [ThresholdScores("default", 0.5, _scores(scored, labels.groups))]
    if len(combined.thresholds):
        threshold_M = np.array(combined.thresholds)[folds.fold_M - 1]
        predicted_M = (combined.predictions_MC[:, 1] >= threshold_M).astype(np.int64)
        metrics = _scores(replace(scored, predicted=predicted_M), labels.groups)
        rule = "Youden's J" if folds.sensitivity is None else f"sensitivity {folds.sensitivity:g}"
        chosen = [*combined.thresholds]
        scores.append(ThresholdScores(rule, combined.ensemble.threshold, metrics, chosen))
    return scores


def _scores(scored: ScoredPredictions, groups_M: npt.NDArray[np.int64]) -> dict[str, Score]:
    # Partitions of the samples are pooled: one of them may lack a prediction.
    scored = replace(scored, folds=(), repeats=())
    positive_M, predicted_M = scored.actual == 1, scored.predicted == 1
    parts = (positive_M, ~positive_M, predicted_M, ~predicted_M)
    scores = {}
    for name, part_M in zip(TITLES, parts, strict=True):
        scores[name] = Score(None)
        if part_M.any():
            rows = np.flatnonzero(part_M)
            resampled = resample(scored.take(rows), groups_M[rows], {"accuracy": accuracy})
            scores[name] = resampled.score()["accuracy"]
            if scores[name].value is None:  # the mean of too few studies for a summary
                scores[name] = Score(resampled.whole["accuracy"])
    return scores
