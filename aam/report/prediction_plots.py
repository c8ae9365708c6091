"""Figures of predictions against true values: agreement, residuals, confusion matrix, ROC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aam.data.metrics import ScoredPredictions, confusion
from aam.report.canvas import INK, MOST_VECTORS, SERIES, blank, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NUMBERS = 12  # classes of a confusion matrix whose cells show their counts
MOST_CURVES = 6  # classes with a ROC curve of their own


@styled
def agreement_figure(scored: ScoredPredictions, column: str) -> Figure:
    """Plot predicted against true numbers, with the line of equality."""
    figure, axes = blank(4.6, 4.2)
    both = np.concatenate([scored.actual, scored.predicted])
    margin = 0.04 * (both.max() - both.min() or 1.0)
    ends = (both.min() - margin, both.max() + margin)
    axes.plot(ends, ends, color=INK, lw=1, ls="--", alpha=0.6, label="equal")
    axes.scatter(scored.actual, scored.predicted, color=SERIES[0], **_look(len(scored.actual)))
    axes.set(xlim=ends, ylim=ends, xlabel=f"true {column}", ylabel=f"predicted {column}")
    axes.set_aspect("equal")
    axes.set_title("Predicted against true")
    axes.legend(loc="upper left")
    return figure


@styled
def residual_figure(scored: ScoredPredictions, column: str) -> Figure:
    """Plot the error of each prediction over the true number."""
    figure, axes = blank(4.6, 4.2)
    axes.axhline(0, color=INK, lw=1, ls="--", alpha=0.6)
    errors = scored.predicted - scored.actual
    axes.scatter(scored.actual, errors, color=SERIES[1], **_look(len(errors)))
    reach = 1.08 * float(np.abs(errors).max() or 1.0)
    axes.set(ylim=(-reach, reach), xlabel=f"true {column}", ylabel="predicted - true")
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

    assert scored.probabilities is not None
    figure, axes = blank(4.6, 4.2)
    axes.plot((0, 1), (0, 1), color=INK, lw=1, ls="--", alpha=0.6)
    times = np.bincount(scored.actual, minlength=len(scored.classes))
    most_frequent = np.argsort(-times, kind="stable")[:MOST_CURVES]
    codes = [1] if len(scored.classes) == 2 else sorted(most_frequent.tolist())
    for number, code in enumerate(codes):
        positive = scored.actual == code
        if positive.all() or not positive.any():
            continue
        score = scored.probabilities[:, code]
        wrong, right, _ = roc_curve(positive, score)
        label = f"{scored.classes[code][:20]}, AUC {roc_auc_score(positive, score):.2f}"
        axes.plot(wrong, right, color=SERIES[number], lw=2, label=label)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.set_aspect("equal")
    axes.set_title("ROC")
    axes.legend(loc="lower right")
    return figure


def _look(points: int) -> dict[str, Any]:
    many = points > MOST_VECTORS
    size = 30 if points <= 300 else 14 if not many else 6
    return {"s": size, "alpha": 0.4 if many else 0.75, "linewidths": 0, "rasterized": many}
