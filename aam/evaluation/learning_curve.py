"""Learning curve: scores of models fitted to fewer groups, and groups needed for a decision."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from aam.arrays import F64
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import LEVEL, TITLES, Score
from aam.evaluation.splits import Split

FRACTIONS = (1 / 8, 1 / 4, 1 / 2)
"""Shares of the training groups; the CPU time of a kernel grows with their cube."""

LITTLE = 0.05
"""A doubling that gains less than this in R², AUC or kappa adds little."""

MIN_GROUPS = 8
"""Fewest groups to which a model is fitted."""

MOST_TIMES = 20
"""A number of units to plan with is stated up to this multiple of the present number."""


@dataclass(frozen=True)
class CurvePoint:
    """Score of a model fitted to this number of units."""

    units: int
    value: float | None
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True)
class LearningCurve:
    """Scores of a model fitted to increasing numbers of units."""

    model: str
    metric: str
    units: str  # name of the units
    points: list[CurvePoint]
    sentence: str
    gain: Score | None = None  # paired difference of the last doubling


def learning_curve(
    name: str, predict: Callable[[Folds, str], F64], folds: Folds, predictions_MC: F64
) -> LearningCurve | None:
    """Fit a model to some of the training groups of each split, and score its held-out samples.

    The groups are random and nested. All models are scored on the same samples, so the last
    doubling has a paired difference. `predict` fits the model to the training samples of other
    folds and returns predictions [M, C]; its text labels a progress bar. None with fewer than twice
    `MIN_GROUPS` groups in training.
    """
    # Further repeats would multiply the time of the longest step of a small study.
    folds, predictions_MC = folds.first, predictions_MC[folds.repeat_M == 1]
    permuted = [
        np.random.default_rng(folds.seed).permutation(
            np.unique(folds.labels.groups[split.training_rows])
        )
        for split in folds.splits
    ]
    # Each model takes the first groups of a fixed order, so that points of the curve differ by the
    # added samples only.
    curve, numbers = [], []
    for fraction in FRACTIONS:
        sizes = [int(fraction * len(groups)) for groups in permuted]
        if min(sizes) < MIN_GROUPS:
            continue
        splits = []
        for split, groups, size in zip(folds.splits, permuted, sizes, strict=True):
            rows = split.training_rows
            fitted = rows[np.isin(folds.labels.groups[rows], groups[:size])]
            splits.append(Split(fitted, rows[:0], split.held_out[1]))
        smaller = dataclasses.replace(folds, splits=tuple(splits))
        text = f"learning curve, {Fraction(fraction)} of the groups"
        curve.append(folds.resampled(predict(smaller, text)))
        numbers.append(round(float(np.mean(sizes))))
    if not curve:
        return None
    curve.append(folds.resampled(predictions_MC))
    numbers.append(round(float(np.mean([len(groups) for groups in permuted]))))
    # Paired, because the intervals of two points on the same samples overlap long before their
    # difference is no longer significant.
    metric, gain = curve[-1].paired_difference(curve[-2])
    sentence = f"From {numbers[-2]} to {numbers[-1]} {folds.unit} the {TITLES[metric]} "
    if gain.value is None or gain.lower is None or gain.upper is None:
        sentence += "cannot be compared."
    else:
        sentence += f"changes by {gain.value:+.3f} "
        sentence += f"({100 * LEVEL:.0f} % {gain.lower:+.3f} to {gain.upper:+.3f})"
        if gain.lower > 0:
            sentence += ": more samples would probably help."
        elif gain.upper < LITTLE:
            sentence += ": twice as many samples would probably add little."
        else:
            sentence += ": it is unclear whether more samples would help."
    points = []
    for number, model in zip(numbers, curve, strict=True):
        score = model.score()[metric]
        points.append(CurvePoint(number, score.value, score.lower, score.upper))
    return LearningCurve(name, metric, folds.unit, points, sentence, gain)


def units_to_decide(
    difference: Score, units: int, gain: Score | None = None
) -> tuple[int, int | None] | None:
    """Estimate the sample size that would show a model to be better than the baseline.

    The interval of a difference d narrows as 1 / sqrt(units), and excludes 0 with 80 % power if d
    is 2.8 standard errors. The measured d alone is misleading for planning (Hoenig and Heisey 2001,
    "The abuse of power"), so the result is a range. The fewest units assume the upper limit of the
    95 % interval of d, the most units the lower limit of its 50 % interval. Each doubling adds the
    gain of the learning curve: its upper limit for the fewest, its lower limit for the most units.
    None stands for more than `MOST_TIMES` times the `units`.
    """
    value, lower, upper = difference.value, difference.lower, difference.upper
    if value is None or lower is None or upper is None or not upper > value > lower:
        return None
    error, doublings = (value - lower) / 1.96, np.arange(0, np.log2(MOST_TIMES) + 0.05, 0.05)
    numbers = []
    for size, limit in ((upper, gain and gain.upper), (value - 0.674 * error, gain and gain.lower)):
        grown = size + max(limit or 0.0, 0.0) * doublings
        enough = np.flatnonzero(grown >= 2.8 * error / np.exp2(doublings / 2))
        numbers.append(math.ceil(units * 2 ** doublings[enough[0]]) if len(enough) else None)
    fewest, most = numbers
    return None if fewest is None else (fewest, most)
