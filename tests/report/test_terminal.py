"""Tables of metrics on a terminal."""

from __future__ import annotations

from rich.console import Console

from aam.evaluation.intervals import Score
from aam.report.terminal import HEADINGS, Table, fitted, metrics_table, models_table, rich_table


def test_the_metrics_of_a_regression_fit_into_80_columns() -> None:
    names = ["samples", "r2", "mae", "rmse", "median_error", "pearson", "spearman"]
    fold = {name: 153.0 if name == "samples" else 0.7246 for name in names}
    other = fold | {"r2": 0.6246}
    console = Console(width=80)
    with console.capture() as captured:
        summary = {"column": "month_of_life", "overall": fold, "folds": {1: fold, 2: other}}
        console.print(rich_table(metrics_table(summary)))
    lines = [line.split() for line in captured.get().splitlines()]
    heads = " ".join(HEADINGS[name] for name in names).split()
    assert heads in lines
    assert ["fold", "2", "153", "0.625", *["0.725"] * 5] in lines
    assert ["mean", "0.675", *["0.725"] * 5] in lines
    assert ["sd", "0.071", *["0.000"] * 5] in lines
    assert ["all", "samples", "153", *["0.725"] * 6] in lines


def test_a_table_that_is_too_wide_is_shown_by_columns() -> None:
    interval = "0.913 (0.891 to 0.929)"
    rows = [["kernel", *[interval] * 4], ["transformer", *[interval] * 4]]
    table = Table("Scores", ["", "R²", "MAE", "RMSE", "Spearman"], rows)
    shown = {}
    for width in (80, 120):
        console = Console(width=width)
        with console.capture() as captured:
            console.print(fitted(table, console.width))
        shown[width] = [line.split() for line in captured.get().splitlines()]
    assert ["kernel", "transformer"] in shown[80]
    assert ["MAE", *interval.split(), *interval.split()] in shown[80]
    assert ["transformer", *interval.split() * 4] in shown[120]


def test_brackets_are_explained_where_there_are_some() -> None:
    """A baseline has no interval in a brief table, and no score has one with few subjects."""
    plain, exact = {"r2": Score(0.5), "mae": Score(1.0)}, {"r2": Score(0.5, 0.4, 0.6)}
    assert models_table({"kernel": plain, "guess": plain}, ["r2", "mae"]).note == ""
    assert "95 % interval" in models_table({"kernel": exact}, ["r2"]).note
    assert "95 % interval" in models_table({"kernel": exact, "guess": plain}, ["r2"], (), True).note
    assert models_table({"kernel": plain, "guess": exact}, ["r2"], (), True).note == ""
