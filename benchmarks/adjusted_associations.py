"""Associated ASVs where a covariate follows the target: false ones, and power, with --adjust-for.

    nice python -m benchmarks.adjusted_associations --runs 100

Studies have 100 samples (`subjects`: of subjects with one to five samples) of 200 ASVs. A covariate
has the correlation `r` with the target, or with the log odds of two classes: an age (a number), a
site (three categories), or both. It changes 40 ASVs by 0.7 standard deviations, half of them most
at middle ages. Prints for `rank_test` without and with the covariate: the part of studies without
association in which an ASV is named at a false discovery rate of 10 % (nominal: 0.1), and with ten
ASVs that follow the target (0.7 standard deviations) the part of the named that does not follow it,
and of the ten that is named.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
from scipy import sparse

from aam.arrays import Rows
from aam.data.covariates import Covariates
from aam.evaluation.association import rank_test
from aam.evaluation.labels import Labels
from benchmarks.associations import discovery_rates, significant_asvs

SAMPLES, ASVS, PLANTED, FOLLOWING, EFFECT = 100, 200, 10, 40, 0.7
TARGETS = ("numbers", "two", "subjects")
COVARIATES = ("age", "site", "both")
CORRELATIONS = (0.0, 0.5, 0.8)


def simulated(
    rng: np.random.Generator, target: str, covariate: str, r: float, planted: int
) -> tuple[sparse.csr_array, Labels, Covariates, Rows]:
    """Simulate shares [N, F], labels, covariates, and the columns of the planted ASVs."""
    sizes = rng.integers(1, 6, SAMPLES) if target == "subjects" else np.ones(SAMPLES, np.int64)
    subject_N = np.arange(SAMPLES).repeat(sizes)[:SAMPLES]
    age_I, of_site_I = rng.normal(size=(2, SAMPLES))
    site_I = np.digitize(of_site_I, [-0.5, 0.5])
    score_I = {"age": age_I, "site": site_I - 1.0, "both": (age_I + site_I - 1) / np.sqrt(1.6)}
    along_I = score_I[covariate] / score_I[covariate].std()
    latent_I = r * along_I + np.sqrt(1 - r * r) * rng.normal(size=SAMPLES)
    values_I = latent_I if target == "numbers" else (latent_I > 0).astype(np.float64)
    values_N = values_I[subject_N]
    standard_N = (values_N - values_N.mean()) / values_N.std()
    logs_NF = rng.normal(0, 2, ASVS) + rng.normal(0, np.sqrt(0.5), (SAMPLES, ASVS))
    logs_NF += rng.normal(0, np.sqrt(0.5), (SAMPLES, ASVS))[subject_N]
    order = rng.permutation(ASVS)
    planted_P = order[:planted]
    logs_NF[:, planted_P] += EFFECT * standard_N[:, None] * rng.choice([-1, 1], planted)
    for k, asv in enumerate(order[PLANTED : PLANTED + FOLLOWING]):
        curve_I = along_I if k % 2 or covariate == "site" else 1 - age_I**2 / np.sqrt(2)
        if covariate == "both" and k % 4 > 1:
            curve_I = np.array([1.0, -1.0, 0.5])[site_I]
        logs_NF[:, asv] += rng.choice([-1, 1]) * EFFECT * curve_I[subject_N]
    shares_NF = np.exp(logs_NF) / np.exp(logs_NF).sum(axis=1, keepdims=True)
    counts_NF = np.stack([rng.multinomial(3000, shares) for shares in shares_NF])
    sites = {"site": np.array(["a", "b", "c"])[site_I[subject_N]]}
    numbers = {"age": age_I[subject_N]}
    covariates = Covariates(
        {} if covariate == "age" else sites, {} if covariate == "site" else numbers
    )
    groups = subject_N.astype(str).tolist() if target == "subjects" else None
    labels = Labels.of(values_N, () if target == "numbers" else ("no", "yes"), groups)
    return sparse.csr_array(counts_NF / 3000), labels, covariates, planted_P


def significant_of_tests(
    rng: np.random.Generator, planted: int, target: str, covariate: str, r: float
) -> tuple[list[Rows], Rows]:
    """Return the significant ASVs without and with adjustment, and the planted ASVs."""
    shares, labels, covariates, planted_P = simulated(rng, target, covariate, r, planted)
    tests = rank_test(shares, labels), rank_test(shares, labels, covariates=covariates)
    return [significant_asvs(test) for test in tests], planted_P


def main() -> None:
    """Run the settings, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", nargs="+", default=TARGETS, choices=TARGETS)
    arguments = parser.parse_args()
    tests = ("not adjusted", "adjusted")
    print("| target | columns | r | " + " | ".join(f"{t}: any | false | power" for t in tests), "|")
    print("|---" * (3 + 3 * len(tests)) + "|")
    for target in arguments.targets:
        for covariate in COVARIATES:
            for r in CORRELATIONS:
                tested = partial(significant_of_tests, target=target, covariate=covariate, r=r)
                setting = TARGETS.index(target), COVARIATES.index(covariate), int(10 * r)
                rates = discovery_rates(tested, PLANTED, (arguments.seed, *setting), arguments.runs)
                cells = " | ".join(f"{rate:.2f}" for rate in rates.ravel())
                print(f"| {target} | {covariate} | {r:g} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
