"""Kernel, forest and their combinations on labelled studies, over seeds of the folds.

    python benchmarks/members.py DATA [TASK ...] [--seeds 5]

DATA has a folder for each study with `table.biom` and `metadata.tsv`: ecam, oral, ravel (see
docs/results.md). The folds of seed s are those of `aam train --folds 5 --seed s`. A line is a model
or a paired difference of two: its value and 95 % interval by bootstrap over groups (means of the
seeds), the standard deviation over the seeds, and CPU-seconds of one seed (five folds and the final
model).
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aam.contract.options.commands.studies import Simulate
from aam.contract.options.study import SampleOptions, SplitOptions, TableOptions, TargetOptions
from aam.data.labels import read_labels, split_samples
from aam.data.metadata import Metadata, read_metadata
from aam.data.simulation.files import write_study
from aam.data.simulation.simulate import simulate
from aam.data.study import load_study
from aam.members.base import F64, Labels, Samples
from aam.members.cross_validation import cross_validate, held_out
from aam.members.ensemble import combine, combine_members
from aam.members.forest import Forest
from aam.members.kernel import Kernel
from aam.members.scores import SCORED, Score, draw_groups, draw_metrics
from aam.training.sample_selection import choose_depth, deep_enough


@dataclass(frozen=True)
class Task:
    """A column of a study; `group` "study" is the part of the sample id before the first dot."""

    study: str
    column: str
    classifier: bool = False
    where: str | None = None
    group: str | None = None


TASKS = {
    "ecam-age": Task("ecam", "month_of_life", where="mom_child=C", group="host_subject_id"),
    "ecam-delivery": Task("ecam", "delivery", True, "mom_child=C", "host_subject_id"),
    "ecam-diet": Task("ecam", "diet", True, "mom_child=C", "host_subject_id"),
    "oral-age": Task("oral", "qiita_host_age"),
    "oral-age-by-study": Task("oral", "qiita_host_age", group="study"),
    "ravel-ph": Task("ravel", "pH"),
    "ravel-nugent": Task("ravel", "Nugent_score_category", True),
    "ravel-group": Task("ravel", "Ethnic_Group", True),
    "simulated-ph": Task("simulated", "ph", group="subject"),
    "simulated-site": Task("simulated", "site", True, group="subject"),
}


DRAWS = 300
"""Of the bootstrap; 1,000 in `aam train`."""


def main() -> None:
    """Print a table of all models of the tasks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    print("| task | samples | model | metric | score | 95 % | sd | CPU-s |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in arguments.tasks:
        for line in measure(name, TASKS[name], arguments.data, arguments.seeds):
            print(line, flush=True)


@dataclass(frozen=True)
class Labelled:
    """Samples of a task with their labels, without the groups."""

    ids: tuple[str, ...]
    samples: Samples
    values: F64
    classes: tuple[str, ...]
    metadata: Metadata


def load(task: Task, folder: Path) -> Labelled:
    """Read the samples that have a label and reach the rarefaction depth."""
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
    deep = deep_enough(study, choose_depth(study, SampleOptions()))
    study = study.take_samples(deep)
    samples = Samples.of(study.table, study.tokens_FL)
    ids = tuple(study.table.sample_ids)
    if task.group == "study":
        (folder / "study.tsv").write_text(
            "sample-id\tstudy\n" + "".join(f"{name}\t{name.split('.')[0]}\n" for name in ids)
        )
        metadata = read_metadata(folder / "study.tsv")
    return Labelled(ids, samples, found.values[deep], found.classes, metadata)


def measure(name: str, task: Task, data: Path, seeds: int) -> Iterator[str]:
    """Yield the lines of one task."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if task.study == "simulated":
            write_study(simulate(options := Simulate(output_dir=folder)), options)
        else:
            for file in ("table.biom", "metadata.tsv"):
                (folder / file).symlink_to((data / task.study / file).absolute())
        found = load(task, folder)
    metric = next(iter(SCORED["classification" if task.classifier else "regression"]))
    scores: dict[str, list[tuple[float, ...]]] = {}
    for seed in range(1, seeds + 1):
        for model, value, seconds in measure_seed(task, found, seed):
            scores.setdefault(model, []).append((value.value, value.lower, value.upper, seconds))
    for model, rows in scores.items():
        value, lower, upper, seconds = np.mean(rows, axis=0)
        spread = np.std([row[0] for row in rows])
        yield (
            f"| {name} | {len(found.ids)} | {model} | {metric} | {value:.3f} | {lower:.3f} to "
            f"{upper:.3f} | {spread:.3f} | {seconds:.1f} |"
        )


def measure_seed(task: Task, found: Labelled, seed: int) -> Iterator[tuple[str, Score, float]]:
    """Yield the score and CPU-seconds of each model, and the differences of the means."""
    splits, named = split_samples(
        SplitOptions(test_size=0, group_column=task.group),
        5,
        seed,
        found.ids,
        found.metadata,
        found.values.astype(np.int64) if found.classes else None,
    )
    labels = Labels.of(found.values, found.classes, named)
    held = held_out(splits)
    runs = {
        name: cross_validate(name, estimator, found.samples, labels, splits, seed)
        for name, estimator in {"kernel": Kernel(), "forest": Forest(n_jobs=1)}.items()
    }
    members = {name: run.predictions_MC for name, run in runs.items()}
    seconds = {name: run.cpu_seconds for name, run in runs.items()}
    predictions = members | {
        "mean": combine(list(members.values()), np.full(len(members), 1 / len(members))),
        "ensemble": combine_members(members, labels, held).uncalibrated_MC,
    }
    draws = draw_groups(labels.groups[held.rows], seed, DRAWS)
    drawn = {
        name: draw_metrics(held.scored(predicted, labels), draws)
        for name, predicted in predictions.items()
    }
    metric = next(iter(SCORED[labels.type]))
    for name, model in drawn.items():
        yield name, model.score()[metric], seconds.get(name, sum(seconds.values()))
    for one, two in itertools.product(("mean", "ensemble"), runs):
        yield f"{one} - {two}", drawn[one].ahead_of(drawn[two])[1], 0.0


if __name__ == "__main__":
    main()
