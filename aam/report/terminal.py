"""Tables of metrics on standard output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from aam.report import base as report

TITLES = {
    "samples": "Samples",
    "r2": "R²",
    "mae": "MAE",
    "rmse": "RMSE",
    "median_error": "Median error",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "weighted_kappa": "Weighted kappa",
    "mae_ranks": "MAE, ranks",
    "accuracy": "Accuracy",
    "balanced_accuracy": "Balanced",
    "macro_f1": "Macro F1",
    "auc": "AUC",
}
"""Heading of each figure of `aam.data.metrics`, in their order."""

MOST_CLASSES = 12


def show(summary: Mapping[str, Any]) -> None:
    """Print the result of `aam.data.metrics.summary`: folds, their spread, all samples.

    `by`, if there, has the metrics of each value of metadata columns.
    """
    console = _console()
    console.print(figure_table(summary))
    for column, found in summary.get("by", {}).items():
        console.print(value_table(column, found))
    confusion = summary.get("confusion")
    if confusion and len(confusion["classes"]) <= MOST_CLASSES:
        console.print(confusion_table(confusion["classes"], confusion["counts"]))


def _console() -> Console:
    # A pipe has no width; 200 columns cut nothing.
    return Console(highlight=False, width=None if Console().is_terminal else 200)


def _table(title: str | Text | None) -> Table:
    """Return a table that fits into 80 columns with the seven metrics of a regression."""
    style: Any = {"box": box.SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}
    return Table(title=title, title_justify="left", **style)


def figure_table(summary: Mapping[str, Any]) -> Table:
    """Return a table of the metrics of all samples and of each fold."""
    overall, folds = summary["overall"], summary["folds"]
    names = [name for name in TITLES if name in overall]
    table = _table(str(summary["column"]))
    table.add_column("")
    for name in names:
        table.add_column(TITLES[name], justify="right", no_wrap=True)
    for fold, found in folds.items():
        table.add_row(f"fold {fold}", *(shown(name, found.get(name)) for name in names))
    if folds:
        means, deviations = zip(*(spread(name, folds) for name in names), strict=True)
        table.add_row("mean", *means)
        table.add_row("sd", *deviations, end_section=True)
    table.add_row("all samples", *(shown(name, overall[name]) for name in names))
    return table


def value_table(column: str, found: Mapping[str, Mapping[str, float | None]]) -> Table:
    """Return a table of the metrics of each value of a metadata column."""
    names = [name for name in TITLES if any(name in one for one in found.values())]
    table = Table(title=f"By {column}", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    for name in names:
        table.add_column(TITLES[name], justify="right")
    for value, one in found.items():
        table.add_row(Text(value), *(shown(name, one.get(name)) for name in names))
    return table


def confusion_table(classes: list[str], counts: list[list[int]]) -> Table:
    """Return the confusion matrix as a table of true (rows) and predicted classes."""
    table = _table(None)  # A title would be wrapped at the width of a narrow table.
    table.add_column("true \\ predicted")
    for name in classes:
        table.add_column(name, justify="right")
    for name, row in zip(classes, counts, strict=True):
        table.add_row(name, *(str(count) for count in row))
    return table


def shown(name: str, value: float | None) -> str:
    """Format a metric; an en dash where it is not defined."""
    if value is None:
        return "–"  # noqa: RUF001
    # Adding 0 makes -0.000 a plain 0.000.
    return f"{value:.0f}" if name == "samples" else f"{round(value, 3) + 0:.3f}"


def spread(name: str, folds: Mapping[str, Mapping[str, float | None]]) -> tuple[str, str]:
    """Format mean and standard deviation (n - 1) of a metric over the folds."""
    values = [value for found in folds.values() if (value := found.get(name)) is not None]
    if name == "samples" or len(values) < 2:
        return "", ""
    return f"{np.mean(values):.3f}", f"{np.std(values, ddof=1):.3f}"


def print_table(content: report.Table) -> None:
    """Print a table of the report."""
    table = _table(Text(content.title))
    for number, head in enumerate(content.heads):
        table.add_column(Text(head), justify="right" if number else "left")
    for row in content.rows:
        table.add_row(*map(Text, row))
    _console().print(table)
    if content.note:
        _console().print(content.note, markup=False)
