"""External validation: a fitted model scored on samples of another study than that of its training.

The guess is the class frequencies or the mean of the training samples. Calibration is that of
Cox (1958, "Two further applications of a model for binary regression"): the line of the truth on
the predictions, and the shift between their means, which a clinical reader calls calibration in the
large (Van Calster et al. 2019, doi:10.1186/s12916-019-1466-7).

M scored samples, C outputs, Z replicates, each without one block of units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import betaincinv, expit, logit

from aam.arrays import F64, Rows
from aam.evaluation.calibration import SMALLEST
from aam.evaluation.intervals import (
    TITLES,
    Score,
    Units,
    jackknife_interval,
    resample_metrics,
    units_of,
)
from aam.evaluation.labels import Labels, LabelSummary
from aam.evaluation.metrics import ScoredPredictions, rows_of
from aam.number_format import significant

UNLIKE_TRAINING = "unlike_training"
"""Column of predictions with yes for a sample that does not resemble the training samples."""

_STEPS = 50
"""Newton steps of a logistic regression; where these do not end, a line separates the classes."""

_OTHER_SCALE = 4.0
"""Ratio of the spreads of the labels of two studies beyond which their units may differ."""

_OUTSIDE = 0.25
"""Part of the labels outside the range of the training labels that is stated."""

_OTHER_SHARE = 0.1
"""Difference between two frequencies of a class that is stated."""


@dataclass(frozen=True)
class CalibrationLine:
    """Line of the truth on the predictions: slope 1, intercept 0 and shift 0 where they agree.

    Of a number or a rank it is the least-squares line; of a class the logistic regression of
    whether a sample is of the class on the log odds of its predicted probability. Values are None
    where the predictions are constant or a line separates the classes.
    """

    name: str  # class; "" of a number or a rank
    slope: Score  # below 1: predictions are too extreme
    intercept: Score  # units of the target, or log odds
    # intercept of the line of slope 1: mean of the truth less that of the predictions, or the same
    # in log odds; above 0 the predictions are too low
    shift: Score
    study: str = ""  # study of the samples; "" of a single one

    @property
    def title(self) -> str:
        """Start of the sentence."""
        return f"Calibration of '{self.name}'" if self.name else "Calibration"

    def sentence(self, unit: str = "") -> str:
        """Describe the line; `unit` is that of a number."""
        if self.slope.value is None or self.shift.value is None:
            return f"{self.title}: no line, the predictions are constant or separate the classes."
        unit = "in log odds" if self.name else unit
        shift = f"true less predicted {self.shift.text()} {unit}".rstrip()
        meaning = []
        if self.slope.upper is not None and self.slope.upper < 1:
            meaning.append("too extreme")
        if self.slope.lower is not None and self.slope.lower > 1:
            meaning.append("too near to the mean")
        if self.shift.beyond_noise:
            meaning.append("too low" if self.shift.value > 0 else "too high")
        text = f"{self.title}: slope {self.slope.text()} (1 is ideal), {shift} (0 is ideal)"
        if not meaning:
            return f"{text}."
        text += f": predictions are {' and '.join(meaning)}"
        return (
            f"{text}; they rank samples, but are no probabilities here."
            if self.name
            else f"{text}."
        )


@dataclass(frozen=True)
class PartScores:
    """Scores of a part of the samples."""

    column: str  # column that divides the samples
    value: str  # its value in this part
    samples: int
    metrics: dict[str, Score]


@dataclass(frozen=True)
class ExternalValidation:
    """What is known of a model in another study besides its scores there."""

    # of each study; of a number or ranks one, of two classes that of the second
    calibration: list[CalibrationLine]
    # samples that are unlike the training samples and the others (column `unlike_training`), then
    # the values of metadata columns
    parts: list[PartScores]
    notes: list[str]  # sentences on labels that differ from those of the training

    def sentences(self, unit: str = "") -> list[str]:
        """State what differs from the training; `unit` is that of a number."""
        sentences = [*self.notes]
        if not any(line.study for line in self.calibration):
            sentences += [line.sentence(unit) for line in self.calibration]
        else:  # those of several studies in one sentence for each class
            for name in dict.fromkeys(line.name for line in self.calibration):
                lines = [line for line in self.calibration if line.name == name]
                slopes = (f"{line.slope.text()} in {line.study}" for line in lines)
                sentences.append(f"{lines[0].title}, slope (1 is ideal): {', '.join(slopes)}.")
        of = {part.value: part for part in self.parts if part.column == UNLIKE_TRAINING}
        if len(of) == 2:
            name, like = next(iter(of["no"].metrics.items()))
            unlike = of["yes"].metrics[name]
            shown = [f"{like.text(name)} of {of['no'].samples} that resemble the training samples",
                     f"{unlike.text(name)} of {of['yes'].samples} that do not"]  # fmt: skip
            end = _likeness(like.less(unlike))
            sentences.append(f"Samples by likeness: {TITLES[name]} {', '.join(shown)}{end}.")
        return sentences


def _likeness(difference: Score) -> str:
    """State whether samples that resemble the training are predicted better than the others."""
    if difference.lower is None:
        return ""
    if not difference.beyond_noise:
        return ": the difference is within noise, so likeness says nothing about accuracy here"
    less = "less" if difference.lower > 0 else "more"
    return f": the model is {less} accurate for samples unlike its training"


def calibration_lines(
    labels: Labels, predictions_MC: F64, units: Units, studies: Sequence[str] = ()
) -> list[CalibrationLine]:
    """Fit the calibration line of a number, of ranks, or of each class against the rest.

    `studies` names the study of each sample; each has lines of its own. Empty for a single one.

    >>> labels = Labels.of(np.array([2.0, 4.0, 6.0]), (), None)
    >>> line = calibration_lines(labels, np.array([[1.0], [2.0], [3.0]]), units_of(np.arange(3)))
    >>> round(line[0].slope.value, 6), round(line[0].shift.value, 6)
    (2.0, 2.0)
    """
    if studies:
        return [
            replace(line, study=study)
            for study, rows in rows_of(studies).items()
            for line in calibration_lines(
                labels.take(rows), predictions_MC[rows], units_of(labels.groups[rows])
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
    whole_Z3 = fit(actual_M, predictor_M, np.ones((1, len(actual_M))))
    parts = [fit(actual_M, predictor_M, weights_ZM) for weights_ZM in units.weights()]
    replicates_Z3 = np.concatenate([np.empty((0, 3)), *parts])
    scores = [
        jackknife_interval(float(whole_Z3[0, k]), replicates_Z3[:, k], units.effective)
        for k in range(3)
    ]
    return CalibrationLine(name, scores[0], scores[1], scores[2])


def _least_squares(actual_M: F64, predictor_M: F64, weights_ZM: F64) -> F64:
    """Return slope, intercept and shift of the least-squares line of each replicate, [Z, 3]."""
    # Centred by the means of all samples: sums of squares of large numbers would cancel.
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
    # The shift is an intercept with the predictor as offset, so only the design differs.
    constant_M = np.ones_like(predictor_M)
    line_Z2 = _newton(np.stack([predictor_M, constant_M]), actual_M, 0 * predictor_M, weights_ZM)
    shift_Z1 = _newton(constant_M[None], actual_M, predictor_M, weights_ZM)
    return np.hstack([line_Z2, shift_Z1])


def _newton(design_KM: F64, actual_M: F64, offset_M: F64, weights_ZM: F64) -> F64:
    """Return the coefficients of weighted logistic regressions, [Z, K]; NaN without finite ones."""
    coefficients_ZK = np.zeros((len(weights_ZM), len(design_KM)))
    open_Z = np.ones(len(weights_ZM), dtype=bool)
    for _ in range(_STEPS):
        chance_ZM = expit(coefficients_ZK[open_Z] @ design_KM + offset_M)
        weights = weights_ZM[open_Z]
        gradient_ZK = (weights * (actual_M - chance_ZM)) @ design_KM.T
        curvature_ZM = weights * chance_ZM * (1 - chance_ZM)
        hessian_ZKK = np.einsum("zm,km,lm->zkl", curvature_ZM, design_KM, design_KM)
        step_ZK = np.einsum("zkl,zl->zk", np.linalg.pinv(hessian_ZKK, hermitian=True), gradient_ZK)
        # A whole step from far away overshoots; the likelihood is concave.
        size_Z = np.abs(step_ZK).max(axis=1)
        coefficients_ZK[open_Z] += step_ZK / np.maximum(size_Z, 1)[:, None]
        open_Z[open_Z] = size_Z > 1e-8
        if not open_Z.any():
            break
    varies = len(design_KM) == 1 or np.ptp(design_KM[0]) > 0
    # Where a line separates the classes the steps do not end, or the curvature vanishes first.
    wrong_Z = open_Z | (np.abs(coefficients_ZK).max(axis=1) > _STEPS / 2) | (not varies)
    coefficients_ZK[wrong_Z] = np.nan
    return coefficients_ZK


def part_scores(
    column: str, rows_of: Mapping[str, Rows], scored: ScoredPredictions, groups_M: Rows
) -> list[PartScores]:
    """Score each part of the samples by itself; of several studies by the mean of theirs."""
    scores = []
    for value, rows in rows_of.items():
        metrics = resample_metrics(scored.take(rows), units_of(groups_M[rows])).score()
        scores.append(PartScores(column, value, len(rows), metrics))
    return scores


def label_notes(column: str, training: LabelSummary, labels: Labels) -> list[str]:
    """State how the labels of a study differ from those of the training.

    Classes: frequencies that differ by more than 0.1. Numbers: labels outside the range of the
    training, and another spread, which other units have.
    """
    if names := labels.classes or labels.levels:
        share_C = np.bincount(labels.values.astype(np.int64), minlength=len(names))
        pairs = zip(names, share_C / len(labels.values), training.guess[-len(names) :], strict=True)
        # Of two classes one share says both.
        shifts = [
            f"{share:.0%} are '{name}', in the training {before:.0%}"
            for name, share, before in list(pairs)[len(names) == 2 :]
            if abs(share - before) > _OTHER_SHARE
        ]
        if not shifts:
            return []
        return [
            f"Here {', '.join(shifts)}: predicted probabilities start from the frequencies of the "
            "training."
        ]
    low, q05, middle, q95, high = training.quantiles
    values_M, notes = labels.values, []
    outside = int(((values_M < low) | (values_M > high)).sum())
    if outside > _OUTSIDE * len(values_M):
        notes.append(
            f"{outside} of {len(values_M)} values of '{column}' are outside the range of the "
            f"training ({significant(low)} to {significant(high)})."
        )
    here = np.quantile(values_M, (0.05, 0.5, 0.95)).tolist()
    ratio = (here[2] - here[0]) / max(q95 - q05, 1e-300)
    if not 1 / _OTHER_SCALE <= ratio <= _OTHER_SCALE:
        notes.append(
            f"The values of '{column}' spread {significant(ratio)} times as far as in the training "
            f"(90 % from {significant(here[0])} to {significant(here[2])}, there from "
            f"{significant(q05)} to {significant(q95)}): are they in the same units?"
        )
    elif not q05 <= here[1] <= q95 and not notes:
        notes.append(
            f"The median of '{column}' is {significant(here[1])}, in the training "
            f"{significant(middle)}: the model starts from the mean of the training."
        )
    return notes


def exact_proportion(share: float, units: int) -> Score:
    """Return a proportion with its exact interval (Clopper and Pearson 1934).

    Of groups of samples the number of right ones need not be whole.
    """
    right, wrong = share * units, (1 - share) * units
    lower = float(betaincinv(right, wrong + 1, 0.025)) if right > 0 else 0.0
    upper = float(betaincinv(right + 1, wrong, 0.975)) if wrong > 0 else 1.0
    return Score(share, lower, upper)


def of_one_class(scored: ScoredPredictions, units: int) -> str:
    """State the sensitivity, or specificity, of samples of one class; "" of other samples."""
    codes = np.unique(scored.actual)
    if scored.type != "classification" or len(codes) > 1:
        return ""
    right_N = scored.predicted == codes[0]
    name, of_two = scored.classes[codes[0]], len(scored.classes) == 2
    return (
        f"{'Specificity' if of_two and codes[0] == 0 else 'Sensitivity'} "
        f"{exact_proportion(float(right_N.mean()), units).text()}: {int(right_N.sum())} of "
        f"{len(right_N)} samples, all of the class '{name}', are predicted as '{name}' (95 % exact)"
    )
