"""Rank tests of ASVs with the target: those of scipy, and their level with groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import chi2, false_discovery_control, kruskal, rankdata, spearmanr

from aam.data.covariates import Covariates
from aam.evaluation.association import rank_test, study_agreement
from aam.evaluation.labels import Labels
from benchmarks.adjusted_associations import simulated as simulated_with_covariate
from benchmarks.depth_associations import simulated


def counts(rng: np.random.Generator, samples: int, asvs: int = 40) -> np.ndarray:
    return rng.poisson(1.0, (samples, asvs)).astype(np.float64)


def test_independent_samples_have_the_tests_of_scipy() -> None:
    rng = np.random.default_rng(0)
    table, codes_N = counts(rng, 60), rng.integers(3, size=60).astype(np.float64)
    found = rank_test(sparse.csr_array(table), Labels.of(codes_N, ("a", "b", "c"), None))
    p = [kruskal(*(column[codes_N == k] for k in range(3))).pvalue for column in table.T]
    assert found is not None and found.q_values == pytest.approx(false_discovery_control(p))
    numbers_N = table[:, 3] + rng.normal(size=60)
    found = rank_test(sparse.csr_array(table), Labels.of(numbers_N, (), None))
    p = [chi2.sf(59 * spearmanr(column, numbers_N)[0] ** 2, 1) for column in table.T]
    assert found is not None and found.q_values == pytest.approx(false_discovery_control(p))
    assert found.q_values.argmin() == 3 and found.q_values[3] < 0.001


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
                named += found.q_values.min() < 0.1
            else:
                by_sample += found.q_values.min() < 0.1
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
    assert np.flatnonzero(found.q_values < 0.01).tolist() == [7]


def test_too_few_observations_are_not_tested() -> None:
    rng = np.random.default_rng(0)
    table = sparse.csr_array(counts(rng, 40))
    codes_N = np.arange(40) % 2
    groups = [str(k % 4) for k in range(40)]
    # Four subjects with one class each.
    assert rank_test(table, Labels.of(codes_N.astype(np.float64), ("a", "b"), groups)) is None
    assert rank_test(table, Labels.of(np.zeros(40), ("a", "b"), None)) is None


@pytest.mark.medium
@pytest.mark.parametrize("setting", ["numbers", "two", "shallow", "groups"])
def test_depth_that_follows_the_target_associates_no_asv(setting: str) -> None:
    """Of 20 studies without association 6 or more have an ASV with a probability of 1 %.

    At equal depth most of the planted ASVs that all reads would name are named.
    """
    false = of_all_reads = right = 0
    for seed in range(20):
        for planted in (0, 10):
            rng = np.random.default_rng([8, seed])
            table, labels, planted_P = simulated(rng, setting, 1.0, 0.7, planted)
            reads = np.asarray(table.sum(axis=1), dtype=np.int64)
            relative = sparse.csr_array(table / reads[:, None])
            found, plain = (rank_test(relative, labels, n) for n in (reads, None))
            assert found is not None and plain is not None
            assert 0 < found.depth < np.median(reads) and plain.depth == 0
            if planted:
                right += (found.q_values[planted_P] < 0.1).sum()
                of_all_reads += (plain.q_values[planted_P] < 0.1).sum()
            else:
                false += found.q_values.min() < 0.1
    assert false < 6
    assert right > 0.6 * of_all_reads


def test_depth_that_does_not_differ_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    table, labels, _ = simulated(rng, "numbers", 1.0, 0.0, 10)
    reads = np.asarray(table.sum(axis=1), dtype=np.int64)
    relative = sparse.csr_array(table / reads[:, None])
    found, plain = (rank_test(relative, labels, n) for n in (reads, None))
    assert found is not None and plain is not None
    assert found.depth == 0 and (found.q_values == plain.q_values).all()


def test_studies_of_other_depths_keep_their_own() -> None:
    """Each study is rarefied to its own depth, and the depth follows the class in each."""
    rng = np.random.default_rng(1)
    tables, codes, names = [], [], []
    for study in range(3):
        table, labels, _ = simulated(np.random.default_rng([2, study]), "two", 1.0, 0.7, 0)
        tables.append(rng.binomial(table.toarray(), 1 / 4**study))
        codes.append(labels.values)
        names += [f"study {study}"] * len(labels.values)
    counts = np.concatenate(tables)
    reads = counts.sum(axis=1)
    labels = Labels.of(np.concatenate(codes), ("no", "yes"), None, (), names)
    relative = sparse.csr_array(counts / reads[:, None])
    found, plain = (study_agreement(relative, labels, n) for n in (reads, None))
    assert found is not None and plain is not None
    assert found.depth == np.quantile(reads[200:], 0.05, method="lower") > 0
    assert (plain.q_F < 0.1).sum() > 10 > (found.q_F < 0.1).sum()


def in_studies(rng: np.random.Generator, studies: int, effect: float) -> tuple[np.ndarray, Labels]:
    """Studies of other communities and proportions of two classes; ten ASVs rise by an effect."""
    tables, codes, names = [], [], []
    middle_F = rng.normal(0, 2, 40)
    for study in range(studies):
        codes_N = (rng.random(40) < 0.2 + 0.6 * study / (studies - 1)).astype(np.float64)
        codes_N[:2] = 0, 1
        logs_NF = middle_F + rng.normal(0, 1.5, 40) + rng.normal(0, 1, (40, 40))
        logs_NF[:, :10] += effect * codes_N[:, None]
        tables.append(rng.poisson(np.exp(logs_NF)))
        codes.append(codes_N)
        names += [f"study {study}"] * 40
    return np.concatenate(tables).astype(np.float64), Labels.of(
        np.concatenate(codes), ("no", "yes"), None, (), names
    )


def test_a_difference_between_studies_is_no_association() -> None:
    """Without association p is below 0.05 in a twentieth of the ASVs; pooled in many more."""
    within, pooled, named = [], [], 0
    for seed in range(60):
        table, labels = in_studies(np.random.default_rng([7, seed]), 4, 0.0)
        found = study_agreement(sparse.csr_array(table), labels)
        assert found is not None
        within.append((found.p_F < 0.05).mean())
        named += found.q_F.min() < 0.1
        one_study = np.zeros(len(labels.values), dtype=np.int64)
        mixed = study_agreement(sparse.csr_array(table), replace(labels, studies=one_study))
        assert mixed is not None
        pooled.append((mixed.p_F < 0.05).mean())
    assert 0.03 < np.mean(within) < 0.07
    assert np.mean(pooled) > 0.2
    assert named <= 13  # of 60, nominal 6; more by chance in 0.5 %


def test_directions_agree_where_studies_share_an_effect() -> None:
    table, labels = in_studies(np.random.default_rng(3), 4, 1.5)
    # Abundant ASVs first. In the last study one does not occur, and another's effect is reversed.
    table[:, :10] = table[:, np.argsort(-table[:, :10].min(axis=0) - table[:, :10].mean(axis=0))]
    last = np.flatnonzero(labels.studies == 3)
    table[last, 0] = 0
    turned = last[np.argsort(-labels.values[last], kind="stable")]
    table[turned, 1] = np.sort(table[last, 1])
    found = study_agreement(sparse.csr_array(table), labels)
    assert found is not None
    assert (np.delete(found.z_F[:10], 1) > 0).all()
    assert (found.q_F[2:8] < 0.1).all()
    assert found.studies_F[:3].tolist() == [3, 4, 4]
    assert found.agreeing_F[0] == 3
    assert found.agreeing_F[1] < 4
    assert np.isnan(found.z_KF[3, 0])
    assert found.z_KF[3, 1] < 0
    # It is the sum over the studies of rank sums, each divided by the size + 1 (van Elteren 1960).
    sums, variance = 0.0, 0.0
    for study in range(4):
        rows = labels.studies == study
        ranks, cases = rankdata(table[rows, 2]), labels.values[rows] == 1
        n, n1 = rows.sum(), cases.sum()
        spread = ranks.var(ddof=1)
        sums += (ranks[cases].sum() - n1 * (n + 1) / 2) / (n + 1)
        variance += n1 * (n - n1) / n * spread / (n + 1) ** 2
    assert found.z_F[2] == pytest.approx(sums / np.sqrt(variance))


def test_subjects_and_several_classes_within_studies() -> None:
    rng = np.random.default_rng(5)
    table, labels = in_studies(rng, 3, 2.0)
    codes_N = np.where(rng.random(len(labels.values)) < 0.3, 2, labels.values)
    table[codes_N == 2, 20] += 50
    classes = ("no", "yes", "other")
    names = [f"study {k}" for k in labels.studies.tolist()]
    three = Labels.of(codes_N.astype(np.float64), classes, None, (), names)
    found = study_agreement(sparse.csr_array(table), three)
    assert found is not None
    assert found.class_F[20] == 2
    assert found.z_F[20] > 0
    assert found.agreeing_F[20] == 3
    # Each sample of a subject again adds nothing.
    subjects = [str(k) for k in range(len(codes_N))] * 2
    twice = Labels.of(np.tile(codes_N, 2).astype(np.float64), classes, subjects, (), names * 2)
    doubled = study_agreement(sparse.csr_array(np.tile(table, (2, 1))), twice)
    assert doubled is not None
    assert doubled.p_F == pytest.approx(found.p_F)


def test_one_number_is_adjusted_for_as_in_a_partial_correlation() -> None:
    """Without ties and strata: that of the residuals of ranks on the rank and its square."""
    rng = np.random.default_rng(0)
    age_N, table = rng.normal(size=60), rng.random((60, 40))
    values_N = age_N + rng.normal(size=60)
    table[:, 3] += 0.5 * age_N  # follows the age alone
    table[:, 7] += 0.5 * (values_N - age_N)
    labels, ages = Labels.of(values_N, (), None), Covariates({}, {"age": age_N})
    test = rank_test(sparse.csr_array(table), labels, covariates=ages)
    ranks_N = rankdata(age_N)
    design_NX = np.stack([np.ones(60), ranks_N, ranks_N**2], axis=1)

    def residual(values_N: np.ndarray) -> np.ndarray:
        ranks = rankdata(values_N)
        return ranks - design_NX @ np.linalg.lstsq(design_NX, ranks, rcond=None)[0]

    correlations = [np.corrcoef(residual(asv), residual(values_N))[0, 1] for asv in table.T]
    p = chi2.sf((60 - 1 - 2) * np.square(correlations), 1)
    assert test is not None and test.p_values == pytest.approx(p)
    plain = rank_test(sparse.csr_array(table), labels)
    assert plain is not None and plain.q_values[3] < 0.01 < 0.1 < test.q_values[3]
    assert test.q_values[7] < 0.01


def test_categories_are_strata_and_missing_values_are_left_out() -> None:
    """A site is a study: van Elteren's test. Samples without a value are as if they were absent."""
    rng = np.random.default_rng(0)
    site_N, codes_N = rng.integers(3, size=80), rng.integers(2, size=80).astype(np.float64)
    table = sparse.csr_array(rng.poisson(5 * rng.lognormal(0, 2, (3, 40))[site_N]) * 1.0)
    names = np.array(["gut", "oral", "skin"])[site_N]
    as_studies = Labels.of(codes_N, ("a", "b"), None, (), names.tolist())
    labels = replace(as_studies, studies=None)
    test = rank_test(table, labels, covariates=Covariates({"site": names}, {}))
    of_studies = rank_test(table, as_studies)
    assert test is not None and of_studies is not None
    assert test.p_values == pytest.approx(of_studies.p_values)
    names[:10] = ""
    test = rank_test(table, labels, covariates=Covariates({"site": names}, {}))
    of_studies = rank_test(table[10:], as_studies.take(np.arange(10, 80)))
    assert test is not None and of_studies is not None
    assert test.p_values == pytest.approx(of_studies.p_values)
    # A site for each class: no sample is left to compare.
    names = np.array(["gut", "oral"])[codes_N.astype(int)]
    assert rank_test(table, labels, covariates=Covariates({"site": names}, {})) is None


@pytest.mark.medium
@pytest.mark.parametrize("target", ["two", "subjects"])
def test_a_covariate_that_follows_the_target_associates_no_asv(target: str) -> None:
    """Without association at most 1 in 10 has an ASV: more than 8 of 40 with a probability of 4 %.

    Of sites of subjects half are within subjects: strata of the others, frequencies of these.
    """
    named = unadjusted = 0
    for run in range(40):
        rng = np.random.default_rng([6, run])
        shares, labels, covariates, _ = simulated_with_covariate(rng, target, "both", 0.8, 0)
        if target == "subjects" and run % 2:
            sites = np.where(rng.random(100) < 0.3, "a", covariates.categories["site"])
            covariates = Covariates({"site": sites}, covariates.numbers)
        test = rank_test(shares, labels, covariates=covariates)
        plain = rank_test(shares, labels)
        assert test is not None and plain is not None
        named += test.q_values.min() < 0.1
        unadjusted += plain.q_values.min() < 0.1
    assert named <= 8
    assert unadjusted > (12 if target == "subjects" else 30)
