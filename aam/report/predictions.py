"""Predictions in the report: pictures and tables of the accuracy and the errors of a model."""

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
    confusion,
    metric_text,
    quantile_bins,
    rows_of,
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
    HEADINGS,
    OTHER_FORM,
    Table,
    interval_note,
    metrics_table,
    models_table,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MAX_NUMBERED = 12  # classes of a confusion matrix whose cells show their counts
MAX_CURVES = 6  # most classes or studies with a curve
CALIBRATION_BINS = 10
_GRID = np.linspace(0, 1, 501)  # false positive rates, or recalls, of a drawn curve

BINS, WORST = 5, 10
MIN_SAMPLES = 3  # fewest samples of a listed group
MAX_CATEGORIES = 12  # most categories of a listed column
_BIAS_NOTE = "Mean error: predicted minus true; above 0, predictions are too high."


@styled
def confusion_picture(report: ReportInput) -> Drawing | None:
    """Draw the confusion matrix: percentages of the true class, counts below."""
    scored = report.run.scored
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
        f"{scored.metrics()['accuracy']:.1%} of {_samples(report)} are classified "
        "correctly. Each row (true class) adds up to 100 %."
    )
    if scored.studies:
        caption += " All studies together; the table of studies has the scores of each."
    numbers = pd.DataFrame(counts, scored.classes, scored.classes)
    return Drawing(figure, caption, f"Confusion matrix. {caption}", numbers=numbers)


@styled
def roc_picture(report: ReportInput) -> Drawing | None:
    """Draw ROC curves: one for two classes, else one for each frequent class against the rest.

    Curves of several folds are averaged, weighted by pairs of samples: the area is the AUC.
    """
    scored = report.run.partitions
    if scored is None or scored.probabilities is None:
        return None
    if (mean_auc := scored.metrics().get("auc")) is None:
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
            # Models of different folds share no threshold: curves are averaged, predictions not
            # pooled.
            pairs.append(positive.sum() * (~positive).sum())
        # As in the scores, the mean over the partitions.
        aucs = [class_auc(part, code, np.ones((1, len(part.actual))))[0] for part in parts]
        auc = float(np.mean(aucs))
        label = f"{shortened(scored.classes[code], 20)}, AUC {auc:.2f}"
        rates = np.average(curves, axis=0, weights=pairs)
        axes.plot([0, *_GRID], [0, *rates], color=SERIES[number], lw=2, label=label)
    axes.legend(loc="lower right")
    caption = "True and false positive rates at all thresholds. Diagonal: chance."
    if len(scored.classes) == 2:
        caption += f" Positive class: {scored.classes[1]} (--positive-class)."
    caption += " Only samples of the same fold are compared." if scored.folds else ""
    return Drawing(figure, caption, f"ROC curves, mean AUC {mean_auc:.3f}.")


@styled
def precision_recall_picture(report: ReportInput) -> Drawing | None:
    """Draw precision-recall curves; several folds are averaged by samples of the class."""
    scored = report.run.partitions
    if scored is None or scored.probabilities is None or len(np.unique(scored.actual)) < 2:
        return None
    from sklearn.metrics import average_precision_score, precision_recall_curve

    figure, axes = _unit_square("Precision and recall", "recall", "precision")
    for number, code in enumerate(_shown_classes(scored, with_first=True)):
        curves, averages, shares, samples = [], [], [], []
        for positive, score in _one_against_rest(scored, code):
            precision, recall, _ = precision_recall_curve(positive, score)
            # Steps: precision is not linear in recall between thresholds (Davis and Goadrich 2006).
            curves.append(precision[::-1][np.searchsorted(recall[::-1], _GRID)])
            averages.append(average_precision_score(positive, score))
            shares.append(positive.mean())
            samples.append(positive.sum())
        average = np.average(averages, weights=samples)
        label = f"{shortened(scored.classes[code], 20)}, {average:.2f}"
        mean = np.average(curves, axis=0, weights=samples)
        axes.step(_GRID, mean, color=SERIES[number], lw=2, label=label, where="post")
        chance = float(np.average(shares, weights=samples))
        axes.axhline(chance, color=SERIES[number], lw=1, ls=":")
    axes.legend(loc="best", title="average precision")
    caption = "Precision and recall of each class against the rest. Dotted: chance."
    caption += " Only samples of the same fold are compared." if scored.folds else ""
    of_class = np.bincount(scored.actual, minlength=len(scored.classes)) / len(scored.actual)
    shares_of_classes = (
        f"{name} {share:.0%}" for name, share in zip(scored.classes, of_class, strict=True)
    )
    description = f"Precision-recall curves. Samples of each class: {', '.join(shares_of_classes)}."
    return Drawing(figure, caption, description)


@styled
def calibration_picture(report: ReportInput) -> Drawing | None:
    """Draw the calibration curve: how often predictions are correct over their probability.

    The largest studies have a curve each: too high probabilities in one study and too low ones in
    another would cancel out.
    """
    scored = report.run.scored
    if scored is None or scored.probabilities is None or _lines(report):
        return None
    figure, axes = _unit_square("Calibration", "probability of predicted class", "fraction correct")
    axes.plot((0, 1), (0, 1), color=INK, lw=1, ls="--", alpha=0.6, label="calibrated")
    scored_of = {study: predictions for study, (_, predictions) in scored.by_study.items()} or {
        "": scored
    }
    largest = sorted(scored_of, key=lambda study: -len(scored_of[study].actual))[:MAX_CURVES]
    errors = []
    for colour, study in zip(SERIES, sorted(largest), strict=False):
        means, shares, numbers = _calibration_curve(scored_of[study])
        errors.append(float(np.average(np.abs(means - shares), weights=numbers)))
        label = f"{shortened(study, 20)}, {errors[-1]:.2f}" if study else None
        axes.plot(means, shares, color=colour, lw=2, marker="o", label=label)
        for point in zip(means, shares, numbers, strict=True):
            axes.annotate(
                str(point[2]), point[:2], textcoords="offset points", xytext=(6, -12), fontsize=8
            )
    if scored.studies:
        legend_below(axes, ncols=2, title="expected calibration error")
    else:
        axes.legend(loc="upper left")
    caption = (
        f"{_samples(report)}; numbers: samples at each point. Below the diagonal, probabilities "
        "are too high. "
    )
    if scored.studies:
        which = "each large study" if len(scored_of) > len(largest) else "each study"
        caption += f"One curve for {which}."
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
def calibration_line_picture(report: ReportInput) -> Drawing | None:
    """Draw true values over predictions in another study, with the calibration line.

    For two classes: the fraction of the positive class in bins of its predicted probability. More
    classes have only a table.
    """
    scored, lines = report.run.scored, _lines(report)
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
            "Calibration", f"predicted probability of {of_class}", f"fraction of {of_class}"
        )
        x = np.linspace(0.005, 0.995, 200)
        points = [(chance[rows].mean(), true[rows].mean()) for rows in bins]
        y = expit(intercept + slope * logit(x))
        ends, legend = (0.0, 1.0), f"samples in {len(bins)} bins"
    else:
        figure, axes = blank(4.6, 4.2)
        points = list(zip(scored.predicted, scored.actual, strict=True))
        values = np.concatenate([scored.actual, scored.predicted])
        margin = 0.04 * (values.max() - values.min() or 1.0)
        ends, legend = (values.min() - margin, values.max() + margin), "samples"
        x = np.array([scored.predicted.min(), scored.predicted.max()])
        y = intercept + slope * x
        axes.set(xlim=ends, ylim=ends, aspect="equal", title="Calibration")
        axes.set(xlabel=f"predicted {report.target}", ylabel=f"true {report.target}")
    axes.plot(ends, ends, color=INK, lw=1, ls="--", alpha=0.6, label="equal")
    axes.scatter(*zip(*points, strict=True), color=SERIES[0], label=legend, **_look(len(points)))
    axes.plot(x, y, color=SERIES[1], lw=2, label="calibration line")
    legend_below(axes, ncols=3)
    caption = line.sentence(report.unit)
    return Drawing(figure, caption, f"True values over predictions. {caption}")


def _lines(report: ReportInput) -> Sequence[CalibrationLine]:
    """Return the calibration lines in another study; none for held-out samples."""
    external = None if report.run.scores is None else report.run.scores.external
    return [] if external is None else external.calibration


@styled
def agreement_picture(report: ReportInput) -> Drawing | None:
    """Draw predicted against true values, with the diagonal and prediction intervals."""
    scored, limits_N2, target = report.run.scored, report.run.limits, report.target
    if scored is None or scored.classes:
        return None
    limits_N2 = None if limits_N2 is None else limits_N2[report.run.first_rows]
    figure, axes = blank(4.6, 4.2)
    values = np.concatenate([scored.actual, scored.predicted])
    if limits_N2 is not None:
        values = np.concatenate([values, limits_N2.ravel()])
        axes.vlines(
            scored.actual, *limits_N2.T, color=SERIES[0], lw=1, label="prediction interval",
            alpha=0.25 if len(limits_N2) <= 300 else 0.1, rasterized=len(limits_N2) > MAX_VECTORS,
        )  # fmt: skip
    margin = 0.04 * (values.max() - values.min() or 1.0)
    ends = (values.min() - margin, values.max() + margin)
    axes.plot(ends, ends, color=INK, lw=1, ls="--", alpha=0.6, label="equal")
    look = _look(len(scored.actual))
    axes.scatter(scored.actual, scored.predicted, color=SERIES[0], gid=POINTS, **look)
    axes.set(xlim=ends, ylim=ends, xlabel=f"true {target}", ylabel=f"predicted {target}")
    axes.set(title="Predicted against true", aspect="equal")
    axes.legend(loc="upper left")
    metrics = scored.metrics()
    r2 = "not defined" if metrics["r2"] is None else f"{metrics['r2']:.3f}"
    mae, rmse = (report.measured(metrics[name] or 0.0) for name in ("mae", "rmse"))
    caption = f"{_samples(report)}: R² {r2}, MAE {mae}, RMSE {rmse}."
    if report.run.repeat:
        caption = f"{_samples(report)}."  # the scores are means over all repeats
    if limits_N2 is not None:
        caption += " Vertical lines: prediction intervals."
    return Drawing(figure, caption, f"Predicted against true, {caption}", _point_names(report))


@styled
def residual_picture(report: ReportInput) -> Drawing | None:
    """Draw residuals: the error of each prediction over the true value."""
    scored = report.run.scored
    if scored is None or scored.classes:
        return None
    figure, axes = blank(4.6, 4.2)
    axes.axhline(0, color=INK, lw=1, ls="--", alpha=0.6)
    errors = scored.predicted - scored.actual
    axes.scatter(scored.actual, errors, color=SERIES[1], gid=POINTS, **_look(len(errors)))
    reach = 1.08 * float(np.abs(errors).max() or 1.0)
    axes.set(title="Errors", xlabel=f"true {report.target}", ylabel="predicted - true")
    axes.set_ylim(-reach, reach)
    half = report.measured(scored.metrics()["median_error"] or 0.0)
    bias = report.measured(float(np.mean(errors)), signed=True)
    caption = (
        f"Half of the predictions of {_samples(report)} are within {half} of the true value. Mean "
        f"error: {bias}."
    )
    description = f"Errors over true {report.target}. {caption}"
    return Drawing(figure, caption, description, _point_names(report))


@styled
def samples_picture(report: ReportInput) -> Drawing | None:
    """Draw the learning curve: scores of models trained on fewer samples."""
    curve = None if report.run.scores is None else report.run.scores.learning_curve
    if curve is None:
        return None
    name, points = HEADINGS.get(curve.metric, curve.metric), curve.points
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


def _shown_classes(scored: ScoredPredictions, with_first: bool = False) -> list[int]:
    """Return the frequent classes; of two only the positive one, unless `with_first`."""
    times = np.bincount(scored.actual, minlength=len(scored.classes))
    most_frequent = np.argsort(-times, kind="stable")[:MAX_CURVES]
    codes = [1] if len(scored.classes) == 2 and not with_first else sorted(most_frequent.tolist())
    return [code for code in codes if any(True for _ in _one_against_rest(scored, code))]


def _one_against_rest(
    scored: ScoredPredictions, code: int
) -> Iterator[tuple[npt.NDArray[np.bool_], F64]]:
    """Yield membership and probability of a class in each fold that has it and another class."""
    assert scored.probabilities is not None
    for fold in np.unique(scored.fold_N):
        in_fold = scored.fold_N == fold
        positive = scored.actual[in_fold] == code
        if positive.any() and not positive.all():
            yield positive, scored.probabilities[in_fold, code]


def _look(points: int) -> dict[str, Any]:
    dense = points > MAX_VECTORS
    size = 30 if points <= 300 else 14 if not dense else 6
    return {
        "s": size,
        "alpha": 0.4 if dense else 0.75,
        "linewidths": 0,
        "rasterized": dense,
    }


def _point_names(report: ReportInput) -> list[str]:
    run, scored = report.run, report.run.scored
    assert scored is not None
    numbers = zip(run.sample_ids, scored.actual, scored.predicted, strict=True)
    return [f"{name}\ntrue {true:.4g}, predicted {value:.4g}" for name, true, value in numbers]


def _samples(report: ReportInput) -> str:
    run = report.run
    samples = 0 if run.scored is None else len(run.scored.actual)
    text = f"{samples} {run.split} samples".replace("  ", " ")
    return f"{text} of the first repeat" if run.repeat else text


def comparison_table(report: ReportInput) -> Table | None:
    """Return the table of scores of the ensemble, each model and the baseline."""
    scored = report.run.scored
    if scored is None:
        return None
    ensemble = next(iter(report.models))
    names = [name for name in HEADINGS if name in report.models[ensemble]]
    differences = () if report.run.scores is None else report.run.scores.differences
    table = models_table(report.models, names, differences)
    note = table.note
    if "guess" in report.models:
        statistic = "class frequencies" if scored.classes else "mean"
        note = (
            f"Baseline: the {statistic} of the training samples for every sample. {note}".rstrip()
        )
    if scored.folds and "auc" in names:
        note += " AUC: fraction of pairs of samples of the same fold that are ranked correctly."
    title = f"Models on the same {len(scored.actual)} samples"
    return replace(table, title=title, note=note)


def thresholds_table(report: ReportInput) -> Table | None:
    """Return the table of sensitivity, specificity and predictive values by threshold."""
    scores = report.run.scores
    if scores is None or not scores.thresholds:
        return None
    rows = [
        [
            f"{metric_text('', at.threshold, 2)}, {at.rule}",
            *(score.text() for score in at.metrics.values()),
        ]
        for at in scores.thresholds
    ]
    note = "Predictive values are for the class frequencies of these samples. "
    if chosen := [metric_text("", threshold, 2) for threshold in scores.thresholds[-1].folds]:
        ends = " to ".join(dict.fromkeys((min(chosen), max(chosen))))
        note += f"Thresholds of the folds, chosen on left-out training predictions: {ends}. "
    else:
        note += "No threshold was chosen: there were no left-out training predictions. "
    names = scores.thresholds[0].metrics
    heads = ["Threshold", *(name.replace("_", " ").capitalize() for name in names)]
    title = f"At probability thresholds of {scores.classes[1]}"
    note += interval_note(score for at in scores.thresholds for score in at.metrics.values())
    return Table(title, heads, rows, note.rstrip())


def inputs_table(report: ReportInput) -> Table | None:
    """Return the table of scores of metadata alone, counts alone, and both."""
    inputs = None if report.run.scores is None else report.run.scores.inputs
    if inputs is None:
        return None
    names = [name for name in HEADINGS if all(name in model for model in inputs.models.values())]
    table = models_table(inputs.models, names)
    ends = (difference.sentence for difference in inputs.differences)
    note = " ".join([inputs.conclusion, *(f"{end[:1].upper()}{end[1:]}." for end in ends)])
    title = f"Metadata as input: {', '.join(inputs.columns)}"
    return replace(table, title=title, note=note, strong=(len(table.rows) - 1,))


def parts_table(report: ReportInput) -> Table | None:
    """Return the table of scores in subsets of another study: unlike training, by metadata."""
    external = None if report.run.scores is None else report.run.scores.external
    if external is None:
        return None
    names = [name for name in HEADINGS if name in external.parts[0].metrics]
    rows = [
        [
            f"{subset.column}: {subset.value}",
            str(subset.samples),
            *(subset.metrics[name].text(name) for name in names),
        ]
        for subset in external.parts
    ]
    note = (
        "unlike_training: yes if a sample is farther from the training samples than 95 % of the "
        "training samples are from each other."
    )
    if in_brackets := interval_note(s.metrics[name] for s in external.parts for name in names):
        note += f" {in_brackets[:-1]}; none with few samples."
    return Table("By subset", ["", "Samples", *(HEADINGS[name] for name in names)], rows, note)


def calibration_table(report: ReportInput) -> Table | None:
    """Return the table of calibration lines in other studies: slope, intercept, shift."""
    if len(lines := _lines(report)) < 2:
        return None
    names = ("slope", "intercept", "shift")
    rows = [
        [
            ", ".join(filter(None, (line.study, line.name))),
            *(getattr(line, name).text() for name in names),
        ]
        for line in lines
    ]
    note = (
        "Regression of the true values on the predictions; for a class, logistic regression of "
        "membership on the log odds of its probability. Calibrated predictions have slope 1, "
        "intercept 0 and shift 0. Slope below 1: too extreme; shift above 0: too low."
    )
    return Table("Calibration", ["", *map(str.capitalize, names)], rows, note)


def confounders_table(report: ReportInput) -> Table | None:
    """Return the table of possible confounders: metadata columns that predict the target."""
    scores = report.run.scores
    if scores is None or not scores.confounders:
        return None
    metric = scores.confounders[0].metric
    rows = [
        [
            column.column,
            Score(column.value, column.lower, column.upper).text(metric),
            OTHER_FORM if column.other_form else "possible confounder",
        ]
        for column in scores.confounders
    ]
    note = (
        "Each column alone predicts the held-out samples as well as the microbiome does: the model "
        "may only be picking up that column. The metadata cannot tell which one is the cause."
    )
    if (equal := scores.equal_depth) is not None and equal.confounder:
        note = f"{equal.sentence}. {note}"
    heads = ["", HEADINGS.get(metric, metric), "Role"]
    return Table("Columns that predict the target", heads, rows, note)


def folds_table(report: ReportInput) -> Table | None:
    """Return the table of metrics of each fold or repeat; studies have their own table."""
    scored = report.run.partitions
    if scored is None or not scored.folds or scored.studies:
        return None
    title = "By repeat" if scored.repeats else "By fold"
    return replace(metrics_table(summary(scored, "")), title=title)


def bins_table(report: ReportInput) -> Table | None:
    """Return the table of errors in bins of a numeric target."""
    scored = report.run.scored
    if scored is None or scored.classes:
        return None
    bins = quantile_bins(scored.actual, BINS)
    if len(bins) < 2:
        return None
    rows = [[name, *_errors(scored, rows_of_bin)] for name, rows_of_bin in bins.items()]
    heads = ["Samples", report.with_unit("MAE"), report.with_unit("Mean error")]
    title = f"By {report.run.target}{report.run.repeat}"
    return Table(title, [f"true {report.target}", *heads], rows, _BIAS_NOTE)


def classes_table(report: ReportInput) -> Table | None:
    """Return the table of precision, recall and F1 of each class."""
    scored = report.run.scored
    if scored is None or not scored.classes:
        return None
    from sklearn.metrics import precision_recall_fscore_support

    figures_of_classes = precision_recall_fscore_support(
        scored.actual, scored.predicted, labels=np.arange(len(scored.classes)), zero_division=0
    )
    rows = [
        [name, str(samples), *(f"{figure:.3f}" for figure in figures)]
        for name, *figures, samples in zip(scored.classes, *figures_of_classes, strict=True)
    ]
    note = (
        "Precision: fraction of the predictions of a class that are correct; recall: fraction of "
        "the samples of a class that are found."
    )
    note += " All studies together." if scored.studies else ""
    heads = ["", "Samples", "Precision", "Recall", "F1"]
    return Table(f"By class{report.run.repeat}", heads, rows, note)


def groups_table(report: ReportInput) -> Table | None:
    """Return the table of scores by category of the coloured columns, and of the worst groups."""
    run, scored = report.run, report.run.scored
    if scored is None:
        return None
    group = str(run.option("group_column") or "group")
    row_of = {name: row for row, name in enumerate(run.described_ids)}
    rows, note = [], ""
    for colour in report.colours:
        if colour.labels is None or colour.column in (run.target, group):
            continue
        labels = [colour.labels[row_of[name]] if name in row_of else "" for name in run.sample_ids]
        rows_by_value = _parts(labels)
        if len(rows_by_value) <= MAX_CATEGORIES:
            rows += [
                [f"{colour.column}: {k}", *_errors(scored, rows_of_value)]
                for k, rows_of_value in rows_by_value.items()
            ]
    if run.groups:
        groups = _parts([run.groups.get(name, "") for name in run.sample_ids])
        wrong = _wrongness(scored)
        worst = sorted(groups, key=lambda name: -float(wrong[groups[name]].mean()))[:BINS]
        rows += [[f"{group}: {name}", *_errors(scored, groups[name])] for name in worst]
        note = f"The {len(worst)} worst of {len(groups)} {group} groups. " if worst else ""
    if not rows:
        return None
    heads = ["", "Samples", report.with_unit("MAE"), report.with_unit("Mean error")]
    if scored.classes:
        heads[2:] = ["Accuracy", "Balanced"]
    return Table(
        f"By group{run.repeat}", heads, rows, note + ("" if scored.classes else _BIAS_NOTE)
    )


def _parts(labels: Sequence[str]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the rows of each label with at least `MIN_SAMPLES` samples."""
    rows_by_label = sorted(rows_of(labels).items())
    return {name: rows for name, rows in rows_by_label if name and len(rows) >= MIN_SAMPLES}


def worst_table(report: ReportInput) -> Table | None:
    """Return the table of the samples with the largest errors."""
    run, scored = report.run, report.run.scored
    if scored is None:
        return None
    wrong = _wrongness(scored)
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
    last = report.with_unit("Error") if not scored.classes else "Probability of the true class"
    heads = ["Sample", "True", "Predicted"]
    heads += [last] if not scored.classes or scored.probabilities is not None else []
    heads += ["Fold"] if scored.folds else []
    heads += [run.option("group_column") or "Group"] if run.groups else []
    return Table(f"The {len(rows)} worst samples{run.repeat}", heads, rows)


def _wrongness(scored: ScoredPredictions) -> F64:
    """Return the absolute errors, or 1 - the probability of the true class."""
    if not scored.classes:
        return np.asarray(np.abs(scored.predicted - scored.actual), dtype=np.float64)
    if scored.probabilities is None:
        return np.asarray(scored.predicted != scored.actual, dtype=np.float64)
    return np.asarray(1 - scored.probabilities[range(len(scored.actual)), scored.actual])


def _errors(scored: ScoredPredictions, rows: npt.NDArray[np.int64]) -> list[str]:
    if not len(rows):  # a quantile between equal values leaves a bin empty
        return ["0", "", ""]
    subset = scored.take(rows)
    metrics = subset.metrics()
    if scored.classes:
        figures = [metric_text(name, metrics[name]) for name in ("accuracy", "balanced_accuracy")]
    else:
        bias = float(np.mean(subset.predicted - subset.actual))
        figures = [significant(metrics["mae"] or 0.0), significant(bias, signed=True)]
    return [str(len(rows)), *figures]


PICTURES = {
    "confusion": confusion_picture,
    "roc": roc_picture,
    "precision-recall": precision_recall_picture,
    "calibration": calibration_picture,
    "calibration-line": calibration_line_picture,
    "agreement": agreement_picture,
    "errors": residual_picture,
    "samples": samples_picture,
}
TABLES = (
    comparison_table,
    thresholds_table,
    parts_table,
    calibration_table,
    inputs_table,
    confounders_table,
    folds_table,
    bins_table,
    classes_table,
    groups_table,
    worst_table,
)
