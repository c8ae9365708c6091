"""Random labels: how often the permutation test calls them predictable, and what they score.

    nice python benchmarks/random_labels.py --runs 400 [--members] [--settings two three/groups]

Each run is a new study of 48 to 60 samples whose ASVs, sequences and communities of subjects are
drawn at random, with labels that do not depend on them. Prints for each setting how many runs have
p <= 0.05 and p <= 0.01; by chance at most 32 and 10 of 400 have, with a probability of 99 %. With
--members kernel and forest are trained too, and the mean scores of the ensemble, the members and
the dummy are printed with their standard errors: those of the dummy are the right ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from scipy import sparse

from aam.arrays import F64
from aam.console import as_library
from aam.contract.options.study import SplitOptions
from aam.data.metadata import Metadata
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import SCORED
from aam.evaluation.labels import Labels
from aam.evaluation.metrics import value_of
from aam.evaluation.permutation import permutation_test
from aam.evaluation.splits import split_samples
from aam.members.base import Samples
from aam.members.kernel import MEMBER as KERNEL
from aam.members.kernel import label_free_kernels
from aam.members.member import TrainingSamples, combine_results, estimator
from aam.members.relations import AsvRelations

TARGETS = ("two", "three", "ordered", "rare", "numbers", "varying")
SETTINGS = tuple(
    f"{target}{groups}"
    for target in TARGETS
    for groups in ("", "/groups")
    if (target, groups) != ("varying", "")  # numbers that vary within the groups
)


def main() -> None:
    """Run the settings, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--signal", type=float, default=0.0, help="for the power of the test")
    parser.add_argument("--members", action="store_true")
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    arguments = parser.parse_args()
    for setting in arguments.settings:
        target, _, groups = setting.partition("/")
        p, scores = [], []
        for run in range(arguments.runs):
            rng = np.random.default_rng([arguments.seed, SETTINGS.index(setting), run])
            with as_library():
                samples, folds = study(rng, target, bool(groups), arguments.signal)
                found = permutation_test(label_free_kernels(samples.inputs(KERNEL)), folds)
                if arguments.members:
                    scores.append(dict(member_scores(samples, folds)))
            p.append(1.0 if found is None else found.p)
        small = [int((np.array(p) <= level).sum()) for level in (0.05, 0.01)]
        print(
            f"{setting}: p <= 0.05 in {small[0]}, p <= 0.01 in {small[1]} of {len(p)}", flush=True
        )
        for name in scores[0] if scores else ():
            values = np.array([one[name] for one in scores])
            error = values.std() / np.sqrt(len(values))
            print(f"    {name}: {np.nanmean(values):.3f} +- {error:.3f}", flush=True)


def study(
    rng: np.random.Generator, target: str, grouped: bool, signal: float = 0.0
) -> tuple[TrainingSamples, Folds]:
    """Return a study, with a `signal` above 0 one whose first clade follows the labels.

    Args:
        rng: source of everything random.
        target: one of `TARGETS`.
        grouped: whether samples are of subjects, which share their community and label.
        signal: standard deviations of the labels and of the clade's logarithms that they share.
    """
    number = int(rng.integers(48, 61))
    sizes = rng.integers(1, 6, number) if grouped else np.ones(number, dtype=np.int64)
    subject = np.repeat(np.arange(number), sizes)[:number]
    subjects, asvs = int(subject[-1]) + 1, 80
    # Eight clades of ten ASVs, which differ by some letters of 100.
    tokens_FL = np.repeat(rng.integers(1, 5, (8, 100)), 10, axis=0).astype(np.uint8)
    changed = rng.random(tokens_FL.shape) < 0.03
    tokens_FL[changed] = rng.integers(1, 5, int(changed.sum()))
    logs = rng.normal(size=asvs) + 1.5 * rng.normal(size=(subjects, asvs))[subject]
    logs += rng.normal(size=(number, asvs))
    factor = rng.normal(size=subjects)[subject]
    logs[:, :10] += signal * factor[:, None]
    shares = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    counts = np.stack([rng.multinomial(3000, share) for share in shares]).astype(np.int32)
    score = signal * factor + rng.normal(size=subjects)[subject]
    if target == "varying":
        score += rng.normal(size=number)
    classes: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    if target in ("two", "three", "ordered", "rare"):
        names = ("a", "b") if target in ("two", "rare") else ("a", "b", "c")
        limits = {"two": [0.5], "rare": [0.85]}.get(target, [1 / 3, 2 / 3])
        if target == "ordered":
            levels = names
        else:
            classes = names
        values = np.searchsorted(np.quantile(score, limits), score).astype(np.float64)
    else:
        values = score
    ids = [f"s{k}" for k in range(number)]
    metadata = Metadata(ids, {"subject": [f"g{k}" for k in subject]})
    splits, groups = split_samples(
        SplitOptions(test_size=0, group_column="subject" if grouped else None),
        5,
        int(rng.integers(1000)),
        ids,
        metadata,
        values.astype(np.int64) if classes or levels else None,
    )
    labels = Labels.of(values, classes, groups, levels)
    folds = Folds(labels, splits, int(rng.integers(1000)), "subject" if grouped else None)
    samples = Samples(sparse.csr_array(counts), tokens_FL, None, ids)
    return TrainingSamples(samples, AsvRelations(tokens_FL)), folds


def member_scores(samples: TrainingSamples, folds: Folds) -> Iterator[tuple[str, float]]:
    """Yield the scores of the ensemble, its members and the dummy, by the first metric."""
    results = {
        name: estimator(name).cross_validate(samples, folds, final=False, weighed=True)
        for name in ("kernel", "forest")
    }
    combined = combine_results(results, folds)
    name, metric = next(iter(SCORED[folds.labels.type].items()))
    predictions: dict[str, F64] = {"ensemble": combined.predictions_MC}
    predictions |= {"uncalibrated": combined.uncalibrated_MC}
    predictions |= {"mean": np.mean(list(combined.members.values()), axis=0)}
    for model, predictions_MC in (
        predictions | dict(combined.members) | {"dummy": folds.dummy_MC}
    ).items():
        yield f"{name} {model}", value_of(metric, folds.scored(predictions_MC))


if __name__ == "__main__":
    main()
