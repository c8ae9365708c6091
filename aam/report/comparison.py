"""Comparison of runs: options that differ, metrics on common samples, paired differences."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import numpy as np
import pandas as pd

from aam.contract.errors import DataError
from aam.data.identity import joined
from aam.evaluation.intervals import ResampledMetrics, Score
from aam.evaluation.meta_analysis import resample
from aam.evaluation.metrics import ScoredPredictions
from aam.evaluation.scores import Scores
from aam.report.figures import (
    INK,
    MARKERS,
    MAX_VECTORS,
    SERIES,
    Drawing,
    Picture,
    blank,
    shortened,
    styled,
)
from aam.report.methods import fact_rows, input_rows, option_rows
from aam.report.page import render, require_page, write_page
from aam.report.run import Run
from aam.report.terminal import HEADINGS, Table, interval_note

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTERS = 24  # longest name of a run in a figure
MAX_CLASSES = 12

_OF_EACH_RUN = ("started", "finished", "--output-dir", "--overwrite")


class _Scored(NamedTuple):
    """Predictions of a run on some samples; `resampled` is None if metrics have no interval."""

    name: str
    run: Run
    scored: ScoredPredictions
    sample_ids: list[str]
    resampled: ResampledMetrics | None


def comparison(runs: Sequence[Run]) -> tuple[list[Table], dict[str, Drawing]]:
    """Compare runs of one target with the first: tables, and pictures by name.

    Tables: options that differ, metrics of each run on its own samples if these differ, metrics and
    paired differences on the common samples. Without common samples there are no pictures.
    """
    partitions = _comparable_predictions(runs)
    names, target = _short_names(runs), runs[0].target
    samples = [set(run.sample_ids) for run in runs]
    common = set.intersection(*samples)
    same = all(ids == common for ids in samples)
    tables = _differing_table(names, runs)
    if not same:
        separate = _on_samples(names, runs, partitions, samples)
        tables.append(_metrics_table(f"{target}: each run on its own samples", separate))
    if not common:
        return tables, {}
    shared = _on_samples(names, runs, partitions, [common] * len(runs))
    _check_labels(shared, sorted(common))
    title = f"On the {len(common)} samples of all runs"
    if same:
        title = f"{target}: {len(common)} samples of every run"
    tables.append(_metrics_table(title, shared))
    drawings: dict[str, Drawing] = {}
    # Classifiers without probabilities have no score with an interval.
    if sum(scored_run.resampled is not None for scored_run in shared) > 1:
        table, drawing = _differences(shared)
        tables.append(table)
        drawings |= {} if drawing is None else {"intervals": drawing}
    drawings["overlay"] = _recalls(shared) if shared[0].scored.classes else _overlay(shared)
    return tables, drawings


def _comparable_predictions(runs: Sequence[Run]) -> list[ScoredPredictions]:
    """Return the predictions of runs; refuse different targets and types of targets."""
    first, partitions = runs[0], [run.partitions for run in runs if run.partitions is not None]
    for run in runs:
        if run.scored is None:
            remedy = "name runs of `aam train`"
            raise DataError("The run has no predictions to compare", f"'{run.folder}'", remedy)
        if run.target != first.target:
            raise DataError(
                "The runs predict different columns",
                f"'{run.folder}' predicts {run.target}, '{first.folder}' {first.target}",
                "compare runs of one target",
            )
        if run.scored.type != partitions[0].type:
            raise DataError(
                f"The runs predict {run.target} in different ways",
                f"'{run.folder}' by {run.scored.type}, '{first.folder}' by {partitions[0].type}",
                "compare runs with the same --classifier or --ordinal",
            )
    if len({frozenset(predictions.studies) for predictions in partitions}) > 1:
        # Summaries over different studies cannot be compared.
        return [replace(predictions, studies=()) for predictions in partitions]
    return partitions


def _short_names(runs: Sequence[Run]) -> list[str]:
    """Return the shortest ends of the paths of runs that differ."""
    paths = [run.folder.resolve() for run in runs]
    for length in range(1, max(len(path.parts) for path in paths)):
        ends = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(ends)) == len(ends):
            return ends
    return [str(path) for path in paths]


def _on_samples(
    names: Sequence[str],
    runs: Sequence[Run],
    partitions: Sequence[ScoredPredictions],
    samples: Sequence[set[str]],
) -> list[_Scored]:
    """Return the predictions of each run on its `samples`, in all repeats."""
    scored_runs = []
    for name, run, predictions, chosen in zip(names, runs, partitions, samples, strict=True):
        rows = [row for row, sample in enumerate(run.partition_ids) if sample in chosen]
        subset = predictions.take(np.array(rows, dtype=np.int64))
        ids = [run.partition_ids[row] for row in rows]
        # Groups by name: every run leaves out the same samples.
        groups = np.array(_joint_groups([run.groups for run in runs], ids), dtype=np.str_)
        # The AUC compares classifiers and needs probabilities.
        has_intervals = subset.type != "classification" or subset.probabilities is not None
        resampled = resample(subset, groups) if has_intervals else None
        scored_runs.append(_Scored(name, run, subset, ids, resampled))
    return scored_runs


def _check_labels(shared: Sequence[_Scored], sample_ids: Sequence[str]) -> None:
    """Refuse runs that differ in the true values of the same samples."""
    labels = []
    for scored_run in shared:
        # Names, since two runs may code classes differently.
        classes, actual = np.array(scored_run.scored.classes), scored_run.scored.actual
        texts = classes[actual] if len(classes) else actual
        label_of = dict(zip(scored_run.sample_ids, texts, strict=True))
        labels.append(np.array([label_of[name] for name in sample_ids]))
    first = shared[0].run
    for scored_run, actual in zip(shared[1:], labels[1:], strict=True):
        is_category = bool(scored_run.scored.classes)
        equal = actual == labels[0] if is_category else np.isclose(actual, labels[0], atol=0)
        if differing := int((~equal).sum()):
            raise DataError(
                f"The runs differ in the true values of {first.target}",
                f"{differing} of {len(equal)} samples of '{scored_run.run.folder}' and "
                f"'{first.folder}'",
                "train one of them again with the metadata of the other",
            )


def _differences(shared: Sequence[_Scored]) -> tuple[Table, Drawing | None]:
    """Return table and picture of the paired differences from the first run with intervals."""
    # Columns of subjects and studies that are in both training and test set, with their options.
    divided = {scored_run.name: _divided(scored_run.run.scores) for scored_run in shared}
    paired = [
        (scored_run.name, scored_run.resampled)
        for scored_run in shared
        if scored_run.resampled is not None
    ]
    (reference, first), *compared = paired
    differences = [(name, *resampled.paired_difference(first)) for name, resampled in compared]
    equal = {name for name, resampled in compared if resampled.equals(first)}
    rows = []
    for name, metric, score in differences:
        if divided[name] != divided[reference]:
            rows.append([name, "", "not comparable"])
        elif name in equal:
            rows.append([name, "0", "the same predictions"])
        else:
            verdict = "not defined"
            if score.value is not None:
                ahead = "ahead" if score.value > 0 else "behind"
                verdict = ahead if score.excludes_zero else "not significant"
                verdict = "no interval" if score.lower is None else verdict
            rows.append([name, score.text(metric), verdict])
    note = (
        "Each run minus the first, on the same samples (paired). Not significant: the interval "
        "includes 0."
    )
    for name, run in ((scored_run.name, scored_run.run) for scored_run in shared if equal):
        if name in {reference, *equal} and run.scores is not None and len(run.scores.members) > 1:
            weights = run.scores.weights
            note += f" The ensemble of {name} is {weights.description}." if weights else ""
    if len(set(divided.values())) > 1:
        # A score on subjects or studies of the training says nothing about new ones.
        divided_runs = ", ".join(name for name, options in divided.items() if options)
        columns = {column: option for options in divided.values() for option, column in options}
        values = ", ".join(f"'{column}'" for column in sorted(columns))
        again = " ".join(f"{option} {column}" for column, option in sorted(columns.items()))
        note += (
            f" Not comparable: {divided_runs} has the same {values} in training and test set, so "
            f"its score is not for new subjects or studies. Train it again with {again}."
        )
    table = Table(f"Difference from {reference}", ["", HEADINGS[metric], ""], rows, note)
    alike = [item for item in differences if divided[item[0]] == divided[reference]]
    drawable = {reference, *(name for name, *_ in alike)}
    paired = [item for item in paired if item[0] in drawable]
    return table, _interval_drawing(paired, alike) if alike else None


def _divided(scores: Scores | None) -> tuple[tuple[str, str], ...]:
    """Return option and column of groups that are in both training and test set."""
    if scores is None:
        return ()
    repeated = scores.repeated_samples
    columns = (
        ("--group-column", None if repeated is None else repeated.column),
        ("--study-column", scores.divided_studies),
    )
    return tuple((option, column) for option, column in columns if column is not None)


def _differing_table(names: Sequence[str], runs: Sequence[Run]) -> list[Table]:
    facts = []
    for run in runs:
        run_facts = {flag: value for flag, value, _ in option_rows(run)}
        run_facts |= {f"SHA-256 of {row[0]}": row[3][:12] for row in input_rows(run)}
        scored = f"{len(run.sample_ids)} {run.split}".rstrip()
        facts.append(run_facts | dict(fact_rows(run)) | {"scored samples": scored})
    texts_of = pd.DataFrame(facts).fillna("").items()
    rows = [
        [str(flag), *(text or "-" for text in texts)]
        for flag, texts in texts_of
        if texts.nunique() > 1 and flag not in _OF_EACH_RUN
    ]
    return [Table("Differing options and facts", ["", *names], rows)] if rows else []


def _metrics_table(title: str, compared: Sequence[_Scored]) -> Table:
    scores_of: list[dict[str, Score]] = []
    for scored_run in compared:
        plain = scored_run.scored.metrics().items()
        scores = {name: Score(value, None, None) for name, value in plain}
        scores_of.append(scores | (scored_run.resampled.score() if scored_run.resampled else {}))
    metrics = [name for name in HEADINGS if all(name in scores for scores in scores_of)]
    rows = [
        [
            scored_run.name,
            scored_run.run.split,
            *(scores[name].text(name) for name in metrics),
        ]
        for scored_run, scores in zip(compared, scores_of, strict=True)
    ]
    note = interval_note(scores[name] for scores in scores_of for name in metrics)
    if note and any(scored_run.run.groups for scored_run in compared):
        numbers = {
            scored_run.resampled.units.number
            for scored_run in compared
            if scored_run.resampled is not None
        }
        units = f"{numbers.pop()} groups" if len(numbers) == 1 else "groups"
        note = (
            f"In brackets: 95 % interval over {units}; samples that share a group in any run count "
            "as one group."
        )
    return Table(title, ["", "Measured on", *(HEADINGS[name] for name in metrics)], rows, note)


@styled
def _interval_drawing(
    paired: Sequence[tuple[str, ResampledMetrics]], differences: Sequence[tuple[str, str, Score]]
) -> Drawing:
    """Draw the score of each run with its interval, and the difference from the first run."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    names, metric = [name for name, _ in paired], differences[0][1]
    figure = Figure(figsize=(4.6, 2.2 + 0.6 * len(names)), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(len(names) + 0.5, len(names) - 0.5))

    def plot(axes: Axes, scores: Sequence[Score], first: int, title: str) -> None:
        for row, score in enumerate(scores, start=first):
            colour = SERIES[row % len(SERIES)]
            if score.lower is not None and score.upper is not None:
                axes.plot((score.lower, score.upper), (row, row), color=colour, lw=2)
            if score.value is not None:
                axes.plot(score.value, row, "o", color=colour)
        places = range(first, len(names))
        axes.set_yticks(places, [shortened(names[row], LETTERS) for row in places])
        axes.set(title=title, ylim=(len(names) - 0.5, first - 0.5))
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.grid(axis="y", visible=False)

    plot(above, [resampled.score()[metric] for _, resampled in paired], 0, HEADINGS[metric])
    title = f"Difference from {shortened(names[0], LETTERS)}"
    plot(below, [score for _, _, score in differences], 1, title)
    below.axvline(0, color=INK, lw=1, ls="--", alpha=0.6)
    caption = (
        f"{HEADINGS[metric]} of each run with its 95 % interval, and its paired difference from "
        f"{names[0]}. A difference can be significant although the intervals above overlap."
    )
    return Drawing(figure, caption, f"Interval plot of {len(names)} runs. {caption}")


@styled
def _overlay(shared: Sequence[_Scored]) -> Drawing:
    target = shared[0].run.target
    figure, axes = blank(4.6, 4.6)
    firsts = [scored_run.scored.first for scored_run in shared]
    values = np.concatenate([[scored.actual, scored.predicted] for scored in firsts], axis=None)
    ends = (values.min(), values.max())
    axes.plot(ends, ends, color=INK, lw=1, ls="--", alpha=0.6)
    as_pixels = len(values) > 2 * MAX_VECTORS
    for number, (scored_run, scored) in enumerate(zip(shared, firsts, strict=True)):
        axes.scatter(
            scored.actual, scored.predicted, color=SERIES[number % len(SERIES)],
            marker=MARKERS[number % len(MARKERS)], s=8 if as_pixels else 22, alpha=0.55,
            linewidths=0, label=shortened(scored_run.name, LETTERS), rasterized=as_pixels,
        )  # fmt: skip
    axes.set(title="Predictions", xlabel=f"true {target}", ylabel=f"predicted {target}")
    figure.legend(loc="outside lower center", ncols=2)
    caption = f"Predictions of the same {len(firsts[0].actual)} samples by each run."
    return Drawing(figure, caption, f"Predicted against true {target}. {caption}")


@styled
def _recalls(shared: Sequence[_Scored]) -> Drawing:
    first = shared[0].scored
    times = np.bincount(first.actual, minlength=len(first.classes))
    most = np.sort(np.argsort(-times, kind="stable")[:MAX_CLASSES])
    classes = [first.classes[code] for code in most.tolist() if times[code]]
    figure, axes = blank(4.6, 1.5 + 0.4 * len(classes))
    for number, scored_run in enumerate(shared):
        actual = np.array(scored_run.scored.classes, dtype=object)[scored_run.scored.actual]
        right = scored_run.scored.actual == scored_run.scored.predicted
        recalls = [right[actual == label].mean() for label in classes]
        shift = 0.5 * (number + 0.5) / len(shared) - 0.25
        axes.plot(
            recalls, np.arange(len(classes)) + shift, MARKERS[number % len(MARKERS)],
            color=SERIES[number % len(SERIES)], label=shortened(scored_run.name, LETTERS),
        )  # fmt: skip
    axes.set_yticks(range(len(classes)), [shortened(name, LETTERS) for name in classes])
    axes.set(title="Recall of each class", xlabel="recall")
    axes.set(xlim=(-0.03, 1.03), ylim=(len(classes) - 0.5, -0.5))
    figure.legend(loc="outside lower center", ncols=2)
    caption = "Recall: fraction of the samples of a class that a run predicts as this class."
    return Drawing(figure, caption, f"Recall of the classes. {caption}")


def compare_runs(runs: Sequence[Run], output: Path | None) -> Sequence[Table]:
    """Return the tables that compare runs; write the page if there is an `output`."""
    if output is not None:
        require_page(output)
    tables, drawings = comparison(runs)
    if output is not None:
        folder = output.resolve().parent
        links = [
            (quote(os.path.relpath(run.folder.resolve() / "report.html", folder)), str(run.folder))
            for run in runs
            if (run.folder / "report.html").is_file()
        ]
        text = render(
            "compare.html.j2",
            lead=f"{len(runs)} runs that predict {runs[0].target}.",
            tables=tables,
            pictures=[Picture.of(name, drawing) for name, drawing in drawings.items()],
            links=links,
        )
        write_page(output, text)
    return tables


def _joint_groups(groups_of: Sequence[Mapping[str, str]], sample_ids: Sequence[str]) -> list[str]:
    """Join the groups of several runs into jackknife units, one name for each of M samples.

    Samples that share a group in any run, also through other samples, are in one unit, so the order
    of the runs does not matter. A sample without a group in a run is its own group there.
    """
    pairs, names_KM = [], [[groups.get(name, name) for name in sample_ids] for groups in groups_of]
    for names in names_KM:
        _, first, code_M = np.unique(names, return_index=True, return_inverse=True)
        pairs.append(np.stack([first[code_M], np.arange(len(names))], axis=1))
    unit_M = joined(len(sample_ids), np.concatenate(pairs)).tolist()
    first_name: dict[int, str] = {}
    for unit, *names in zip(unit_M, *names_KM, strict=True):
        first_name[unit] = min(first_name.get(unit, names[0]), *names)
    return [first_name[unit] for unit in unit_M]
