"""Associated ASVs: how often tests name one in studies whose labels are random, and with a signal.

    nice python -m benchmarks.associations --runs 200

The studies are those of `random_labels.py`: 48 to 60 samples of 80 ASVs; with `/groups` samples are
of subjects, which share their community and, but for `varying`, their label. Prints the fraction of
studies in which a test names an ASV at a false discovery rate of 10 % (nominal: 0.1), and the ASVs
that it names in the mean where the first ten follow the label.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from aam.console import as_library
from aam.evaluation.association import ASSOCIATED, CONDITIONAL, RATE, rank_test
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


if __name__ == "__main__":
    main()
