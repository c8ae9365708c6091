"""Comparison of runs: metrics on the samples that all of them scored, and differing options."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aam.contract.errors import DataError
from aam.data.metrics import ScoredPredictions, compute_metrics
from aam.report.content import option_rows
from aam.report.run import Run
from aam.report.terminal import TITLES, Table, metric_cells


def comparison(runs: Sequence[Run]) -> list[Table]:
    """Return the metrics of each run on its own samples and on common ones, and their options.

    Raises:
        DataError: a run has no predictions, or predicts another column than the first.
    """
    names = _names(runs)
    scored = [_scored(run, runs[0]) for run in runs]
    common = set.intersection(*(set(run.sample_ids) for run in runs))
    same = all(set(run.sample_ids) == common for run in runs)
    samples = f"{len(common)} samples of every run" if same else "each run on its own samples"
    tables = [_metrics_table(f"{runs[0].target}: {samples}", names, runs, scored)]
    if common and not same:
        shared = [one.take(_rows(run, common)) for run, one in zip(runs, scored, strict=True)]
        title = f"On the {len(common)} samples that all runs scored"
        tables.append(_metrics_table(title, names, runs, shared))
    options = [{flag: value for flag, value, _ in option_rows(run)} for run in runs]
    flags = [
        flag
        for flag in dict.fromkeys(flag for given in options for flag in given)
        if len({given.get(flag, "") for given in options}) > 1
        and flag not in ("--output-dir", "--overwrite")
    ]
    if flags:
        rows = [[flag, *(given.get(flag) or "-" for given in options)] for flag in flags]
        tables.append(Table("Options that differ", ["", *names], rows))
    return tables


def _metrics_table(
    title: str, names: Sequence[str], runs: Sequence[Run], scored: Sequence[ScoredPredictions]
) -> Table:
    metrics_of_runs = [compute_metrics(one) for one in scored]
    metrics = [name for name in TITLES if all(name in one for one in metrics_of_runs)]
    rows = [
        [name, run.part, *metric_cells(metrics, one)]
        for name, run, one in zip(names, runs, metrics_of_runs, strict=True)
    ]
    return Table(title, ["", "Measured on", *(TITLES[name] for name in metrics)], rows)


def _names(runs: Sequence[Run]) -> list[str]:
    """Return the shortest ends of the paths that differ."""
    paths = [run.folder.resolve() for run in runs]
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _scored(run: Run, first: Run) -> ScoredPredictions:
    if run.scored is None:
        raise DataError(
            "The run has no predictions to compare", f"'{run.folder}'", "name runs of `aam train`"
        )
    if run.target != first.target or bool(run.scored.classes) != bool(
        first.scored and first.scored.classes
    ):
        raise DataError(
            "The runs predict different columns",
            f"'{run.folder}' predicts {run.target}, '{first.folder}' {first.target}",
            "compare runs of one target",
        )
    return run.scored


def _rows(run: Run, common: set[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([k for k, name in enumerate(run.sample_ids) if name in common], dtype=np.int64)
