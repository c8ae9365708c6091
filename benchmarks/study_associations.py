"""Associations within several studies: level and power of the test, and directions that agree.

    nice python -m benchmarks.study_associations --runs 200

Studies of 30 to 80 samples have 80 ASVs, whose mean abundances differ between the studies (standard
deviation 1.5 of the logarithm) as do the proportions of two classes (0.15 to 0.85). Prints for 3, 5
and 10 studies, without association and where ten ASVs have a shared effect of 0.8 standard
deviations or each study its own ten: the part of the ASVs without an effect with p below 0.05 and
0.005, the part of these among the ASVs named at a false discovery rate of 10 %, the part of ASVs
with an effect that are named, and the part of the named whose direction agrees in all studies.
`pooled` is the same test without the studies.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
from scipy import sparse

from aam.arrays import F64
from aam.evaluation.association import RATE, study_agreement
from aam.evaluation.labels import Labels

ASVS, AFFECTED, EFFECT = 80, 10, 0.8


def simulated(
    rng: np.random.Generator, studies: int, effect: str, grouped: bool = False
) -> tuple[sparse.csr_array, Labels]:
    """Simulate relative abundances [N, F] and labels.

    Args:
        effect: "none", "shared" by all studies, or "own" of each.
        grouped: two samples of each subject, with equal labels.
    """
    shares, codes, names, subjects = [], [], [], []
    middle_F = rng.normal(0, 2, ASVS)
    shared_F = np.zeros(ASVS)
    shared_F[:AFFECTED] = EFFECT * rng.choice([-1, 1], AFFECTED)
    for study in range(studies):
        number = int(rng.integers(30, 81)) // (2 if grouped else 1)
        codes_N = (rng.random(number) < rng.uniform(0.15, 0.85)).astype(np.float64)
        codes_N[:2] = 0, 1
        own_F = np.zeros(ASVS)
        if effect == "shared":
            own_F = shared_F
        elif effect == "own":
            own_F[rng.permutation(AFFECTED * 2)[:AFFECTED]] = EFFECT * rng.choice([-1, 1], AFFECTED)
        means_NF = middle_F + rng.normal(0, 1.5, ASVS) + np.outer(codes_N - 0.5, own_F)
        logs_NF = means_NF + rng.normal(0, 1, (number, ASVS))
        if grouped:
            logs_NF = logs_NF.repeat(2, axis=0) + rng.normal(0, 0.5, (2 * number, ASVS))
            codes_N = codes_N.repeat(2)
        counts_NF = rng.poisson(3000 * np.exp(logs_NF) / np.exp(logs_NF).sum(axis=1)[:, None])
        shares.append(counts_NF / counts_NF.sum(axis=1)[:, None].clip(min=1))
        codes.append(codes_N)
        names += [f"study {study}"] * len(codes_N)
        subjects += [f"{study}-{row // (2 if grouped else 1)}" for row in range(len(codes_N))]
    labels = Labels.of(np.concatenate(codes), ("no", "yes"), subjects, (), names)
    return sparse.csr_array(np.concatenate(shares)), labels


def measure(rng: np.random.Generator, studies: int, effect: str, grouped: bool) -> list[F64]:
    """Return, for the stratified and the pooled test, what a row of the table averages."""
    shares, labels = simulated(rng, studies, effect, grouped)
    none_F = np.arange(ASVS) >= {"none": 0, "shared": AFFECTED, "own": 2 * AFFECTED}[effect]
    of_tests = []
    for tested in (labels, replace(labels, studies=np.zeros(len(labels.values), dtype=np.int64))):
        found = study_agreement(shares, tested)
        assert found is not None
        named_F = found.q_F < RATE
        agrees_F = named_F & (found.agreeing_F == found.studies_F)
        of_tests.append(
            np.array(
                [
                    (found.p_F[none_F] < 0.05).mean(),
                    (found.p_F[none_F] < 0.005).mean(),
                    named_F[none_F].sum() / max(named_F.sum(), 1),
                    named_F[~none_F].mean() if not none_F.all() else np.nan,
                    agrees_F.sum() / named_F.sum()
                    if named_F.any() and tested is labels
                    else np.nan,
                ]
            )
        )
    return of_tests


def main() -> None:
    """Run the settings, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    heads = ["p < 0.05", "p < 0.005", "false among named", "power", "agreeing"]
    print(f"| studies | effect | test | {' | '.join(heads)} |")
    print("|---" * (3 + len(heads)) + "|")
    for grouped in (False, True):
        for studies in (3, 5, 10):
            for effect in ("none", "shared", "own"):
                rng = np.random.default_rng([arguments.seed, studies, len(effect), grouped])
                runs = [measure(rng, studies, effect, grouped) for _ in range(arguments.runs)]
                for k, test in enumerate(("within", "pooled")):
                    means = [
                        "" if np.isnan(values).all() else f"{np.nanmean(values):.3f}"
                        for values in np.array([run[k] for run in runs]).T
                    ]
                    title = f"{studies}{', subjects' if grouped else ''}"
                    print(f"| {title} | {effect} | {test} | {' | '.join(means)} |", flush=True)


if __name__ == "__main__":
    main()
