"""What it costs to sample: few landmarks of the kernel, few samples for each tree of the forest.

    python -m benchmarks.many_samples DATA RESULTS [--tasks TASK ...] [--sizes 125 250 500 1000]

Studies with more than 4,000 samples are fitted in this way; here studies of fewer samples are.
DATA, RESULTS and TASK are arguments of `benchmarks.members`. Each FOLDER of --joined is one of
`benchmarks.joined_studies` with its store; some of its studies are left out in turn. A row for each
size: the score of the member, the paired difference from the member that reads all samples with its
95 % interval over groups or studies, and CPU-seconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from aam.contract.options.groups import TableOptions
from aam.data.metadata import read_metadata
from aam.data.study import load_study
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import COMPARED
from aam.evaluation.labels import Labels
from aam.evaluation.splits import Split
from aam.members.forest import Forest
from aam.members.kernel import Kernel
from aam.members.member import Estimator, TrainingSamples
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from benchmarks.members import TASKS, load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--tasks", nargs="*", default=["oral-age", "ecam-age", "ecam-delivery"])
    parser.add_argument("--joined", nargs="*", type=Path, default=[], metavar="FOLDER")
    parser.add_argument("--held-out", type=int, default=5, help="studies of FOLDER to leave out")
    parser.add_argument("--sizes", nargs="+", type=int, default=[125, 250, 500, 1000])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--members", nargs="+", default=["kernel", "forest"])
    arguments = parser.parse_args()
    for name in arguments.tasks:
        task = TASKS[name]
        labelled = load(task, arguments.data, arguments.results)
        compare(name, labelled.samples, labelled.folds(task, arguments.seed), arguments)
    for folder in arguments.joined:
        samples, folds = joined(folder, arguments.held_out, arguments.seed)
        compare(folder.name, samples, folds, arguments)


def joined(folder: Path, held_out: int, seed: int) -> tuple[Samples, Folds]:
    """Return the samples of a store, and folds that leave out some of its studies."""
    store = folder / "joined.aam"
    study, metadata = load_study(TableOptions(table=store)), read_metadata(store)
    ids = study.table.sample_ids
    of_sample = np.array(metadata.values("study", ids).tolist())
    cases = np.array([value == "case" for value in metadata.values("disease", ids)])
    names, none = sorted(set(of_sample)), np.empty(0, dtype=np.int64)
    splits = tuple(
        Split(np.flatnonzero(of_sample != name), none, np.flatnonzero(of_sample == name))
        for name in names[:held_out]
    )
    labels = Labels.of(cases.astype(float), ("control", "case"), ids, studies=of_sample.tolist())
    return Samples.of(study), Folds(labels, splits, seed, None, "study", tuple(names))


def compare(title: str, samples: Samples, folds: Folds, arguments: argparse.Namespace) -> None:
    """Print the rows of a task."""
    study = TrainingSamples(samples, AsvRelations(samples.tokens_FL))
    metric, _ = COMPARED[folds.labels.type]
    smallest = min(len(split.train) for split in folds.splits)
    for member in arguments.members:
        exact = None
        for size in (None, *(size for size in arguments.sizes if size < smallest)):
            estimators: dict[str, Estimator[Any]] = {
                "kernel": Kernel(largest=0, landmarks=size) if size else Kernel(),
                "forest": Forest(largest=0, bag=size, n_jobs=1) if size else Forest(n_jobs=1),
            }
            result = estimators[member].cross_validate(study, folds, final=False)
            scored = folds.resampled(result.predictions_MC)
            text = f"{title} | {member} | {size or smallest} | {metric} {scored.values[metric]:.4f}"
            if exact is not None:
                difference = scored.paired_difference(exact)[1]
                text += (
                    f" | {difference.value:+.4f} ({difference.lower:.4f} to {difference.upper:.4f})"
                )
            exact = exact or scored
            print(f"{text} | {result.cpu_seconds:.1f}", flush=True)


if __name__ == "__main__":
    main()
