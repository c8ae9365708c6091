"""Coverage of intervals, calibration, units of the jackknife and paired differences."""

from __future__ import annotations

import math
import time
from dataclasses import astuple, replace

import numpy as np
import pytest

from aam.evaluation.calibration import calibrate, fit_temperature, half_width, held_out_half_widths
from aam.evaluation.intervals import Score, Units, resample_metrics
from aam.evaluation.metrics import ScoredPredictions
from aam.evaluation.scores import PairedDifference
from aam.evaluation.splits import MIN_UNITS
from benchmarks.intervals import coverage


def test_intervals_cover_samples_of_new_groups() -> None:
    """Each group has its own error; a new group's samples are covered as often as promised."""
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        sizes = rng.integers(1, 30, 31)
        groups = np.repeat(np.arange(31), sizes)
        residuals = np.abs(rng.normal(size=31)[groups] + 0.5 * rng.normal(size=len(groups)))
        known = groups < 30
        width = half_width(residuals[known], groups[known], 0.8)
        covered.append((residuals[~known] <= width).mean())
    assert 0.78 <= np.mean(covered) <= 0.88


def test_a_large_group_does_not_narrow_the_interval() -> None:
    """One infant with 1,000 exact samples counts as much as one with a single sample."""
    residuals = np.concatenate([np.zeros(1000), np.arange(1, 20)])
    groups = np.concatenate([np.zeros(1000, dtype=np.int64), np.arange(1, 20)])
    assert half_width(residuals, groups, 0.9) == 18


def test_too_few_groups_have_no_interval() -> None:
    assert half_width(np.ones(80), np.repeat(np.arange(8), 10), 0.9) == math.inf
    assert half_width(np.ones(90), np.repeat(np.arange(9), 10), 0.9) == 1


def test_the_interval_of_a_held_out_sample_ignores_its_own_group() -> None:
    residuals, groups = np.ones(20), np.arange(20) // 2
    residuals[groups == 3] = 50
    widths = held_out_half_widths(residuals, groups, 0.9)
    assert (widths[groups == 3] == 1).all()
    assert (widths[groups != 3] == 50).all()


@pytest.mark.parametrize("groups", [1, 2, 9, 10, 11, 40, 300])
def test_held_out_intervals_are_those_of_all_other_groups(groups: int) -> None:
    """Also with equal residuals, and with groups of many samples and of one."""
    rng = np.random.default_rng(groups)
    group_M = np.concatenate([np.arange(groups), rng.integers(groups, size=200)])
    residuals = np.abs(rng.normal(size=len(group_M))).round(1)
    expected = [
        half_width(residuals[group_M != group], group_M[group_M != group]) for group in group_M
    ]
    assert held_out_half_widths(residuals, group_M).tolist() == expected


def test_held_out_intervals_take_time_in_proportion_to_the_samples() -> None:
    def seconds(samples: int) -> float:
        residuals = np.random.default_rng(0).random(samples)
        began = time.process_time()
        held_out_half_widths(residuals, np.arange(samples))
        return time.process_time() - began

    assert seconds(32_000) < 16 * seconds(8_000) + 0.5


def test_a_temperature_repairs_overconfident_probabilities() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5000, 3))
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    codes = np.array([rng.choice(3, p=chance) for chance in chances])
    overconfident = np.exp(3 * logits) / np.exp(3 * logits).sum(axis=1, keepdims=True)
    temperature = fit_temperature(overconfident, codes)
    assert temperature == pytest.approx(3, rel=0.1)
    assert calibrate(overconfident, 3.0) == pytest.approx(chances, abs=0.01)


@pytest.mark.medium
def test_intervals_leave_out_groups_as_wholes() -> None:
    """With equal samples within a group, the interval is that of one sample for each group."""
    rng = np.random.default_rng(0)
    actual = rng.normal(size=12)
    predicted = actual + rng.normal(size=12)
    one = ScoredPredictions(actual, predicted)
    many = ScoredPredictions(np.repeat(actual, 50), np.repeat(predicted, 50))
    narrow = resample_metrics(many, Units.of(np.arange(600))).score()["mae"]
    wide = resample_metrics(many, Units.of(np.repeat(np.arange(12), 50))).score()["mae"]
    alone = resample_metrics(one, Units.of(np.arange(12))).score()["mae"]
    assert astuple(wide) == pytest.approx(astuple(alone))
    assert narrow.upper - narrow.lower < (wide.upper - wide.lower) / 3  # type: ignore[operator]


def test_a_replicate_has_the_metrics_without_one_unit() -> None:
    rng = np.random.default_rng(0)
    groups = rng.integers(12, size=60)
    rows = [np.flatnonzero(groups != group) for group in range(12)]
    actual, predicted = rng.normal(size=(2, 60))
    codes, ranks = rng.integers(3, size=(2, 60))
    chances = rng.dirichlet(np.ones(3), 60).round(1)
    names = ("a", "b", "c")
    for scored in (
        ScoredPredictions(actual, predicted),
        ScoredPredictions(codes, ranks, (), names, chances),
        ScoredPredictions(codes, ranks, (), names, ordered=True),
    ):
        metrics = [scored.take(kept).metrics() for kept in rows]
        for name, values in resample_metrics(scored, Units.of(groups)).replicates.items():
            assert values == pytest.approx([metric[name] for metric in metrics]), name


def test_replicates_do_not_depend_on_the_size_of_a_block() -> None:
    """Many samples are scored in several blocks of replicates."""
    few, many = Units.of(np.arange(6)), Units.of(np.repeat(np.arange(6), 200_000))
    blocks = [weights_ZM[:, ::200_000] for weights_ZM in many.weights()]
    assert len(blocks) == 6
    np.testing.assert_array_equal(np.concatenate(blocks), np.concatenate([*few.weights()]))


def test_few_units_have_no_interval() -> None:
    """Nor has the AUC of a class with few units; then no interval excludes 0."""
    rng = np.random.default_rng(0)
    actual, noise = rng.normal(size=(2, 60))
    for units in (1, 2, MIN_UNITS - 1):
        model = ScoredPredictions(actual, actual + 0.1 * noise)
        dummy = ScoredPredictions(actual, np.zeros(60))
        groups = Units.of(np.arange(60) % units)
        found = resample_metrics(model, groups)
        assert all(score.lower is score.upper is None for score in found.score().values())
        _, difference = found.paired_difference(resample_metrics(dummy, groups))
        assert difference.value is not None and difference.value > 0.9
        assert difference.lower is None and not difference.excludes_zero
    for cases, given in ((MIN_UNITS - 1, False), (MIN_UNITS, True)):
        codes = (np.arange(60) < cases).astype(np.int64)
        chances = np.stack([1 - codes, codes], axis=1) * 0.8 + 0.1
        scored = ScoredPredictions(codes, codes, (), ("no", "yes"), chances)
        guess = replace(scored, probabilities=np.full((60, 2), 0.5))
        found, known = (resample_metrics(one, Units.of(np.arange(60))) for one in (scored, guess))
        _, difference = found.paired_difference(known)
        assert difference.excludes_zero is given
        auc = found.score()["auc"]
        # A perfect order of six cases is no proof of an AUC of 1.
        assert auc.value == 1 and (auc.lower is None) is not given
        assert not given or auc.lower == pytest.approx(0.025 ** (1 / 6))
        assert found.score()["accuracy"].lower == pytest.approx(0.025 ** (1 / 60))


COVERED = [
    ("numbers-6/one", ("r2", "mae", "rmse")),
    ("numbers-12/several", ("r2", "mae", "rmse")),
    ("ordered-8/several", ("weighted_kappa", "accuracy")),
    ("cases-middle-6-20/one", ("auc",)),
    ("cases-high-6-20/one", ("auc",)),
    ("mixed-12/several", ("auc", "accuracy")),
]


@pytest.mark.medium
@pytest.mark.parametrize(("setting", "metrics"), COVERED)
def test_intervals_cover_the_truth_with_few_units(setting: str, metrics: tuple[str, ...]) -> None:
    """`benchmarks/intervals.py` has more studies of each setting; percentiles cover 0.75 to 0.9."""
    rates = coverage(setting, 200)
    for metric in metrics:
        # The standard error of a rate of 0.95 is 0.015.
        assert 0.90 <= rates[metric].covered <= 1, metric
        assert rates[metric].beyond <= 0.10, metric
        assert rates[metric].by_percentiles < rates[metric].covered


@pytest.mark.medium
def test_a_paired_difference_is_narrower_than_the_scores() -> None:
    rng = np.random.default_rng(0)
    actual = rng.normal(size=200)
    poor = ScoredPredictions(actual, actual + rng.normal(size=200))
    better = ScoredPredictions(actual, (actual + poor.predicted) / 2)
    units = Units.of(np.arange(200))
    known = resample_metrics(poor, units)
    name, found = resample_metrics(better, units).paired_difference(known)
    assert name == "r2"
    assert found.excludes_zero
    _, same = known.paired_difference(known)
    assert same == Score(0.0, 0.0, 0.0)
    assert not same.excludes_zero


def test_sentences() -> None:
    ahead = PairedDifference.of(
        "ensemble", "forest", "r2", Score(0.031, -0.004, 0.066), "42 groups of infant"
    )
    assert ahead.sentence == (
        "ensemble is ahead of forest by 0.031 R² (95 % -0.004 to 0.066, 42 groups of infant); "
        "not significant"
    )
    # Both are right in every sample, whichever is left out.
    same = PairedDifference.of("both", "counts", "auc", Score(0.0, 0.0, 0.0), "96 samples")
    assert "%" not in same.sentence
    behind = PairedDifference.of(
        "ensemble", "kernel", "auc", Score(-0.02, -0.03, -0.01), "90 samples"
    )
    assert (
        behind.sentence
        == "ensemble is behind kernel by 0.020 AUC (95 % 0.010 to 0.030, 90 samples)"
    )


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.5, 0.8, 0.95])
def test_intervals_of_spearman_cover_the_truth(correlation: float) -> None:
    """Of 400 studies, normal with the Pearson correlation 2 sin(pi / 6 Spearman)."""
    pearson, covered = 2 * math.sin(math.pi / 6 * correlation), 0
    for study in range(400):
        rng = np.random.default_rng(study)
        actual, noise = rng.normal(size=(2, 100))
        scored = ScoredPredictions(actual, pearson * actual + math.sqrt(1 - pearson**2) * noise)
        score = resample_metrics(scored, Units.of(np.arange(100))).score()["spearman"]
        assert score.lower is not None and score.upper is not None
        covered += score.lower <= correlation <= score.upper
    assert 0.92 <= covered / 400 <= 0.98
