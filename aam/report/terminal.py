"""Tables of text cells, tables of metrics, and their output on the terminal."""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import rich.table
from rich import box
from rich.console import Console
from rich.text import Text

from aam.console import console, in_lines, info, print_result, warn
from aam.contract.errors import printable, shortened
from aam.contract.options.groups import TargetType
from aam.evaluation.intervals import SCORED, Score
from aam.evaluation.meta_analysis import MIN_SUMMARISED, StudyScores, StudySummary
from aam.evaluation.metrics import METRICS, metric_text
from aam.evaluation.scores import BASELINE, ENSEMBLE, PairedDifference, Scores
from aam.number_format import significant

OTHER_FORM = "another form of the target, or completely confounded with it"
"""Role of a column that determines the target nearly without exception."""

HEADINGS = {"samples": "Samples"} | {name: metric.heading for name, metric in METRICS.items()}
"""Headings of the metrics of `aam.evaluation.metrics`, in their order."""

MAX_CLASSES, _LONGEST_CLASS = 12, 16  # most classes of a confusion table, longest name of one

_NUMBER = re.compile(r"[-+<±\N{EN DASH}]?\d|\N{EN DASH}$")
"""Start of a cell with a number, or an undefined number."""


@dataclass(frozen=True)
class Table:
    """Table for the page or the terminal.

    >>> Table("By fold", ["Fold", "R²"], [["1", "0.5"]]).tsv.split()
    ['Fold', 'R²', '1', '0.5']
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]  # the first cell of a row names it
    note: str = ""  # sentence below
    strong: Sequence[int] = ()  # numbers of rows to emphasize
    # full names of rows with a short first cell: titles on the page, last column of the TSV
    ids: Sequence[str] = ()
    lead: str = ""  # sentence above, on the page
    filtered: bool = False  # whether the page has a filter; it finds hidden rows too

    @property
    def text_columns(self) -> tuple[bool, ...]:
        """Whether each column is text: the first one, and columns without a number.

        >>> Table("", ["", "Score", "Verdict"], [["one", "0.5", "right"]]).text_columns
        (True, False, True)
        """
        columns = zip(*self.rows, strict=True) if self.rows else ([] for _ in self.heads)
        return tuple(
            not number or (any(column) and not any(map(_NUMBER.match, column)))
            for number, column in enumerate(columns)
        )

    @property
    def tsv(self) -> str:
        """All rows as tab-separated values; tabs and line breaks of a cell become spaces."""
        table = [list(row) for row in (self.heads, *self.rows)]
        if self.ids:
            table = [[*row, name] for row, name in zip(table, ("id", *self.ids), strict=True)]
        lines = [[" ".join(cell.split()) for cell in row] for row in table]
        return "".join("\t".join(line) + "\n" for line in lines)


def show(summary: Mapping[str, Any]) -> None:
    """Print the result of `aam.evaluation.metrics.summary`."""
    print_table(metrics_table(summary))
    for column, scores_of_values in summary.get("by", {}).items():
        names = [name for name in HEADINGS if any(name in s for s in scores_of_values.values())]
        rows = [[value, *metric_cells(names, scores)] for value, scores in scores_of_values.items()]
        print_table(Table(f"By {column}", ["", *(HEADINGS[name] for name in names)], rows))
    confusion = summary.get("confusion")
    if confusion and len(confusion["classes"]) <= MAX_CLASSES:
        classes = [shortened(name, _LONGEST_CLASS) for name in confusion["classes"]]
        cells = zip(classes, confusion["counts"], strict=True)
        rows = [[name, *map(str, counts)] for name, counts in cells]
        # A title would be wrapped at the width of a narrow table.
        of_first = " of repeat 1" if "repeats" in summary else ""
        print_table(Table("", [f"true \\ predicted{of_first}", *classes], rows))


def metrics_table(summary: Mapping[str, Any]) -> Table:
    """Return the table of metrics by fold: mean, standard deviation (n - 1), all samples.

    Several studies have only a row each.

    >>> folds = {"1": {"r2": 0.5}, "2": {"r2": 0.7}, "3": {"r2": None}}
    >>> table = metrics_table({"column": "ph", "overall": {"r2": 0.6}, "folds": folds})
    >>> table.rows[3:]
    [['mean', '0.600'], ['sd', '0.141'], ['all samples', '0.600']]
    """
    kind = next(name for name in ("studies", "repeats", "folds") if name in summary)
    prefix = {"repeats": "repeat ", "folds": "fold ", "studies": ""}[kind]
    overall, folds = summary["overall"], summary[kind]
    names = [name for name in HEADINGS if name in overall]
    rows = [[f"{prefix}{fold}", *metric_cells(names, scores)] for fold, scores in folds.items()]
    heads = ["", *(HEADINGS[name] for name in names)]
    if kind == "studies":
        return Table(str(summary["column"]), heads, rows)
    if folds:
        rows += [["mean"], ["sd"]]
    for name in names if folds else ():
        values = [value for scores in folds.values() if (value := scores.get(name)) is not None]
        defined = name != "samples" and len(values) > 1
        figures = (np.mean(values), np.std(values, ddof=1)) if defined else ()
        ends = [metric_text(name, float(figure)) for figure in figures] or ["", ""]
        for row, text in zip(rows[-2:], ends, strict=True):
            row.append(text)
    if kind == "folds":  # for repeats the score of all is the mean
        rows.append(["all samples", *metric_cells(names, overall)])
    strong = len(rows) - (1 if kind == "folds" else 2)  # all samples, or the mean
    return Table(str(summary["column"]), heads, rows, strong=(strong,) if folds else ())


def models_table(
    models: Mapping[str, Mapping[str, Score]],
    names: Sequence[str],
    differences: Sequence[PairedDifference] = (),
    brief: bool = False,
) -> Table:
    """Return the table of metrics of each model, and the lead of the ensemble.

    The first of `names` compares models. `brief`, for 80 columns: three metrics, intervals only of
    the first and not of the baseline.
    """
    ahead = {
        difference.reference: Score(difference.value, difference.lower, difference.upper)
        for difference in differences
        if difference.model == ENSEMBLE
    }
    rows, names = [], names[:3] if brief else names
    with_intervals: list[Score | None] = [*ahead.values()]
    for model, scores in models.items():
        row = ["baseline" if model == BASELINE else model]
        row += [_with_interval(name, scores.get(name)) for name in names]
        intervals = (0 if model == BASELINE else 1) if brief else len(names)
        row[1 + intervals :] = [text.partition(" ")[0] for text in row[1 + intervals :]]
        with_intervals += [scores.get(name) for name in names[:intervals]]
        rows.append([*row, *([ahead[model].text() if model in ahead else ""] if ahead else [])])
    heads = ["", *(HEADINGS[name] for name in names), *(["Ensemble ahead by"] if ahead else [])]
    return Table("", heads, rows, interval_note(with_intervals), strong=(0,))


def studies_table(scores: StudyScores, classes: Sequence[str] = (), brief: bool = False) -> Table:
    """Return the table of scores by study, with their mean and the next study.

    `brief` leaves out the means of the target, to fit into 100 columns.
    """
    metrics = scores.studies[0].metrics
    first, *other_metrics = metrics
    names = [first, *(name for name in other_metrics if name in ("auc", "mae", "mae_ranks"))]
    means = scores.studies[0].actual_mean is not None and not brief
    rows = []
    for study in scores.studies:
        row = [study.study, str(study.samples)]
        row += [_with_interval(name, study.metrics[name]) for name in names]
        ends = (study.actual_mean, study.predicted_mean) if means else ()
        row += [
            "" if end is None else f"{end:.0%}" if len(classes) == 2 else significant(end)
            for end in ends
        ]
        shown_better = "not shown: one prediction for all" if study.constant else "not shown"
        rows.append([*row, study.left_out or ("yes" if study.better else shown_better)])
    heads = [scores.column, "Samples", *(HEADINGS[name] for name in names)]
    mean = f"Fraction of {classes[1]}" if len(classes) == 2 else "Mean"
    heads += [f"{mean}, actual", "predicted"] * means + [
        "Better" if brief else "Better than baseline"
    ]
    in_brackets = interval_note(study.metrics[name] for study in scores.studies for name in names)
    note = f"Each study was predicted by models of the other studies. {in_brackets}".rstrip()
    if (summary := scores.summaries.get(first)) is None:
        note += f" A summary needs {MIN_SUMMARISED} studies."
        return Table("By study", heads, rows, note)
    summaries = [scores.summaries.get(name) for name in names]
    empty = [""] * (2 * means + 1)
    rows.append(["mean", "", *map(_mean_cell, summaries), *empty])
    rows.append(["next study", "", *map(next_cell, summaries), *empty])
    note += (
        f" Mean and next study: random-effects model of {summary.scale} ({HEADINGS[first]}). "
        f"Standard deviation between studies: {significant(summary.tau)} (with a prior); I²: "
        f"{summary.i2:.0%} (without)."
    )
    return Table("By study", heads, rows, note, (len(rows) - 2,))


def values_of_models(models: Mapping[str, Mapping[str, Score]], metric: str) -> str:
    """Format a metric of each model as a sentence without its full stop.

    >>> values_of_models({"kernel": {"r2": Score(0.5)}, "guess": {"r2": Score(0.0)}}, "r2")
    'R²: kernel 0.500, baseline 0.000'
    """
    values = (
        f"{'baseline' if name == BASELINE else name} "
        + _with_interval(metric, scores.get(metric)).partition(" ")[0]
        for name, scores in models.items()
    )
    return f"{HEADINGS[metric]}: {', '.join(values)}"


_MAX_STUDIES = 5  # lines of studies on a terminal

_PRINTED = ("interval", "beyond", "equal_depth", "external")
"""Findings that the console prints besides warnings; the page has all of them."""


def brief_studies_table(
    scores: StudyScores, models: Mapping[str, Mapping[str, Score]], classes: Sequence[str]
) -> Table:
    """Return the table of studies for a terminal: if many, only the lowest and the highest."""
    table, first = studies_table(scores, classes, brief=True), next(iter(scores.studies[0].metrics))
    number = len(scores.studies)
    studies, summary = list(table.rows[:number]), list(table.rows[number:])
    if number > _MAX_STUDIES:
        values = [study.metrics[first].value for study in scores.studies]
        order = np.argsort([np.inf if value is None else value for value in values])
        ends = order[:2].tolist(), order[-2:].tolist()
        more = [f"({number - 4} more in the report)", *[""] * (len(table.heads) - 1)]
        studies = [*(studies[k] for k in ends[0]), more, *(studies[k] for k in ends[1])]
    note = interval_note(study.metrics[first] for study in scores.studies)
    if summary:
        note = f"Mean {values_of_models(models, first)}. {note}"
    return Table("", table.heads, [*studies, *summary], note, (len(studies),) if summary else ())


def _mean_cell(summary: StudySummary | None) -> str:
    if summary is None:
        return metric_text("", None)
    return _with_interval(summary.metric, Score(summary.value, summary.lower, summary.upper))


def next_cell(summary: StudySummary | None) -> str:
    """Format the prediction interval of the next study to the digits that it supports."""
    if summary is None:
        return metric_text("", None)
    return Score(None, summary.next_lower, summary.next_upper).limits(summary.metric)


def metric_cells(names: Iterable[str], metrics: Mapping[str, float | None]) -> list[str]:
    """Format metrics by name; an absent or undefined metric is an en dash."""
    return [metric_text(name, metrics.get(name)) for name in names]


def interval_note(scores: Iterable[Score | None]) -> str:
    """Explain the brackets of a table; "" if no score has an interval."""
    has_brackets = any(score is not None and score.limits() for score in scores)
    return "In brackets: 95 % interval." if has_brackets else ""


def _with_interval(name: str, score: Score | None) -> str:
    """Format a metric and its interval to the digits that the interval supports."""
    return metric_text(name, None) if score is None else score.text(name)


def rich_table(content: Table) -> rich.table.Table:
    """Convert a table to rich; the seven metrics of a regression fit into 80 columns."""
    style: Any = {"box": box.SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}
    style["show_edge"] = False  # lines without content
    title = _cell(content.title) if content.title else None
    table = rich.table.Table(title=title, title_justify="left", **style)
    for head, text in zip(content.heads, content.text_columns, strict=True):
        table.add_column(_cell(head), justify="left" if text else "right")
    for number, row in enumerate(content.rows):
        if number in content.strong:
            table.add_section()
        table.add_row(*map(_cell, row))
    return table


def _cell(text: str) -> Text:
    """Return a cell without control characters."""
    return Text(printable(text))


def print_table(content: Table) -> None:
    """Print a table and its note; rows and columns are exchanged if it then fits."""
    if console.quiet:  # Python calls print nothing
        return
    # A pipe has no width: 200 columns cut nothing.
    output = Console(highlight=False, width=None if Console().is_terminal else 200)
    output.print()
    output.print(fitted(content, output.width))
    if content.note:
        output.print(printable(content.note), markup=False)


def fitted(content: Table, width: int) -> rich.table.Table:
    """Convert a table to rich; exchange rows and columns if it then fits the width."""
    heads, *rows = zip(content.heads, *content.rows, strict=True)
    tables = rich_table(content), rich_table(Table(content.title, heads, rows))
    upright, exchanged = (Console(width=10_000).measure(table).maximum for table in tables)
    return tables[upright > width and exchanged < upright]


def show_verdict(scores: Scores, following: tuple[str, list[str]]) -> None:
    """Print the verdict with its figures, and the command that follows."""
    lines = [f"{scores.verdict.headline}. {scores.verdict.sentence}"]
    if not console.quiet:  # called from Python, where tables have no paths
        # A file stays as it is, whatever the terminal of the messages is; the command stays whole.
        lines = [in_lines(lines[0]) if sys.stdout.isatty() else lines[0]]
        lines.append(f"Next, {following[0]}: {shlex.join(following[1])}")
    print_result("\n".join(lines), is_warning=not scores.is_better)


def show_scores(scores: Scores) -> None:
    """Print the warnings, the scores of the models, and what belongs to them; see the page."""
    findings = scores.findings()[1:]  # the verdict comes last
    for finding in findings:
        if finding.is_warning:
            warn(finding.text)
    for finding in findings:
        if finding.field in _PRINTED and not finding.is_warning:
            info(finding.text)
    names: Sequence[str] = ("mcfadden_r2", *SCORED[cast(TargetType, scores.kind)])
    metrics = scores.models[ENSEMBLE].metrics
    # Two studies have no summary.
    names = [name for name in names if name in metrics and metrics[name].value is not None]
    # The ensemble may be its only member.
    left_out = ENSEMBLE if len(scores.members) == 1 else None
    models = {name: m.metrics for name, m in scores.models.items() if name != left_out}
    if scores.studies is not None:
        print_table(brief_studies_table(scores.studies, models, scores.classes))
    elif names:
        table = models_table(models, names, scores.differences, brief=True)
        if len(scores.members) > 1 and scores.weights is not None:
            note = f"{table.note} Ensemble: {scores.weights.of_model}.".lstrip()
            table = dataclasses.replace(table, note=note)
        print_table(table)
    if scores.thresholds:
        at = scores.thresholds[-1]
        values = ", ".join(
            f"{name.replace('_', ' ')} {score.estimate()}" for name, score in at.metrics.items()
        )
        # The folds' own thresholds gave these scores.
        limits = [min(at.folds), max(at.folds)] if at.folds else [at.threshold]
        thresholds = " to ".join(dict.fromkeys(metric_text("", end, 2) for end in limits))
        info(f"At threshold {thresholds} ({at.rule}): {values}.")
    if (inputs := scores.inputs) is not None:
        values = values_of_models(inputs.models, next(iter(names), scores.metric))
        info(f"{values}. {inputs.conclusion}", is_warning=not inputs.counts_add)
