"""Figures of ASVs: bars of importance, and a heat map of abundance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aam.report.figures.canvas import INK, SERIES, blank, shortened, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORT_LABEL = 13
"""Letters of a label of which three fit beside each other."""

LETTERS = 34
"""Of a name beside a row."""


@styled
def importance_figure(
    names: Sequence[str], sizes: Sequence[float], classes: Sequence[str], unit: str
) -> Figure:
    """Plot the importance of U ASVs as bars, the first at the top.

    Args:
        names: U names.
        sizes: U values, negative where more of the ASV lowers the prediction.
        classes: class of each value, whose score changes; "" for a number.
        unit: name of the values.
    """
    from matplotlib.patches import Patch

    figure, axes = blank(4.6, 1.2 + 0.26 * len(names))
    frequent = [name for name, _ in Counter(classes).most_common(len(SERIES) - 1) if name]
    if frequent:
        colours = [
            SERIES[frequent.index(name)] if name in frequent else SERIES[-1] for name in classes
        ]
        handles = [
            Patch(color=SERIES[k], label=shortened(name, 20)) for k, name in enumerate(frequent)
        ]
        if len(set(classes)) > len(frequent):
            handles.append(Patch(color=SERIES[-1], label="others"))
        longest = max(len(str(handle.get_label())) for handle in handles)
        columns = 3 if longest <= SHORT_LABEL else 2  # what is beyond the figure is cut off
        figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    else:
        colours = [SERIES[0] if size >= 0 else SERIES[1] for size in sizes]
    places = np.arange(len(names))
    axes.barh(places, sizes, color=colours, height=0.7)
    axes.axvline(0, color=INK, lw=0.8)
    axes.set_yticks(places, [shortened(name, LETTERS) for name in names])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(xlabel=unit)
    axes.set_title("Most important ASVs")
    return figure


@styled
def heat_figure(
    shares: npt.NDArray[np.float64], names: Sequence[str], columns: Sequence[str], along: str
) -> Figure:
    """Plot a matrix of numbers from 0 to 1 as shades.

    Args:
        shares: [U ASVs, C columns].
        names: U names.
        columns: C classes, or ranges of the target.
        along: name of the target.
    """
    from matplotlib.patches import Rectangle

    figure, axes = blank(4.6, 1.5 + 0.26 * len(names))
    for (row, column), share in np.ndenumerate(shares):
        alpha = 0.04 + 0.96 * float(share)
        place = (column - 0.5, row - 0.47)
        axes.add_patch(Rectangle(place, 1, 0.94, facecolor=SERIES[0], alpha=alpha, lw=0))
    shown = range(0, len(columns), 1 + (len(columns) - 1) // 12)
    axes.set_xticks(shown, [shortened(columns[k], 16) for k in shown], rotation=45)
    for label in axes.get_xticklabels():
        label.set(ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), [shortened(name, LETTERS) for name in names])
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(names) - 0.5, -0.5), xlabel=along)
    axes.grid(False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title("Abundance")
    return figure
