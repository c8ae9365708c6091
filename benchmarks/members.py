"""Forest, kernel, transformer and their ensemble on labelled studies, over seeds of the folds.

    python benchmarks/members.py DATA RESULTS [--tasks TASK ...] [--members forest kernel]
        [--seeds 1 2 3 4 5]

DATA has a folder for each study with `table.biom`, `metadata.tsv` and, where there is one,
`tree.nwk`: ecam, oral, ravel, celiac_stool_active, celiac_stool_treated (see docs/results.md); the
simulated study is made. The folds of seed s are those of `aam train --folds 5 --seed s`. RESULTS
keeps the held-out predictions and the CPU-seconds of each member, task and seed; what is there is
not computed again. The rows printed at the end are those of docs/results/results.tsv and
docs/experiments: scores and paired differences with their 95 % intervals over groups, means of the
seeds of RESULTS.

The transformer has one recipe for all studies: an encoder of width 64 is pretrained once for each
study, with its tree where it has one, and frozen; the layers above it are trained for each fold.
Epochs are as many as make `STEPS` steps; every other option has its default.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from aam.arrays import F64
from aam.cli import main as aam
from aam.contract.options.commands.studies import Example
from aam.contract.options.groups import SplitOptions, TableOptions, TargetOptions
from aam.data.metadata import Metadata, read_metadata
from aam.data.simulation import simulate, write_study
from aam.data.study import load_study
from aam.evaluation.ensemble import combine_members
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import COMPARED, Score, Units, resample_metrics
from aam.evaluation.labels import Labels
from aam.evaluation.prediction_files import numeric_column, read_predictions
from aam.evaluation.splits import split_samples
from aam.evaluation.subjects import find_subjects
from aam.members.forest import Forest
from aam.members.kernel import Kernel
from aam.members.member import Estimator, TrainingSamples, estimator
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.pipeline.labelled_study import choose_depth, deep_enough, read_labels


@dataclass(frozen=True)
class Task:
    """A column of a study; the group "study" is the part of the sample id before the first dot.

    With `studies` the groups are studies, of which each is a fold, as with --study-column.
    """

    study: str
    column: str
    classifier: bool = False
    where: str | None = None
    group: str | None = None
    folds: int = 5
    studies: bool = False

    @property
    def metric(self) -> str:
        """The metric that compares models."""
        return COMPARED["classification" if self.classifier else "regression"][0]


TASKS = {
    "ecam-age": Task("ecam", "month_of_life", where="mom_child=C", group="host_subject_id"),
    "ecam-delivery": Task("ecam", "delivery", True, "mom_child=C", "host_subject_id"),
    "ecam-diet": Task("ecam", "diet", True, "mom_child=C", "host_subject_id"),
    "oral-age": Task("oral", "qiita_host_age"),
    "oral-age-by-study": Task("oral", "qiita_host_age", group="study"),
    "ravel-ph": Task("ravel", "pH"),
    "ravel-nugent": Task("ravel", "Nugent_score_category", True),
    "ravel-group": Task("ravel", "Ethnic_Group", True),
    "celiac-active": Task(
        "celiac_stool_active", "Diagnosed_Celiac", True, group="Dataset_ID", studies=True
    ),
    "celiac-treated": Task(
        "celiac_stool_treated", "Diagnosed_Celiac", True, group="Dataset_ID", studies=True
    ),
    "simulated-ph": Task("simulated", "ph", group="subject"),
    "simulated-site": Task("simulated", "site", True, group="subject"),
}
ESTIMATORS: dict[str, Estimator[Any]] = {"forest": Forest(n_jobs=1), "kernel": Kernel()}
TRANSFORMER = "transformer"
STEPS = {"pretrain": 200, "train": 400}
BATCH = 16
"""Samples of a step, the default of `aam`."""
HEADER = (
    "task (metric)",
    "samples, groups, seeds",
    "forest",
    "kernel",
    "ensemble",
    "ensemble minus the better of the two",
    "transformer",
    "ensemble with it minus without",
    "CPU-seconds: forest, kernel, transformer",
)


def main() -> None:
    """Compute the predictions that are not there, and print the rows of all tasks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    members = [*ESTIMATORS, TRANSFORMER]
    parser.add_argument("--members", nargs="*", default=list(ESTIMATORS), choices=members)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    arguments = parser.parse_args()
    labelled = {
        name: load(TASKS[name], arguments.data, arguments.results) for name in arguments.tasks
    }
    for seed in arguments.seeds:
        for name, found in labelled.items():
            for member in arguments.members:
                file = predictions_file(arguments.results, name, seed, member)
                if not file.exists():
                    predict(member, name, found, seed, arguments.results)
                    print(f"{file} written", flush=True)
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}", flush=True)
    for name, found in labelled.items():
        scored = [
            score_seed(TASKS[name], found, seed, read)
            for seed in arguments.seeds
            if set(read := read_members(arguments.results, name, seed)) >= set(ESTIMATORS)
        ]
        if scored:
            print(f"| {' | '.join(row(name, found, scored))} |", flush=True)


def study_folder(study: str, data: Path, results: Path) -> Path:
    """Make a folder with the files of a study, whose metadata have the column `study`."""
    folder = results / "studies" / study
    if folder.exists():
        return folder
    if study == "simulated":
        options = Example(
            output_dir=folder, samples=200, asvs=2000, richness=185, depth=10_000, subjects=40
        )
        folder.mkdir(parents=True)
        write_study(simulate(options), options)
        return folder
    folder.mkdir(parents=True)
    for file in (data / study).glob("t*.*"):  # table.biom, tree.nwk
        (folder / file.name).symlink_to(file.absolute())
    header, *lines = (data / study / "metadata.tsv").read_text().splitlines()
    rows = [f"{line}\t{line.split('.')[0].split(chr(9))[0]}" for line in lines]
    (folder / "metadata.tsv").write_text("\n".join([f"{header}\tstudy", *rows]) + "\n")
    return folder


@dataclass(frozen=True)
class Labelled:
    """Samples of a task with their labels, without the groups."""

    folder: Path
    ids: tuple[str, ...]
    samples: Samples
    values: F64
    classes: tuple[str, ...]
    metadata: Metadata

    def folds(self, task: Task, seed: int) -> Folds:
        """Return the folds of a seed, with the labels and their groups."""
        studies = None
        if task.studies and task.group is not None:
            studies = self.metadata.values(task.group, self.ids).tolist()
        group = None if studies else task.group
        subjects = find_subjects(group, "distinct", self.metadata, self.ids, studies=studies)
        splits, _ = split_samples(
            SplitOptions(test_size=0, group_column=group, stratify=False),
            task.folds,
            seed,
            self.ids,
            subjects,
            self.values.astype(np.int64) if self.classes else None,
            studies=studies,
        )
        labels = Labels.of(self.values, self.classes, subjects.groups, studies=studies)
        names = tuple(sorted(set(studies or ())))
        column = task.group if studies else None
        return Folds(labels, splits, seed, group, column, studies=names)


def load(task: Task, data: Path, results: Path) -> Labelled:
    """Read the samples of a task that have a label and reach the rarefaction depth."""
    folder = study_folder(task.study, data, results)
    metadata = read_metadata(folder / "metadata.tsv")
    study = load_study(TableOptions(table=folder / "table.biom", drop_empty_samples=True))
    target = TargetOptions(
        metadata=folder / "metadata.tsv",
        metadata_column=task.column,
        classifier=task.classifier,
        where=task.where,
    )
    found = read_labels(target, metadata, study.table.sample_ids)
    study = study.take_samples(found.rows)
    deep = deep_enough(study, choose_depth(study, "auto"))
    study = study.take_samples(deep)
    samples = Samples.of(study)
    ids = tuple(study.table.sample_ids)
    return Labelled(folder, ids, samples, found.values[deep], found.classes, metadata)


def predictions_file(results: Path, task: str, seed: int, member: str) -> Path:
    """Return the file of a member's held-out predictions."""
    return results / f"{task}-{seed}-{member}.npz"


def read_members(results: Path, task: str, seed: int) -> dict[str, Mapping[str, F64]]:
    """Return the arrays of the members that have predictions."""
    files = {
        member: predictions_file(results, task, seed, member)
        for member in (*ESTIMATORS, TRANSFORMER)
    }
    return {member: dict(np.load(file)) for member, file in files.items() if file.exists()}


def predict(member: str, name: str, found: Labelled, seed: int, results: Path) -> None:
    """Write a member's held-out predictions of the folds of a seed, and its CPU-seconds."""
    task = TASKS[name]
    folds = found.folds(task, seed)
    file = predictions_file(results, name, seed, member)
    if member == TRANSFORMER:
        encoder = pretrained_encoder(task.study, found.folder, results)
        began = time.process_time()
        folder = results / f"{name}-{seed}-{TRANSFORMER}"
        train_transformer(task, found, seed, encoder, folder)
        predictions_MC = read_transformer(folder, found, folds)
        np.savez(file, predictions_MC=predictions_MC, cpu_seconds=time.process_time() - began)
    else:
        samples = TrainingSamples(found.samples, AsvRelations(found.samples.tokens_FL))
        cross_validate(estimator(member), samples, folds, file)


def cross_validate(
    member: Estimator[Any], samples: TrainingSamples, folds: Folds, file: Path
) -> None:
    """Write held-out and left-out predictions of an estimator, and its CPU-seconds."""
    run = member.cross_validate(samples, folds, final=False, weighed=True)
    left_out: dict[str, Any] = {
        f"left_out_{k}": each_NC for k, each_NC in enumerate(run.left_out) if each_NC is not None
    }
    np.savez(file, predictions_MC=run.predictions_MC, cpu_seconds=run.cpu_seconds, **left_out)


def left_out_predictions(arrays: Mapping[str, F64], folds: Folds) -> list[F64 | None]:
    """Return the left-out predictions of a file for each fit of the folds, if it has any."""
    return [arrays.get(f"left_out_{k}") for k in range(len(folds.fitted_rows))]


def pretrained_encoder(study: str, folder: Path, results: Path) -> Path:
    """Return the run folder of the encoder of a study; pretrain it on all samples once."""
    output, seconds = results / f"{study}-encoder", results / f"{study}-encoder.npz"
    if not seconds.exists():
        tree = folder / "tree.nwk"
        began = time.process_time()
        table = load_study(TableOptions(table=folder / "table.biom", drop_empty_samples=True)).table
        run_aam(
            *("pretrain", "--table", str(folder / "table.biom"), "--drop-empty-samples"),
            *(["--tree", str(tree)] if tree.exists() else ["--penalty", "0"]),
            *("--embedding-dim", "64", "--epochs", epochs("pretrain", len(table.sample_ids))),
            *("--output-dir", str(output), "--overwrite"),
        )
        np.savez(seconds, cpu_seconds=time.process_time() - began)
    return output


def train_transformer(task: Task, found: Labelled, seed: int, encoder: Path, output: Path) -> None:
    """Train the transformer for each fold."""
    run_aam(
        *("train", "--table", str(found.folder / "table.biom"), "--drop-empty-samples"),
        *("--metadata", str(found.folder / "metadata.tsv"), "--metadata-column", task.column),
        *(["--classifier"] if task.classifier else []),
        *(["--where", task.where] if task.where else []),
        *(["--group-column", task.group] if task.group else []),
        *("--members", TRANSFORMER, "--pretrained-encoder", str(encoder), "--freeze-base"),
        *("--folds", str(task.folds), "--test-size", "0", "--seed", str(seed)),
        *("--epochs", epochs("train", len(found.ids)), "--output-dir", str(output), "--overwrite"),
    )


def epochs(command: str, samples: int) -> str:
    """Return the epochs that make the steps of a command, on four fifths of the samples."""
    return str(math.ceil(STEPS[command] / math.ceil(0.8 * samples / BATCH)))


def run_aam(*arguments: str) -> None:
    """Run a command of `aam` in this process, so that its CPU-seconds have no imports."""
    if status := aam(arguments):
        raise SystemExit(status)


def read_transformer(folder: Path, found: Labelled, folds: Folds) -> F64:
    """Return the predictions [M, C] of a run folder, whose samples are those of the folds."""
    frame = read_predictions(folder / "predictions.tsv")
    expected = [
        (found.ids[row], str(fold)) for row, fold in zip(folds.rows_M, folds.fold_M, strict=True)
    ]
    if list(zip(frame["sample-id"], frame["fold"], strict=True)) != expected:
        raise SystemExit(f"'{folder}' has other folds; remove it")
    columns = [f"p_{name}" for name in found.classes] or ["predicted"]
    return np.column_stack([numeric_column(frame, column) for column in columns])


@dataclass(frozen=True)
class ScoredSeed:
    """Scores and paired differences of one seed, and the CPU-seconds of each member."""

    scores: Mapping[str, Score]
    seconds: Mapping[str, float]
    groups: int


def score_seed(
    task: Task, found: Labelled, seed: int, read: Mapping[str, Mapping[str, F64]]
) -> ScoredSeed:
    """Score the members, the ensemble of the estimators, and that with the transformer."""
    folds = found.folds(task, seed)
    members = {name: arrays["predictions_MC"] for name, arrays in read.items()}
    estimators = {name: members[name] for name in ("kernel", "forest")}  # the order of `aam train`
    # Weights of each fold, as `aam train` chooses them.
    left_out = {name: left_out_predictions(arrays, folds) for name, arrays in read.items()}
    combined = combine_members(estimators, folds, left_out)
    predictions = members | {"ensemble": combined.predictions_MC}
    pairs = [("ensemble", name) for name in ESTIMATORS]
    if TRANSFORMER in members:
        together = combine_members(estimators | members, folds, left_out).predictions_MC
        predictions |= {"with transformer": together}
        pairs.append(("with transformer", "ensemble"))
    seconds = {name: float(arrays["cpu_seconds"]) for name, arrays in read.items()}
    return score_predictions(predictions, folds, task.metric, pairs, seconds)


def score_predictions(
    predictions: Mapping[str, F64],
    folds: Folds,
    metric: str,
    pairs: Iterable[tuple[str, str]],
    seconds: Mapping[str, float] = MappingProxyType({}),
) -> ScoredSeed:
    """Score held-out predictions [M, C] by name, and the first minus the second of each pair."""
    units = Units.of(folds.held_out.groups)
    resampled = {
        name: resample_metrics(folds.scored(predictions_MC), units)
        for name, predictions_MC in predictions.items()
    }
    scores = {name: metrics.score()[metric] for name, metrics in resampled.items()}
    for model, reference in pairs:
        difference = resampled[model].paired_difference(resampled[reference])[1]
        scores[f"{model} - {reference}"] = difference
    return ScoredSeed(scores, seconds, units.number)


def row(name: str, found: Labelled, scored: Sequence[ScoredSeed]) -> Iterator[str]:
    """Yield the cells of a task, see `HEADER`."""
    network = [one for one in scored if TRANSFORMER in one.scores]
    means = {member: mean_score(scored, member)[0] for member in ESTIMATORS}
    better = max(means, key=lambda member: means[member])
    yield f"{name} ({ {'r2': 'R²', 'auc': 'AUC'}[TASKS[name].metric] })"
    yield f"{len(found.ids):,}, {scored[0].groups:,}, {len(scored)}"
    for model in (*ESTIMATORS, "ensemble"):
        yield shown(mean_score(scored, model))
    yield f"{shown(mean_score(scored, f'ensemble - {better}'), '+')} ({better})"
    if network:
        seeds = "" if len(network) == len(scored) else f"; seeds: {len(network)}"
        yield shown(mean_score(network, TRANSFORMER)) + seeds
        yield shown(mean_score(network, "with transformer - ensemble"), "+")
    else:
        yield from ("not measured", "")
    yield ", ".join(
        f"{np.mean([one.seconds[member] for one in seeds]):.1f}"
        for member, seeds in ((*((m, scored) for m in ESTIMATORS), (TRANSFORMER, network)))
        if seeds
    )


def mean_score(scored: Sequence[ScoredSeed], name: str) -> tuple[float, float, float]:
    """Return the means over the seeds of a score and its limits."""
    found = [one.scores[name] for one in scored]
    limits = np.array([(one.value, one.lower, one.upper) for one in found], dtype=np.float64)
    value, lower, upper = limits.mean(axis=0)
    return value, lower, upper


def shown(score: tuple[float, float, float], sign: str = "") -> str:
    """Format a score or, with the sign "+", a difference; few groups have no interval."""
    value, lower, upper = score
    if math.isnan(lower):
        return f"{value:{sign}.3f}"
    return f"{value:{sign}.3f} ({lower:.3f} to {upper:.3f})"


if __name__ == "__main__":
    main()
