"""Ensemble: combination of the members' held-out predictions, with its uncertainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aam.members.base import F64, Labels, Rows
from aam.members.cross_validation import HeldOut
from aam.members.uncertainty import (
    calibrate,
    fit_temperature,
    half_width,
    held_out_half_widths,
)

_PARTS = 5


def combine(predictions: Sequence[F64], weights: F64) -> F64:
    """Return the weighted mean of the members' predictions [M, C]."""
    mean: F64 = np.tensordot(weights, np.stack(predictions), axes=1)
    return mean


@dataclass(frozen=True)
class Ensemble:
    """How members are combined for new samples; stored in the checkpoint.

    Attributes:
        weights: of each member, sum 1.
        half_width: of the prediction interval of a number; infinite with too few groups.
        temperature: of class probabilities; 1 for a number.
    """

    weights: Mapping[str, float]
    half_width: float
    temperature: float

    def combine(self, predictions: Mapping[str, F64], classifier: bool) -> F64:
        """Return the ensemble's numbers or calibrated probabilities [N, C]."""
        names = list(self.weights)
        weights = np.array([self.weights[name] for name in names])
        combined = combine([predictions[name] for name in names], weights)
        return calibrate(combined, self.temperature) if classifier else combined


@dataclass(frozen=True)
class Combined:
    """An ensemble and its predictions of the held-out samples.

    Attributes:
        ensemble: for new samples.
        predictions_MC: float64; probabilities are calibrated on other folds.
        uncalibrated_MC: before calibration; equal for numbers.
        half_widths_M: of the prediction intervals by the residuals of the other groups; None for
            classes.
    """

    ensemble: Ensemble
    predictions_MC: F64
    uncalibrated_MC: F64
    half_widths_M: F64 | None


def combine_members(predictions: Mapping[str, F64], labels: Labels, held: HeldOut) -> Combined:
    """Combine the members' held-out predictions by their plain mean.

    Args:
        predictions: float64 [M, C] of each member.
        labels: of all N samples.
        held: the held-out samples.
    """
    weights = dict.fromkeys(predictions, 1 / len(predictions))
    mean_MC = combine(list(predictions.values()), np.array(list(weights.values())))
    actual_M, groups_M = labels.values[held.rows], labels.groups[held.rows]
    if not labels.classes:
        residuals_M = np.abs(mean_MC[:, 0] - actual_M)
        widths_M = held_out_half_widths(residuals_M, groups_M)
        ensemble = Ensemble(weights, half_width(residuals_M, groups_M), 1.0)
        return Combined(ensemble, mean_MC, mean_MC, widths_M)
    codes_M = actual_M.astype(np.int64)
    calibrated_MC = np.empty_like(mean_MC)
    parts_M = _parts(held, groups_M)
    for part in np.unique(parts_M):
        own = parts_M == part
        temperature = fit_temperature(mean_MC[~own], codes_M[~own]) if not own.all() else 1.0
        calibrated_MC[own] = calibrate(mean_MC[own], temperature)
    ensemble = Ensemble(weights, np.inf, fit_temperature(mean_MC, codes_M))
    return Combined(ensemble, calibrated_MC, mean_MC, None)


def _parts(held: HeldOut, groups_M: Rows) -> Rows:
    """Return the fold of each held-out sample; of a single split, one of five parts of groups."""
    if held.folds.max() > 1:
        return held.folds
    return np.unique(groups_M, return_inverse=True)[1] % _PARTS
