"""Associated ASVs: how often tests name one in studies whose labels are random, and with a signal.

    nice python -m benchmarks.associations --runs 200

The studies are those of `random_labels.py`: 48 to 60 samples of 80 ASVs; with `/groups` samples are
of subjects, which share their community and, but for `varying`, their label. Prints the fraction of
studies in which a test names an ASV at a false discovery rate of 10 % (nominal: 0.1), and the ASVs
that it names in the mean where the first ten follow the label.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from aam.arrays import F64, Rows
from aam.console import as_library
from aam.evaluation.association import ASSOCIATED, CONDITIONAL, RATE, RankTest, rank_test
from aam.members.importance import q_values
from benchmarks.random_labels import SETTINGS, study


def main() -> None:
    """Run the settings, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    arguments = parser.parse_args()
    tests = (ASSOCIATED, "by samples", CONDITIONAL)
    print("| setting | " + " | ".join(f"{test} | with signal" for test in tests) + " |")
    print("|---" * (1 + 2 * len(tests)) + "|")
    for setting in arguments.settings:
        target, _, groups = setting.partition("/")
        named = np.zeros((arguments.runs, 2, len(tests)))
        for run in range(arguments.runs):
            for with_signal in (0, 1):
                rng = np.random.default_rng(
                    [arguments.seed, SETTINGS.index(setting), run, with_signal]
                )
                with as_library():
                    samples, folds = study(rng, target, bool(groups), float(with_signal))
                    rates, _ = q_values(samples, folds)
                # The same test of samples as if they were independent.
                ungrouped = replace(folds.labels, groups=np.arange(len(folds.labels.values)))
                by_samples = rank_test(samples.samples.relative, ungrouped)
                rates |= {} if by_samples is None else {"by samples": by_samples.q_values}
                named[run, with_signal] = [
                    (rates[test] < RATE).sum() if test in rates else 0 for test in tests
                ]
        cells = [
            f"{(named[:, 0, k] > 0).mean():.3f} | {named[:, 1, k].mean():.1f}"
            for k in range(len(tests))
        ]
        print(f"| {setting} | {' | '.join(cells)} |", flush=True)


def significant_asvs(test: RankTest | None) -> Rows:
    """Return the ASVs below the false discovery rate."""
    return np.flatnonzero([] if test is None else test.q_values < RATE)


def discovery_rates(
    tested: Callable[[np.random.Generator, int], tuple[Sequence[Rows], Rows]],
    planted: int,
    seed: Sequence[int],
    runs: int,
) -> F64:
    """Return false discoveries and power of each test, means over simulated studies [K, 3].

    The columns are the fraction of the studies without association that have a significant ASV;
    with planted ASVs, the fraction of the significant ASVs that are not planted, and the fraction
    of the planted ASVs that are significant.

    Args:
        tested: draws a study with a number of planted ASVs, and returns the significant ASVs of
            each test, and the planted ones.
        planted: number of planted ASVs.
        seed: seed of the setting, to which the number of the run is appended.
        runs: number of studies without, and with planted ASVs.
    """
    rates = []
    for run in range(runs):
        by_chance, _ = tested(np.random.default_rng([*seed, run]), 0)
        significant, planted_P = tested(np.random.default_rng([*seed, run]), planted)
        for without, asvs in zip(by_chance, significant, strict=True):
            right = len(np.intersect1d(asvs, planted_P))
            false = (len(asvs) - right) / max(len(asvs), 1)
            rates.append((len(without) > 0, false, right / planted))
    means_K3: F64 = np.reshape(rates, (runs, -1, 3)).mean(axis=0)
    return means_K3


if __name__ == "__main__":
    main()
