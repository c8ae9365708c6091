"""Registry of the report's tables: how good a model is, for which samples, and where it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.data.metrics import ScoredPredictions, compute_metrics, summary
from aam.report.base import ReportInput, Table, Tabulate
from aam.report.run import Run
from aam.report.terminal import TITLES, shown, spread

BINS = 5
WORST = 10
LEAST = 3
"""Samples of a group that is listed."""

MODELS = {"ensemble": "this model", "constant": "guess", "forest": "random forest",
          "kernel": "sequence kernel"}  # fmt: skip


def tabulate(given: ReportInput) -> list[Table]:
    """Return the tables of a run in the order of `TABLES`."""
    return [table for make in TABLES for table in [make(given)] if table is not None]


def comparison_table(given: ReportInput) -> Table | None:
    """Compare the model with other models and a constant on the same samples."""
    run, scored = given.run, given.run.scored
    if scored is None:
        return None
    own = compute_metrics(scored)
    names = [name for name in TITLES if name in own]
    if run.scores is not None:
        rows = [
            _interval_row(name, model, names, run.scores)
            for name, model in run.scores["models"].items()
        ]
        sentences = [one["sentence"] for one in run.scores["differences"] if _of_ensemble(one)]
        note = " ".join(
            f"{sentence.replace('ensemble', 'This model', 1)}." for sentence in sentences
        )
    else:
        found = {"this model": own, "guess": compute_metrics(constant(scored))}
        if (baseline := comparable_baseline(run)) is not None:
            found[str(baseline.get("model", "baseline"))] = baseline.get("overall", {})
        rows = [[name, *(shown(n, one.get(n)) for n in names)] for name, one in found.items()]
        guess = "most frequent class" if scored.classes else "mean"
        note = f"{baseline_note(run)} The guess is the {guess} of these samples."
    heads = ["", *(TITLES[name] for name in names)]
    return Table("Compared on the same samples", heads, rows, note.strip(), (0,))


def verdict(run: Run) -> str:
    """Return sentences on whether the model is better than a guess and than another model."""
    if run.scored is None:
        return ""
    own = compute_metrics(run.scored)
    name = next(n for n in ("r2", "auc", "accuracy", "samples") if own.get(n) is not None)
    baseline = (comparable_baseline(run) or {}).get("overall", {}).get(name)
    others = {"a guess": compute_metrics(constant(run.scored))[name]}
    if baseline is not None and run.same_split:
        others[f"the {(run.baseline or {}).get('model', 'baseline')}"] = baseline
    for model, found in (run.scores or {}).get("models", {}).items():
        if model not in ("ensemble", "constant"):
            others[f"the {MODELS.get(model, model)} alone"] = found["metrics"][name]["value"]
    value = own[name]
    assert value is not None
    parts = [
        f"{'better' if value > other else 'worse'} than {model} ({shown(name, other)})"
        for model, other in others.items()
        if other is not None
    ]
    return f"{TITLES[name]} {shown(name, value)}: {', '.join(parts)}."


def _of_ensemble(difference: Mapping[str, Any]) -> bool:
    return "ensemble" in (difference["model"], difference["reference"])


def _interval_row(
    name: str, model: Mapping[str, Any], names: Sequence[str], scores: Mapping[str, Any]
) -> list[str]:
    """Format the metrics of a model of scores.json, with their confidence intervals."""
    cells = [MODELS.get(name, name)]
    for metric in names:
        if metric == "samples":
            cells.append(str(scores["samples"]))
            continue
        found = model["metrics"].get(metric, {})
        text = shown(metric, found.get("value"))
        if found.get("lower") is not None:
            text += f" ({shown(metric, found['lower'])} to {shown(metric, found['upper'])})"
        cells.append(text)
    return cells


def constant(scored: ScoredPredictions) -> ScoredPredictions:
    """Return the best constant prediction of the same samples: the mean, or the largest class."""
    if not scored.classes:
        same = np.full(len(scored.actual), scored.actual.mean())
        return ScoredPredictions(scored.actual, same)
    counts = np.bincount(scored.actual, minlength=len(scored.classes))
    largest = np.full(len(scored.actual), counts.argmax())
    shares = (
        None if scored.probabilities is None else np.tile(counts / counts.sum(), (len(largest), 1))
    )
    return ScoredPredictions(scored.actual, largest, (), scored.classes, shares)


def comparable_baseline(run: Run) -> dict[str, Any] | None:
    """Return metrics.json of the baseline if it predicts the same column."""
    baseline = run.baseline
    return baseline if baseline is not None and baseline.get("column") == run.target else None


def baseline_note(run: Run) -> str:
    """Return a sentence on how comparable the baseline is."""
    if run.baseline is None:
        return ""
    model = str(run.baseline.get("model", "baseline"))
    if comparable_baseline(run) is None:
        return f"The baseline predicts another column ({run.baseline.get('column')})."
    if run.same_split is None:
        return f"Whether the {model} was scored on the same samples is not known."
    if run.same_split:
        return f"The {model} was scored on the same samples."
    return f"The {model} was scored on other samples: compare with care."


def folds_table(given: ReportInput) -> Table | None:
    """List the metrics of each fold."""
    scored = given.run.scored
    if scored is None or not scored.folds:
        return None
    found = summary(scored, given.run.target or "")
    names = [name for name in TITLES if name in found["overall"]]
    rows = [[f"fold {fold}", *(shown(name, one.get(name)) for name in names)]
            for fold, one in found["folds"].items()]  # fmt: skip
    rows.append(["mean ± sd", *(spread(name, found["folds"]) for name in names)])
    rows.append(["all samples", *(shown(name, found["overall"][name]) for name in names)])
    return Table("By fold", ["", *(TITLES[name] for name in names)], rows, "", (len(rows) - 1,))


def bins_table(given: ReportInput) -> Table | None:
    """List the errors by bin of a numeric target, with about equal numbers of samples."""
    scored = given.run.scored
    if scored is None or scored.classes:
        return None
    edges = np.unique(np.quantile(scored.actual, np.linspace(0, 1, BINS + 1)))
    if len(edges) < 3:
        return None
    bins = np.searchsorted(edges[1:-1], scored.actual, side="right")
    rows = [
        [f"{low:.4g} to {high:.4g}", *_errors(given, scored, np.flatnonzero(bins == number))]
        for number, (low, high) in enumerate(pairwise(edges))
    ]
    heads = [f"true {given.target}", *_ERROR_HEADS]
    return Table(f"By {given.run.target}", heads, rows, _BIAS_NOTE)


def groups_table(given: ReportInput) -> Table | None:
    """List the scores of each category of the coloured columns, and of the worst groups."""
    run, scored = given.run, given.run.scored
    if scored is None:
        return None
    place = {name: row for row, name in enumerate(run.embedded_ids)}
    rows, note = [], ""
    for colour in given.colours:
        if colour.labels is None or colour.column in (
            run.target,
            run.option("split", "group_column"),
        ):
            continue
        labels = np.array([colour.labels[place[s]] if s in place else "" for s in run.sample_ids])
        rows += [
            [f"{colour.column}: {label}", *_errors(given, scored, np.flatnonzero(labels == label))]
            for label in sorted(set(labels.tolist()) - {""})
            if (labels == label).sum() >= LEAST
        ]
    if run.groups:
        column = run.option("split", "group_column") or "group"
        of_sample = np.array([run.groups.get(name, name) for name in run.sample_ids])
        wrong = wrongness(scored)
        found = [
            (float(wrong[own].mean()), name, np.flatnonzero(own))
            for name in sorted(set(of_sample.tolist()))
            for own in [of_sample == name]
            if own.sum() >= LEAST
        ]
        worst = sorted(found, reverse=True, key=lambda one: one[0])[:BINS]
        rows += [[f"{column}: {name}", *_errors(given, scored, own)] for _, name, own in worst]
        note = f"Of {len(set(of_sample.tolist()))} groups of {column}, the {len(worst)} worst. "
    if not rows:
        return None
    heads = ["", *(_CLASS_HEADS if scored.classes else _ERROR_HEADS)]
    return Table("By group", heads, rows, note + ("" if scored.classes else _BIAS_NOTE))


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
            cells.append(given.measured(values[1] - values[0], signed=True))
        more = [scored.folds[row]] if scored.folds else []
        more += [run.groups.get(name, "")] if run.groups else []
        rows.append([name, *cells, *more])
    last = "Error" if not scored.classes else "Probability of the true class"
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


_ERROR_HEADS = ("Samples", "MAE", "Mean error")
_CLASS_HEADS = ("Samples", "Accuracy", "Balanced")
_BIAS_NOTE = "Mean error: predicted minus true; above 0 the model predicts too much."


def _errors(
    given: ReportInput, scored: ScoredPredictions, rows: npt.NDArray[np.int64]
) -> list[str]:
    """Format number, and MAE and mean error or accuracies, of some samples."""
    if not len(rows):
        return ["0", "", ""]
    part = scored.take(rows)
    found = compute_metrics(part)
    if scored.classes:
        figures = [shown(name, found[name]) for name in ("accuracy", "balanced_accuracy")]
    else:
        bias = float(np.mean(part.predicted - part.actual))
        figures = [given.measured(found["mae"] or 0.0), given.measured(bias, signed=True)]
    return [str(len(rows)), *figures]


TABLES: tuple[Tabulate, ...] = (
    comparison_table,
    folds_table,
    bins_table,
    classes_table,
    groups_table,
    worst_table,
)
"""Every table, in the order of the page. To add one, write a `Tabulate` function and a line."""
