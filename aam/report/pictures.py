"""Registry of the report's pictures, each with a caption and a text alternative."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from aam.data.metrics import ScoredPredictions, compute_metrics
from aam.data.ordination import principal_coordinates
from aam.report.canvas import inline_svg
from aam.report.colours import Colour
from aam.report.plots import curve_figure, ordination_figure
from aam.report.prediction_plots import (
    agreement_figure,
    confusion_figure,
    residual_figure,
    roc_figure,
)
from aam.report.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Section = Literal["predictions", "learning", "embedding"]
LOSS_PARTS = ("target", "unifrac", "nucleotide")


@dataclass(frozen=True)
class PictureInput:
    """Data for the pictures of a report.

    Attributes:
        run: the run folder.
        colour: metadata that colours the samples of the embedding; None for no colours.
        without_colour: sentence that explains why there are none.
    """

    run: Run
    colour: Colour | None = None
    without_colour: str = ""


@dataclass(frozen=True)
class Drawing:
    """A figure with its caption and its text alternative for screen readers."""

    figure: Figure
    caption: str
    description: str


Draw = Callable[[PictureInput], Drawing | None]
"""Draws one picture; None where the run folder lacks the data."""


@dataclass(frozen=True)
class Picture:
    """A picture of the page: an SVG element and its caption."""

    svg: str
    caption: str


def draw_section(section: Section, given: PictureInput) -> list[Picture]:
    """Draw the pictures of a section in the order of `PICTURES`."""
    pictures = []
    for name, (place, draw) in PICTURES.items():
        drawing = draw(given) if place == section else None
        if drawing is not None:
            svg = inline_svg(drawing.figure, name, drawing.description)
            pictures.append(Picture(svg, drawing.caption))
    return pictures


def confusion_picture(given: PictureInput) -> Drawing | None:
    """Draw the confusion matrix of a classifier."""
    scored = given.run.scored
    if scored is None or not scored.classes:
        return None
    accuracy = compute_metrics(scored)["accuracy"]
    caption = f"{accuracy:.1%} of {_samples(given.run, scored)} were given their true class."
    return Drawing(confusion_figure(scored), caption, f"Confusion matrix. {caption}")


def roc_picture(given: PictureInput) -> Drawing | None:
    """Draw the ROC curves of a classifier with probabilities."""
    scored = given.run.scored
    if scored is None or scored.probabilities is None:
        return None
    auc = compute_metrics(scored).get("auc")
    if auc is None:
        return None
    caption = "Sensitivity against false alarms over all thresholds; the diagonal is chance."
    return Drawing(roc_figure(scored), caption, f"ROC curves, mean AUC {auc:.3f}.")


def agreement_picture(given: PictureInput) -> Drawing | None:
    """Draw predicted against true numbers."""
    scored = given.run.scored
    if scored is None or scored.classes:
        return None
    found = compute_metrics(scored)
    r2 = "not defined" if found["r2"] is None else f"{found['r2']:.3f}"
    samples = _samples(given.run, scored)
    caption = f"{samples}: R² {r2}, MAE {found['mae']:.3g}, RMSE {found['rmse']:.3g}."
    figure = agreement_figure(scored, given.run.target or "the target")
    return Drawing(figure, caption, f"Predicted against true, {caption}")


def residual_picture(given: PictureInput) -> Drawing | None:
    """Draw the error of each prediction over the true number."""
    scored, column = given.run.scored, given.run.target or "the target"
    if scored is None or scored.classes:
        return None
    caption = (
        f"Half of the predictions are within {compute_metrics(scored)['median_error']:.3g} of the "
        f"truth; the mean error is {np.mean(scored.predicted - scored.actual):+.2g}."
    )
    figure = residual_figure(scored, column)
    return Drawing(figure, caption, f"Errors over true {column}. {caption}")


def loss_picture(part: str, title: str, given: PictureInput) -> Drawing | None:
    """Draw the columns train_PART and val_PART of metrics.csv over the epochs."""
    run, known = given.run, _measured_columns(given.run)
    sides = {f"train_{part}": "training", f"val_{part}": "validation"}
    columns = {name: label for name, label in sides.items() if name in known}
    # The only part of a loss equals the loss, which has a picture of its own.
    others = {
        f"{side}_{other}" for side in ("train", "val") for other in LOSS_PARTS if other != part
    }
    if not columns or (part in LOSS_PARTS and not others & known):
        return None
    chosen_by_loss = run.option("best_metric") in (None, "val_loss")
    mark = "val_loss" if part == "loss" and chosen_by_loss else None
    figure = curve_figure(run.curves, columns, title, mark)
    marked = mark in columns and len(run.curves) == 1
    caption = f"{_folds_note(run)} {'The dot is the epoch of best.ckpt.' if marked else ''}".strip()
    return Drawing(figure, caption, _trend(run, columns, title))


def metric_picture(column: str, title: str, given: PictureInput) -> Drawing | None:
    """Draw a column of metrics.csv over the epochs."""
    if column not in _measured_columns(given.run):
        return None
    figure = curve_figure(given.run.curves, {column: title}, title)
    caption = _folds_note(given.run) if column != "lr" else ""
    return Drawing(figure, caption, _trend(given.run, {column: title}, title))


def ordination_picture(given: PictureInput) -> Drawing | None:
    """Draw the samples in the plane of the first two principal coordinates of their embeddings."""
    run, colour = given.run, given.colour
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
    coloured = "" if colour is None else f", coloured by {colour.column}"
    model = " by the model of fold 1" if "1" in run.curves else ""
    caption = (
        f"{len(coordinates)} samples embedded{model}, {run.embeddings.shape[1]} numbers each: "
        f"PCoA of Euclidean distances{coloured}. {given.without_colour}"
    ).strip()
    variance = f"The axes explain {explained.sum():.1%} of the variance."
    return Drawing(figure, caption, f"Ordination of {caption} {variance}")


PICTURES: dict[str, tuple[Section, Draw]] = {
    "confusion": ("predictions", confusion_picture),
    "roc": ("predictions", roc_picture),
    "agreement": ("predictions", agreement_picture),
    "errors": ("predictions", residual_picture),
    **{
        f"curve-{part}": ("learning", partial(loss_picture, part, title))
        for part, title in (
            ("loss", "Loss"),
            ("target", "Loss of the target"),
            ("unifrac", "Loss of UniFrac"),
            ("nucleotide", "Loss of masked nucleotides"),
            ("nucleotide_accuracy", "Masked nucleotides named right"),
        )
    },
    **{
        f"curve-{column}": ("learning", partial(metric_picture, column, title))
        for column, title in (
            ("val_r2", "R² of the validation samples"),
            ("val_mae", "MAE of the validation samples"),
            ("val_accuracy", "Accuracy of the validation samples"),
            ("val_f1", "F1 of the validation samples"),
            ("lr", "Learning rate"),
        )
    },
    "ordination": ("embedding", ordination_picture),
}
"""Every picture, in the order of the page: its name, unique in the page, its section and function.

To add a picture, write a `Draw` function and add a line here."""


def _samples(run: Run, scored: ScoredPredictions) -> str:
    return f"{len(scored.actual)} {run.part} samples".replace("  ", " ")


def _folds_note(run: Run) -> str:
    folds = len(run.curves)
    return f"Thin: {folds} folds; thick: their mean." if folds > 1 else ""


def _measured_columns(run: Run) -> set[str]:
    """Return the columns of metrics.csv with at least one finite number."""
    return {
        name
        for fold in run.curves.values()
        for name, column in fold.items()
        if np.isfinite(column).any()
    }


def _trend(run: Run, columns: dict[str, str], title: str) -> str:
    """Describe the first and last value of each curve, on the mean of the folds."""
    parts = []
    for name, label in columns.items():
        ends = [fold[name][np.isfinite(fold[name])] for fold in run.curves.values() if name in fold]
        ends = [curve for curve in ends if len(curve)]
        first, last = (np.mean([curve[at] for curve in ends]) for at in (0, -1))
        parts.append(f"{label} from {first:.3g} to {last:.3g}")
    return f"{title} over epochs: {', '.join(parts)}."
