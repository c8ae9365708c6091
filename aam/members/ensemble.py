"""Ensemble: mean of the members' held-out predictions, with its uncertainty.

All members have the same weight. Weights chosen for a fold by the held-out predictions of the other
folds would leak its labels: the models of those folds were trained on them, and samples of two
folds that are alike make a member look good in both (random labels of three classes: AUC 0.515
with chosen weights, 0.500 with equal ones, 150 studies). K members, M held-out samples; further
shape suffixes: see `base`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from aam.members.base import F64, Rows
from aam.members.scores import Folds
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
"""Standard errors by which a temperature has to lower the log loss of the groups."""


def mean_prediction(predictions: Mapping[str, F64]) -> F64:
    """Return the mean of the members' predictions [M, C].

    >>> mean_prediction({"kernel": np.array([[1.0]]), "forest": np.array([[3.0]])}).tolist()
    [[2.0]]
    """
    mean_MC: F64 = np.mean(list(predictions.values()), axis=0)
    return mean_MC


@dataclass(frozen=True)
class Ensemble:
    """How the mean of the members is read for new samples; stored in the model.

    Attributes:
        half_width: half width of the prediction interval of a number; infinite with too few groups.
        temperature: temperature of class probabilities; 1 for a number.
        odds: model from a rank to the probabilities of ordered categories; None for other targets.
    """

    half_width: float
    temperature: float
    odds: ProportionalOdds | None = None

    def combine(self, predictions: Mapping[str, F64], classifier: bool) -> F64:
        """Return the ensemble's numbers or calibrated probabilities [N, C]."""
        mean_NC = mean_prediction(predictions)
        return calibrate(mean_NC, self.temperature) if classifier else mean_NC


@dataclass(frozen=True)
class Combined:
    """An ensemble, and predictions of the held-out samples.

    Attributes:
        ensemble: for new samples, fitted to all held-out samples.
        members: float64 [M, C], predictions of each member.
        predictions_MC: float64, predictions of the ensemble, calibrated by other folds.
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
        The ensemble for new samples, and its predictions of the held-out samples, whose temperature
        comes from the other folds, or from other groups of a single split.
    """
    labels, mean_MC = folds.held_out, mean_prediction(members)
    if not labels.classes:
        residuals_M = np.abs(mean_MC[:, 0] - labels.values)
        odds = None
        if labels.levels:
            codes_M = labels.values.astype(np.int64)
            odds = fit_proportional_odds(mean_MC[:, 0], codes_M, len(labels.levels))
        ensemble = Ensemble(half_width(residuals_M, labels.groups), 1.0, odds)
        widths_M = held_out_half_widths(residuals_M, labels.groups)
        return Combined(ensemble, members, mean_MC, mean_MC, widths_M)
    codes_M, parts_M = labels.values.astype(np.int64), folds.parts_M
    calibrated_MC = np.empty_like(mean_MC)
    for part in np.unique(parts_M):
        # Fitted to the sample itself, a temperature would make its score too good.
        inside, outside = parts_M == part, parts_M != part
        temperature = _temperature(mean_MC[outside], codes_M[outside], labels.groups[outside])
        calibrated_MC[inside] = calibrate(mean_MC[inside], temperature)
    ensemble = Ensemble(np.inf, _temperature(mean_MC, codes_M, labels.groups))
    return Combined(ensemble, members, calibrated_MC, mean_MC, None)


def _temperature(mean_MC: F64, codes_M: Rows, groups_M: Rows) -> float:
    """Fit the temperature of class probabilities; 1 without evidence that it helps.

    A temperature fitted to few groups may harm others: without this test it raised the log loss of
    held-out samples in each of 13 runs of real studies.
    """
    if not len(codes_M):
        return 1.0
    temperature = fit_temperature(mean_MC, codes_M)
    gains_M = log_losses(mean_MC, codes_M) - log_losses(calibrate(mean_MC, temperature), codes_M)
    gains_I = np.bincount(np.unique(groups_M, return_inverse=True)[1], gains_M)
    if len(gains_I) < 2:
        return 1.0
    noise = NOISE * np.sqrt(len(gains_I)) * gains_I.std(ddof=1)
    return temperature if gains_I.sum() > noise else 1.0
