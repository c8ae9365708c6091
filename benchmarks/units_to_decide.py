"""Is the stated number of groups that would decide a verdict honest?

    python -m benchmarks.units_to_decide [--runs 400] [--groups 20 60]

Predictions of known accuracy: groups of two samples with a number, predicted with noise so that its
R² in the population is known, or with a class and a score of known AUC. For each accuracy the
number of groups at which the interval is above a guess in 80 % of the data sets is the truth, by
simulation of larger data sets. Rows count the data sets whose verdict is not better than a guess:
how often the range of `units_to_decide` has the truth, is below it and above it, and how often a
number is stated at all. With no accuracy the truth is infinite: only "cannot be told" or a range
without upper number has it.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from aam.evaluation.folds import Folds
from aam.evaluation.intervals import NO_SKILL, Score
from aam.evaluation.labels import Labels
from aam.evaluation.learning_curve import MOST_TIMES, units_to_decide
from aam.evaluation.splits import Split

EACH = 2  # samples of a group
HEADER = (
    "target", "groups", "correlation", "not better", "groups for 80 % power", "in the range",
    "range below", "range above", "no upper number", "cannot be told",
)  # fmt: skip
FACTORS = 2 ** np.arange(-3, 5.1, 0.5)


def difference(rng: np.random.Generator, groups: int, signal: float, classes: bool) -> Score:
    """Draw a data set, and return the difference of the ensemble from the guess."""
    group_N = np.repeat(np.arange(groups), EACH)
    shared_N = rng.normal(size=groups)[group_N]
    labels_N = (shared_N + rng.normal(size=len(group_N))) / math.sqrt(2)
    noise_N = (rng.normal(size=groups)[group_N] + rng.normal(size=len(group_N))) / math.sqrt(2)
    score_N = signal * labels_N + math.sqrt(1 - signal**2) * noise_N
    names = ("a", "b") if classes else ()
    values_N = (labels_N > 0).astype(float) if classes else labels_N
    labels = Labels.of(values_N, names, [str(group) for group in group_N])
    everything = np.arange(len(group_N))
    split = Split(everything[:0], everything, everything[:0])
    folds = Folds(labels, (split,), 0, "group")
    # The best prediction of the number is the signal times the score.
    chances_N = 1 / (1 + np.exp(-score_N))
    predictions_NC = (
        np.stack([1 - chances_N, chances_N], 1) if classes else signal * score_N[:, None]
    )
    metric, score = next(iter(folds.resampled(predictions_NC).score().items()))
    guess = NO_SKILL[metric]
    limits = (score.value, score.lower, score.upper)
    return Score(*(None if limit is None else limit - guess for limit in limits))


def truth(rng: np.random.Generator, groups: int, signal: float, classes: bool, runs: int) -> float:
    """Return the number of groups at which 80 % of the data sets have an interval above 0."""
    if signal == 0:
        return math.inf
    powers = list[float]()
    for factor in FACTORS:
        number = max(4, round(groups * factor))
        drawn = [difference(rng, number, signal, classes) for _ in range(runs)]
        powers.append(float(np.mean([(each.lower or 0) > 0 for each in drawn])))
        if powers[-1] >= 0.97:
            break
    if powers[-1] < 0.8:
        return math.inf
    step = int(np.argmax(np.array(powers) >= 0.8))
    if step == 0:
        return float(groups * FACTORS[0])
    part = (0.8 - powers[step - 1]) / (powers[step] - powers[step - 1])
    return float(groups * 2 ** (np.log2(FACTORS[step - 1]) + 0.5 * part))


def main() -> None:
    """Print a row for each accuracy and number of groups."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--groups", nargs="+", type=int, default=[20, 60])
    parser.add_argument("--signals", nargs="+", type=float, default=[0, 0.1, 0.2, 0.3, 0.4])
    arguments = parser.parse_args()
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}")
    for classes in (False, True):
        for groups in arguments.groups:
            for signal in arguments.signals:
                rng = np.random.default_rng([classes, groups, round(100 * signal)])
                needed = truth(rng, groups, signal, classes, arguments.runs // 4)
                drawn = [difference(rng, groups, signal, classes) for _ in range(arguments.runs)]
                undecided = [each for each in drawn if (each.lower or 0) <= 0 <= (each.upper or 0)]
                ranges = [units_to_decide(each, groups) for each in undecided]
                told = [limits for limits in ranges if limits is not None]
                # None of a range, and no range, mean more than `MOST_TIMES` times as many.
                most = MOST_TIMES * groups
                ends = [(limits[0], limits[1] or math.inf) for limits in told]
                ends += [(most, math.inf)] * (len(ranges) - len(told))
                # What the groups at hand would decide in 80 % of data sets is a range from there.
                below = sum(end < needed for _, end in ends)
                above = sum(start > max(needed, groups) for start, _ in ends)
                counts = (
                    len(ranges) - below - above, below, above,
                    sum(limits[1] is None for limits in told), len(ranges) - len(told),
                )  # fmt: skip
                cells = [f"{count / max(len(ranges), 1):.2f}" for count in counts]
                shown = "none" if math.isinf(needed) else f"{needed:.0f}"
                row = ["class" if classes else "number", str(groups), f"{signal:g}"]
                row += [f"{len(ranges) / len(drawn):.2f}", shown, *cells]
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
