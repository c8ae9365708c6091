"""Ensemble: weighted mean of the members' held-out predictions, with its uncertainty.

Weights and temperature that apply to a held-out sample are fitted to the other folds. K members, M
held-out samples; further shape suffixes: see `base`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from aam.members.base import F64, Labels, Rows
from aam.members.cross_validation import HeldOut
from aam.members.uncertainty import (
    calibrate,
    fit_temperature,
    half_width,
    held_out_half_widths,
)

SHRINKAGE = 0.5
"""Part of the plain mean in the weights; docs/results.md compares them with the mean alone."""

_PARTS = 5


def combine(predictions: Sequence[F64], weights: F64) -> F64:
    """Return the weighted mean of the members' predictions [M, C]."""
    mean: F64 = np.einsum("k,kmc->mc", weights, np.stack(predictions))
    return mean


def fit_weights(predictions: Sequence[F64], outputs_MC: F64) -> F64:
    """Fit non-negative weights by least squares, shrunk halfway to the plain mean; sum 1, [K].

    Args:
        predictions: of each member, [M, C].
        outputs_MC: true numbers, or indicators of the classes.
    """
    columns = np.stack([member.ravel() for member in predictions], axis=1)
    plain = np.full(len(predictions), 1 / len(predictions))
    fitted = nnls(columns, outputs_MC.ravel())[0] if len(columns) else np.zeros(1)
    if not fitted.any():
        return plain
    weights: F64 = SHRINKAGE * plain + (1 - SHRINKAGE) * fitted / fitted.sum()
    return weights


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
        ensemble: for new samples, fitted to all held-out samples.
        predictions_MC: float64; weighted and calibrated by other folds.
        uncalibrated_MC: before calibration; equal for numbers.
        half_widths_M: of the prediction intervals by the residuals of the other groups; None for
            classes.
    """

    ensemble: Ensemble
    predictions_MC: F64
    uncalibrated_MC: F64
    half_widths_M: F64 | None


def combine_members(predictions: Mapping[str, F64], labels: Labels, held: HeldOut) -> Combined:
    """Combine the members' held-out predictions.

    Args:
        predictions: float64 [M, C] of each member.
        labels: of all N samples.
        held: the held-out samples.
    """
    members, classifier = list(predictions.values()), bool(labels.classes)
    outputs_MC, groups_M = labels.outputs_NC[held.rows], labels.groups[held.rows]
    combined_MC = np.empty_like(outputs_MC)
    calibrated_MC = np.empty_like(outputs_MC)
    parts_M = _parts(held, groups_M)
    for part in np.unique(parts_M):
        own = parts_M == part
        others = [member[~own] for member in members]
        weights, temperature = _fit(others, outputs_MC[~own], classifier)
        combined_MC[own] = combine([member[own] for member in members], weights)
        if classifier:
            calibrated_MC[own] = calibrate(combined_MC[own], temperature)
    weights, temperature = _fit(members, outputs_MC, classifier)
    named = dict(zip(predictions, weights.tolist(), strict=True))
    if classifier:
        return Combined(Ensemble(named, np.inf, temperature), calibrated_MC, combined_MC, None)
    residuals_M = np.abs(combined_MC - outputs_MC)[:, 0]
    ensemble = Ensemble(named, half_width(residuals_M, groups_M), temperature)
    widths_M = held_out_half_widths(residuals_M, groups_M)
    return Combined(ensemble, combined_MC, combined_MC, widths_M)


def _fit(members: Sequence[F64], outputs_MC: F64, classifier: bool) -> tuple[F64, float]:
    """Fit the weights, and the temperature of class probabilities; 1 for a number."""
    weights = fit_weights(members, outputs_MC)
    if not classifier or not len(outputs_MC):
        return weights, 1.0
    return weights, fit_temperature(combine(members, weights), outputs_MC.argmax(axis=1))


def _parts(held: HeldOut, groups_M: Rows) -> Rows:
    """Return the fold of each held-out sample; of a single split, one of five parts of groups."""
    if held.folds.max() > 1:
        return held.folds
    return np.unique(groups_M, return_inverse=True)[1] % _PARTS
