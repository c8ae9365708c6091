"""Order of the kernel's class probabilities: that of its regression, over simulated studies.

    nice python benchmarks/class_order.py --runs 2000

Each run is a new study of 60 samples in groups that share a community. Groups are studies with
different frequencies of the class, or subjects of one class. Prints for each setting and signal the
mean AUC within folds of the held-out probabilities, with its standard error, that of the regression
from which they come, the part of the folds whose slope is 0, so that all have the same
probabilities, and the number of folds whose probabilities have another order than the regression.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np
from scipy import sparse

from aam.arrays import F64
from aam.console import as_library
from aam.contract.options.groups import SplitOptions
from aam.data.metadata import Metadata
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.splits import split_samples
from aam.evaluation.subjects import find_subjects
from aam.members.kernel import MEMBER as KERNEL
from aam.members.kernel_ridge import product
from aam.members.member import TrainingSamples
from aam.members.relations import AsvRelations
from aam.members.samples import Samples

SAMPLES = 60
SETTINGS = {
    "3 studies": (3, False),
    "6 studies": (6, False),
    "12 subjects of one class": (12, True),
    "30 subjects of one class": (30, True),
    "60 samples": (60, True),
}
"""Groups, and whether all samples of a group are of one class."""


def main() -> None:
    """Run the settings, and print a row of the table for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--signals", nargs="+", type=float, default=[0.0, 0.7])
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    arguments = parser.parse_args()
    print("| groups | signal | AUC | AUC of the regression | slope 0 | other order |")
    print("|---|---|---|---|---|---|")
    for setting in arguments.settings:
        groups, pure = SETTINGS[setting]
        for signal in arguments.signals:
            rows = []
            for run in range(arguments.runs):
                rng = np.random.default_rng([arguments.seed, groups, run])
                with as_library():
                    folds = np.array(list(fold_orders(*study(rng, groups, pure, signal))))
                rows.append(
                    (*np.nanmean(folds[:, :2], axis=0), *folds[:, 2:].sum(axis=0), len(folds))
                )
            values = np.array(rows)
            means, errors = values.mean(axis=0), values.std(axis=0) / np.sqrt(len(values))
            print(
                f"| {setting} | {signal:g} | {means[0]:.3f} ± {errors[0]:.3f} | {means[1]:.3f} "
                f"| {means[2] / means[4]:.0%} | {values[:, 3].sum():.0f} |",
                flush=True,
            )


def study(
    rng: np.random.Generator,
    groups: int,
    pure: bool,
    signal: float,
    frequencies: Sequence[float] = (),
) -> tuple[TrainingSamples, Folds]:
    """Return a study of two classes, in which a clade follows the class.

    Args:
        rng: source of everything random.
        groups: number of groups, of equal size.
        pure: whether all samples of a group are of one class; else the frequencies of the classes
            differ between groups.
        signal: difference of the classes in the logarithms of the clade's abundances, whose
            standard deviation is 1.
        frequencies: frequency of the second class in each group, of `SAMPLES` samples then; without
            them the groups together have as many.
    """
    samples = SAMPLES * max(len(frequencies), 1)
    group_N = np.arange(samples) * groups // samples
    if frequencies:
        rank_N = np.arange(samples) % SAMPLES / SAMPLES
        codes_N = (rank_N < np.array(frequencies)[group_N]).astype(int)
    elif pure:
        codes_N = rng.permutation(np.arange(groups) % 2)[group_N]
    else:
        rank_N = np.arange(SAMPLES) % (SAMPLES // groups) / (SAMPLES // groups)
        codes_N = (rank_N < rng.permutation(np.linspace(0.2, 0.8, groups))[group_N]).astype(int)
    # Eight clades of ten ASVs, which differ by some letters of 100.
    tokens_FL = np.repeat(rng.integers(1, 5, (8, 100)), 10, axis=0).astype(np.uint8)
    changed = rng.random(tokens_FL.shape) < 0.03
    tokens_FL[changed] = rng.integers(1, 5, int(changed.sum()))
    logs_NF = rng.normal(size=80) + 0.7 * rng.normal(size=(groups, 80))[group_N]
    logs_NF += rng.normal(size=(samples, 80))
    logs_NF[:, :10] += signal * codes_N[:, None] + rng.normal(size=(samples, 1))
    shares_NF = np.exp(logs_NF) / np.exp(logs_NF).sum(axis=1, keepdims=True)
    counts_NF = np.stack([rng.multinomial(3000, share_F) for share_F in shares_NF])
    ids = [f"s{k}" for k in range(samples)]
    metadata = Metadata(ids, {"group": [f"g{k}" for k in group_N]})
    seed = int(rng.integers(1000))
    options = SplitOptions(test_size=0, group_column="group")
    subjects = find_subjects("group", "auto", metadata, ids)
    splits, _ = split_samples(options, min(groups, 5), seed, ids, subjects, codes_N)
    labels = Labels.of(codes_N.astype(np.float64), ("a", "b"), subjects.groups)
    table = Samples(sparse.csr_array(counts_NF.astype(np.int32)), tokens_FL, None, ids)
    return TrainingSamples(table, AsvRelations(tokens_FL)), Folds(labels, splits, seed, "group")


def fold_orders(
    samples: TrainingSamples, folds: Folds
) -> Iterator[tuple[float, float, bool, bool]]:
    """Yield for each fold the AUC of the probabilities and of the regression, and their relation.

    The last two are whether all probabilities are equal, and, if not, whether they have another
    order than the regression.
    """
    inputs = samples.inputs(KERNEL)
    for split in folds.splits:
        train, held_out = split.training_rows, split.held_out[1]
        model = KERNEL.fit(inputs.take(train), folds.labels.take(train), folds.seed)
        tested = inputs.take(held_out)
        outputs_MC = product(model.kernel(tested), model.dual_RC) + model.offset_C
        regressed_M, chances_M = outputs_MC[:, 1], model.predict(tested)[:, 1]
        constant = bool(np.ptp(chances_M) == 0)
        codes_M = folds.labels.values[held_out]
        order = np.argsort(regressed_M)
        turned = not constant and bool((np.diff(chances_M[order]) < -1e-12).any())
        yield auc(codes_M, chances_M), auc(codes_M, regressed_M), constant, turned


def auc(codes_M: F64, scores_M: F64) -> float:
    """Return the part of the pairs of two classes in the right order; NaN of a single class."""
    differences = scores_M[codes_M == 1][:, None] - scores_M[codes_M == 0]
    if not differences.size:
        return float("nan")
    return float(((np.sign(differences) + 1) / 2).mean())


if __name__ == "__main__":
    main()
