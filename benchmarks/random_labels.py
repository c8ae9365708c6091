"""Random labels: how often the permutation test calls them predictable, and what they score.

    nice python benchmarks/random_labels.py --runs 150 [--members kernel forest] [--settings two]

Each run is a new study of 48 to 60 samples whose ASVs, sequences and communities of subjects are
drawn at random, with labels that do not depend on them; `--subjects 6` draws six subjects with all
samples in the settings with groups. Prints for each setting and model the fractions of runs with
p <= 0.05, with an interval above the baseline and with the verdict "better"; with p worse <= 0.025,
an interval below the baseline and the verdict "worse", with its exact 95 % interval (Clopper and
Pearson 1934); and the mean scores, with a standard error, of the model and of the baseline, which
is what random labels allow.
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
from aam.evaluation.ensemble import combine_members
from aam.evaluation.external_validation import exact_proportion
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.permutation import permutation_test
from aam.evaluation.scores import evaluate
from aam.evaluation.splits import split_samples
from aam.evaluation.subjects import find_subjects
from aam.members.member import TrainingSamples, estimator
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.pipeline.cross_validation import combine_results

ESTIMATORS = [name for name, entry in MEMBERS.items() if not entry.network]
TARGETS = ("two", "three", "ordered", "rare", "numbers", "varying", "varying-two")
SETTINGS = tuple(
    f"{target}{groups}"
    for target in TARGETS
    for groups in ("", "/groups")
    if groups or not target.startswith("varying")  # labels that vary within the groups
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
        "| setting | model | p <= 0.05 | interval above | better | p worse <= 0.025 "
        f"| interval below | worse (95 % interval) | mean score | baseline |\n|{'---|' * 10}"
    )
    for setting in arguments.settings:
        target, _, groups = setting.partition("/")
        rows: dict[str, list[tuple[float, ...]]] = {}
        for run in range(arguments.runs):
            rng = np.random.default_rng([arguments.seed, SETTINGS.index(setting), run])
            with as_library():
                samples, folds = study(
                    rng, target, bool(groups), arguments.signal, arguments.subjects
                )
                predictions = member_predictions(samples, folds, arguments.members)
            for name, predictions_MC in predictions.items():
                test = permutation_test(folds, predictions_MC)
                combined = combine_members({name: predictions_MC}, folds)
                verdict = evaluate(target, folds, combined, {}, test).verdict
                rows.setdefault(name, []).append(
                    (
                        test is not None and test.p <= 0.05,
                        verdict.lower is not None and verdict.lower > 0,
                        verdict.outcome == "better",
                        test is not None and test.p_worse <= 0.025,
                        verdict.upper is not None and verdict.upper < 0,
                        verdict.outcome == "worse",
                        np.nan if verdict.model is None else verdict.model,
                        np.nan if verdict.guess is None else verdict.guess,
                    )
                )
        for name, of_runs in rows.items():
            *rates, score, baseline = np.nanmean(of_runs, axis=0)
            worse = exact_proportion(float(rates[-1]), arguments.runs)
            error = np.nanstd([row[-2] for row in of_runs]) / np.sqrt(arguments.runs)
            cells = [setting, name, *(f"{rate:.3f}" for rate in rates)]
            cells[-1] += f" ({worse.lower:.3f} to {worse.upper:.3f})"
            cells += [f"{score:.3f} ({error:.3f})", f"{baseline:.3f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


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
    if target.startswith("varying"):
        score += rng.normal(size=number)
    classes: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    if target not in ("numbers", "varying"):
        limits = {"rare": [0.85], "three": [1 / 3, 2 / 3], "ordered": [1 / 3, 2 / 3]}.get(
            target, [0.5]
        )
        names = ("a", "b", "c")[: len(limits) + 1]
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
    """Return the held-out predictions of the members, and of the ensemble of several."""
    results = {
        name: estimator(name).cross_validate(samples, folds, final=False, weighed=len(members) > 1)
        for name in members
    }
    combined = combine_results(results, folds)
    ensemble = {"ensemble": combined.predictions_MC} if len(members) > 1 else {}
    return {**combined.members, **ensemble}


if __name__ == "__main__":
    main()
