"""Figures of predictions against true values; scatter plots have the gid `POINTS`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aam.data.metrics import ScoredPredictions, class_auc, confusion
from aam.report.figures.canvas import INK, MOST_VECTORS, SERIES, blank, shortened, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = "points"
MOST_NUMBERS = 12  # classes of a confusion matrix whose cells show their counts
MOST_CURVES = 6  # classes with a ROC curve of their own
CALIBRATION_BINS = 10
_GRID = np.linspace(0, 1, 501)
"""False positive rates, or recalls, of a drawn curve."""

F64 = npt.NDArray[np.float64]


@styled
def agreement_figure(scored: ScoredPredictions, target: str, limits_N2: F64 | None) -> Figure:
    """Plot predicted against true numbers, with the line of equality and prediction intervals.

    Args:
        scored: N samples.
        target: name of the axes.
        limits_N2: of the prediction intervals; None for none.
    """
    figure, axes = blank(4.6, 4.2)
    both = np.concatenate([scored.actual, scored.predicted])
    if limits_N2 is not None:
        both = np.concatenate([both, limits_N2.ravel()])
        axes.vlines(
            scored.actual, *limits_N2.T, color=SERIES[0], lw=1, rasterized=_is_many(len(limits_N2)),
            alpha=0.25 if len(limits_N2) <= 300 else 0.1, label="prediction interval",
        )  # fmt: skip
    margin = 0.04 * (both.max() - both.min() or 1.0)
    ends = (both.min() - margin, both.max() + margin)
    axes.plot(ends, ends, color=INK, lw=1, ls="--", alpha=0.6, label="equal")
    look = _look(len(scored.actual))
    axes.scatter(scored.actual, scored.predicted, color=SERIES[0], gid=POINTS, **look)
    axes.set(xlim=ends, ylim=ends, xlabel=f"true {target}", ylabel=f"predicted {target}")
    axes.set_aspect("equal")
    axes.set_title("Predicted against true")
    axes.legend(loc="upper left")
    return figure


@styled
def residual_figure(scored: ScoredPredictions, target: str) -> Figure:
    """Plot the error of each prediction over the true number."""
    figure, axes = blank(4.6, 4.2)
    axes.axhline(0, color=INK, lw=1, ls="--", alpha=0.6)
    errors = scored.predicted - scored.actual
    axes.scatter(scored.actual, errors, color=SERIES[1], gid=POINTS, **_look(len(errors)))
    reach = 1.08 * float(np.abs(errors).max() or 1.0)
    axes.set(ylim=(-reach, reach), xlabel=f"true {target}", ylabel="predicted - true")
    axes.set_title("Errors")
    return figure


@styled
def confusion_figure(scored: ScoredPredictions) -> Figure:
    """Plot the confusion matrix: percentages of the true class as shades, with the counts below.

    Of more than `MOST_NUMBERS` classes it has shades alone, as pixels.
    """
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    number = len(scored.classes)
    figure, axes = blank(4.6, 4.2)
    counts = confusion(scored.actual, scored.predicted, number)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    if number > MOST_NUMBERS:
        pixels = np.dstack([np.full((number, number, 3), to_rgb(SERIES[0])), 0.04 + 0.96 * shares])
        axes.imshow(pixels, interpolation="none")
    else:
        size = 10 if number <= 4 else 8 if number <= 8 else 6
        for (row, column), count in np.ndenumerate(counts):
            share = float(shares[row, column])
            place = (column - 0.48, row - 0.48)
            axes.add_patch(
                Rectangle(place, 0.96, 0.96, facecolor=SERIES[0], alpha=0.04 + 0.96 * share, lw=0)
            )
            look: Any = {"color": "white" if share > 0.55 else INK, "ha": "center", "va": "center"}
            axes.text(column, row - 0.12, f"{share:.0%}", fontsize=size, weight="bold", **look)
            axes.text(column, row + 0.2, str(count), fontsize=size - 1, **look)
    names = [shortened(name, 16) for name in scored.classes]
    step = 1 + (number - 1) // 20
    shown = range(0, number, step)
    turned = number > 4 or max(map(len, names)) > 10
    axes.set_xticks(shown, [names[k] for k in shown], rotation=45 if turned else 0)
    if turned:
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    axes.set_yticks(shown, [names[k] for k in shown])
    axes.set(xlim=(-0.5, number - 0.5), ylim=(number - 0.5, -0.5))
    axes.set(xlabel="predicted", ylabel="true")
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
    axes.set_aspect("equal")
    axes.set_title("Confusion matrix")
    return figure


@styled
def roc_figure(scored: ScoredPredictions) -> Figure:
    """Plot ROC curves: one for two classes, else one for each frequent class against the rest.

    Of several folds it is the mean of their curves at each false positive rate, weighted by their
    pairs of samples: its area is the AUC of `aam.data.metrics`.

    Args:
        scored: predictions with probabilities.
    """
    from sklearn.metrics import roc_curve

    figure, axes = _unit_square("ROC", "false positive rate", "true positive rate")
    axes.plot((0, 1), (0, 1), color=INK, lw=1, ls="--", alpha=0.6)
    everything = np.ones((1, len(scored.actual)))
    for number, code in enumerate(_shown_classes(scored)):
        curves, pairs = [], []
        for positive, score in _one_against_rest(scored, code):
            wrong, right, _ = roc_curve(positive, score, drop_intermediate=False)
            curves.append(np.interp(_GRID, wrong, right))
            # Curves are averaged, not predictions pooled: models of different folds have no common
            # threshold.
            pairs.append(positive.sum() * (~positive).sum())
        label = f"{_name(scored, code)}, AUC {class_auc(scored, code, everything)[0]:.2f}"
        rates = np.average(curves, axis=0, weights=pairs)
        axes.plot([0, *_GRID], [0, *rates], color=SERIES[number], lw=2, label=label)
    axes.legend(loc="lower right")
    return figure


@styled
def precision_recall_figure(scored: ScoredPredictions) -> Figure:
    """Plot precision over recall of the same classes; dotted: the precision of chance.

    Of several folds it is the mean of their curves at each recall, weighted by the samples of the
    class.

    Args:
        scored: predictions with probabilities.
    """
    from sklearn.metrics import average_precision_score, precision_recall_curve

    figure, axes = _unit_square("Precision and recall", "recall", "precision")
    for number, code in enumerate(_shown_classes(scored, both=True)):
        curves, averages, shares, samples = [], [], [], []
        for positive, score in _one_against_rest(scored, code):
            precision, recall, _ = precision_recall_curve(positive, score)
            # A step, not a line: precision is not linear in recall between two thresholds (Davis
            # and Goadrich 2006).
            curves.append(precision[::-1][np.searchsorted(recall[::-1], _GRID)])
            averages.append(average_precision_score(positive, score))
            shares.append(positive.mean())
            samples.append(positive.sum())
        label = f"{_name(scored, code)}, {np.average(averages, weights=samples):.2f}"
        mean = np.average(curves, axis=0, weights=samples)
        axes.step(_GRID, mean, color=SERIES[number], lw=2, label=label, where="post")
        chance = float(np.average(shares, weights=samples))
        axes.axhline(chance, color=SERIES[number], lw=1, ls=":")
    axes.legend(loc="best", title="average precision")
    return figure


@styled
def calibration_figure(scored: ScoredPredictions) -> Figure:
    """Plot how often the predicted class is true over its predicted probability.

    Args:
        scored: predictions with probabilities.
    """
    figure, axes = _unit_square(
        "Calibration", "probability of the predicted class", "part that is true"
    )
    axes.plot((0, 1), (0, 1), color=INK, lw=1, ls="--", alpha=0.6, label="equal")
    means, shares, numbers = calibration_bins(scored)
    axes.plot(means, shares, color=SERIES[0], lw=2, marker="o")
    for mean, share, number in zip(means, shares, numbers, strict=True):
        axes.annotate(
            str(number), (mean, share), textcoords="offset points", xytext=(6, -12), fontsize=8
        )
    axes.legend(loc="upper left")
    return figure


def calibration_bins(scored: ScoredPredictions) -> tuple[F64, F64, list[int]]:
    """Return probability of the predicted class, part that is true, and samples of each bin."""
    assert scored.probabilities is not None
    chance = scored.probabilities[np.arange(len(scored.predicted)), scored.predicted]
    bins = np.minimum((chance * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    right = scored.predicted == scored.actual
    filled = [bins == number for number in np.unique(bins)]
    means = np.array([chance[rows].mean() for rows in filled])
    shares = np.array([right[rows].mean() for rows in filled])
    return means, shares, [int(rows.sum()) for rows in filled]


def _unit_square(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure, axes = blank(4.6, 4.2)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel=x, ylabel=y)
    axes.set_aspect("equal")
    axes.set_title(title)
    return figure, axes


def _shown_classes(scored: ScoredPredictions, both: bool = False) -> list[int]:
    """Return the codes of frequent classes with a curve, or of the second of two.

    With `both` the first of two classes is included.
    """
    times = np.bincount(scored.actual, minlength=len(scored.classes))
    most_frequent = np.argsort(-times, kind="stable")[:MOST_CURVES]
    codes = [1] if len(scored.classes) == 2 and not both else sorted(most_frequent.tolist())
    return [code for code in codes if any(True for _ in _one_against_rest(scored, code))]


def _one_against_rest(
    scored: ScoredPredictions, code: int
) -> Iterator[tuple[npt.NDArray[np.bool_], F64]]:
    """Yield truth and probability of a class in each fold that has samples of it and others."""
    assert scored.probabilities is not None
    for fold in np.unique(scored.fold_N):
        inside = scored.fold_N == fold
        positive = scored.actual[inside] == code
        if positive.any() and not positive.all():
            yield positive, scored.probabilities[inside, code]


def _name(scored: ScoredPredictions, code: int) -> str:
    return shortened(scored.classes[code], 20)


def _is_many(points: int) -> bool:
    """Return whether points are drawn as pixels."""
    return points > MOST_VECTORS


def _look(points: int) -> dict[str, Any]:
    many = _is_many(points)
    size = 30 if points <= 300 else 14 if not many else 6
    return {"s": size, "alpha": 0.4 if many else 0.75, "linewidths": 0, "rasterized": many}
