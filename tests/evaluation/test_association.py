"""Rank tests of ASVs with the target: those of scipy, and their level with groups."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import chi2, false_discovery_control, kruskal, spearmanr

from aam.evaluation.association import rank_test
from aam.evaluation.labels import Labels


def counts(rng: np.random.Generator, samples: int, asvs: int = 40) -> np.ndarray:
    return rng.poisson(1.0, (samples, asvs)).astype(np.float64)


def test_independent_samples_have_the_tests_of_scipy() -> None:
    rng = np.random.default_rng(0)
    table, codes_N = counts(rng, 60), rng.integers(3, size=60).astype(np.float64)
    found = rank_test(sparse.csr_array(table), Labels.of(codes_N, ("a", "b", "c"), None))
    p = [kruskal(*(column[codes_N == k] for k in range(3))).pvalue for column in table.T]
    assert found == pytest.approx(false_discovery_control(p))
    numbers_N = table[:, 3] + rng.normal(size=60)
    found = rank_test(sparse.csr_array(table), Labels.of(numbers_N, (), None))
    p = [chi2.sf(59 * spearmanr(column, numbers_N)[0] ** 2, 1) for column in table.T]
    assert found == pytest.approx(false_discovery_control(p))
    assert found is not None and found.argmin() == 3 and found[3] < 0.001


@pytest.mark.parametrize("varying", [False, True])
def test_samples_of_a_group_are_not_independent(varying: bool) -> None:
    """Communities and labels of 12 subjects, without association: at most 1 in 10 has an ASV.

    Of 100 studies more than 18 have one with a probability of 0.5 %. By samples, nearly all do.
    """
    named = by_sample = 0
    for seed in range(100):
        rng = np.random.default_rng([4, seed])
        subject_N = np.repeat(np.arange(12), 8)
        table = rng.poisson(3 * rng.lognormal(0, 1.5, (12, 40))[subject_N]).astype(np.float64)
        codes_N = rng.permutation(np.arange(12) % 2)[subject_N]
        if varying:  # in a fifth of the samples
            codes_N = np.where(rng.random(96) < 0.2, 1 - codes_N, codes_N)
        codes_N = codes_N.astype(np.float64)
        for groups, units in ((subject_N.astype(str).tolist(), "subjects"), (None, "samples")):
            found = rank_test(sparse.csr_array(table), Labels.of(codes_N, ("a", "b"), groups))
            assert found is not None
            if units == "subjects":
                named += found.min() < 0.1
            else:
                by_sample += found.min() < 0.1
    assert named <= 18
    assert by_sample > 80


def test_an_association_within_studies_is_found() -> None:
    """Three studies of other communities, in each of which one ASV follows the class."""
    rng = np.random.default_rng(0)
    study_N, codes_N = np.repeat(np.arange(3), 30), rng.integers(2, size=90)
    table = rng.poisson(5 * rng.lognormal(0, 2, (3, 40))[study_N]).astype(np.float64)
    table[:, 7] = rng.poisson(10 * 4.0**study_N * (1 + codes_N))
    labels = Labels.of(codes_N.astype(np.float64), ("a", "b"), study_N.astype(str).tolist())
    found = rank_test(sparse.csr_array(table), labels)
    assert found is not None
    assert np.flatnonzero(found < 0.01).tolist() == [7]


def test_too_few_observations_are_not_tested() -> None:
    rng = np.random.default_rng(0)
    table = sparse.csr_array(counts(rng, 40))
    codes_N = np.arange(40) % 2
    groups = [str(k % 4) for k in range(40)]
    # Four subjects with one class each.
    assert rank_test(table, Labels.of(codes_N.astype(np.float64), ("a", "b"), groups)) is None
    assert rank_test(table, Labels.of(np.zeros(40), ("a", "b"), None)) is None
