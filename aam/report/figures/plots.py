"""Figures of learning curves and ordinations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aam.report.colours import Colour
from aam.report.figures.canvas import INK, MARKERS, MOST_VECTORS, SERIES, blank, shortened, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

F64 = npt.NDArray[np.float64]
Curves = Mapping[str, Mapping[str, F64]]
"""Fold -> column of metrics.csv -> [epochs], NaN where nothing was measured."""

MOST_CATEGORIES = 9


@styled
def curve_figure(
    curves: Curves, columns: Mapping[str, str], title: str, mark: str | None = None
) -> Figure:
    """Plot columns of metrics.csv over epochs; several folds are thin lines below their mean.

    Args:
        curves: curves of at least one fold, each with a column `epoch` (from 0).
        columns: column -> its name in the legend; the first is dashed if there are two.
        title: above the axes.
        mark: column whose lowest point is marked as the chosen epoch; only with one fold.
    """
    from matplotlib.ticker import MaxNLocator

    figure, axes = blank(3.7, 2.75)
    several = len(curves) > 1
    for number, (column, label) in enumerate(columns.items()):
        colour = SERIES[1 - number if len(columns) == 2 else number]
        dashes = "--" if len(columns) == 2 and number == 0 else "-"
        drawn = [fold for fold in curves.values() if column in fold]
        for fold in drawn if several else ():
            axes.plot(fold["epoch"] + 1, fold[column], color=colour, alpha=0.35, lw=1, ls=dashes)
        epochs, middle = _mean(drawn, column)
        style = "." if len(epochs) == 1 else None
        axes.plot(epochs, middle, color=colour, lw=2, ls=dashes, marker=style, label=label)
        if mark == column and not several and np.isfinite(middle).any():
            best = int(np.nanargmin(middle))
            axes.plot(epochs[best], middle[best], "o", color=colour, ms=7)
            axes.annotate(
                f"epoch {epochs[best]:.0f}",
                (epochs[best], middle[best]),
                textcoords="offset points",
                xytext=(0, 9),
                ha="right" if best > len(epochs) / 2 else "left",
                fontsize=9,
            )
    axes.set_title(title)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(columns) > 1:
        figure.legend(loc="outside lower center", ncols=len(columns))
    return figure


@styled
def learning_figure(points: Sequence[Mapping[str, Any]], metric: str, units: str) -> Figure:
    """Plot the score of models of parts of the training samples, with intervals.

    Args:
        points: each with `units`, `value`, `lower` and `upper`; the most units last.
        metric: name of the score.
        units: name of the units, such as groups of a column.
    """
    figure, axes = blank(4.6, 4.2)
    numbers = [point["units"] for point in points]
    values = np.array([point["value"] for point in points], dtype=np.float64)
    ends = np.array([(point["lower"], point["upper"]) for point in points], dtype=np.float64)
    errors = np.abs(ends.T - values)
    axes.errorbar(
        numbers, values, yerr=np.nan_to_num(errors), color=SERIES[0], lw=2, elinewidth=1,
        capsize=3, marker="o",
    )  # fmt: skip
    axes.set(xscale="log", xlabel=f"{units} in training", ylabel=metric)
    axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
    axes.minorticks_off()
    axes.set_title("Would more samples help?")
    return figure


@styled
def ordination_figure(
    coords: F64, explained: Sequence[float], title: str = "", colour: Colour | None = None
) -> Figure:
    """Plot samples in the plane of two principal coordinates.

    Args:
        coords: [N, 2 or more]; the first two columns are drawn.
        explained: part of the variance of each axis, 0 to 1.
        title: above the axes.
        colour: metadata column that colours the samples; None for one colour.
    """
    figure, axes = blank(6.4, 4.6)
    pixels = len(coords) > MOST_VECTORS
    size = 36 if len(coords) <= 300 else 18 if len(coords) <= MOST_VECTORS else 7
    alpha = 0.85 if len(coords) <= MOST_VECTORS else 0.6
    look: dict[str, Any] = {"s": size, "alpha": alpha, "linewidths": 0, "rasterized": pixels}
    if colour is not None and colour.values is not None:
        known = np.isfinite(colour.values)
        _unknown(axes, coords[~known], size, pixels)
        # Plasma without its ends: neither as dark as a dark page nor as light as a light one.
        drawn = axes.scatter(
            coords[known, 0], coords[known, 1], c=colour.values[known], cmap=_colours(), **look
        )
        bar = figure.colorbar(drawn, ax=axes, label=colour.column, shrink=0.85)
        bar.outline.set_visible(False)
        bar.ax.grid(False)
        if bar.solids is not None:
            bar.solids.set_alpha(1)
    elif colour is not None:
        _categories(axes, coords, colour, look)
    else:
        axes.scatter(coords[:, 0], coords[:, 1], color=SERIES[0], **look)
    axes.set_title(title)
    axes.set_xlabel(f"PC1 ({explained[0]:.1%})")
    axes.set_ylabel(f"PC2 ({explained[1]:.1%})")
    return figure


@styled
def points_figure(coords: F64, explained: Sequence[float], title: str) -> Figure:
    """Plot samples in the plane of two principal coordinates, as points with the gid "points".

    Args:
        coords: [N, 2].
        explained: part of the variance of each axis, 0 to 1.
        title: above the axes.
    """
    figure, axes = blank(4.6, 4.4)
    size = 36 if len(coords) <= 300 else 16
    axes.scatter(coords[:, 0], coords[:, 1], color=SERIES[0], s=size, linewidths=0, gid="points")
    axes.set(xlabel=f"PC1 ({explained[0]:.1%})", ylabel=f"PC2 ({explained[1]:.1%})")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title)
    return figure


def _mean(folds: Sequence[Mapping[str, F64]], column: str) -> tuple[F64, F64]:
    """Average over the folds that reached an epoch; epochs are counted from 1."""
    import pandas as pd

    of_folds = pd.concat([pd.Series(fold[column], fold["epoch"]) for fold in folds])
    means = of_folds.groupby(level=0).mean()
    return means.index.to_numpy() + 1, means.to_numpy()


def _categories(axes: Axes, coords: F64, colour: Colour, look: Mapping[str, Any]) -> None:
    """Plot the most frequent categories with a colour and a marker each, the rest in grey."""
    labels = colour.labels or ()
    times = Counter(label for label in labels if label)
    chosen = sorted(name for name, _ in times.most_common(MOST_CATEGORIES))
    given = np.array(labels, dtype=str)
    others = len(times) - len(chosen)
    _unknown(axes, coords[given == ""], 18, False)
    if others:
        rest = coords[~np.isin(given, [*chosen, ""])]
        axes.scatter(
            rest[:, 0], rest[:, 1], color="#8b95a1", marker=".", label=f"{others} others", **look
        )
    for number, name in enumerate(chosen):
        some = coords[given == name]
        axes.scatter(
            some[:, 0],
            some[:, 1],
            color=SERIES[number % len(SERIES)],
            marker=MARKERS[number % len(MARKERS)],
            label=f"{shortened(name, 24)} ({times[name]})",
            **look,
        )
    handles, names = axes.get_legend_handles_labels()
    # What is not a category of its own was drawn first, under the others, and is listed last.
    first = len(handles) - len(chosen)
    axes.legend(
        handles[first:] + handles[:first],
        names[first:] + names[:first],
        title=colour.column,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        alignment="left",
    )


def _unknown(axes: Axes, coords: F64, size: float, pixels: bool) -> None:
    if len(coords):
        axes.scatter(
            coords[:, 0],
            coords[:, 1],
            s=size,
            facecolors="none",
            edgecolors=INK,
            linewidths=0.7,
            alpha=0.4,
            rasterized=pixels,
            label=f"no value ({len(coords)})",
        )


def _colours() -> ListedColormap:
    import matplotlib
    from matplotlib.colors import ListedColormap

    return ListedColormap(matplotlib.colormaps["plasma"](np.linspace(0.08, 0.9, 256)))
