"""Figures of an acceptance: predicted and measured memory, and scaling over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aam.report.figures.canvas import INK, SERIES, blank, shortened, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LETTERS = 34


@styled
def memory_figure(
    names: Sequence[str], predicted: Sequence[float], measured: Sequence[float | None]
) -> Figure:
    """Plot the predicted peak of each setting as a bar, and the measured one as a line across it.

    Args:
        names: names of n settings.
        predicted: n peaks in GiB.
        measured: n peaks in GiB; None where none was measured.
    """
    figure, axes = blank(4.6, 1.2 + 0.36 * len(names))
    places = range(len(names))
    axes.barh(places, predicted, color=SERIES[0], height=0.55, alpha=0.75, label="predicted")
    there = [(place, value) for place, value in zip(places, measured, strict=True) if value]
    if there:
        rows, values = zip(*there, strict=True)
        lows, highs = [row - 0.36 for row in rows], [row + 0.36 for row in rows]
        axes.vlines(values, lows, highs, color=SERIES[1], lw=2.5, label="measured")
    axes.set_yticks(list(places), [shortened(name, LETTERS) for name in names])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="peak of a step, GiB", xlim=(0, None))
    figure.legend(loc="outside lower right", ncols=2)
    axes.set_title("Memory")
    return figure


@styled
def scaling_figure(ranks: Sequence[int], gains: Sequence[float]) -> Figure:
    """Plot the speed of several ranks over that of one, beside the ideal."""
    figure, axes = blank(4.6, 3.0)
    axes.plot([1, *ranks], [1, *ranks], color=INK, lw=1, ls="--", alpha=0.6, label="ideal")
    axes.plot([1, *ranks], [1.0, *gains], "o-", color=SERIES[0], label="measured")
    axes.set_xticks([1, *ranks])
    axes.set(xlabel="ranks", ylabel="times as fast as one", ylim=(0, None))
    axes.legend()
    axes.set_title("Scaling")
    return figure
