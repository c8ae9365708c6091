"""Figures of several runs: intervals of their scores, and their predictions over each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from aam.data.metrics import ScoredPredictions
from aam.report.figures.canvas import INK, MARKERS, MOST_VECTORS, SERIES, blank, shortened, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Interval = tuple[float | None, float | None, float | None]
"""Value, lower and upper limit."""

LETTERS = 24
MOST_CLASSES = 12


@styled
def interval_figure(
    names: Sequence[str], scores: Sequence[Interval], differences: Sequence[Interval], metric: str
) -> Figure:
    """Plot the score of each run with its interval, and the difference from the first run.

    Args:
        names: names of R runs.
        scores: R scores.
        differences: R - 1 differences from the first.
        metric: name of the score.
    """
    from matplotlib.figure import Figure

    rows = len(names)
    figure = Figure(figsize=(4.6, 2.2 + 0.6 * rows), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(rows + 0.5, rows - 0.5))
    _intervals(above, names, scores, 0)
    _intervals(below, names, differences, 1)
    below.axvline(0, color=INK, lw=1, ls="--", alpha=0.6)
    above.set_title(metric)
    below.set_title(f"Difference from {shortened(names[0], LETTERS)}")
    return figure


def _intervals(axes: Axes, names: Sequence[str], intervals: Sequence[Interval], first: int) -> None:
    """Plot an interval in a row for each run from the `first`."""
    from matplotlib.ticker import MaxNLocator

    for row, (value, lower, upper) in enumerate(intervals, start=first):
        colour = SERIES[row % len(SERIES)]
        if lower is not None and upper is not None:
            axes.plot((lower, upper), (row, row), color=colour, lw=2)
        if value is not None:
            axes.plot(value, row, "o", color=colour)
    places = range(first, len(names))
    axes.set_yticks(places, [shortened(names[row], LETTERS) for row in places])
    axes.set_ylim(len(names) - 0.5, first - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.grid(axis="y", visible=False)


@styled
def overlay_figure(names: Sequence[str], runs: Sequence[ScoredPredictions], target: str) -> Figure:
    """Plot predicted against true numbers of several runs.

    Args:
        names: names of the runs.
        runs: their predictions of the same samples.
        target: name of the axes.
    """
    figure, axes = blank(4.6, 4.6)
    both = np.concatenate([np.concatenate([one.actual, one.predicted]) for one in runs])
    ends = (both.min(), both.max())
    axes.plot(ends, ends, color=INK, lw=1, ls="--", alpha=0.6)
    many = len(both) > 2 * MOST_VECTORS
    for number, (name, one) in enumerate(zip(names, runs, strict=True)):
        axes.scatter(
            one.actual, one.predicted, color=SERIES[number % len(SERIES)], linewidths=0,
            marker=MARKERS[number % len(MARKERS)], s=8 if many else 22, alpha=0.55,
            label=shortened(name, LETTERS), rasterized=many,
        )  # fmt: skip
    axes.set(xlabel=f"true {target}", ylabel=f"predicted {target}")
    axes.set_title("Predictions")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@styled
def recall_figure(names: Sequence[str], runs: Sequence[ScoredPredictions]) -> Figure:
    """Plot the recall of the most frequent classes, a point for each run.

    Args:
        names: names of the runs.
        runs: their predicted classes of the same samples.
    """
    first = runs[0]
    times = np.bincount(first.actual, minlength=len(first.classes))
    most = np.sort(np.argsort(-times, kind="stable")[:MOST_CLASSES])
    classes = [first.classes[code] for code in most.tolist() if times[code]]
    figure, axes = blank(4.6, 1.5 + 0.4 * len(classes))
    for number, (name, one) in enumerate(zip(names, runs, strict=True)):
        actual = np.array(one.classes, dtype=object)[one.actual]
        right = one.actual == one.predicted
        recalls = [right[actual == label].mean() for label in classes]
        shift = 0.5 * (number + 0.5) / len(runs) - 0.25
        axes.plot(
            recalls, np.arange(len(classes)) + shift, MARKERS[number % len(MARKERS)],
            color=SERIES[number % len(SERIES)], label=shortened(name, LETTERS),
        )  # fmt: skip
    axes.set_yticks(range(len(classes)), [shortened(name, LETTERS) for name in classes])
    axes.set(xlim=(-0.03, 1.03), ylim=(len(classes) - 0.5, -0.5), xlabel="recall")
    axes.set_title("Recall of each class")
    figure.legend(loc="outside lower center", ncols=2)
    return figure
