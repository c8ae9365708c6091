"""Which pictures a run gets, each with a caption and words for those who cannot see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aam.data.metrics import compute_metrics
from aam.data.ordination import principal_coordinates
from aam.report.canvas import inline_svg
from aam.report.colours import Colour
from aam.report.plots import curve_figure, ordination_figure
from aam.report.plots_judged import (
    agreement_figure,
    confusion_figure,
    residual_figure,
    roc_figure,
)
from aam.report.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {
    "loss": "Loss",
    "target": "Loss of the target",
    "unifrac": "Loss of UniFrac",
    "nucleotide": "Loss of masked nucleotides",
    "nucleotide_accuracy": "Masked nucleotides named right",
}
"""Suffix of the columns train_... and val_... of metrics.csv -> title."""

MEASURES = {
    "val_r2": "R² of the validation samples",
    "val_mae": "MAE of the validation samples",
    "val_accuracy": "Accuracy of the validation samples",
    "val_f1": "F1 of the validation samples",
    "lr": "Learning rate",
}


@dataclass(frozen=True)
class Picture:
    """An SVG element and the sentence under it."""

    svg: str
    caption: str


def curve_pictures(run: Run) -> list[Picture]:
    """Draw every column of metrics.csv that has a number."""
    known = {
        name
        for fold in run.curves.values()
        for name, column in fold.items()
        if np.isfinite(column).any()
    }
    folds = len(run.curves)
    note = f"Thin: {folds} folds; thick: their mean." if folds > 1 else ""
    chosen_by_loss = run.option("best_metric") in (None, "val_loss")
    found = []
    for suffix, title in PARTS.items():
        columns = {f"train_{suffix}": "training", f"val_{suffix}": "validation"}
        columns = {name: label for name, label in columns.items() if name in known}
        if not columns:
            continue
        # A part that is the whole loss would be drawn twice.
        if suffix in ("target", "unifrac", "nucleotide") and _alone(suffix, known):
            continue
        mark = "val_loss" if suffix == "loss" and chosen_by_loss else None
        figure = curve_figure(run.curves, columns, title, mark)
        marked = "The dot is the epoch of best.ckpt." if mark in columns and folds == 1 else ""
        caption = " ".join(filter(None, (note, marked)))
        found.append(_picture(figure, f"curve-{suffix}", _trend(run, columns, title), caption))
    for name, title in MEASURES.items():
        if name in known:
            figure = curve_figure(run.curves, {name: title}, title)
            words = _trend(run, {name: title}, title)
            found.append(_picture(figure, f"curve-{name}", words, note if name != "lr" else ""))
    return found


def judged_pictures(run: Run) -> list[Picture]:
    """Draw predictions against the truth."""
    judged, column = run.judged, run.target or "the target"
    if judged is None:
        return []
    of = f"{len(judged.actual)} {run.part} samples".replace("  ", " ")
    measured = compute_metrics(judged)
    if judged.classes:
        right = f"{measured['accuracy']:.1%} of {of} were given their true class."
        found = [
            _picture(confusion_figure(judged), "confusion", f"Confusion matrix. {right}", right)
        ]
        if judged.probabilities is not None and measured.get("auc") is not None:
            words = f"ROC curves, mean AUC {measured['auc']:.3f}."
            note = "Sensitivity against false alarms over all thresholds; the diagonal is chance."
            found.append(_picture(roc_figure(judged), "roc", words, note))
        return found
    r2 = "not defined" if measured["r2"] is None else f"{measured['r2']:.3f}"
    fit = f"{of}: R² {r2}, MAE {measured['mae']:.3g}, RMSE {measured['rmse']:.3g}."
    spread = (
        f"Half of the predictions are within {measured['median_error']:.3g} of the truth; "
        f"the mean error is {np.mean(judged.predicted - judged.actual):+.2g}."
    )
    return [
        _picture(
            agreement_figure(judged, column), "agreement", f"Predicted against true, {fit}", fit
        ),
        _picture(
            residual_figure(judged, column),
            "errors",
            f"Errors over true {column}. {spread}",
            spread,
        ),
    ]


def embedding_picture(run: Run, colour: Colour | None, without: str) -> Picture | None:
    """Draw the samples in the plane of their embeddings' first two principal coordinates."""
    if run.embeddings is None or len(run.embeddings) < 2:
        return None
    coordinates, explained = principal_coordinates(run.embeddings)
    figure = ordination_figure(
        coordinates,
        explained.tolist(),
        values=None if colour is None else colour.values,
        labels=None if colour is None else colour.labels,
        named="" if colour is None else colour.column,
    )
    painted = "" if colour is None else f", coloured by {colour.column}"
    model = " by the model of fold 1" if "1" in run.curves else ""
    caption = (
        f"{len(coordinates)} samples embedded{model}, {run.embeddings.shape[1]} numbers each: "
        f"PCoA of Euclidean distances{painted}. {without}"
    ).strip()
    words = f"Ordination of {caption} The axes explain {explained.sum():.1%} of the variance."
    return _picture(figure, "ordination", words, caption)


def _picture(figure: Figure, name: str, words: str, caption: str) -> Picture:
    return Picture(inline_svg(figure, name, words), caption)


def _alone(suffix: str, known: set[str]) -> bool:
    others = {"target", "unifrac", "nucleotide"} - {suffix}
    return not any(f"{side}_{other}" in known for side in ("train", "val") for other in others)


def _trend(run: Run, columns: dict[str, str], title: str) -> str:
    """Say where each curve begins and ends, on the mean of the folds."""
    parts = []
    for name, label in columns.items():
        ends = [fold[name][np.isfinite(fold[name])] for fold in run.curves.values() if name in fold]
        ends = [curve for curve in ends if len(curve)]
        first, last = (np.mean([curve[at] for curve in ends]) for at in (0, -1))
        parts.append(f"{label} from {first:.3g} to {last:.3g}")
    return f"{title} over epochs: {', '.join(parts)}."
