"""Cohorts of one class: how often the exact interval has the true sensitivity.

    nice python benchmarks/one_class.py --cohorts 20000

Subjects have several samples each. Whether these are predicted right is drawn with a probability of
each subject, from a beta distribution with the stated correlation within subjects.
"""

from __future__ import annotations

import argparse

import numpy as np

from aam.evaluation.external_validation import exact_proportion


def coverage(
    truth: float, subjects: int, samples: int, correlation: float, cohorts: int, seed: int
) -> tuple[float, float]:
    """Return how often the interval of groups has the truth, and that of samples."""
    rng = np.random.default_rng(seed)
    chances = np.full((cohorts, subjects), truth)
    if correlation > 0:
        total = 1 / correlation - 1
        chances = rng.beta(truth * total, (1 - truth) * total, size=chances.shape)
    shares = rng.binomial(samples, chances).sum(axis=1) / (subjects * samples)
    held = []
    for units in (subjects, subjects * samples):
        score_of = {share: exact_proportion(share, units) for share in set(shares.tolist())}
        inside = [
            (score.lower or 0.0) <= truth <= (score.upper or 0.0)
            for score in map(score_of.__getitem__, shares.tolist())
        ]
        held.append(float(np.mean(inside)))
    return held[0], held[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cohorts", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("truth  subjects  samples  correlation  of groups  of samples")
    for truth in (0.6, 0.9):
        for subjects, samples, correlation in (
            (20, 1, 0.0), (60, 1, 0.0), (20, 5, 0.0), (20, 5, 0.3), (20, 5, 0.7), (60, 3, 0.5),
        ):  # fmt: skip
            groups, single = coverage(
                truth, subjects, samples, correlation, options.cohorts, options.seed
            )
            print(
                f"{truth:5.1f}  {subjects:8}  {samples:7}  {correlation:11.1f}  {groups:9.3f}  "
                f"{single:10.3f}"
            )


if __name__ == "__main__":
    main()
