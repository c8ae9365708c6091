"""Registry of the report's tables: how good a model is, for which samples, and where it fails."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from aam.data.error_analysis import quantile_bins
from aam.data.metrics import ScoredPredictions, compute_metrics, summary
from aam.members.scores import Score
from aam.number_format import metric_text, significant
from aam.report.asvs import importance_table
from aam.report.base import ReportInput, Section, Tabulate
from aam.report.models import GUESS, OWN
from aam.report.terminal import TITLES, Table, digits_of, metric_cells, spread

BINS = 5
WORST = 10

LEAST = 3
"""Samples of a group that is listed."""

MOST_CATEGORIES = 12
"""Categories of a column whose scores are listed."""

_BIAS_NOTE = "Mean error: predicted minus true; above 0 the model predicts too much."


def tabulate(section: Section, given: ReportInput) -> list[Table]:
    """Return the tables of a section in the order of `TABLES`."""
    made = (make(given) for place, make in TABLES if place == section)
    return [table for table in made if table is not None]


def comparison_table(given: ReportInput) -> Table | None:
    """Compare the model with other models and a guess on the same samples."""
    scored, models = given.run.scored, given.models
    if scored is None or models is None:
        return None
    names = [name for name in TITLES if name in models.metrics[OWN]]
    rows = [
        [model, *(with_interval(name, found.get(name)) for name in names)]
        for model, found in models.metrics.items()
    ]
    note = "In brackets: 95 % interval, by bootstrap."
    if GUESS in models.metrics:
        what = "class frequencies" if scored.classes else "mean"
        note = f"Guess: the {what} of the training samples, for every sample. {note}"
    if scored.folds and "auc" in names:
        note += " AUC: part of the pairs of samples of the same fold that are in the right order."
    title = f"Compared on the same {len(scored.actual)} samples"
    return Table(title, ["", *(TITLES[name] for name in names)], rows, note, (0,))


def inputs_table(given: ReportInput) -> Table | None:
    """Compare metadata alone, counts alone, and both, of a model that reads metadata columns."""
    inputs = (given.run.scores or {}).get("inputs")
    if inputs is None:
        return None
    found = {
        model: {name: Score(**score) for name, score in metrics.items()}
        for model, metrics in inputs["models"].items()
    }
    names = [name for name in TITLES if all(name in one for one in found.values())]
    rows = [
        [model, *(with_interval(name, metrics[name]) for name in names)]
        for model, metrics in found.items()
    ]
    sentences = [one["sentence"] for one in inputs["differences"]]
    ends = (f"{one[:1].upper()}{one[1:]}." for one in sentences)
    note = " ".join([inputs["conclusion"], *ends])
    title = f"Metadata as input: {', '.join(inputs['columns'])}"
    return Table(title, ["", *(TITLES[name] for name in names)], rows, note, (len(rows) - 1,))


def confounders_table(given: ReportInput) -> Table | None:
    """List other columns of the metadata that predict the target by themselves."""
    found = (given.run.scores or {}).get("confounders")
    if not found:
        return None
    metric = found[0]["metric"]
    rows = [
        [
            one["column"],
            with_interval(metric, Score(one["value"], one["lower"], one["upper"])),
            # Scores of earlier versions have other_units, or neither.
            "another form of the target, or completely confounded with it"
            if one.get("other_form", one.get("other_units"))
            else "possible confounder",
        ]
        for one in found
    ]
    note = (
        "Each column alone predicts the held-out samples as well as the table does, so what the "
        "model reads may be that column. Only the metadata can tell which of them is the cause."
    )
    return Table(
        "Columns that predict the target", ["", TITLES.get(metric, metric), "it is"], rows, note
    )


def verdict(given: ReportInput) -> str:
    """Return sentences on whether the model is better than a guess and than other models."""
    if given.models is None:
        return ""
    metrics, guess = given.models.metrics[OWN], given.models.metrics.get(GUESS, {})
    names = ("r2", "weighted_kappa", "auc", "accuracy", "mae")
    sentences = list(given.models.sentences)
    defined = (name for name in names if name in metrics and metrics[name].value is not None)
    if (name := next(defined, None)) is not None:
        score, guessed = metrics[name], guess[name].value if name in guess else None
        first = f"{TITLES[name]} is {with_interval(name, score)}"
        if guessed is not None:
            digits = digits_of(score.lower, score.upper)
            first += f"; a guess has {metric_text(name, guessed, digits)}"
            if score.lower is not None and score.upper is not None:
                first += ", which is within the interval" * (score.lower <= guessed <= score.upper)
        sentences.insert(0, f"{first}.")
    if given.models.chance:
        sentences.append(given.models.chance)
    if interval := (given.run.scores or {}).get("interval"):
        sentences.append(
            f"Prediction interval: {interval['coverage']:.0%} of new samples are expected within "
            f"{given.measured(interval['half_width'])} of their prediction; of these samples "
            f"{interval['covered']:.0%} are."
        )
    return " ".join(sentences)


def with_interval(name: str, score: Score | None) -> str:
    """Format a metric and its interval, with the digits that the interval supports."""
    if score is None:
        return metric_text(name, None)
    digits = digits_of(score.lower, score.upper)
    value, lower, upper = (
        metric_text(name, one, digits) for one in (score.value, score.lower, score.upper)
    )
    if score.lower is None or score.upper is None:
        return value
    return f"{value} ({lower} to {upper})"


def folds_table(given: ReportInput) -> Table | None:
    """List the metrics of each fold."""
    scored = given.run.scored
    if scored is None or not scored.folds:
        return None
    found = summary(scored, given.run.target or "")
    names = [name for name in TITLES if name in found["overall"]]
    rows = [[f"fold {fold}", *metric_cells(names, one)] for fold, one in found["folds"].items()]
    spreads = (spread(name, found["folds"]) for name in names)
    rows.append(["mean ± sd", *(" ± ".join(filter(None, both)) for both in spreads)])
    rows.append(["all samples", *metric_cells(names, found["overall"])])
    return Table("By fold", ["", *(TITLES[name] for name in names)], rows, "", (len(rows) - 1,))


def bins_table(given: ReportInput) -> Table | None:
    """List the errors by bin of a numeric target, with about equal numbers of samples."""
    scored = given.run.scored
    if scored is None or scored.classes:
        return None
    bins = quantile_bins(scored.actual, BINS)
    if len(bins) < 2:
        return None
    rows = [[name, *_errors(scored, rows_of_bin)] for name, rows_of_bin in bins.items()]
    heads = [f"true {given.target}", *_heads(given)]
    return Table(f"By {given.run.target}", heads, rows, _BIAS_NOTE)


def groups_table(given: ReportInput) -> Table | None:
    """List the scores of each category of the coloured columns, and of the worst groups."""
    run, scored = given.run, given.run.scored
    if scored is None:
        return None
    group = str(run.option("split", "group_column") or "group")
    place = {name: row for row, name in enumerate(run.described_ids)}
    rows, note = [], ""
    for colour in given.colours:
        if colour.labels is None or colour.column in (run.target, group):
            continue
        labels = [colour.labels[place[name]] if name in place else "" for name in run.sample_ids]
        parts = _parts(labels)
        if len(parts) <= MOST_CATEGORIES:
            rows += [[f"{colour.column}: {k}", *_errors(scored, own)] for k, own in parts.items()]
    if run.groups:
        parts = _parts([run.groups.get(name, "") for name in run.sample_ids])
        wrong = wrongness(scored)
        worst = sorted(parts, key=lambda name: -float(wrong[parts[name]].mean()))[:BINS]
        rows += [[f"{group}: {name}", *_errors(scored, parts[name])] for name in worst]
        note = f"Of {len(parts)} groups of {group}, the {len(worst)} worst. " if worst else ""
    if not rows:
        return None
    note += "" if scored.classes else _BIAS_NOTE
    return Table("By group", ["", *_heads(given)], rows, note)


def _parts(labels: Sequence[str]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the rows of each label but "", of at least `LEAST` samples."""
    array = np.array(labels)
    parts = {name: np.flatnonzero(array == name) for name in sorted({*labels} - {""})}
    return {name: rows for name, rows in parts.items() if len(rows) >= LEAST}


def classes_table(given: ReportInput) -> Table | None:
    """List precision, recall and F1 of each class."""
    scored = given.run.scored
    if scored is None or not scored.classes:
        return None
    from sklearn.metrics import precision_recall_fscore_support

    codes = np.arange(len(scored.classes))
    columns = precision_recall_fscore_support(
        scored.actual, scored.predicted, labels=codes, zero_division=0
    )
    rows = [
        [name, str(int(columns[3][k])), *(f"{columns[part][k]:.3f}" for part in range(3))]
        for k, name in enumerate(scored.classes)
    ]
    note = "Precision: right among those predicted to be of the class; recall: found of the class."
    return Table("By class", ["", "Samples", "Precision", "Recall", "F1"], rows, note)


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
    heads += [run.option("split", "group_column") or "Group"] if run.groups else []
    return Table(f"The {len(rows)} worst samples", heads, rows)


def wrongness(scored: ScoredPredictions) -> npt.NDArray[np.float64]:
    """Return how wrong each prediction is: absolute error, or 1 - probability of the true class."""
    if not scored.classes:
        errors: npt.NDArray[np.float64] = np.abs(scored.predicted - scored.actual)
        return errors
    if scored.probabilities is None:
        wrong: npt.NDArray[np.float64] = (scored.predicted != scored.actual).astype(np.float64)
        return wrong
    true: npt.NDArray[np.float64] = scored.probabilities[range(len(scored.actual)), scored.actual]
    return 1 - true


def _heads(given: ReportInput) -> list[str]:
    """Return the titles of the columns of `_errors`."""
    if given.run.scored is not None and given.run.scored.classes:
        return ["Samples", "Accuracy", "Balanced"]
    return ["Samples", given.with_unit("MAE"), given.with_unit("Mean error")]


def _errors(scored: ScoredPredictions, rows: npt.NDArray[np.int64]) -> list[str]:
    """Format number, and MAE and mean error or accuracies, of some samples."""
    if not len(rows):
        return ["0", "", ""]
    part = scored.take(rows)
    metrics = compute_metrics(part)
    if scored.classes:
        figures = [metric_text(name, metrics[name]) for name in ("accuracy", "balanced_accuracy")]
    else:
        bias = float(np.mean(part.predicted - part.actual))
        figures = [significant(metrics["mae"] or 0.0), significant(bias, signed=True)]
    return [str(len(rows)), *figures]


TABLES: tuple[tuple[Section, Tabulate], ...] = (
    ("predictions", comparison_table),
    ("predictions", inputs_table),
    ("predictions", confounders_table),
    ("predictions", folds_table),
    ("predictions", bins_table),
    ("predictions", classes_table),
    ("predictions", groups_table),
    ("predictions", worst_table),
    ("asvs", importance_table),
)
"""Every table with its section, in the order of the page. To add one, write a `Tabulate` function
and a line."""
