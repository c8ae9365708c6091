"""Comparison of runs: what differs, metrics on common samples, paired differences, pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.contract.errors import DataError
from aam.data.metrics import ScoredPredictions, compute_metrics
from aam.members.scores import Drawn, Score, draw_groups, draw_metrics, joint_groups
from aam.report.base import Drawing
from aam.report.content import fact_rows, input_rows, option_rows
from aam.report.figures.comparison_plots import interval_figure, overlay_figure, recall_figure
from aam.report.run import Run
from aam.report.tables import with_interval
from aam.report.terminal import TITLES, Table

_OF_EACH_RUN = ("started", "finished", "--output-dir", "--overwrite")


@dataclass(frozen=True)
class RunComparison:
    """Comparison of runs.

    Attributes:
        tables: what differs first.
        drawings: name -> picture; empty without common samples.
    """

    tables: tuple[Table, ...]
    drawings: Mapping[str, Drawing]


@dataclass(frozen=True)
class _Scored:
    """Predictions of a run on some samples; `drawn` is None where metrics have no interval."""

    name: str
    run: Run
    scored: ScoredPredictions
    drawn: Drawn | None


def comparison(runs: Sequence[Run]) -> RunComparison:
    """Compare runs with the first of them.

    Args:
        runs: two or more runs that predict the same column.

    Returns:
        Tables and pictures. Metrics are of each run on its own samples where these differ, and of
        all runs on their common samples; differences are paired.

    Raises:
        DataError: a run has no predictions, or predicts another column than the first, as another
            type of target, or with other true values of the same samples.
    """
    names, first = _names(runs), runs[0]
    scored = [_scored(run, first) for run in runs]
    samples = [set(run.sample_ids) for run in runs]
    inside = set.intersection(*samples)
    # A paired difference needs the same samples in the same order: those of the first run.
    common = [name for name in dict.fromkeys(first.sample_ids) if name in inside]
    same = all(one == inside for one in samples)
    tables = [_differing_table(names, runs)]
    if not same:
        rows_of = [list(range(len(run.sample_ids))) for run in runs]
        own = _on(names, runs, scored, rows_of)
        tables.append(_metrics_table(f"{first.target}: each run on its own samples", own))
    drawings: dict[str, Drawing] = {}
    if common:
        rows_of = [_rows(run, common) for run in runs]
        shared = _on(names, runs, scored, rows_of)
        _require_same_labels(shared)
        on = f"On the {len(common)} samples that all runs scored"
        title = f"{first.target}: {len(common)} samples of every run" if same else on
        tables.append(_metrics_table(title, shared))
        # Classifiers without probabilities have no score with an interval.
        paired = [(one.name, one.drawn) for one in shared if one.drawn is not None]
        if len(paired) > 1:
            differences = _differences(paired)
            tables.append(_difference_table(paired[0][0], differences))
            drawings["intervals"] = _interval_drawing(paired, differences)
        drawings["overlay"] = _overlay_drawing(shared)
    return RunComparison(tuple(table for table in tables if table is not None), drawings)


def _on(
    names: Sequence[str],
    runs: Sequence[Run],
    scored: Sequence[ScoredPredictions],
    rows_of: Sequence[Sequence[int]],
) -> list[_Scored]:
    """Take the rows of each run, and draw its metrics: on the same draws for the same samples."""
    found = []
    for name, run, one, rows in zip(names, runs, scored, rows_of, strict=True):
        part = one.take(np.array(rows, dtype=np.int64))
        ids = [run.sample_ids[row] for row in rows]
        draws = draw_groups(joint_groups([run.groups for run in runs], ids))
        # The metric that compares classifiers is the AUC, which needs probabilities.
        has_intervals = part.type != "classification" or part.probabilities is not None
        found.append(_Scored(name, run, part, draw_metrics(part, draws) if has_intervals else None))
    return found


def _differing_table(names: Sequence[str], runs: Sequence[Run]) -> Table | None:
    """List options, inputs and versions that are not the same in all runs; None without any."""
    facts = []
    for run in runs:
        known = {flag: value for flag, value, _ in option_rows(run)}
        known |= {f"SHA-256 of {row[0]}": row[3][:12] for row in input_rows(run)}
        facts.append(known | dict(fact_rows(run)) | {"scored samples": _count(run)})
    flags = [
        flag
        for flag in dict.fromkeys(flag for known in facts for flag in known)
        if len({known.get(flag, "") for known in facts}) > 1 and flag not in _OF_EACH_RUN
    ]
    rows = [[flag, *(known.get(flag) or "-" for known in facts)] for flag in flags]
    return Table("What differs", ["", *names], rows) if rows else None


def _count(run: Run) -> str:
    return f"{len(run.sample_ids)} {run.part}".rstrip()


def _metrics_table(title: str, compared: Sequence[_Scored]) -> Table:
    found: list[dict[str, Score]] = []
    for one in compared:
        plain = compute_metrics(one.scored).items()
        scores = {name: Score(value, None, None) for name, value in plain}
        found.append(scores | (one.drawn.score() if one.drawn else {}))
    metrics = [name for name in TITLES if all(name in scores for scores in found)]
    rows = [
        [one.name, one.run.part, *(with_interval(name, scores[name]) for name in metrics)]
        for one, scores in zip(compared, found, strict=True)
    ]
    note = "In brackets: 95 % interval, by bootstrap."
    return Table(title, ["", "Measured on", *(TITLES[name] for name in metrics)], rows, note)


def _differences(paired: Sequence[tuple[str, Drawn]]) -> list[tuple[str, str, Score]]:
    """Return name, first metric, and its difference from the first run, of each other run."""
    (_, first), *others = paired
    return [(name, *drawn.ahead_of(first)) for name, drawn in others]


def _difference_table(first: str, differences: Sequence[tuple[str, str, Score]]) -> Table:
    rows = []
    for name, metric, score in differences:
        if score.value is None:
            verdict = "not defined"
        elif not score.beyond_noise:
            verdict = "within noise"
        else:
            verdict = "ahead" if score.value > 0 else "behind"
        rows.append([name, with_interval(metric, score), verdict])
    title = TITLES[differences[0][1]]
    note = (
        "Each run minus the first, on the same draws of the same samples (paired). Within noise: "
        "the interval includes 0."
    )
    return Table(f"Difference from {first}", ["", title, ""], rows, note)


def _interval_drawing(
    paired: Sequence[tuple[str, Drawn]], differences: Sequence[tuple[str, str, Score]]
) -> Drawing:
    names, metric = [name for name, _ in paired], differences[0][1]
    scores = [drawn.score()[metric] for _, drawn in paired]
    figure = interval_figure(
        names,
        [(score.value, score.lower, score.upper) for score in scores],
        [(score.value, score.lower, score.upper) for _, _, score in differences],
        TITLES[metric],
    )
    caption = (
        f"{TITLES[metric]} of each run with its 95 % interval, and the paired difference from "
        f"{names[0]}, which may be beyond noise where the intervals above overlap."
    )
    return Drawing(figure, caption, f"Interval plot of {len(names)} runs. {caption}")


def _overlay_drawing(shared: Sequence[_Scored]) -> Drawing:
    names, target = [one.name for one in shared], str(shared[0].run.target)
    parts = [one.scored for one in shared]
    if parts[0].classes:
        caption = "Part of the samples of each true class that each run predicts as that class."
        return Drawing(recall_figure(names, parts), caption, f"Recall of the classes. {caption}")
    caption = f"The same {len(parts[0].actual)} samples as predicted by each run."
    figure = overlay_figure(names, parts, target)
    return Drawing(figure, caption, f"Predicted against true {target}. {caption}")


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
    if run.target != first.target:
        raise DataError(
            "The runs predict different columns",
            f"'{run.folder}' predicts {run.target}, '{first.folder}' {first.target}",
            "compare runs of one target",
        )
    if first.scored is not None and run.scored.type != first.scored.type:
        raise DataError(
            f"The runs predict {run.target} in different ways",
            f"'{run.folder}' by {run.scored.type}, '{first.folder}' by {first.scored.type}",
            "compare runs with the same --classifier or --ordinal",
        )
    return run.scored


def _require_same_labels(shared: Sequence[_Scored]) -> None:
    """Refuse runs whose metadata have other values of the target for the same samples.

    Raises:
        DataError: a label of a run is not that of the first.
    """
    first = _labels(shared[0].scored)
    for one in shared[1:]:
        labels = _labels(one.scored)
        equal = labels == first if labels.dtype.kind == "U" else np.isclose(labels, first, atol=0)
        if differing := int((~equal).sum()):
            raise DataError(
                f"The runs have other true values of {one.run.target}",
                f"{differing} of {len(equal)} samples of '{one.run.folder}' and "
                f"'{shared[0].run.folder}'",
                "train one of them again with the metadata of the other",
            )


def _labels(scored: ScoredPredictions) -> npt.NDArray[Any]:
    """Return numbers, or names of classes: the codes of two runs may differ."""
    return np.array(scored.classes)[scored.actual] if scored.classes else scored.actual


def _rows(run: Run, common: Sequence[str]) -> list[int]:
    """Return the row of each sample, the first of a sample that is scored in several folds."""
    row_of: dict[str, int] = {}
    for row, name in enumerate(run.sample_ids):
        row_of.setdefault(name, row)
    return [row_of[name] for name in common]
