"""Predictions of the report: pictures and tables of how good a model is, and where it fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit, logit

from aam.arrays import F64, Rows
from aam.evaluation.external_validation import CalibrationLine
from aam.evaluation.intervals import Score
from aam.evaluation.metrics import (
    ScoredPredictions,
    class_auc,
    compute_metrics,
    confusion,
    metric_text,
    quantile_bins,
    summary,
)
from aam.number_format import significant
from aam.report.figures import (
    INK,
    MAX_VECTORS,
    POINTS,
    SERIES,
    Drawing,
    blank,
    heat_map,
    legend_below,
    shortened,
    styled,
)
from aam.report.run import ReportInput
from aam.report.terminal import (
    OTHER_FORM,
    TITLES,
    Table,
    metrics_table,
    models_table,
    with_interval,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MAX_NUMBERED = 12  # classes of a confusion matrix whose cells show their counts
MAX_CURVES = 6  # classes or studies with a curve of their own
CALIBRATION_BINS = 10
_GRID = np.linspace(0, 1, 501)  # false positive rates, or recalls, of a drawn curve

BINS, WORST = 5, 10
MIN_SAMPLES = 3  # of a group that is listed
MAX_CATEGORIES = 12  # of a column whose scores are listed
_BIAS_NOTE = "Mean error: predicted minus true; above 0 the model predicts too much."


@styled
def confusion_picture(given: ReportInput) -> Drawing | None:
    """Draw the confusion matrix: percentages of the true class as shades, with the counts below."""
    scored = given.run.scored
    if scored is None or not scored.classes:
        return None
    number = len(scored.classes)
    figure, axes = blank(4.6, 4.2)
    counts = confusion(scored.actual, scored.predicted, number)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    names = [shortened(name, 16) for name in scored.classes]
    heat_map(axes, shares, names, names)
    size = 10 if number <= 4 else 8 if number <= 8 else 6
    for (row, column), count in np.ndenumerate(counts) if number <= MAX_NUMBERED else ():
        share = float(shares[row, column])
        look: Any = {"color": "white" if share > 0.55 else INK, "ha": "center", "va": "center"}
        axes.text(column, row - 0.12, f"{share:.0%}", fontsize=size, weight="bold", **look)
        axes.text(column, row + 0.2, str(count), fontsize=size - 1, **look)
    axes.set(title="Confusion matrix", xlabel="predicted", ylabel="true", aspect="equal")
    caption = (
        f"{compute_metrics(scored)['accuracy']:.1%} of {_samples(given)} are predicted as their "
        "true class. Percentages are of the true class (rows)."
    )
    if scored.studies:
        caption += " All studies together; the table of the studies has their scores."
    numbers = pd.DataFrame(counts, scored.classes, scored.classes)
    return Drawing(figure, caption, f"Confusion matrix. {caption}", numbers=numbers)


@styled
def roc_picture(given: ReportInput) -> Drawing | None:
    """Draw ROC curves: one for two classes, else one for each frequent class against the rest.

    Of several folds the curves are averaged, weighted by their pairs of samples: the area is the
    AUC.
    """
    scored = _of_all_partitions(given)
    if scored is None or scored.probabilities is None:
        return None
    if (mean_auc := compute_metrics(scored).get("auc")) is None:
        return None
    from sklearn.metrics import roc_curve

    figure, axes = _unit_square("ROC", "false positive rate", "true positive rate")
    axes.plot((0, 1), (0, 1), color=INK, lw=1, ls="--", alpha=0.6)
    parts = [part for _, part in scored.partitions] if scored.repeats else [scored]
    for number, code in enumerate(_shown_classes(scored)):
        curves, pairs = [], []
        for positive, score in _one_against_rest(scored, code):
            wrong, right, _ = roc_curve(positive, score, drop_intermediate=False)
            curves.append(np.interp(_GRID, wrong, right))
            # Curves are averaged, not predictions pooled: models of different folds have no common
            # threshold.
            pairs.append(positive.sum() * (~positive).sum())
        # As in the scores, the mean over the partitions.
        aucs = [class_auc(part, code, np.ones((1, len(part.actual))))[0] for part in parts]
        auc = float(np.mean(aucs))
        label = f"{shortened(scored.classes[code], 20)}, AUC {auc:.2f}"
        rates = np.average(curves, axis=0, weights=pairs)
        axes.plot([0, *_GRID], [0, *rates], color=SERIES[number], lw=2, label=label)
    axes.legend(loc="lower right")
    caption = "True against false positives over all thresholds; the diagonal is chance."
    if len(scored.classes) == 2:
        caption += f" Positive is {scored.classes[1]} (--positive-class)."
    caption += " Samples of the same fold are compared." if scored.folds else ""
    return Drawing(figure, caption, f"ROC curves, mean AUC {mean_auc:.3f}.")


@styled
def precision_recall_picture(given: ReportInput) -> Drawing | None:
    """Draw precision over recall of the same classes; dotted: the precision of chance.

    Of several folds the curves are averaged, weighted by the samples of the class.
    """
    scored = _of_all_partitions(given)
    if scored is None or scored.probabilities is None or len(np.unique(scored.actual)) < 2:
        return None
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
        label = (
            f"{shortened(scored.classes[code], 20)}, {np.average(averages, weights=samples):.2f}"
        )
        mean = np.average(curves, axis=0, weights=samples)
        axes.step(_GRID, mean, color=SERIES[number], lw=2, label=label, where="post")
        chance = float(np.average(shares, weights=samples))
        axes.axhline(chance, color=SERIES[number], lw=1, ls=":")
    axes.legend(loc="best", title="average precision")
    caption = "Precision over recall of each class against the rest; dotted: chance."
    caption += " Samples of the same fold are compared." if scored.folds else ""
    of_class = np.bincount(scored.actual, minlength=len(scored.classes)) / len(scored.actual)
    parts = (f"{name} {share:.0%}" for name, share in zip(scored.classes, of_class, strict=True))
    description = f"Precision-recall curves. Samples of each class: {', '.join(parts)}."
    return Drawing(figure, caption, description)


@styled
def calibration_picture(given: ReportInput) -> Drawing | None:
    """Draw how often the predicted class is true over its predicted probability.

    Of several studies it is a curve for each of the largest: a model that is too certain in one and
    too doubtful in another would look calibrated in all samples.
    """
    scored = given.run.scored
    if scored is None or scored.probabilities is None or _lines(given):
        return None
    figure, axes = _unit_square(
        "Calibration", "probability of the predicted class", "part that is true"
    )
    axes.plot((0, 1), (0, 1), color=INK, lw=1, ls="--", alpha=0.6, label="equal")
    parts = {study: part for study, (_, part) in scored.by_study.items()} or {"": scored}
    largest = sorted(parts, key=lambda study: -len(parts[study].actual))[:MAX_CURVES]
    errors = []
    for colour, study in zip(SERIES, sorted(largest), strict=False):
        means, shares, numbers = _calibration_curve(parts[study])
        errors.append(float(np.average(np.abs(means - shares), weights=numbers)))
        label = f"{shortened(study, 20)}, {errors[-1]:.2f}" if study else None
        axes.plot(means, shares, color=colour, lw=2, marker="o", label=label)
        for place in zip(means, shares, numbers, strict=True):
            axes.annotate(
                str(place[2]), place[:2], textcoords="offset points", xytext=(6, -12), fontsize=8
            )
    if scored.studies:
        legend_below(axes, ncols=2, title="expected calibration error")
    else:
        axes.legend(loc="upper left")
    caption = "Numbers of samples at the points. Below the line the model is too certain. "
    if scored.studies:
        which = "the largest studies" if len(parts) > len(largest) else "each study"
        caption += f"A curve for {which}."
    else:
        caption += f"Expected calibration error: {errors[0]:.3f}."
    return Drawing(figure, caption, f"Calibration curve. {caption}")


def _calibration_curve(scored: ScoredPredictions) -> tuple[F64, F64, Rows]:
    assert scored.probabilities is not None
    chance = scored.probabilities[np.arange(len(scored.predicted)), scored.predicted]
    bins = np.minimum((chance * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    _, bins, numbers = np.unique(bins, return_inverse=True, return_counts=True)
    means = np.bincount(bins, chance) / numbers
    return means, np.bincount(bins, scored.predicted == scored.actual) / numbers, numbers


@styled
def calibration_line_picture(given: ReportInput) -> Drawing | None:
    """Draw the truth over the predictions of another study, with the line that calibrates them.

    Of two classes it is the part that is of the second class in bins of its predicted probability;
    of more there is a table alone.
    """
    scored, lines = given.run.scored, _lines(given)
    if scored is None or len(lines) != 1:
        return None
    line, of_class = lines[0], lines[0].name
    slope, intercept = line.slope.value, line.intercept.value
    if slope is None or intercept is None:
        return None
    if of_class and scored.probabilities is not None:
        chance, true = scored.probabilities[:, scored.classes.index(of_class)], scored.actual == 1
        bins = list(filter(len, quantile_bins(chance, CALIBRATION_BINS).values()))
        figure, axes = _unit_square(
            "Calibration", f"predicted probability of {of_class}", f"part that is {of_class}"
        )
        x, points = (
            np.linspace(0.005, 0.995, 200),
            [(chance[i].mean(), true[i].mean()) for i in bins],
        )
        y = expit(intercept + slope * logit(x))
        ends, legend = (0.0, 1.0), f"samples in {len(bins)} parts"
    else:
        figure, axes = blank(4.6, 4.2)
        points = list(zip(scored.predicted, scored.actual, strict=True))
        both = np.concatenate([scored.actual, scored.predicted])
        margin = 0.04 * (both.max() - both.min() or 1.0)
        ends, legend = (both.min() - margin, both.max() + margin), "samples"
        x = np.array([scored.predicted.min(), scored.predicted.max()])
        y = intercept + slope * x
        axes.set(xlim=ends, ylim=ends, aspect="equal", title="Calibration")
        axes.set(xlabel=f"predicted {given.target}", ylabel=f"true {given.target}")
    axes.plot(ends, ends, color=INK, lw=1, ls="--", alpha=0.6, label="equal")
    axes.scatter(*zip(*points, strict=True), color=SERIES[0], label=legend, **_look(len(points)))
    axes.plot(x, y, color=SERIES[1], lw=2, label="calibration line")
    legend_below(axes, ncols=3)
    caption = line.sentence(given.unit)
    return Drawing(figure, caption, f"Truth over predictions. {caption}")


def _lines(given: ReportInput) -> Sequence[CalibrationLine]:
    """Return the calibration lines in another study; none of held-out samples."""
    external = None if given.run.scores is None else given.run.scores.external
    return [] if external is None else external.calibration


@styled
def agreement_picture(given: ReportInput) -> Drawing | None:
    """Draw predicted against true numbers, with the line of equality and prediction intervals."""
    scored, limits_N2, target = given.run.scored, given.run.limits, given.target
    if scored is None or scored.classes:
        return None
    figure, axes = blank(4.6, 4.2)
    both = np.concatenate([scored.actual, scored.predicted])
    if limits_N2 is not None:
        both = np.concatenate([both, limits_N2.ravel()])
        axes.vlines(
            scored.actual, *limits_N2.T, color=SERIES[0], lw=1, label="prediction interval",
            alpha=0.25 if len(limits_N2) <= 300 else 0.1, rasterized=len(limits_N2) > MAX_VECTORS,
        )  # fmt: skip
    margin = 0.04 * (both.max() - both.min() or 1.0)
    ends = (both.min() - margin, both.max() + margin)
    axes.plot(ends, ends, color=INK, lw=1, ls="--", alpha=0.6, label="equal")
    look = _look(len(scored.actual))
    axes.scatter(scored.actual, scored.predicted, color=SERIES[0], gid=POINTS, **look)
    axes.set(xlim=ends, ylim=ends, xlabel=f"true {target}", ylabel=f"predicted {target}")
    axes.set(title="Predicted against true", aspect="equal")
    axes.legend(loc="upper left")
    metrics = compute_metrics(scored)
    r2 = "not defined" if metrics["r2"] is None else f"{metrics['r2']:.3f}"
    errors = [f"{TITLES[name]} {given.measured(metrics[name] or 0.0)}" for name in ("mae", "rmse")]
    caption = f"{_samples(given)}: R² {r2}, {', '.join(errors)}."
    if given.run.partitions is not None and given.run.partitions.repeats:
        caption = f"{_samples(given)}."  # the scores of the run are means over all partitions
    if limits_N2 is not None:
        caption += " Lines: prediction intervals."
    return Drawing(figure, caption, f"Predicted against true, {caption}", _point_names(given))


@styled
def residual_picture(given: ReportInput) -> Drawing | None:
    """Draw the error of each prediction over the true number."""
    scored = given.run.scored
    if scored is None or scored.classes:
        return None
    figure, axes = blank(4.6, 4.2)
    axes.axhline(0, color=INK, lw=1, ls="--", alpha=0.6)
    errors = scored.predicted - scored.actual
    axes.scatter(scored.actual, errors, color=SERIES[1], gid=POINTS, **_look(len(errors)))
    reach = 1.08 * float(np.abs(errors).max() or 1.0)
    axes.set(title="Errors", xlabel=f"true {given.target}", ylabel="predicted - true")
    axes.set_ylim(-reach, reach)
    half = given.measured(compute_metrics(scored)["median_error"] or 0.0)
    bias = given.measured(float(np.mean(errors)), signed=True)
    caption = f"Half of the predictions are within {half} of the truth; the mean error is {bias}."
    description = f"Errors over true {given.target}. {caption}"
    return Drawing(figure, caption, description, _point_names(given))


@styled
def samples_picture(given: ReportInput) -> Drawing | None:
    """Draw the score of models of fewer samples: would more samples help?"""
    curve = None if given.run.scores is None else given.run.scores.learning_curve
    if curve is None:
        return None
    name, points = TITLES.get(curve.metric, curve.metric), curve.points
    figure, axes = blank(4.6, 4.2)
    numbers, values, *ends = np.array([astuple(point) for point in points], dtype=np.float64).T
    errors = np.nan_to_num(np.abs(ends - values))
    look: dict[str, Any] = {"color": SERIES[0], "lw": 2, "elinewidth": 1, "capsize": 3}
    axes.errorbar(numbers, values, yerr=errors, marker="o", **look)
    axes.set(title="Would more samples help?", xscale="log", ylabel=name)
    axes.set_xlabel(f"{curve.units} in training")
    axes.set_xticks(numbers, [f"{number:,.0f}" for number in numbers])
    axes.minorticks_off()
    caption = f"{name} of a {curve.model} trained on fewer {curve.units}. {curve.sentence}"
    return Drawing(figure, caption, f"Learning curve. {caption}")


def _unit_square(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure, axes = blank(4.6, 4.2)
    axes.set(title=title, xlabel=x, ylabel=y, aspect="equal")
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    return figure, axes


def _shown_classes(scored: ScoredPredictions, both: bool = False) -> list[int]:
    """Return frequent classes with a curve; of two the second, with `both` the first as well."""
    times = np.bincount(scored.actual, minlength=len(scored.classes))
    most_frequent = np.argsort(-times, kind="stable")[:MAX_CURVES]
    codes = [1] if len(scored.classes) == 2 and not both else sorted(most_frequent.tolist())
    return [code for code in codes if any(True for _ in _one_against_rest(scored, code))]


def _of_all_partitions(given: ReportInput) -> ScoredPredictions | None:
    """Return the predictions of which the scores of the run are: of every partition into folds."""
    run = given.run
    return run.partitions if run.partitions is not None and run.partitions.repeats else run.scored


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


def _look(points: int) -> dict[str, Any]:
    many = points > MAX_VECTORS
    size = 30 if points <= 300 else 14 if not many else 6
    return {"s": size, "alpha": 0.4 if many else 0.75, "linewidths": 0, "rasterized": many}


def _point_names(given: ReportInput) -> list[str]:
    run, scored = given.run, given.run.scored
    assert scored is not None
    numbers = zip(run.sample_ids, scored.actual, scored.predicted, strict=True)
    return [
        f"{name}\ntrue {true:.4g}, predicted {predicted:.4g}" for name, true, predicted in numbers
    ]


def _samples(given: ReportInput) -> str:
    run = given.run
    samples = 0 if run.scored is None else len(run.scored.actual)
    text = f"{samples} {run.part} samples".replace("  ", " ")
    several = run.partitions is not None and run.partitions.repeats
    return f"{text} of the first partition into folds" if several else text


def comparison_table(given: ReportInput) -> Table | None:
    """Compare the model with its members and the guess on the same samples."""
    scored = given.run.scored
    if scored is None:
        return None
    ensemble = next(iter(given.models))
    names = [name for name in TITLES if name in given.models[ensemble]]
    differences = () if given.run.scores is None else given.run.scores.differences
    table = models_table(given.models, names, differences)
    note = table.note
    if "guess" in given.models:
        what = "class frequencies" if scored.classes else "mean"
        note = f"Guess: the {what} of the training samples, for every sample. {note}"
    if scored.folds and "auc" in names:
        note += " AUC: part of the pairs of samples of the same fold that are in the right order."
    title = f"Compared on the same {len(scored.actual)} samples"
    return replace(table, title=title, note=note)


def inputs_table(given: ReportInput) -> Table | None:
    """Compare metadata alone, counts alone, and both, of a model that reads metadata columns."""
    inputs = None if given.run.scores is None else given.run.scores.inputs
    if inputs is None:
        return None
    names = [name for name in TITLES if all(name in model for model in inputs.models.values())]
    table = models_table(inputs.models, names)
    ends = (difference.sentence for difference in inputs.differences)
    note = " ".join([inputs.conclusion, *(f"{end[:1].upper()}{end[1:]}." for end in ends)])
    title = f"Metadata as input: {', '.join(inputs.columns)}"
    return replace(table, title=title, note=note, strong=(len(table.rows) - 1,))


def parts_table(given: ReportInput) -> Table | None:
    """List the scores of the parts of another study: by likeness to the training, by metadata."""
    external = None if given.run.scores is None else given.run.scores.external
    if external is None:
        return None
    names = [name for name in TITLES if name in external.parts[0].metrics]
    rows = [
        [
            f"{part.column}: {part.value}",
            str(part.samples),
            *(with_interval(name, part.metrics[name]) for name in names),
        ]
        for part in external.parts
    ]
    note = (
        "unlike_training: yes for a sample that is farther from the training samples than 95 % of "
        "these are from each other. In brackets: 95 % interval; none with few samples."
    )
    return Table(
        "By part of the study", ["", "Samples", *(TITLES[name] for name in names)], rows, note
    )


def calibration_table(given: ReportInput) -> Table | None:
    """List slope, intercept and shift of the calibration in another study or several of them."""
    if len(lines := _lines(given)) < 2:
        return None
    names = ("slope", "intercept", "shift")
    rows = [
        [
            ", ".join(filter(None, (line.study, line.name))),
            *(with_interval("", getattr(line, name)) for name in names),
        ]
        for line in lines
    ]
    note = (
        "Line of the truth on the predictions; of a class that of whether a sample is of it, on "
        "the log odds of its predicted probability. Slope 1, intercept 0 and shift 0 where they "
        "agree; below 1 predictions are too extreme, with a shift above 0 too low."
    )
    return Table("Calibration", ["", *map(str.capitalize, names)], rows, note)


def confounders_table(given: ReportInput) -> Table | None:
    """List other columns of the metadata that predict the target by themselves."""
    scores = given.run.scores
    if scores is None or not scores.confounders:
        return None
    metric = scores.confounders[0].metric
    rows = [
        [
            column.column,
            with_interval(metric, Score(column.value, column.lower, column.upper)),
            OTHER_FORM if column.other_form else "possible confounder",
        ]
        for column in scores.confounders
    ]
    note = (
        "Each column alone predicts the held-out samples as well as the table does, so what the "
        "model reads may be that column. Only the metadata can tell which of them is the cause."
    )
    if (equal := scores.equal_depth) is not None and equal.confounder:
        note = f"{equal.sentence}. {note}"
    heads = ["", TITLES.get(metric, metric), "it is"]
    return Table("Columns that predict the target", heads, rows, note)


def folds_table(given: ReportInput) -> Table | None:
    """List the metrics of each fold; those that are studies have a table of their own."""
    scored = given.run.partitions
    if scored is None or not scored.folds or scored.studies:
        return None
    title = "By partition into folds" if scored.repeats else "By fold"
    return replace(metrics_table(summary(scored, "")), title=title)


def bins_table(given: ReportInput) -> Table | None:
    """List the errors by bin of a numeric target, with about equal numbers of samples."""
    scored = given.run.scored
    if scored is None or scored.classes:
        return None
    bins = quantile_bins(scored.actual, BINS)
    if len(bins) < 2:
        return None
    rows = [[name, *_errors(scored, inside)] for name, inside in bins.items()]
    heads = ["Samples", given.with_unit("MAE"), given.with_unit("Mean error")]
    return Table(f"By {given.run.target}", [f"true {given.target}", *heads], rows, _BIAS_NOTE)


def classes_table(given: ReportInput) -> Table | None:
    """List precision, recall and F1 of each class."""
    scored = given.run.scored
    if scored is None or not scored.classes:
        return None
    from sklearn.metrics import precision_recall_fscore_support

    parts = precision_recall_fscore_support(
        scored.actual, scored.predicted, labels=np.arange(len(scored.classes)), zero_division=0
    )
    rows = [
        [name, str(samples), *(f"{figure:.3f}" for figure in figures)]
        for name, *figures, samples in zip(scored.classes, *parts, strict=True)
    ]
    note = "Precision: right among those predicted to be of the class; recall: found of the class."
    note += " All studies together." if scored.studies else ""
    return Table("By class", ["", "Samples", "Precision", "Recall", "F1"], rows, note)


def groups_table(given: ReportInput) -> Table | None:
    """List the scores of each category of the coloured columns, and of the worst groups."""
    run, scored = given.run, given.run.scored
    if scored is None:
        return None
    group = str(run.option("group_column") or "group")
    place = {name: row for row, name in enumerate(run.described_ids)}
    rows, note = [], ""
    for colour in given.colours:
        if colour.labels is None or colour.column in (run.target, group):
            continue
        labels = [colour.labels[place[name]] if name in place else "" for name in run.sample_ids]
        parts = _parts(labels)
        if len(parts) <= MAX_CATEGORIES:
            rows += [[f"{colour.column}: {k}", *_errors(scored, part)] for k, part in parts.items()]
    if run.groups:
        parts = _parts([run.groups.get(name, "") for name in run.sample_ids])
        wrong = wrongness(scored)
        worst = sorted(parts, key=lambda name: -float(wrong[parts[name]].mean()))[:BINS]
        rows += [[f"{group}: {name}", *_errors(scored, parts[name])] for name in worst]
        note = f"Of {len(parts)} groups of {group}, the {len(worst)} worst. " if worst else ""
    if not rows:
        return None
    heads = ["", "Samples", given.with_unit("MAE"), given.with_unit("Mean error")]
    if scored.classes:
        heads[2:] = ["Accuracy", "Balanced"]
    return Table("By group", heads, rows, note + ("" if scored.classes else _BIAS_NOTE))


def _parts(labels: Sequence[str]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the rows of each label but "", of at least `MIN_SAMPLES` samples."""
    array = np.array(labels)
    parts = {name: np.flatnonzero(array == name) for name in sorted({*labels} - {""})}
    return {name: rows for name, rows in parts.items() if len(rows) >= MIN_SAMPLES}


def worst_table(given: ReportInput) -> Table | None:
    """List the samples with the largest errors."""
    run, scored = given.run, given.run.scored
    if scored is None:
        return None
    wrong = wrongness(scored)
    rows = []
    for row in np.argsort(-wrong, kind="stable")[:WORST].tolist():
        name = run.sample_ids[row]
        if scored.classes:
            cells = [scored.classes[scored.actual[row]], scored.classes[scored.predicted[row]]]
            if scored.probabilities is not None:
                cells.append(f"{scored.probabilities[row, scored.actual[row]]:.3f}")
        else:
            values = (scored.actual[row], scored.predicted[row])
            cells = [f"{value:.4g}" for value in values]
            cells.append(f"{values[1] - values[0]:+.4g}")
        more = [scored.folds[row]] if scored.folds else []
        more += [run.groups.get(name, "")] if run.groups else []
        rows.append([name, *cells, *more])
    last = given.with_unit("Error") if not scored.classes else "Probability of the true class"
    heads = ["Sample", "True", "Predicted"]
    heads += [last] if not scored.classes or scored.probabilities is not None else []
    heads += ["Fold"] if scored.folds else []
    heads += [run.option("group_column") or "Group"] if run.groups else []
    return Table(f"The {len(rows)} worst samples", heads, rows)


def wrongness(scored: ScoredPredictions) -> F64:
    """Return how wrong each prediction is: absolute error, or 1 - probability of the true class."""
    if not scored.classes:
        return np.asarray(np.abs(scored.predicted - scored.actual), dtype=np.float64)
    if scored.probabilities is None:
        return np.asarray(scored.predicted != scored.actual, dtype=np.float64)
    return np.asarray(1 - scored.probabilities[range(len(scored.actual)), scored.actual])


def _errors(scored: ScoredPredictions, rows: npt.NDArray[np.int64]) -> list[str]:
    if not len(rows):  # an interpolated quantile between equal values leaves a bin empty
        return ["0", "", ""]
    part = scored.take(rows)
    metrics = compute_metrics(part)
    if scored.classes:
        figures = [metric_text(name, metrics[name]) for name in ("accuracy", "balanced_accuracy")]
    else:
        bias = float(np.mean(part.predicted - part.actual))
        figures = [significant(metrics["mae"] or 0.0), significant(bias, signed=True)]
    return [str(len(rows)), *figures]
