"""Tables of metrics on a terminal."""

from __future__ import annotations

from rich.console import Console

from aam.report.terminal import TITLES, metrics_table, rich_table


def test_the_metrics_of_a_regression_fit_into_80_columns() -> None:
    names = ["samples", "r2", "mae", "rmse", "median_error", "pearson", "spearman"]
    fold = {name: 153.0 if name == "samples" else 0.7246 for name in names}
    other = fold | {"r2": 0.6246}
    console = Console(width=80)
    with console.capture() as captured:
        summary = {"column": "month_of_life", "overall": fold, "folds": {1: fold, 2: other}}
        console.print(rich_table(metrics_table(summary)))
    lines = [line.split() for line in captured.get().splitlines()]
    heads = " ".join(TITLES[name] for name in names).split()
    assert lines[2] == heads
    assert ["fold", "2", "153", "0.625", *["0.725"] * 5] in lines
    assert ["mean", "0.675", *["0.725"] * 5] in lines
    assert ["sd", "0.071", *["0.000"] * 5] in lines
    assert ["all", "samples", "153", *["0.725"] * 6] in lines
