"""Associated ASVs where the sequencing depth follows the target: false ones, and power.

    nice python -m benchmarks.depth_associations --runs 100

Studies have 100 samples of 200 ASVs (`groups`: of subjects with one to five samples, which share
their label and half of the variance of their community). The logarithm of the depth has the
standard deviation `sd` and the correlation `r` with the target: a number, two classes, or a class
of a fifth of the samples that is shallow or deep. Prints for `rank_test` of all reads, of one
rarefied table, and of the reads as `aam train` tests them: the part of studies without association
in which an ASV is named at a false discovery rate of 10 % (nominal: 0.1), and with ten planted ASVs
(0.7 standard deviations) the part of the named that is not planted, and of the planted that is
named.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.arrays import Rows
from aam.data.table import auto_depth
from aam.evaluation.association import rank_test
from aam.evaluation.labels import Labels
from benchmarks.associations import discovery_rates, significant_asvs

SAMPLES, ASVS, PLANTED, EFFECT, MEDIAN = 100, 200, 10, 0.7, 3000
SETTINGS = ("numbers", "two", "shallow", "deep", "groups")
DEPTHS = ((0.0, 0.0), (1.0, 0.2), (1.0, 0.7), (2.0, 0.7), (2.0, 1.0))
TESTS = ("all reads", "one rarefied table", "shipped")


def simulated(
    rng: np.random.Generator, setting: str, sd: float, r: float, planted: int
) -> tuple[sparse.csr_array, Labels, Rows]:
    """Simulate counts [N, F], labels, and the columns of the planted ASVs."""
    size = rng.integers(1, 6, SAMPLES) if setting == "groups" else np.ones(SAMPLES, dtype=np.int64)
    subject_N = np.arange(SAMPLES).repeat(size)[:SAMPLES]
    values_I: npt.NDArray[Any] = rng.normal(size=SAMPLES)
    if setting in ("two", "groups"):
        values_I = rng.permutation(SAMPLES) % 2.0
    elif setting in ("shallow", "deep"):
        values_I = (rng.permutation(SAMPLES) < SAMPLES / 5).astype(np.float64)
    values_N = values_I[subject_N]
    standard_N = (values_N - values_N.mean()) / values_N.std()
    logs_NF = rng.normal(0, 2, ASVS) + rng.normal(0, np.sqrt(0.5), (SAMPLES, ASVS))
    logs_NF += rng.normal(0, np.sqrt(0.5), (SAMPLES, ASVS))[subject_N]
    planted_P = rng.choice(ASVS, planted, replace=False)
    logs_NF[:, planted_P] += EFFECT * standard_N[:, None] * rng.choice([-1, 1], planted)
    shares_NF = np.exp(logs_NF) / np.exp(logs_NF).sum(axis=1, keepdims=True)
    follows_N = -standard_N if setting == "shallow" else standard_N
    depth_N = r * follows_N + np.sqrt(1 - r * r) * rng.normal(size=SAMPLES)
    reads_N = np.maximum(MEDIAN * np.exp(sd * depth_N), 100).astype(np.int64)
    counts = np.stack([rng.multinomial(n, p) for n, p in zip(reads_N, shares_NF, strict=True)])
    classes = () if setting == "numbers" else ("no", "yes")
    groups = subject_N.astype(str).tolist() if setting == "groups" else None
    return sparse.csr_array(counts), Labels.of(values_N, classes, groups), planted_P


def significant_of_tests(
    rng: np.random.Generator, planted: int, setting: str, sd: float, r: float
) -> tuple[list[Rows], Rows]:
    """Return the significant ASVs of each of `TESTS`, and the planted ASVs."""
    counts, labels, planted_P = simulated(rng, setting, sd, r, planted)
    reads = np.asarray(counts.sum(axis=1), dtype=np.int64)
    relative = sparse.csr_array(counts / reads[:, None])
    depth = auto_depth(reads)
    rows = np.flatnonzero(reads >= depth)
    table = counts.toarray()[rows]
    once = rng.hypergeometric(table, reads[rows, None] - table, depth)
    tests = (
        rank_test(relative, labels),
        rank_test(sparse.csr_array(once), labels.take(rows)),
        rank_test(relative, labels, reads),
    )
    return [significant_asvs(test) for test in tests], planted_P


def main() -> None:
    """Run the settings, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    arguments = parser.parse_args()
    print("| setting | sd, r | " + " | ".join(f"{t}: any | false | power" for t in TESTS) + " |")
    print("|---" * (2 + 3 * len(TESTS)) + "|")
    for setting in arguments.settings:
        for sd, r in DEPTHS:
            tested = partial(significant_of_tests, setting=setting, sd=sd, r=r)
            seed = arguments.seed, SETTINGS.index(setting), int(10 * sd), int(10 * r)
            rates = discovery_rates(tested, PLANTED, seed, arguments.runs)
            cells = " | ".join(f"{rate:.2f}" for rate in rates.ravel())
            print(f"| {setting} | {sd:g}, {r:g} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
