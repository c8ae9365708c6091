"""Clades of many ASVs: the approximated average linkage against the exact one, and its cost.

    python -m benchmarks.clades DATA RESULTS [--tasks TASK ...] [--seeds 1 2 3]
    python -m benchmarks.clades DATA RESULTS --sizes 30000 100000

DATA, RESULTS and tasks are those of `benchmarks/members.py`. For each task the kernel reads clades
of the exact linkage, of one that links at most a tenth of the ASVs at once, and none; the forest
reads the first two. The rows have the scores, the paired difference of approximated and exact
clades over groups, and the adjusted Rand index of the clades at the levels of the forest. With
--sizes: CPU-seconds and peak memory for so many simulated ASVs of 150 nucleotides.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

from scipy.cluster.hierarchy import fcluster
from sklearn.metrics import adjusted_rand_score

from aam.contract.options.commands.studies import Example
from aam.data.sequences import encode
from aam.data.simulation import simulate
from aam.evaluation.intervals import Score, Units, resample_metrics
from aam.members.forest import LEVELS, Forest
from aam.members.kernel import Kernel
from aam.members.member import TrainingSamples
from aam.members.relations import AsvRelations, Dendrogram, average_linkage
from benchmarks.members import (
    TASKS,
    Labelled,
    ScoredSeed,
    Task,
    load,
    mean_score,
    shown,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--sizes", nargs="*", type=int, default=[])
    arguments = parser.parse_args()
    for size in arguments.sizes:
        measure(size)
    if arguments.sizes:
        return
    for name in arguments.tasks:
        task = TASKS[name]
        found = load(task, arguments.data, arguments.results)
        tokens_FL = found.samples.tokens_FL
        length = (tokens_FL > 0).sum(axis=1).mean()
        trees = [average_linkage(tokens_FL, most) for most in (10_000, len(tokens_FL) // 10)]
        agreement = [
            adjusted_rand_score(*(fcluster(tree, level * length, "distance") for tree in trees))
            for level in LEVELS
        ]
        scored = [score_seed(task, found, seed) for seed in arguments.seeds]
        cells = [
            shown(mean_score(scored, model), "+" if "-" in model else "")
            for model in scored[0].scores
        ]
        indices = ", ".join(f"{one:.2f}" for one in agreement)
        print(f"| {name} | {len(tokens_FL):,} | {' | '.join(cells)} | {indices} |", flush=True)


def score_seed(task: Task, found: Labelled, seed: int) -> ScoredSeed:
    """Score kernel and forest with exact, approximated and no clades on the folds of a seed."""
    folds = found.folds(task, seed)
    units = Units.of(folds.held_out.groups)
    asvs = len(found.samples.tokens_FL)
    scores: dict[str, Score] = {}
    drawn = {}
    for name, member, largest in (
        ("kernel without", Kernel(clades=False), asvs),
        ("kernel exact", Kernel(), asvs),
        ("kernel approximated", Kernel(), asvs // 10),
        ("forest exact", Forest(n_jobs=1), asvs),
        ("forest approximated", Forest(n_jobs=1), asvs // 10),
    ):
        relations = AsvRelations(found.samples.tokens_FL, largest)
        samples = TrainingSamples(found.samples, relations)
        run = member.cross_validate(samples, folds, final=False)
        drawn[name] = resample_metrics(folds.scored(run.predictions_MC), units)
        scores[name] = drawn[name].score()[task.metric]
        if "approximated" in name:
            exact = drawn[name.replace("approximated", "exact")]
            scores[f"{name} - exact"] = drawn[name].paired_difference(exact)[1]
    return ScoredSeed(scores, {}, units.number)


def measure(asvs: int) -> None:
    """Print CPU-seconds and memory of the linkage and the paths of simulated ASVs."""
    options = Example(output_dir=Path(), samples=60, asvs=asvs, length=150, richness=200)
    tokens_FL = encode(simulate(options).feature_ids, None)
    began = time.process_time()
    tree = Dendrogram.of(average_linkage(tokens_FL))
    linked, nodes = time.process_time(), tree.paths_FG.nnz / asvs
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"| {asvs:,} | {linked - began:.0f} | {time.process_time() - linked:.1f} | {nodes:.0f} "
        f"| {gib:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
