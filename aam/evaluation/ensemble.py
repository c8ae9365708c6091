"""Ensemble: weighted mean of the members' predictions, with its uncertainty.

The weights of a fold are chosen in its training set, from leave-one-group-out predictions of the
training samples (`Estimator.left_out`). The weights of the final model are chosen in this way from
all samples. Held-out predictions of other folds must not choose weights, because their models were
trained on the labels of this fold (random labels of three classes: AUC 0.515 with weights of other
folds, 150 studies).

K members, M held-out samples, I groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from scipy.optimize import nnls
from sklearn.metrics import roc_curve

from aam.arrays import F64, Rows
from aam.evaluation.calibration import (
    ProportionalOdds,
    calibrate,
    fit_odds,
    fit_temperature,
    half_width,
    held_out_half_widths,
    log_losses,
)
from aam.evaluation.external_validation import exact_proportion
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import Score
from aam.evaluation.labels import Labels
from aam.evaluation.meta_analysis import resample
from aam.evaluation.metrics import accuracy

Weights = Mapping[str, float]

NOISE = 2.0
"""Standard errors by which weights or a temperature must lower the loss of the groups."""

STEPS = 4
"""Weights are multiples of 1 / STEPS."""


def choose_weights(left_out: Mapping[str, F64 | None], labels: Labels) -> dict[str, float]:
    """Choose the weights of the members from leave-one-group-out predictions.

    The loss of numbers and ranks is the squared error. A member that is not better than the mean
    label has weight 0. The other members have equal weights, unless the best weights of a coarse
    grid have a significantly lower loss. For classes see `_class_weights`.

    All weights are equal if no member has left-out predictions of all samples, or if none of these
    members is better than the mean. A member with predictions of some samples (NaN elsewhere), such
    as a network with its validation samples, joins with `_joining_weight`; a member without any has
    weight 0.
    """
    arrays = {name: array_NC for name, array_NC in left_out.items() if array_NC is not None}
    complete = {name: a_NC for name, a_NC in arrays.items() if np.isfinite(a_NC).all()}
    if not complete:
        return dict.fromkeys(left_out, 1 / len(left_out))
    weights = dict.fromkeys(left_out, 0.0) | _complete_weights(complete, labels)
    for joining in [name for name in arrays if name not in complete]:
        rows = np.flatnonzero(np.isfinite(arrays[joining]).all(axis=1))
        total = sum(weights[name] for name in complete)
        others_NC = weighted_mean(complete, weights)[rows] / total
        weight = _joining_weight(arrays[joining][rows], others_NC, labels.take(rows))
        weights = {name: (1 - weight) * value for name, value in weights.items()}
        weights[joining] = weight
    return weights


def _joining_weight(joining_NC: F64, others_NC: F64, labels: Labels) -> float:
    """Return the weight of a further member with the lowest loss; 0 unless this is significant.

    All losses are squared errors of these samples, for classes after the best scale, see
    `_class_weights`. A worse member would make the mean worse, so it only joins on evidence.
    """
    groups, group_N = np.unique(labels.groups, return_inverse=True)
    if len(groups) < 2:
        return 0.0
    roots_N1 = np.sqrt(labels.weights_N)[:, None]
    joining_NC, others_NC, y_NC = (
        roots_N1 * (each_NC - labels.mean_C)
        for each_NC in (joining_NC, others_NC, labels.outputs_NC)
    )

    def loss_I(weight: float) -> F64:
        mean_NC = weight * joining_NC + (1 - weight) * others_NC
        scale = (mean_NC * y_NC).sum() / max(np.square(mean_NC).sum(), 1e-300)
        return _squares_by_group((scale if labels.classes else 1) * mean_NC - y_NC, group_N)

    losses = [loss_I(step / STEPS) for step in range(STEPS + 1)]
    best = int(np.argmin([losses_I.sum() for losses_I in losses]))
    gain_I = losses[0] - losses[best]
    return best / STEPS if gain_I.sum() > NOISE * _error(gain_I) else 0.0


def _complete_weights(predictions: Mapping[str, F64], labels: Labels) -> dict[str, float]:
    """Choose the weights of members with predictions of all samples."""
    groups = np.unique(labels.groups)
    equal = dict.fromkeys(predictions, 1 / len(predictions))
    if len(predictions) < 2 or len(groups) < 2:
        return equal
    # Labels and predictions are centred on the mean label, so the baseline is 0.
    mean_C, roots_N1 = labels.mean_C, np.sqrt(labels.weights_N)[:, None]
    y_NC = roots_N1 * (labels.outputs_NC - mean_C)
    stacked_KNC = roots_N1 * (np.stack([*predictions.values()]) - mean_C)
    group_N = np.searchsorted(groups, labels.groups)
    weights_of = _class_weights if labels.classes else _number_weights
    weights_K = weights_of(stacked_KNC, y_NC, group_N)
    if not weights_K.any():
        return equal
    return {name: float(weight) for name, weight in zip(predictions, weights_K, strict=True)}


def _number_weights(stacked_KNC: F64, y_NC: F64, group_N: Rows) -> F64:
    """Return the best weights of a coarse grid if they lower the loss significantly, else equal."""

    def loss_I(predictions_NC: F64) -> F64:
        return _squares_by_group(predictions_NC - y_NC, group_N)

    losses_K = np.array([loss_I(predictions_NC).sum() for predictions_NC in stacked_KNC])
    useful_K = losses_K < loss_I(0 * y_NC).sum()
    if not useful_K.any():
        return np.zeros(len(stacked_KNC))
    # All multiples of 1 / STEPS that add up to 1.
    grid = [
        np.array(steps) / STEPS
        for steps in product(range(STEPS + 1), repeat=int(useful_K.sum()))
        if sum(steps) == STEPS
    ]
    useful_KNC = stacked_KNC[useful_K]
    losses = [loss_I(np.tensordot(weights_K, useful_KNC, 1)) for weights_K in grid]
    best = int(np.argmin([losses_I.sum() for losses_I in losses]))
    gain_I = loss_I(useful_KNC.mean(axis=0)) - losses[best]
    weights_K: F64 = useful_K / useful_K.sum()
    if gain_I.sum() > NOISE * _error(gain_I):
        weights_K[useful_K] = grid[best]
    return weights_K


def _class_weights(stacked_KNC: F64, y_NC: F64, group_N: Rows) -> F64:
    """Return weights between equal weights and stacking, nearer to stacking with more evidence.

    Brier scores mostly compare the calibration of members: predictions of a model of half the data
    are too near to the mean, and with a weak signal predictions of a forest are too far from it.
    All losses are therefore computed after the best scale. A member has skill if its predictions
    rise with the labels. Members without skill have weight 0, all others more.

    Stacking is the regression of the indicators on the members with non-negative coefficients
    (Breiman 1996, "Stacked regressions"). If it lowers the loss of the groups by z standard errors
    relative to equal weights, the weights move 1 - (NOISE / z)² of the way to it (positive-part
    James-Stein shrinkage).
    """
    skilled_K = (stacked_KNC * y_NC).sum(axis=(1, 2)) > 0
    if not skilled_K.any():
        return np.zeros(len(stacked_KNC))
    weights_K: F64 = skilled_K / skilled_K.sum()
    skilled_KNC = stacked_KNC[skilled_K]
    coefficients_K, _ = nnls(skilled_KNC.reshape(len(skilled_KNC), -1).T, y_NC.ravel())
    stacking_K = coefficients_K / coefficients_K.sum()

    def loss_I(weights_K: F64) -> F64:
        mean_NC = np.tensordot(weights_K, skilled_KNC, 1)
        scale = (mean_NC * y_NC).sum() / np.square(mean_NC).sum()
        return _squares_by_group(scale * mean_NC - y_NC, group_N)

    gain_I = loss_I(weights_K[skilled_K]) - loss_I(stacking_K)
    gain, noise = gain_I.sum(), NOISE * _error(gain_I)
    if gain > noise:
        weights_K[skilled_K] += (1 - (noise / gain) ** 2) * (stacking_K - weights_K[skilled_K])
    return weights_K


def _squares_by_group(errors_NC: F64, group_N: Rows) -> F64:
    return np.bincount(group_N, np.square(errors_NC).sum(axis=1)).astype(np.float64)


def _error(gain_I: F64) -> float:
    """Return the standard error of the sum of the gains of the groups."""
    return math.sqrt(len(gain_I)) * gain_I.std(ddof=1)


def weighted_mean(predictions: Mapping[str, F64], weights: Weights) -> F64:
    """Return the weighted mean of the members' predictions [M, C]."""
    terms = [weights[name] * member_MC for name, member_MC in predictions.items()]
    return np.sum(terms, axis=0)


@dataclass(frozen=True)
class Ensemble:
    """Ensemble for new samples: weights, calibration, threshold; stored in the model."""

    weights: Weights  # weight of each member; they sum to 1
    half_width: float  # half width of the prediction interval; infinite with too few groups
    temperature: float  # temperature of class probabilities; 1 for a number
    odds: ProportionalOdds | None = None  # probabilities of ordered categories, else None
    # probability from which the second of two classes is predicted, see `choose_threshold`; None
    # for other targets, and if a member has no left-out predictions
    threshold: float | None = None

    def combine(self, predictions: Mapping[str, F64], classifier: bool) -> F64:
        """Compute the ensemble's numbers or calibrated probabilities [N, C]."""
        mean_NC = weighted_mean(predictions, self.weights)
        return calibrate(mean_NC, self.temperature) if classifier else mean_NC


@dataclass(frozen=True)
class Combined:
    """Ensemble with its predictions of the held-out samples."""

    ensemble: Ensemble  # for new samples
    members: Mapping[str, F64]  # float64 [M, C], predictions of each member
    predictions_MC: F64  # predictions of the ensemble, calibrated on other folds
    uncalibrated_MC: F64  # predictions before calibration; for numbers the same
    half_widths_M: F64 | None  # of prediction intervals, from other groups; None for classes
    fold_weights: Sequence[Weights]  # weights of the members in each fold
    thresholds: Sequence[float | None] = ()  # thresholds of the folds, see `Ensemble`


def combine_members(
    members: Mapping[str, F64],
    folds: Folds,
    left_out: Mapping[str, Sequence[F64 | None]] | None = None,
) -> Combined:
    """Combine the members' predictions [M, C] of the held-out samples into an ensemble.

    `left_out` are leave-one-group-out predictions of the training samples; without them all weights
    are equal.
    """
    weights_of: list[dict[str, float]] = []
    means: list[F64 | None] = []
    thresholds: list[float | None] = []
    for k, rows in enumerate(folds.fitted_rows):
        # The last, for the final model, is missing if no final model is fitted.
        slices = {name: (left_out or {}).get(name, ())[k : k + 1] for name in members}
        predictions = {name: arrays[0] if arrays else None for name, arrays in slices.items()}
        labels = folds.labels.training(rows)
        weights = choose_weights(predictions, labels)
        weights_of.append(weights)
        # Left-out predictions of the ensemble: the mean of the members that have them.
        available = {
            name: each_NC
            for name, each_NC in predictions.items()
            if each_NC is not None and weights[name]
        }
        total = sum(weights[name] for name in available)
        means.append(weighted_mean(available, weights) / total if available else None)
        # Without all members that have a weight the probabilities have another scale.
        used = sum(weights[name] > 0 for name in members)
        mean_NC = means[-1] if len(available) == used else None
        thresholds.append(choose_threshold(mean_NC, labels, folds.sensitivity))
    outputs = folds.labels.outputs_NC.shape[1]
    mean_MC = np.empty((len(folds.rows_M), outputs))
    for k, weights in enumerate(weights_of[:-1], start=1):
        in_fold = folds.fold_M == k
        mean_MC[in_fold] = weighted_mean(members, weights)[in_fold, :outputs]
    labels, final = folds.held_out, weights_of[-1]
    if not labels.classes:
        residuals_M = np.abs(mean_MC[:, 0] - labels.values)
        odds = None
        if labels.levels:
            odds = fit_odds(means[-1], folds.labels.training(folds.fitted_rows[-1]))
        mean_MC = folds.with_levels(mean_MC, means)
        # A new sample may come from a new study.
        groups_M = labels.studies if labels.studies is not None else labels.groups
        ensemble = Ensemble(final, half_width(residuals_M, groups_M), 1.0, odds)
        widths_M = held_out_half_widths(residuals_M, groups_M)
        return Combined(ensemble, members, mean_MC, mean_MC, widths_M, weights_of[:-1])
    calibrated_MC = np.empty_like(mean_MC)
    for fold in np.unique(folds.fold_M):
        # The temperature comes from other folds of the same repeat, because fitted to a sample it
        # would make the score too good. One temperature per fold keeps the order of two classes,
        # so their AUC; with more classes the order may change, and calibrated probabilities are
        # scored. A single split has no other folds and stays as it is.
        in_fold = folds.fold_M == fold
        same_repeat = folds.repeat_M == folds.repeat_M[in_fold][0]
        other_rows = np.flatnonzero(~in_fold & same_repeat)
        temperature = _temperature(mean_MC[other_rows], labels.training(other_rows))
        calibrated_MC[in_fold] = calibrate(mean_MC[in_fold], temperature)
        thresholds[fold - 1] = _calibrated(thresholds[fold - 1], temperature)
    temperature = _temperature(mean_MC, labels.training(np.arange(len(mean_MC))))
    threshold = _calibrated(thresholds.pop(), temperature)
    ensemble = Ensemble(final, np.inf, temperature, threshold=threshold)
    return Combined(ensemble, members, calibrated_MC, mean_MC, None, weights_of[:-1], thresholds)


def choose_threshold(
    left_out_NC: F64 | None, labels: Labels, sensitivity: float | None
) -> float | None:
    """Choose a threshold of the second class by Youden's J, or the highest with a sensitivity.

    Samples with this probability or more, halfway between two samples, are predicted as the class.
    None unless there are two classes with predictions; a missing prediction is NaN.
    """
    if left_out_NC is None or len(labels.classes) != 2:
        return None
    predicted = np.isfinite(left_out_NC[:, 1])
    positive_N, chances_N = labels.values[predicted] == 1, left_out_NC[predicted, 1]
    if len(np.unique(positive_N)) < 2:
        return None
    wrong, right, chances = roc_curve(positive_N, chances_N, drop_intermediate=False)
    # The first threshold is infinite.
    met = right - wrong if sensitivity is None else right >= sensitivity - 1e-9
    k = 1 + int(np.argmax(met[1:]))
    return float(np.clip(chances[k : k + 2].mean(), 0, 1))


def _calibrated(threshold: float | None, temperature: float) -> float | None:
    if threshold is None:
        return None
    return float(calibrate(np.array([[1 - threshold, threshold]]), temperature)[0, 1])


def _temperature(mean_MC: F64, labels: Labels) -> float:
    """Fit the temperature of class probabilities; 1 unless it lowers the loss significantly.

    A temperature fitted to few groups may harm other groups: without this test it raised the log
    loss of held-out samples in each of 13 runs on real studies.
    """
    if not len(mean_MC):
        return 1.0
    codes_M = labels.values.astype(np.int64)
    temperature = fit_temperature(mean_MC, codes_M)
    gains_M = log_losses(mean_MC, codes_M) - log_losses(calibrate(mean_MC, temperature), codes_M)
    group_M = np.unique(labels.groups, return_inverse=True)[1]
    gains_I = np.bincount(group_M, gains_M).astype(np.float64)
    if len(gains_I) < 2:
        return 1.0
    return temperature if gains_I.sum() > NOISE * _error(gains_I) else 1.0


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
    """Score the ensemble at 0.5 and at the chosen threshold; empty unless there are two classes.

    A score is the share of correct predictions among the samples of a class, or among the samples
    with a prediction, with an interval over groups, or a random-effects mean over studies.
    """
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
