"""Learning curve: the score of models of fewer groups. Would more samples help?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from aam.arrays import F64
from aam.evaluation.folds import Folds, training_rows
from aam.evaluation.intervals import LEVEL, TITLES, Score
from aam.evaluation.splits import Split

FRACTIONS = (1 / 8, 1 / 4, 1 / 2)
"""Parts of the groups in training; a kernel takes the cube of each in time."""

LITTLE = 0.05
"""Gain of a doubling in R², AUC or kappa, all of which below is little."""

MIN_GROUPS = 8
"""Groups to which a model is fitted."""

MOST_TIMES = 20
"""Times as many units beyond which a number to plan with is not stated."""


@dataclass(frozen=True)
class CurvePoint:
    """Score of a model that is fitted to so many units."""

    units: int
    value: float | None
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True)
class LearningCurve:
    """Scores of a model that is fitted to ever more units, the fewest first."""

    model: str
    metric: str
    units: str  # name of the units
    points: list[CurvePoint]
    sentence: str
    gain: Score | None = None  # paired difference that the last doubling of the units makes


def learning_curve(
    name: str,
    predict: Callable[[Folds, str], F64],
    folds: Folds,
    predictions_MC: F64,
) -> LearningCurve | None:
    """Fit a model to parts of the groups of each split, and score it on its held-out samples.

    The parts are drawn at random, each inside the next. All are scored on the same samples, so the
    last doubling has a paired difference. `predict` fits the model to the training samples of other
    folds and returns predictions [M, C], named in a progress bar. None with fewer than twice
    `MIN_GROUPS` groups in training.
    """
    # The other partitions would multiply the time of the longest part of a small study.
    folds, predictions_MC = folds.first, predictions_MC[folds.repeat_M == 1]
    rows_of = [training_rows(split) for split in folds.splits]
    shuffled = [
        np.random.default_rng(folds.seed).permutation(np.unique(folds.labels.groups[rows]))
        for rows in rows_of
    ]
    # Parts of a fixed order are nested: points of the curve then differ by the samples that are
    # added, and not by a new draw of all.
    drawn, numbers = [], []
    for fraction in FRACTIONS:
        sizes = [int(fraction * len(groups)) for groups in shuffled]
        if min(sizes) < MIN_GROUPS:
            continue
        parts = zip(rows_of, shuffled, sizes, folds.splits, strict=True)
        splits = tuple(
            Split(
                rows[np.isin(folds.labels.groups[rows], groups[:size])], rows[:0], split.held_out[1]
            )
            for rows, groups, size, split in parts
        )
        smaller = dataclasses.replace(folds, splits=splits)
        drawn.append(
            folds.drawn(predict(smaller, f"learning curve, {Fraction(fraction)} of the groups"))
        )
        numbers.append(round(float(np.mean(sizes))))
    if not drawn:
        return None
    drawn.append(folds.drawn(predictions_MC))
    numbers.append(round(float(np.mean([len(groups) for groups in shuffled]))))
    units = "samples" if folds.group_column is None else f"groups of {folds.group_column}"
    # Paired, since both score the same samples: the intervals of the two points overlap long
    # before their difference is noise.
    metric, gain = drawn[-1].paired_difference(drawn[-2])
    sentence = f"From {numbers[-2]} to {numbers[-1]} {units} the {TITLES[metric]} "
    if gain.value is None or gain.lower is None or gain.upper is None:
        sentence += "cannot be compared."
    else:
        sentence += f"changes by {gain.value:+.3f} "
        sentence += f"({100 * LEVEL:.0f} % {gain.lower:+.3f} to {gain.upper:+.3f})"
        if gain.lower > 0:
            sentence += ": more samples would probably help."
        elif gain.upper < LITTLE:
            sentence += ": as many samples again would probably add little."
        else:
            sentence += ": whether more samples would help cannot be told."
    points = []
    for number, model in zip(numbers, drawn, strict=True):
        score = model.score()[metric]
        points.append(CurvePoint(number, score.value, score.lower, score.upper))
    return LearningCurve(name, metric, units, points, sentence, gain)


def units_to_decide(
    difference: Score, units: int, gain: Score | None = None
) -> tuple[int, int | None] | None:
    """Estimate how many units would show that a model is better than a guess.

    The interval of a difference d narrows as 1 / sqrt(units), and excludes 0 with a power of 80 %
    if d is 2.8 standard errors. The measured d is no estimate to plan with (Hoenig and Heisey 2001,
    "The abuse of power"), so the result is a range: the fewest units if d is the upper limit of its
    95 % interval, the most if it is the lower end of its 50 % interval. Each doubling adds the gain
    of the learning curve, its upper limit for the fewest, its lower one for the most. None stands
    for more than `MOST_TIMES` times the `units`.
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
