"""Random labels: how often the permutation test calls them predictable, and what they score.

    nice python benchmarks/random_labels.py --runs 150 [--members kernel forest] [--settings two]

Each run is a new study of 48 to 60 samples whose ASVs, sequences and communities of subjects are
drawn at random, with labels that do not depend on them; `--subjects 6` draws six subjects with all
samples in the settings with groups. Prints for each setting and model how many runs have p <= 0.05,
how many an interval above the dummy's score, how many both; the same below the dummy's score; and
the mean score with its standard error: that of the dummy is the right one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from scipy import sparse

from aam.arrays import F64
from aam.console import as_library
from aam.contract.options.groups import MEMBERS, SplitOptions
from aam.data.metadata import Metadata
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.permutation import permutation_test
from aam.evaluation.splits import split_samples
from aam.evaluation.subjects import find_subjects
from aam.members.member import TrainingSamples, estimator
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.pipeline.cross_validation import combine_results

ESTIMATORS = [name for name, entry in MEMBERS.items() if not entry.network]
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
    parser.add_argument("--subjects", type=int, help="subjects of the settings with groups")
    parser.add_argument("--members", nargs="+", default=["kernel"], choices=ESTIMATORS)
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    arguments = parser.parse_args()
    print(
        "| setting | model | p <= 0.05 | interval | both | p worse <= 0.025 | interval | both | "
        f"mean score |\n|{'---|' * 9}"
    )
    for setting in arguments.settings:
        target, _, groups = setting.partition("/")
        rows: dict[str, list[tuple[bool, bool, bool, bool, float]]] = {}
        for run in range(arguments.runs):
            rng = np.random.default_rng([arguments.seed, SETTINGS.index(setting), run])
            with as_library():
                samples, folds = study(
                    rng, target, bool(groups), arguments.signal, arguments.subjects
                )
                predictions = member_predictions(samples, folds, arguments.members)
            dummy = folds.resampled(folds.baseline_MC)
            for name, predictions_MC in predictions.items():
                model = folds.resampled(predictions_MC)
                metric, ahead = model.paired_difference(dummy)
                test = permutation_test(folds, predictions_MC)
                above = ahead.lower is not None and ahead.lower > 0
                below = ahead.upper is not None and ahead.upper < 0
                tails = (1.0, 1.0) if test is None else (test.p, test.p_worse)
                rows.setdefault(name, []).append(
                    (tails[0] <= 0.05, above, tails[1] <= 0.025, below, model.values[metric])
                )
        for name, found in rows.items():
            *tails_R, score_R = (np.array(column) for column in zip(*found, strict=True))
            rates = " | ".join(
                f"{small_R.mean():.3f} | {beyond_R.mean():.3f} | {(small_R & beyond_R).mean():.3f}"
                for small_R, beyond_R in (tails_R[:2], tails_R[2:])
            )
            error = np.nanstd(score_R) / np.sqrt(len(score_R))
            print(
                f"| {setting} | {name} | {rates} | {np.nanmean(score_R):.3f} ({error:.3f}) |",
                flush=True,
            )


def study(
    rng: np.random.Generator,
    target: str,
    grouped: bool,
    signal: float = 0.0,
    subjects: int | None = None,
) -> tuple[TrainingSamples, Folds]:
    """Return a study, with a `signal` above 0 one whose first clade follows the labels.

    Args:
        rng: source of everything random.
        target: one of `TARGETS`.
        grouped: whether samples are of subjects, which share their community and label.
        signal: standard deviations of the labels and of the clade's logarithms that they share.
        subjects: number of subjects; None of subjects with one to five samples each.
    """
    number = int(rng.integers(48, 61))
    sizes = rng.integers(1, 6, number) if grouped else np.ones(number, dtype=np.int64)
    subject = np.repeat(np.arange(number), sizes)[:number]
    if grouped and subjects is not None:
        subject = np.sort(rng.integers(subjects, size=number))
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
    column = "subject" if grouped else None
    people = find_subjects(column, "auto", metadata, ids)
    splits, _ = split_samples(
        SplitOptions(test_size=0, group_column=column),
        5,
        int(rng.integers(1000)),
        ids,
        people,
        values.astype(np.int64) if classes or levels else None,
    )
    labels = Labels.of(values, classes, people.groups, levels)
    folds = Folds(labels, splits, int(rng.integers(1000)), column)
    samples = Samples(sparse.csr_array(counts), tokens_FL, None, ids)
    return TrainingSamples(samples, AsvRelations(tokens_FL)), folds


def member_predictions(
    samples: TrainingSamples, folds: Folds, members: Sequence[str]
) -> dict[str, F64]:
    """Return the held-out predictions of the members, of several the ensemble, and of the dummy."""
    results = {
        name: estimator(name).cross_validate(samples, folds, final=False, weighed=len(members) > 1)
        for name in members
    }
    combined = combine_results(results, folds)
    predictions = {"dummy": folds.baseline_MC, **combined.members}
    return predictions | ({"ensemble": combined.predictions_MC} if len(members) > 1 else {})


if __name__ == "__main__":
    main()
