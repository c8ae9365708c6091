"""Registries of the pictures and tables of the report; learning curves and ordinations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr

from aam.arrays import F64
from aam.data.distances import coordinates_of_distances, principal_coordinates
from aam.number_format import significant
from aam.report import asvs, predictions, studies
from aam.report.figures import (
    MAX_VECTORS,
    POINTS,
    SERIES,
    Drawing,
    Picture,
    blank,
    legend_below,
    styled,
)
from aam.report.run import ReportInput
from aam.report.terminal import Table

Section = Literal["predictions", "studies", "asvs", "learning", "embedding"]
SECTIONS: tuple[Section, ...] = get_args(Section)

Draw = Callable[[ReportInput], Drawing | None]
"""Function that draws one picture; None if the run folder lacks the data."""

Tabulate = Callable[[ReportInput], Table | None]
"""Function that makes one table; None if the run folder lacks the data."""

OF_CLASSES = {"roc", "precision-recall", "calibration", "confusion"}
"""Pictures of a target with classes."""

LOSS_PARTS = ("target", "unifrac", "nucleotide", "count")


def draw_section(section: Section, report: ReportInput) -> list[Picture]:
    """Draw the pictures of a section that have data, in the order of `PICTURES`."""
    drawings = (
        (name, draw(report))
        for name, (of_section, draw) in PICTURES.items()
        if of_section == section
    )
    return [Picture.of(name, drawing) for name, drawing in drawings if drawing is not None]


def tabulate(section: Section, report: ReportInput) -> list[Table]:
    """Return the tables of a section that have data, in the order of `TABLES`."""
    tables = (make(report) for make in TABLES[section])
    return [table for table in tables if table is not None]


@styled
def curve_picture(
    columns: Mapping[str, str], title: str, report: ReportInput, loss: str = ""
) -> Drawing | None:
    """Draw learning curves: columns of metrics.csv over the epochs, folds thin, their mean thick.

    `columns` has the labels. If the loss has only one term, the term is not drawn again.
    """
    import pandas as pd
    from matplotlib.ticker import MaxNLocator

    run, curves = report.run, report.run.curves.values()
    filled = {name for fold in curves for name, values in fold.items() if np.isfinite(values).any()}
    other_parts = {
        f"{split}_{name}" for split in ("train", "val") for name in LOSS_PARTS if name != loss
    }
    columns = {name: label for name, label in columns.items() if name in filled}
    if not columns or (loss in LOSS_PARTS and not other_parts & filled):
        return None
    # The dot marks the checkpoint with the lowest loss. Another metric may have chosen the
    # checkpoint, and each fold has a best epoch of its own: then there is no dot.
    has_folds, chosen_by_loss = len(curves) > 1, run.option("best_metric") in (None, "val_loss")
    mark = "val_loss" if loss == "loss" and chosen_by_loss and not has_folds else None
    figure, axes = blank(3.7, 2.75)
    trends = []
    for number, (column, label) in enumerate(columns.items()):
        pair = len(columns) == 2
        look: Any = {"color": SERIES[1 - number if pair else number]}
        look["ls"] = "--" if pair and number == 0 else "-"
        fold_curves = [fold for fold in curves if column in fold]
        for fold in fold_curves if has_folds else ():
            axes.plot(fold["epoch"] + 1, fold[column], alpha=0.35, lw=1, **look)
        # The mean over the folds that reached an epoch.
        of_folds = pd.concat([pd.Series(fold[column], fold["epoch"] + 1) for fold in fold_curves])
        means = of_folds.groupby(level=0).mean()
        marker = "." if len(means) == 1 else None
        axes.plot(means.index, means, lw=2, marker=marker, label=label, **look)
        if mark == column and means.notna().any():
            best = means.idxmin()
            axes.plot(best, means[best], "o", color=look["color"], ms=7)
            axes.annotate(
                f"epoch {best:.0f}",
                (best, means[best]),
                textcoords="offset points",
                xytext=(0, 9),
                ha="right" if means.index.get_loc(best) > len(means) / 2 else "left",
                fontsize=9,
            )
        finite = [values[np.isfinite(values)] for values in (fold[column] for fold in fold_curves)]
        ends = [np.mean([values[at] for values in finite if len(values)]) for at in (0, -1)]
        trends.append(f"{label} from {significant(ends[0])} to {significant(ends[1])}")
    axes.set_title(title)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(columns) > 1:
        legend_below(axes, ncols=len(columns))
    caption = "The dot marks the epoch of best.ckpt." if mark in columns else ""
    if has_folds and "lr" not in columns:
        caption = f"Thin: {len(curves)} folds; thick: their mean."
    return Drawing(figure, caption, f"{title} over epochs: {', '.join(trends)}.")


def embedding_picture(report: ReportInput) -> Drawing | None:
    """Draw the ordination (PCoA) of the embeddings of the samples."""
    run = report.run
    if run.embeddings is None or len(run.embeddings) < 2:
        return None
    samples, width = run.embeddings.shape
    rows, note = _shown(samples)
    coordinates, explained = principal_coordinates(run.embeddings)
    model = " by the model of fold 1" if "1" in run.curves else ""
    caption = (
        f"PCoA of Euclidean distances between the embeddings{model} of {samples} samples "
        f"({width} numbers each){note}."
    )
    ids = [run.embedded_ids[row] for row in rows]
    return _ordination(report, ids, coordinates[rows], explained, "Embedding", caption)


def kernel_picture(report: ReportInput) -> Drawing | None:
    """Draw the ordination (PCoA) of the samples by the sequence kernel."""
    if report.run.ordination is None:
        return None
    ids, coordinates, explained = report.run.ordination
    rows, note = _shown(len(ids))
    caption = (
        f"PCoA of {len(ids)} samples by the sequence kernel: samples with similar sequences lie "
        f"close together{note}."
    )
    drawn_ids, title = [ids[row] for row in rows], "Sequence kernel"
    return _ordination(report, drawn_ids, coordinates[rows], explained, title, caption)


def unifrac_picture(report: ReportInput) -> Drawing | None:
    """Draw the ordination by UniFrac; correlate UniFrac with the distances of the embedding."""
    run = report.run
    if run.embeddings is None or run.unifrac is None:
        return None
    with_distances = set(run.unifrac.ids)
    drawn_rows, note = _shown(len(run.embeddings))
    rows = [row for row in drawn_rows if run.embedded_ids[row] in with_distances]
    if len(rows) < 3:
        return None
    ids = [run.embedded_ids[row] for row in rows]
    distances = run.unifrac.aligned(ids).values
    coordinates, explained = coordinates_of_distances(distances)
    above = np.triu_indices(len(rows), 1)
    correlation = spearmanr(pdist(run.embeddings[rows]), distances[above])[0]
    caption = (
        f"PCoA of {len(rows)} samples by UniFrac (unifrac.tsv){note}. Spearman correlation of "
        f"UniFrac with the distances of the embedding: {correlation:.2f}."
    )
    return _ordination(report, ids, coordinates, explained, "UniFrac", caption)


def _shown(samples: int) -> tuple[list[int], str]:
    """Return the samples to draw, a random subset if they are many, and a note."""
    if samples <= MAX_VECTORS:
        return list(range(samples)), ""
    # A fixed seed: the page of a run is the same each time.
    rows = np.random.default_rng(0).choice(np.arange(samples), MAX_VECTORS, replace=False)
    return np.sort(rows).tolist(), f"; {MAX_VECTORS} of {samples} are drawn"


@styled
def _ordination(
    report: ReportInput,
    ids: Sequence[str],
    coordinates: F64,
    explained: F64,
    title: str,
    caption: str,
) -> Drawing:
    """Draw an ordination; each point has its name and a CSS variable of its colour per column."""
    colours = [colour.css() for colour in report.colours]
    names, styles = [], []
    row_of = {name: row for row, name in enumerate(report.run.described_ids)}
    for name in ids:
        row = row_of[name]
        texts = (f"{c.column} {c.texts[row]}" for c in report.colours if c.texts[row])
        names.append("\n".join([name, *texts]))
        styles.append("".join(f"--c{k}:{css[row]};" for k, css in enumerate(colours)))
    figure, axes = blank(4.6, 4.4)
    size = 36 if len(ids) <= 300 else 16
    x, y = coordinates[:, :2].T
    # A file shows the first column; on the page the reader chooses.
    look: Any = {"color": SERIES[0]}
    legend: list[tuple[str, str]] = []
    if report.colours:
        shades, legend = report.colours[0].plain()
        look = {"c": [shades[row_of[name]] for name in ids]}
        legend = [("none", report.colours[0].column), *legend]
    axes.scatter(x, y, s=size, linewidths=0, gid=POINTS, **look)
    axes.set(xlabel=f"PC1 ({explained[0]:.1%})", ylabel=f"PC2 ({explained[1]:.1%})")
    axes.set(xticks=[], yticks=[])
    axes.set_title(title)
    description = f"Ordination of {caption} The axes explain {explained.sum():.1%} of the variance."
    return Drawing(figure, caption, description, names, styles, legend)


def _curves(loss: str, title: str) -> tuple[Section, Draw]:
    columns = {f"train_{loss}": "training", f"val_{loss}": "validation"}
    return "learning", partial(curve_picture, columns, title, loss=loss)


def _curve(column: str, title: str) -> tuple[Section, Draw]:
    return "learning", partial(curve_picture, {column: title}, title)


PICTURES: dict[str, tuple[Section, Draw]] = {
    **{name: ("studies", draw) for name, draw in studies.PICTURES.items()},
    **{name: ("predictions", draw) for name, draw in predictions.PICTURES.items()},
    **{name: ("asvs", draw) for name, draw in asvs.PICTURES.items()},
    "curve-loss": _curves("loss", "Loss"),
    "curve-target": _curves("target", "Loss of the target"),
    "curve-unifrac": _curves("unifrac", "Loss of UniFrac"),
    "curve-nucleotide": _curves("nucleotide", "Loss of masked nucleotides"),
    "curve-nucleotide_accuracy": _curves("nucleotide_accuracy", "Masked nucleotides predicted"),
    "curve-count": _curves("count", "Loss of hidden abundances"),
    "curve-val_r2": _curve("val_r2", "R² of the validation samples"),
    "curve-val_mae": _curve("val_mae", "MAE of the validation samples"),
    "curve-val_accuracy": _curve("val_accuracy", "Accuracy of the validation samples"),
    "curve-val_f1": _curve("val_f1", "F1 of the validation samples"),
    "curve-lr": _curve("lr", "Learning rate"),
    "embedding": ("embedding", embedding_picture),
    "ordination": ("embedding", kernel_picture),
    "unifrac": ("embedding", unifrac_picture),
}
"""Registry of pictures in the order of the page: unique name, section, `Draw` function."""

TABLES: dict[Section, tuple[Tabulate, ...]] = {
    "studies": studies.TABLES,
    "predictions": (*predictions.TABLES, asvs.explanations_table),
    "asvs": asvs.TABLES,
}
"""Registry of tables of each section, in the order of the page."""
