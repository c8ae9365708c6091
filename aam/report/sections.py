"""Sections of the page: registries of all pictures and tables; learning curves and ordinations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr

from aam.arrays import F64
from aam.data.ordination import coordinates_of_distances, principal_coordinates
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
from aam.report.terminal import Table, thresholds_table

Section = Literal["predictions", "studies", "asvs", "learning", "embedding"]
SECTIONS: tuple[Section, ...] = get_args(Section)

Draw = Callable[[ReportInput], Drawing | None]
"""Draws one picture; None where the run folder lacks the data."""

Tabulate = Callable[[ReportInput], Table | None]
"""Makes one table; None where the run folder lacks the data."""

OF_CLASSES = {"roc", "precision-recall", "calibration", "confusion"}
"""Pictures of a target with classes."""

LOSS_PARTS = ("target", "unifrac", "nucleotide", "count")


def draw_section(section: Section, given: ReportInput) -> list[Picture]:
    """Draw the pictures of a section that have data, in the order of `PICTURES`."""
    drawn = ((name, draw(given)) for name, (place, draw) in PICTURES.items() if place == section)
    return [Picture.of(name, drawing) for name, drawing in drawn if drawing is not None]


def tabulate(section: Section, given: ReportInput) -> list[Table]:
    """Return the tables of a section that have data, in the order of `TABLES`."""
    made = (make(given) for make in TABLES[section])
    return [table for table in made if table is not None]


@styled
def curve_picture(
    columns: Mapping[str, str], title: str, given: ReportInput, part: str = ""
) -> Drawing | None:
    """Draw columns of metrics.csv over the epochs; several folds are thin, their mean is thick.

    `columns` has their labels. A `part` of the loss that is the whole loss is not drawn twice.
    """
    import pandas as pd
    from matplotlib.ticker import MaxNLocator

    run, curves = given.run, given.run.curves.values()
    known = {name for fold in curves for name, values in fold.items() if np.isfinite(values).any()}
    other_parts = {
        f"{side}_{name}" for side in ("train", "val") for name in LOSS_PARTS if name != part
    }
    columns = {name: label for name, label in columns.items() if name in known}
    if not columns or (part in LOSS_PARTS and not other_parts & known):
        return None
    # The dot marks a checkpoint by its loss: not where another metric chose it, and not on the mean
    # of folds, each of which has a best epoch of its own.
    several, chosen_by_loss = len(curves) > 1, run.option("best_metric") in (None, "val_loss")
    mark = "val_loss" if part == "loss" and chosen_by_loss and not several else None
    figure, axes = blank(3.7, 2.75)
    trends = []
    for number, (column, label) in enumerate(columns.items()):
        pair = len(columns) == 2
        look: Any = {"color": SERIES[1 - number if pair else number]}
        look["ls"] = "--" if pair and number == 0 else "-"
        drawn = [fold for fold in curves if column in fold]
        for fold in drawn if several else ():
            axes.plot(fold["epoch"] + 1, fold[column], alpha=0.35, lw=1, **look)
        # The mean over the folds that reached an epoch.
        of_folds = pd.concat([pd.Series(fold[column], fold["epoch"] + 1) for fold in drawn])
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
        finite = [values[np.isfinite(values)] for values in (fold[column] for fold in drawn)]
        ends = [np.mean([values[at] for values in finite if len(values)]) for at in (0, -1)]
        trends.append(f"{label} from {significant(ends[0])} to {significant(ends[1])}")
    axes.set_title(title)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(columns) > 1:
        legend_below(axes, ncols=len(columns))
    caption = "The dot is the epoch of best.ckpt." if mark in columns else ""
    if several and "lr" not in columns:
        caption = f"Thin: {len(curves)} folds; thick: their mean."
    return Drawing(figure, caption, f"{title} over epochs: {', '.join(trends)}.")


def embedding_picture(given: ReportInput) -> Drawing | None:
    """Draw the samples in the plane of the first two principal coordinates of their embeddings."""
    run = given.run
    if run.embeddings is None or len(run.embeddings) < 2:
        return None
    samples, width = run.embeddings.shape
    rows, note = _shown(samples)
    coordinates, explained = principal_coordinates(run.embeddings)
    model = " by the model of fold 1" if "1" in run.curves else ""
    caption = (
        f"{samples} samples embedded{model}, {width} numbers each: "
        f"PCoA of Euclidean distances{note}."
    )
    ids = [run.embedded_ids[row] for row in rows]
    return _ordination(given, ids, coordinates[rows], explained, "Embedding", caption)


def kernel_picture(given: ReportInput) -> Drawing | None:
    """Draw the samples in the plane of the first two principal coordinates of the kernel."""
    if given.run.ordination is None:
        return None
    ids, coordinates, explained = given.run.ordination
    rows, note = _shown(len(ids))
    caption = (
        f"{len(ids)} samples: PCoA of the kernel of the sequences, by which samples with "
        f"similar sequences are near each other{note}."
    )
    drawn, title = [ids[row] for row in rows], "Sequences (kernel)"
    return _ordination(given, drawn, coordinates[rows], explained, title, caption)


def unifrac_picture(given: ReportInput) -> Drawing | None:
    """Draw the same samples by their UniFrac distances, and correlate the two distances."""
    run = given.run
    if run.embeddings is None or run.unifrac is None:
        return None
    known = set(run.unifrac.ids)
    shown, note = _shown(len(run.embeddings))
    rows = [row for row in shown if run.embedded_ids[row] in known]
    if len(rows) < 3:
        return None
    ids = [run.embedded_ids[row] for row in rows]
    distances = run.unifrac.aligned(ids).values
    coordinates, explained = coordinates_of_distances(distances)
    above = np.triu_indices(len(rows), 1)
    correlation = spearmanr(pdist(run.embeddings[rows]), distances[above])[0]
    caption = (
        f"{len(rows)} samples by unifrac.tsv{note}. Pairwise distances of the embedding and of "
        f"UniFrac correlate {correlation:.2f} (Spearman)."
    )
    return _ordination(given, ids, coordinates, explained, "UniFrac", caption)


def _shown(samples: int) -> tuple[list[int], str]:
    """Return the samples that are drawn as points, all or a random part of many, and a note."""
    if samples <= MAX_VECTORS:
        return list(range(samples)), ""
    # A fixed seed: the page of a run is the same each time.
    rows = np.random.default_rng(0).choice(np.arange(samples), MAX_VECTORS, replace=False)
    return np.sort(rows).tolist(), f"; {MAX_VECTORS} of {samples} are drawn"


@styled
def _ordination(
    given: ReportInput,
    ids: Sequence[str],
    coordinates: F64,
    explained: F64,
    title: str,
    caption: str,
) -> Drawing:
    """Draw samples with their names and, for each column, the CSS variable of their colour."""
    colours = [colour.css() for colour in given.colours]
    names, styles = [], []
    place = {name: row for row, name in enumerate(given.run.described_ids)}
    for name in ids:
        row = place[name]
        texts = (
            f"{colour.column} {colour.texts[row]}" for colour in given.colours if colour.texts[row]
        )
        names.append("\n".join([name, *texts]))
        styles.append("".join(f"--c{k}:{css[row]};" for k, css in enumerate(colours)))
    figure, axes = blank(4.6, 4.4)
    size = 36 if len(ids) <= 300 else 16
    x, y = coordinates[:, :2].T
    # A file shows the first column, a page lets its reader choose.
    look: Any = {"color": SERIES[0]}
    legend: list[tuple[str, str]] = []
    if given.colours:
        shades, legend = given.colours[0].plain()
        look = {"c": [shades[place[name]] for name in ids]}
        legend = [("none", given.colours[0].column), *legend]
    axes.scatter(x, y, s=size, linewidths=0, gid=POINTS, **look)
    axes.set(xlabel=f"PC1 ({explained[0]:.1%})", ylabel=f"PC2 ({explained[1]:.1%})")
    axes.set(xticks=[], yticks=[])
    axes.set_title(title)
    description = f"Ordination of {caption} The axes explain {explained.sum():.1%} of the variance."
    return Drawing(figure, caption, description, names, styles, legend)


def _curves(part: str, title: str) -> tuple[Section, Draw]:
    columns = {f"train_{part}": "training", f"val_{part}": "validation"}
    return "learning", partial(curve_picture, columns, title, part=part)


def _curve(column: str, title: str) -> tuple[Section, Draw]:
    return "learning", partial(curve_picture, {column: title}, title)


PICTURES: dict[str, tuple[Section, Draw]] = {
    "studies": ("studies", studies.forest_picture),
    "transfer": ("studies", studies.transfer_picture),
    "ordination-study": ("studies", studies.study_ordination),
    "ordination-target": ("studies", studies.target_ordination),
    "confusion": ("predictions", predictions.confusion_picture),
    "roc": ("predictions", predictions.roc_picture),
    "precision-recall": ("predictions", predictions.precision_recall_picture),
    "calibration": ("predictions", predictions.calibration_picture),
    "calibration-line": ("predictions", predictions.calibration_line_picture),
    "agreement": ("predictions", predictions.agreement_picture),
    "errors": ("predictions", predictions.residual_picture),
    "samples": ("predictions", predictions.samples_picture),
    "importance": ("asvs", asvs.importance_picture),
    "abundance": ("asvs", asvs.heat_picture),
    "heatmap": ("asvs", asvs.sample_heat_picture),
    "curve-loss": _curves("loss", "Loss"),
    "curve-target": _curves("target", "Loss of the target"),
    "curve-unifrac": _curves("unifrac", "Loss of UniFrac"),
    "curve-nucleotide": _curves("nucleotide", "Loss of masked nucleotides"),
    "curve-nucleotide_accuracy": _curves("nucleotide_accuracy", "Masked nucleotides named right"),
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
"""Every picture, in the order of the page: its name, unique in the page, its section and function.

To add a picture, write a `Draw` function and add a line here."""

TABLES: dict[Section, tuple[Tabulate, ...]] = {
    "studies": (studies.by_study_table,),
    "predictions": (
        predictions.comparison_table,
        lambda given: thresholds_table(given.run.scores),
        predictions.parts_table,
        predictions.calibration_table,
        predictions.inputs_table,
        predictions.confounders_table,
        predictions.folds_table,
        predictions.bins_table,
        predictions.classes_table,
        predictions.groups_table,
        predictions.worst_table,
        asvs.explanations_table,
    ),
    "asvs": (
        asvs.importance_table,
        partial(asvs.associations_table, kind="ASV"),
        partial(asvs.associations_table, kind="taxon"),
    ),
}
"""Every table of a section, in the order of the page."""
