"""External validation: scores of a fitted model, and its calibration, in another study.

The baseline predicts the mean or class frequencies of the training samples. Calibration follows Cox
(1958, "Two further applications of a model for binary regression"): a regression of the true values
on the predictions, and the shift between their means, known as calibration in the large (Van
Calster et al. 2019, doi:10.1186/s12916-019-1466-7).

M scored samples, C outputs, Z replicates, each without one block of units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import betaincinv, expit, logit

from aam.arrays import F64, Rows
from aam.evaluation.calibration import SMALLEST
from aam.evaluation.intervals import TITLES, Score, Units, jackknife_interval, resample_metrics
from aam.evaluation.labels import Labels
from aam.evaluation.metrics import ScoredPredictions, rows_of

UNLIKE_TRAINING = "unlike_training"
"""Column of predictions with yes for a sample unlike the training samples."""

_STEPS = 50
"""Newton steps of a logistic regression; without convergence a line separates the classes."""


@dataclass(frozen=True)
class CalibrationLine:
    """Regression of the true values on the predictions; ideally slope 1, intercept 0 and shift 0.

    For a number or a rank it is the least-squares line; for a class, a logistic regression of
    membership on the log odds of the predicted probability. Values are None if the predictions are
    constant or separate the classes.
    """

    name: str  # class; "" for a number or a rank
    slope: Score  # below 1: predictions are too extreme
    intercept: Score  # units of the target, or log odds
    # intercept at slope 1: mean true minus mean predicted value, or its equivalent in log odds;
    # above 0 the predictions are too low
    shift: Score
    study: str = ""  # study of the samples; "" for a single study

    @property
    def title(self) -> str:
        """Start of the sentence."""
        return f"Calibration of '{self.name}'" if self.name else "Calibration"

    def sentence(self, unit: str = "") -> str:
        """Describe the line; `unit` is the unit of a numeric target."""
        if self.slope.value is None or self.shift.value is None:
            return (
                f"{self.title}: not computed, because the predictions are constant or separate the "
                "classes."
            )
        unit = "in log odds" if self.name else unit
        shift = f"true minus predicted {self.shift.text()} {unit}".rstrip()
        faults = []
        if self.slope.upper is not None and self.slope.upper < 1:
            faults.append("too extreme")
        if self.slope.lower is not None and self.slope.lower > 1:
            faults.append("too near to the mean")
        if self.shift.excludes_zero:
            faults.append("too low" if self.shift.value > 0 else "too high")
        text = f"{self.title}: slope {self.slope.text()} (ideal: 1), {shift} (ideal: 0)"
        if faults:
            text += f": predictions are {' and '.join(faults)}"
            text += "; use them to rank samples, not as probabilities" if self.name else ""
        return f"{text}."


@dataclass(frozen=True)
class PartScores:
    """Scores of the samples with one value of a column."""

    column: str
    value: str
    samples: int
    metrics: dict[str, Score]

    @classmethod
    def of(
        cls, column: str, value: str, scored: ScoredPredictions, groups_M: Rows, rows: Rows
    ) -> PartScores:
        """Score the samples at `rows`; several studies are scored by their mean."""
        metrics = resample_metrics(scored.take(rows), Units.of(groups_M[rows])).score()
        return cls(column, value, len(rows), metrics)


@dataclass(frozen=True)
class ExternalValidation:
    """Calibration of a model in another study, scores of subsets, and differences in labels."""

    # lines of each study; for two classes the line of the second
    calibration: list[CalibrationLine]
    # samples like and unlike the training samples (column `unlike_training`), then the values of
    # metadata columns
    parts: list[PartScores]
    notes: list[str]  # sentences on labels that differ from the training labels

    def sentences(self, unit: str = "") -> list[str]:
        """State what differs from the training; `unit` is the unit of a numeric target."""
        sentences = [*self.notes]
        if not any(line.study for line in self.calibration):
            sentences += [line.sentence(unit) for line in self.calibration]
        else:  # one sentence for each class, with all studies
            for name in dict.fromkeys(line.name for line in self.calibration):
                lines = [line for line in self.calibration if line.name == name]
                slopes = (f"{line.slope.text()} in {line.study}" for line in lines)
                sentences.append(f"{lines[0].title}: slope (ideal: 1) {', '.join(slopes)}.")
        subsets = {
            scores.value: scores for scores in self.parts if scores.column == UNLIKE_TRAINING
        }
        if len(subsets) == 2:
            name, like = next(iter(subsets["no"].metrics.items()))
            unlike = subsets["yes"].metrics[name]
            text = f"{TITLES[name]} {like.text(name)} in {subsets['no'].samples} samples like the "
            text += f"training samples, {unlike.text(name)} in {subsets['yes'].samples} unlike them"
            difference = like.less(unlike)
            if difference.excludes_zero and difference.value is not None:
                more = "the former" if difference.value > 0 else "the latter"
                text += f": the model predicts {more} better"
            elif difference.lower is not None:
                text += ": the difference is not significant"
            sentences.append(f"{text}.")
        return sentences


def calibration_lines(
    labels: Labels, predictions_MC: F64, units: Units, studies: Sequence[str] = ()
) -> list[CalibrationLine]:
    """Fit the calibration line of a number, of ranks, or of each class against the other classes.

    `studies` names the study of each sample, each with its own lines; empty for a single study.

    >>> labels = Labels.of(np.array([2.0, 4.0, 6.0]), (), None)
    >>> line = calibration_lines(labels, np.array([[1.0], [2.0], [3.0]]), Units.of(np.arange(3)))
    >>> round(line[0].slope.value, 6), round(line[0].shift.value, 6)
    (2.0, 2.0)
    """
    if studies:
        return [
            replace(line, study=study)
            for study, rows in rows_of(studies).items()
            for line in calibration_lines(
                labels.take(rows), predictions_MC[rows], Units.of(labels.groups[rows])
            )
        ]
    if not labels.classes:
        return [_line("", labels.values, predictions_MC[:, 0], units, linear=True)]
    codes = [1] if len(labels.classes) == 2 else range(len(labels.classes))
    return [
        _line(
            labels.classes[code],
            (labels.values == code).astype(np.float64),
            logit(predictions_MC[:, code].clip(SMALLEST, 1 - SMALLEST)),
            units,
            linear=False,
        )
        for code in codes
    ]


def _line(
    name: str, actual_M: F64, predictor_M: F64, units: Units, linear: bool
) -> CalibrationLine:
    fit = _least_squares if linear else _logistic
    values_3 = fit(actual_M, predictor_M, np.ones((1, len(actual_M))))[0].tolist()
    blocks = [fit(actual_M, predictor_M, weights_ZM) for weights_ZM in units.weights()]
    replicates_3Z = np.concatenate([np.empty((0, 3)), *blocks]).T
    slope, intercept, shift = (
        jackknife_interval(value, replicates_Z, units.effective)
        for value, replicates_Z in zip(values_3, replicates_3Z, strict=True)
    )
    return CalibrationLine(name, slope, intercept, shift)


def _least_squares(actual_M: F64, predictor_M: F64, weights_ZM: F64) -> F64:
    """Return slope, intercept and shift of the least-squares line of each replicate, [Z, 3]."""
    # Centred first: differences between sums of squares of large numbers lose precision.
    x_M, y_M = predictor_M - predictor_M.mean(), actual_M - actual_M.mean()
    total_Z = weights_ZM.sum(axis=1)
    x_Z, y_Z = weights_ZM @ x_M / total_Z, weights_ZM @ y_M / total_Z
    spread_Z = weights_ZM @ np.square(x_M) / total_Z - np.square(x_Z)
    slope_Z = np.full(len(total_Z), np.nan)
    varies_Z = spread_Z > 1e-12 * max(float(np.square(predictor_M).max()), 1e-300)
    product_Z = weights_ZM @ (x_M * y_M) / total_Z - x_Z * y_Z
    np.divide(product_Z, spread_Z, out=slope_Z, where=varies_Z)
    mean_x_Z, mean_y_Z = x_Z + predictor_M.mean(), y_Z + actual_M.mean()
    return np.stack([slope_Z, mean_y_Z - slope_Z * mean_x_Z, mean_y_Z - mean_x_Z], axis=1)


def _logistic(actual_M: F64, predictor_M: F64, weights_ZM: F64) -> F64:
    """Return slope, intercept and shift of the logistic regression of each replicate, [Z, 3]."""
    # The shift is the intercept of a model with the predictor as offset.
    constant_M = np.ones_like(predictor_M)
    line_Z2 = _newton(np.stack([predictor_M, constant_M]), actual_M, 0 * predictor_M, weights_ZM)
    shift_Z1 = _newton(constant_M[None], actual_M, predictor_M, weights_ZM)
    return np.hstack([line_Z2, shift_Z1])


def _newton(design_KM: F64, actual_M: F64, offset_M: F64, weights_ZM: F64) -> F64:
    """Fit weighted logistic regressions: coefficients [Z, K], NaN if they are not finite."""
    coefficients_ZK = np.zeros((len(weights_ZM), len(design_KM)))
    open_Z = np.ones(len(weights_ZM), dtype=bool)
    for _ in range(_STEPS):
        chance_ZM = expit(coefficients_ZK[open_Z] @ design_KM + offset_M)
        weights = weights_ZM[open_Z]
        gradient_ZK = (weights * (actual_M - chance_ZM)) @ design_KM.T
        curvature_ZM = weights * chance_ZM * (1 - chance_ZM)
        hessian_ZKK = np.einsum("zm,km,lm->zkl", curvature_ZM, design_KM, design_KM)
        step_ZK = np.einsum("zkl,zl->zk", np.linalg.pinv(hessian_ZKK, hermitian=True), gradient_ZK)
        # A full step from far away overshoots, so steps are limited; the likelihood is concave.
        size_Z = np.abs(step_ZK).max(axis=1)
        coefficients_ZK[open_Z] += step_ZK / np.maximum(size_Z, 1)[:, None]
        open_Z[open_Z] = size_Z > 1e-8
        if not open_Z.any():
            break
    varies = len(design_KM) == 1 or np.ptp(design_KM[0]) > 0
    # If a line separates the classes, the steps do not converge or the curvature vanishes.
    wrong_Z = open_Z | (np.abs(coefficients_ZK).max(axis=1) > _STEPS / 2) | (not varies)
    coefficients_ZK[wrong_Z] = np.nan
    return coefficients_ZK


def exact_proportion(share: float, units: int) -> Score:
    """Return a proportion with its exact interval (Clopper and Pearson 1934).

    With groups of samples the number of correct units need not be an integer.
    """
    right, wrong = share * units, (1 - share) * units
    lower = float(betaincinv(right, wrong + 1, 0.025)) if right > 0 else 0.0
    upper = float(betaincinv(right + 1, wrong, 0.975)) if wrong > 0 else 1.0
    return Score(share, lower, upper)


def one_class_score(scored: ScoredPredictions, units: int) -> tuple[str, str] | None:
    """State sensitivity or specificity, and its counts, if all samples are of one class."""
    codes = np.unique(scored.actual)
    if scored.type != "classification" or len(codes) > 1:
        return None
    right_N, name = scored.predicted == codes[0], scored.classes[codes[0]]
    rate = "Specificity" if len(scored.classes) == 2 and codes[0] == 0 else "Sensitivity"
    counts = f"{int(right_N.sum())} of {len(right_N)} samples, all of the class '{name}', are "
    return (
        f"{rate} {exact_proportion(float(right_N.mean()), units).text()}",
        f"{counts}predicted as '{name}' (95 % exact interval)",
    )
