"""Figures of predictions against true values; scatter plots have the gid `POINTS`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aam.data.metrics import ScoredPredictions, confusion
from aam.report.figures.canvas import INK, MOST_VECTORS, SERIES, blank, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = "points"
MOST_NUMBERS = 12  # classes of a confusion matrix whose cells show their counts
MOST_CURVES = 6  # classes with a ROC curve of their own
CALIBRATION_BINS = 10

F64 = npt.NDArray[np.float64]


@styled
def agreement_figure(scored: ScoredPredictions, target: str) -> Figure:
    """Plot predicted against true numbers, with the line of equality."""
    figure, axes = blank(4.6, 4.2)
    both = np.concatenate([scored.actual, scored.predicted])
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
    """Plot the confusion matrix; the shade is the fraction of the true class."""
    from matplotlib.patches import Rectangle

    number = len(scored.classes)
    figure, axes = blank(4.6, 4.2)
    counts = confusion(scored.actual, scored.predicted, number)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    for row in range(number):
        for column in range(number):
            share = float(shares[row, column])
            place = (column - 0.48, row - 0.48)
            axes.add_patch(
                Rectangle(place, 0.96, 0.96, facecolor=SERIES[0], alpha=0.04 + 0.96 * share, lw=0)
            )
            if number <= MOST_NUMBERS:
                colour = "white" if share > 0.55 else INK
                count = str(counts[row, column])
                axes.text(column, row, count, ha="center", va="center", color=colour)
    names = [name if len(name) <= 16 else name[:15] + "…" for name in scored.classes]
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

    Args:
        scored: with probabilities.
    """
    from sklearn.metrics import roc_auc_score, roc_curve

    figure, axes = _unit_square("ROC", "false positive rate", "true positive rate")
    axes.plot((0, 1), (0, 1), color=INK, lw=1, ls="--", alpha=0.6)
    for colour, name, positive, score in _one_against_rest(scored):
        wrong, right, _ = roc_curve(positive, score)
        label = f"{name}, AUC {roc_auc_score(positive, score):.2f}"
        axes.plot(wrong, right, color=colour, lw=2, label=label)
    axes.legend(loc="lower right")
    return figure


@styled
def precision_recall_figure(scored: ScoredPredictions) -> Figure:
    """Plot precision over recall of the same classes; dotted: the precision of chance.

    Args:
        scored: with probabilities.
    """
    from sklearn.metrics import average_precision_score, precision_recall_curve

    figure, axes = _unit_square("Precision and recall", "recall", "precision")
    for colour, name, positive, score in _one_against_rest(scored, both=True):
        precision, recall, _ = precision_recall_curve(positive, score)
        label = f"{name}, {average_precision_score(positive, score):.2f}"
        axes.step(recall, precision, color=colour, lw=2, label=label, where="post")
        axes.axhline(positive.mean(), color=colour, lw=1, ls=":")
    axes.legend(loc="best", title="average precision")
    return figure


@styled
def calibration_figure(scored: ScoredPredictions) -> Figure:
    """Plot how often the predicted class is true over its predicted probability.

    Args:
        scored: with probabilities.
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


def _one_against_rest(
    scored: ScoredPredictions, both: bool = False
) -> Iterator[tuple[str, str, npt.NDArray[np.bool_], F64]]:
    """Yield colour, name, truth and probability of each frequent class, or of the second of two.

    With `both` the first of two classes is included.
    """
    assert scored.probabilities is not None
    times = np.bincount(scored.actual, minlength=len(scored.classes))
    most_frequent = np.argsort(-times, kind="stable")[:MOST_CURVES]
    codes = [1] if len(scored.classes) == 2 and not both else sorted(most_frequent.tolist())
    for number, code in enumerate(codes):
        positive = scored.actual == code
        if positive.any() and not positive.all():
            name = scored.classes[code][:20]
            yield SERIES[number], name, positive, scored.probabilities[:, code]


def _look(points: int) -> dict[str, Any]:
    many = points > MOST_VECTORS
    size = 30 if points <= 300 else 14 if not many else 6
    return {"s": size, "alpha": 0.4 if many else 0.75, "linewidths": 0, "rasterized": many}
