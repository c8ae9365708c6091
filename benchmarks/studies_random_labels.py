"""Random labels in several studies: what differs between the studies alone must not be skill.

    nice python benchmarks/studies_random_labels.py --runs 100 [--members kernel forest]

Each run draws studies of 30 samples with ASVs, sequences and batch effects at random. Within a
study the labels do not depend on the samples; between studies they differ: cases are 20 to 80 % of
a study (`two`), or numbers have a mean of their own with half of the variance (`numbers`). One
study at a time is left out. Prints for each setting and model how many runs have p <= 0.05 by
shuffling within studies, a summary above a guess, and both, and the mean score of the studies with
its standard error, which for AUC is 0.5 where there is no gain.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy import sparse

from aam.console import as_library
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import NO_SKILL
from aam.evaluation.labels import Labels
from aam.evaluation.permutation import permutation_test
from aam.evaluation.splits import study_splits
from aam.members.member import TrainingSamples
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from benchmarks.random_labels import member_predictions

SETTINGS = ("two/3", "two/4", "two/10", "numbers/3", "numbers/4", "numbers/10")
"""Target and number of studies."""

SIZE, ASVS, LEAST = 30, 80, 6


def main() -> None:
    """Run the settings, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--members", nargs="+", default=["kernel"], choices=["kernel", "forest"])
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    arguments = parser.parse_args()
    print(
        "| setting | model | p <= 0.05 | summary | both | mean score |\n|---|---|---|---|---|---|"
    )
    for setting in arguments.settings:
        rows: dict[str, list[tuple[bool, bool, float]]] = {}
        for run in range(arguments.runs):
            rng = np.random.default_rng([arguments.seed, SETTINGS.index(setting), run])
            with as_library():
                samples, folds = studies(rng, *setting.split("/"))
                predictions = member_predictions(samples, folds, arguments.members)
            for name, predictions_MC in predictions.items():
                model = folds.resampled(predictions_MC)
                metric, score = next(iter(model.score().items()))
                test = permutation_test(folds, predictions_MC)
                small = test is not None and test.p <= 0.05
                above = score.lower is not None and score.lower > NO_SKILL[metric]
                rows.setdefault(name, []).append((small, above, model.values[metric]))
        for name, found in rows.items():
            small_R, above_R, score_R = (np.array(column) for column in zip(*found, strict=True))
            rates = (
                f"{small_R.mean():.3f} | {above_R.mean():.3f} | {(small_R & above_R).mean():.3f}"
            )
            error = score_R.std(ddof=1) / np.sqrt(len(score_R))
            print(f"| {setting} | {name} | {rates} | {score_R.mean():.3f} ({error:.3f}) |")


def studies(rng: np.random.Generator, target: str, studies: str) -> tuple[TrainingSamples, Folds]:
    """Return studies whose labels differ between them alone, left out one at a time."""
    number = int(studies)
    study_N = np.repeat(np.arange(number), SIZE)
    # Eight clades of ten ASVs, which differ by some letters of 100.
    tokens_FL = np.repeat(rng.integers(1, 5, (8, 100)), ASVS // 8, axis=0).astype(np.uint8)
    changed = rng.random(tokens_FL.shape) < 0.03
    tokens_FL[changed] = rng.integers(1, 5, int(changed.sum()))
    logs = rng.normal(size=ASVS) + 1.5 * rng.normal(size=(number, ASVS))[study_N]
    logs += 1.5 * rng.normal(size=(len(study_N), ASVS))
    shares = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    counts = np.stack([rng.multinomial(3000, share) for share in shares]).astype(np.int32)
    codes = None
    if target == "two":
        cases = np.round(SIZE * rng.uniform(LEAST / SIZE, 1 - LEAST / SIZE, number)).astype(int)
        codes = np.concatenate([rng.permutation(SIZE) < size for size in cases]).astype(np.int64)
        values = codes.astype(np.float64)
    else:
        values = rng.normal(size=number)[study_N] + rng.normal(size=len(study_N))
    names = [f"s{k:02d}" for k in study_N.tolist()]
    labels = Labels.of(values, ("a", "b") if target == "two" else (), None, studies=names)
    splits = study_splits(names, test_size=0, seed=0, fitted=np.arange(len(names)), classes=codes)
    folds = Folds(
        labels, splits, int(rng.integers(1000)), None, "study", tuple(dict.fromkeys(names))
    )
    samples = Samples(
        sparse.csr_array(counts), tokens_FL, None, [f"x{k}" for k in range(len(names))]
    )
    return TrainingSamples(samples, AsvRelations(tokens_FL)), folds


if __name__ == "__main__":
    main()
