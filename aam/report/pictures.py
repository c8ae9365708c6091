"""Registry of the report's pictures, each with a caption and a text alternative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr

from aam.data.metrics import ScoredPredictions, compute_metrics
from aam.data.ordination import coordinates_of_distances, principal_coordinates
from aam.number_format import significant
from aam.report.asvs import heat_picture, importance_picture
from aam.report.base import Draw, Drawing, ReportInput, Section
from aam.report.figures.canvas import MOST_VECTORS, data_link, inline_svg, plain_svg
from aam.report.figures.plots import curve_figure, learning_figure, points_figure
from aam.report.figures.prediction_plots import (
    POINTS,
    agreement_figure,
    calibration_bins,
    calibration_figure,
    confusion_figure,
    precision_recall_figure,
    residual_figure,
    roc_figure,
)
from aam.report.run import Run
from aam.report.terminal import TITLES

LOSS_PARTS = ("target", "unifrac", "nucleotide", "count")


@dataclass(frozen=True)
class Picture:
    """A picture of the page.

    Attributes:
        name: unique in the page.
        svg: an SVG element.
        caption: shown below it.
        link: data URL of the SVG file with plain colours.
    """

    name: str
    svg: str
    caption: str
    link: str

    @classmethod
    def of(cls, name: str, drawing: Drawing) -> Picture:
        """Convert a drawing."""
        svg = inline_svg(drawing.figure, name, drawing.description, drawing.names, drawing.styles)
        link = data_link(plain_svg(drawing.figure), "image/svg+xml")
        return cls(name, svg, drawing.caption, link)


def draw_section(section: Section, given: ReportInput) -> list[Picture]:
    """Draw the pictures of a section in the order of `PICTURES`.

    Args:
        section: section of the page.
        given: data of the run; a picture whose data it lacks is left out.
    """
    pictures = []
    for name, (place, draw) in PICTURES.items():
        drawing = draw(given) if place == section else None
        if drawing is not None:
            pictures.append(Picture.of(name, drawing))
    return pictures


def confusion_picture(given: ReportInput) -> Drawing | None:
    """Draw the confusion matrix of a classifier."""
    scored = given.run.scored
    if scored is None or not scored.classes:
        return None
    accuracy = compute_metrics(scored)["accuracy"]
    caption = (
        f"{accuracy:.1%} of {_samples(given.run, scored)} are predicted as their true class. "
        "Percentages are of the true class (rows)."
    )
    return Drawing(confusion_figure(scored), caption, f"Confusion matrix. {caption}")


def roc_picture(given: ReportInput) -> Drawing | None:
    """Draw the ROC curves of a classifier with probabilities."""
    scored = given.run.scored
    if scored is None or scored.probabilities is None:
        return None
    auc = compute_metrics(scored).get("auc")
    if auc is None:
        return None
    caption = "True against false positives over all thresholds; the diagonal is chance."
    caption += _of_folds(scored)
    return Drawing(roc_figure(scored), caption, f"ROC curves, mean AUC {auc:.3f}.")


def precision_recall_picture(given: ReportInput) -> Drawing | None:
    """Draw precision over recall of a classifier with probabilities."""
    scored = given.run.scored
    if scored is None or scored.probabilities is None or len(np.unique(scored.actual)) < 2:
        return None
    caption = "Precision over recall of each class against the rest; dotted: chance."
    caption += _of_folds(scored)
    shares = np.bincount(scored.actual, minlength=len(scored.classes)) / len(scored.actual)
    parts = (f"{name} {share:.0%}" for name, share in zip(scored.classes, shares, strict=True))
    description = f"Precision-recall curves. Samples of each class: {', '.join(parts)}."
    return Drawing(precision_recall_figure(scored), caption, description)


def calibration_picture(given: ReportInput) -> Drawing | None:
    """Draw how often predictions are right over their probability."""
    scored = given.run.scored
    if scored is None or scored.probabilities is None:
        return None
    means, shares, numbers = calibration_bins(scored)
    gap = float(np.average(np.abs(means - shares), weights=numbers))
    caption = (
        "Numbers of samples at the points. Below the line the model is too certain. Expected "
        f"calibration error: {gap:.3f}."
    )
    return Drawing(calibration_figure(scored), caption, f"Calibration curve. {caption}")


def agreement_picture(given: ReportInput) -> Drawing | None:
    """Draw predicted against true numbers."""
    scored = given.run.scored
    if scored is None or scored.classes:
        return None
    metrics = compute_metrics(scored)
    r2 = "not defined" if metrics["r2"] is None else f"{metrics['r2']:.3f}"
    samples = _samples(given.run, scored)
    errors = ", ".join(
        f"{TITLES[name]} {given.measured(metrics[name] or 0.0)}" for name in ("mae", "rmse")
    )
    caption = f"{samples}: R² {r2}, {errors}."
    if given.run.limits is not None:
        caption += " Lines: prediction intervals."
    figure = agreement_figure(scored, given.target, given.run.limits)
    return Drawing(figure, caption, f"Predicted against true, {caption}", _names(given))


def residual_picture(given: ReportInput) -> Drawing | None:
    """Draw the error of each prediction over the true number."""
    scored = given.run.scored
    if scored is None or scored.classes:
        return None
    half = given.measured(compute_metrics(scored)["median_error"] or 0.0)
    bias = given.measured(float(np.mean(scored.predicted - scored.actual)), signed=True)
    caption = f"Half of the predictions are within {half} of the truth; the mean error is {bias}."
    figure = residual_figure(scored, given.target)
    return Drawing(figure, caption, f"Errors over true {given.target}. {caption}", _names(given))


def samples_picture(given: ReportInput) -> Drawing | None:
    """Draw the score of models of fewer samples: would more samples help?"""
    curve = (given.run.scores or {}).get("learning_curve")
    if curve is None:
        return None
    name = TITLES.get(curve["metric"], curve["metric"])
    figure = learning_figure(curve["points"], name, curve["units"])
    caption = f"{name} of a {curve['model']} trained on fewer {curve['units']}. {curve['sentence']}"
    return Drawing(figure, caption, f"Learning curve. {caption}")


def loss_picture(part: str, title: str, given: ReportInput) -> Drawing | None:
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


def metric_picture(column: str, title: str, given: ReportInput) -> Drawing | None:
    """Draw a column of metrics.csv over the epochs."""
    if column not in _measured_columns(given.run):
        return None
    figure = curve_figure(given.run.curves, {column: title}, title)
    caption = _folds_note(given.run) if column != "lr" else ""
    return Drawing(figure, caption, _trend(given.run, {column: title}, title))


def embedding_picture(given: ReportInput) -> Drawing | None:
    """Draw the samples in the plane of the first two principal coordinates of their embeddings."""
    run = given.run
    if run.embeddings is None or len(run.embeddings) < 2:
        return None
    rows = _shown_rows(len(run.embeddings))
    coordinates, explained = principal_coordinates(run.embeddings)
    model = " by the model of fold 1" if "1" in run.curves else ""
    caption = (
        f"{len(run.embeddings)} samples embedded{model}, {run.embeddings.shape[1]} numbers each: "
        f"PCoA of Euclidean distances{_shown_note(rows, len(run.embeddings))}."
    )
    ids = [run.embedded_ids[row] for row in rows.tolist()]
    return _ordination(given, ids, coordinates[rows], explained, "Embedding", caption)


def kernel_picture(given: ReportInput) -> Drawing | None:
    """Draw the samples in the plane of the first two principal coordinates of the kernel."""
    if (found := given.run.ordination) is None:
        return None
    rows = _shown_rows(len(found.ids))
    caption = (
        f"{len(found.ids)} samples: PCoA of the kernel of the sequences, by which samples with "
        f"similar sequences are near each other{_shown_note(rows, len(found.ids))}."
    )
    ids = [found.ids[row] for row in rows.tolist()]
    values = found.coordinates[rows]
    return _ordination(given, ids, values, found.explained, "Sequences (kernel)", caption)


def unifrac_picture(given: ReportInput) -> Drawing | None:
    """Draw the same samples by their UniFrac distances, and correlate the two distances."""
    run = given.run
    if run.embeddings is None or run.unifrac is None:
        return None
    known = set(run.unifrac.ids)
    shown = _shown_rows(len(run.embeddings))
    rows = shown[[run.embedded_ids[row] in known for row in shown.tolist()]]
    if len(rows) < 3:
        return None
    distances = run.unifrac.aligned([run.embedded_ids[row] for row in rows.tolist()]).values
    coordinates, explained = coordinates_of_distances(distances)
    above = np.triu_indices(len(rows), 1)
    correlation = spearmanr(pdist(run.embeddings[rows]), distances[above])[0]
    caption = (
        f"{len(rows)} samples by unifrac.tsv{_shown_note(shown, len(run.embeddings))}. Pairwise "
        f"distances of the embedding and of UniFrac correlate {correlation:.2f} (Spearman)."
    )
    ids = [run.embedded_ids[row] for row in rows.tolist()]
    return _ordination(given, ids, coordinates, explained, "UniFrac", caption)


def _ordination(
    given: ReportInput,
    ids: Sequence[str],
    coordinates: npt.NDArray[np.float64],
    explained: npt.NDArray[np.float64],
    title: str,
    caption: str,
) -> Drawing:
    """Draw samples with their names and, for each column, the CSS variable of their colour."""
    colours = [colour.css() for colour in given.colours]
    names, styles = [], []
    place = {name: row for row, name in enumerate(given.run.described_ids)}
    for name in ids:
        row = place[name]
        texts = (f"{one.column} {one.texts[row]}" for one in given.colours if one.texts[row])
        names.append("\n".join([name, *texts]))
        styles.append("".join(f"--c{k}:{css[row]};" for k, css in enumerate(colours)))
    figure = points_figure(coordinates, explained.tolist(), title)
    variance = f"The axes explain {explained.sum():.1%} of the variance."
    description = f"Ordination of {caption} {variance}"
    return Drawing(figure, caption, description, {"points": names}, {"points": styles})


def _shown_rows(samples: int) -> npt.NDArray[np.int64]:
    """Return the samples that are drawn as points: all, or a random part of many."""
    rows = np.arange(samples)
    if samples <= MOST_VECTORS:
        return rows
    # A fixed seed: the page of a run is the same each time.
    return np.sort(np.random.default_rng(0).choice(rows, MOST_VECTORS, replace=False))


def _shown_note(rows: npt.NDArray[np.int64], samples: int) -> str:
    return f"; {len(rows)} of {samples} are drawn" if len(rows) < samples else ""


PICTURES: dict[str, tuple[Section, Draw]] = {
    "confusion": ("predictions", confusion_picture),
    "roc": ("predictions", roc_picture),
    "precision-recall": ("predictions", precision_recall_picture),
    "calibration": ("predictions", calibration_picture),
    "agreement": ("predictions", agreement_picture),
    "errors": ("predictions", residual_picture),
    "samples": ("predictions", samples_picture),
    "importance": ("asvs", importance_picture),
    "abundance": ("asvs", heat_picture),
    **{
        f"curve-{part}": ("learning", partial(loss_picture, part, title))
        for part, title in (
            ("loss", "Loss"),
            ("target", "Loss of the target"),
            ("unifrac", "Loss of UniFrac"),
            ("nucleotide", "Loss of masked nucleotides"),
            ("nucleotide_accuracy", "Masked nucleotides named right"),
            ("count", "Loss of hidden abundances"),
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
    "embedding": ("embedding", embedding_picture),
    "ordination": ("embedding", kernel_picture),
    "unifrac": ("embedding", unifrac_picture),
}
"""Every picture, in the order of the page: its name, unique in the page, its section and function.

To add a picture, write a `Draw` function and add a line here."""


def _names(given: ReportInput) -> dict[str, list[str]]:
    """Return the sample, true and predicted number of each point."""
    run, scored = given.run, given.run.scored
    assert scored is not None
    numbers = zip(run.sample_ids, scored.actual, scored.predicted, strict=True)
    return {
        POINTS: [f"{name}\ntrue {true:.4g}, predicted {found:.4g}" for name, true, found in numbers]
    }


def _samples(run: Run, scored: ScoredPredictions) -> str:
    return f"{len(scored.actual)} {run.part} samples".replace("  ", " ")


def _of_folds(scored: ScoredPredictions) -> str:
    return " Samples of the same fold are compared." if scored.folds else ""


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
        parts.append(f"{label} from {significant(first)} to {significant(last)}")
    return f"{title} over epochs: {', '.join(parts)}."
