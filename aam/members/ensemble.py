"""Ensemble: mean of the members' held-out predictions, with its uncertainty.

The ensemble is the mean of the largest set of members that no other set beats beyond noise.
Members and temperature that apply to a held-out sample are chosen on the other folds. K members, M
held-out samples; further shape suffixes: see `base`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aam.members.base import F64, Rows
from aam.members.folds import Folds
from aam.members.uncertainty import (
    ProportionalOdds,
    calibrate,
    fit_proportional_odds,
    fit_temperature,
    half_width,
    held_out_half_widths,
    log_losses,
)

NOISE = 2.0
"""Standard errors by which the mean of a set of members has to be better than that of another."""


def combine(predictions: Sequence[F64], weights: F64) -> F64:
    """Return the weighted mean of the members' predictions [M, C].

    Args:
        predictions: float64 [M, C] of each of the K members.
        weights: float64 [K], of sum 1.

    >>> combine([np.array([[1.0]]), np.array([[3.0]])], np.array([0.5, 0.5])).tolist()
    [[2.0]]
    """
    mean: F64 = np.einsum("k,kmc->mc", weights, np.stack(predictions))
    return mean


def choose_weights(
    predictions: Sequence[F64], outputs_MC: F64, groups_M: Rows, guess_MC: F64
) -> F64:
    """Return equal weights for the largest set of members that no other set beats, 0 for others.

    Of several such sets the one with the least squared error is chosen. A set beats another by the
    squared errors of the two means, paired over groups: by more than `NOISE` standard errors of
    their sum over the groups. With fewer than two groups no set beats another.

    A member with a larger squared error than a guess, the mean of the numbers of the training
    samples of each fold, is left out before; if all are so, the one with the least error is kept.
    The mean of the held-out numbers is no guess: a model cannot have it. Class probabilities, which
    are calibrated later, may have a large error and yet order the samples: no member is left out
    so.

    Args:
        predictions: float64 [M, C] of each of the K members.
        outputs_MC: true numbers, or indicators of the classes.
        groups_M: group of each sample.
        guess_MC: predictions without a model, see `Folds.dummy_MC`.

    Returns:
        float64 [K], of sum 1.

    >>> truth, guess = np.arange(6.0)[:, None], np.full((6, 1), 2.5)
    >>> choose_weights([truth + 0.1, truth - 9.0], truth, np.arange(6), guess).tolist()
    [1.0, 0.0]
    """
    # With few groups no difference is beyond noise, so that a member far worse than a guess would
    # stay (a kernel with R² -10 in a study of nine groups).
    members = _better_than_a_guess(predictions, outputs_MC, guess_MC)

    def errors_of(kept: Sequence[int]) -> F64:
        """Return the squared error of the mean in each group."""
        mean_MC = np.mean([predictions[k] for k in kept], axis=0)
        return _by_group(np.square(mean_MC - outputs_MC).sum(axis=1), groups_M)

    errors = {
        kept: errors_of(kept)
        # K members have 2^K - 1 sets: seven of the three members that there are.
        for size in range(len(members), 0, -1)
        for kept in itertools.combinations(members, size)
    }
    unbeaten = [
        kept
        for kept, error in errors.items()
        # A set does not beat itself: a difference of zeros is not beyond noise.
        if not any(_beyond_noise(error - other) for other in errors.values())
    ]
    chosen = min(unbeaten, key=lambda kept: (-len(kept), errors[kept].sum()))
    weights = np.zeros(len(predictions))
    weights[list(chosen)] = 1 / len(chosen)
    return weights


def _better_than_a_guess(predictions: Sequence[F64], outputs_MC: F64, guess_MC: F64) -> list[int]:
    """Return the members with less squared error than a guess of numbers, or else the best."""
    # Without samples there is no error to compare: the held-out samples are of one group.
    if outputs_MC.shape[1] > 1 or not len(outputs_MC):
        return list(range(len(predictions)))
    errors = [np.square(predicted_MC - outputs_MC).sum() for predicted_MC in predictions]
    limit = np.square(guess_MC - outputs_MC).sum()
    return [k for k, error in enumerate(errors) if error < limit] or [int(np.argmin(errors))]


def _by_group(values_M: F64, groups_M: Rows) -> F64:
    """Return the sum of the values of each group."""
    group_of = np.unique(groups_M, return_inverse=True)[1]
    return np.bincount(group_of, values_M).astype(np.float64)


def _beyond_noise(values: F64) -> bool:
    """Return whether a sum of independent values exceeds `NOISE` of its standard errors."""
    if len(values) < 2:
        return False
    return bool(values.sum() > NOISE * np.sqrt(len(values)) * values.std(ddof=1))


@dataclass(frozen=True)
class Ensemble:
    """How members are combined for new samples; stored in the checkpoint.

    Attributes:
        weights: weight of each member, of sum 1; 0 for one that is left out.
        half_width: half width of the prediction interval of a number; infinite with too few groups.
        temperature: temperature of class probabilities; 1 for a number.
        odds: model from a rank to the probabilities of ordered categories; None for other targets.
    """

    weights: Mapping[str, float]
    half_width: float
    temperature: float
    odds: ProportionalOdds | None = None

    def combine(self, predictions: Mapping[str, F64], classifier: bool) -> F64:
        """Return the ensemble's numbers or calibrated probabilities [N, C]."""
        names = list(self.weights)
        weights = np.array([self.weights[name] for name in names])
        combined = combine([predictions[name] for name in names], weights)
        return calibrate(combined, self.temperature) if classifier else combined


@dataclass(frozen=True)
class Combined:
    """An ensemble, and predictions of the held-out samples.

    Attributes:
        ensemble: combination for new samples, fitted to all held-out samples.
        members: float64 [M, C], predictions of each member.
        predictions_MC: float64, predictions of the ensemble, combined and calibrated by other
            folds.
        uncalibrated_MC: float64, the same before calibration; equal for numbers.
        half_widths_M: half widths of the prediction intervals, by the residuals of the other
            groups; None for classes.
    """

    ensemble: Ensemble
    members: Mapping[str, F64]
    predictions_MC: F64
    uncalibrated_MC: F64
    half_widths_M: F64 | None


def combine_members(members: Mapping[str, F64], folds: Folds) -> Combined:
    """Combine the members' predictions of the held-out samples.

    Args:
        members: float64 [M, C] by name, numbers in the units of the target or class probabilities.
        folds: labels and splits; the held-out samples are in the order of the predictions.

    Returns:
        The ensemble for new samples, and its predictions of the held-out samples, whose weights and
        temperature come from the other folds, or from other groups of a single split.
    """
    labels, predictions, parts_M = folds.held_out, list(members.values()), folds.parts_M
    outputs_MC, groups_M, classifier = labels.outputs_NC, labels.groups, bool(labels.classes)
    guess_MC = folds.dummy_MC
    combined_MC = np.empty_like(outputs_MC)
    calibrated_MC = np.empty_like(outputs_MC)
    for part in np.unique(parts_M):
        # Weights and temperature of a sample come from other groups; fitted to the sample itself,
        # they would make its score too good.
        inside, outside = parts_M == part, parts_M != part
        others = [predicted_MC[outside] for predicted_MC in predictions]
        weights, temperature = _fit(
            others, outputs_MC[outside], groups_M[outside], guess_MC[outside], classifier
        )
        mean = combine([predicted_MC[inside] for predicted_MC in predictions], weights)
        combined_MC[inside] = mean
        if classifier:
            calibrated_MC[inside] = calibrate(mean, temperature)
    weights, temperature = _fit(predictions, outputs_MC, groups_M, guess_MC, classifier)
    named = dict(zip(members, weights.tolist(), strict=True))
    if classifier:
        ensemble = Ensemble(named, np.inf, temperature)
        return Combined(ensemble, members, calibrated_MC, combined_MC, None)
    residuals_M = np.abs(combined_MC - outputs_MC)[:, 0]
    odds = None
    if labels.levels:
        codes_M = labels.values.astype(np.int64)
        odds = fit_proportional_odds(combined_MC[:, 0], codes_M, len(labels.levels))
    ensemble = Ensemble(named, half_width(residuals_M, groups_M), temperature, odds)
    widths_M = held_out_half_widths(residuals_M, groups_M)
    return Combined(ensemble, members, combined_MC, combined_MC, widths_M)


def _fit(
    members: Sequence[F64], outputs_MC: F64, groups_M: Rows, guess_MC: F64, classifier: bool
) -> tuple[F64, float]:
    """Choose the weights, and fit the temperature of class probabilities; 1 for a number."""
    weights = choose_weights(members, outputs_MC, groups_M, guess_MC)
    if not classifier or not len(outputs_MC):
        return weights, 1.0
    combined_MC, codes_M = combine(members, weights), outputs_MC.argmax(axis=1)
    temperature = fit_temperature(combined_MC, codes_M)
    calibrated_MC = calibrate(combined_MC, temperature)
    # A temperature fitted to few groups may harm others: without this test it raised the log loss
    # of held-out samples in each of 13 runs of real studies.
    gains_M = log_losses(combined_MC, codes_M) - log_losses(calibrated_MC, codes_M)
    return weights, temperature if _beyond_noise(_by_group(gains_M, groups_M)) else 1.0
