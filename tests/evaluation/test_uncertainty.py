"""Coverage of intervals, calibration, bootstrap over groups and paired differences."""

from __future__ import annotations

import math
import time
from dataclasses import astuple

import numpy as np
import pytest

from aam.evaluation.calibration import calibrate, fit_temperature, half_width, held_out_half_widths
from aam.evaluation.intervals import Score, resample_groups, resample_metrics
from aam.evaluation.metrics import ScoredPredictions
from aam.evaluation.scores import sentence


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
def test_scores_are_drawn_by_group() -> None:
    """With equal samples within a group, the interval is that of one sample for each group."""
    rng = np.random.default_rng(0)
    actual = rng.normal(size=12)
    predicted = actual + rng.normal(size=12)
    one = ScoredPredictions(actual, predicted)
    many = ScoredPredictions(np.repeat(actual, 50), np.repeat(predicted, 50))
    narrow = resample_metrics(many, resample_groups(np.arange(600), 0)).score()["mae"]
    wide = resample_metrics(many, resample_groups(np.repeat(np.arange(12), 50), 0)).score()["mae"]
    alone = resample_metrics(one, resample_groups(np.arange(12), 0)).score()["mae"]
    assert astuple(wide) == pytest.approx(astuple(alone))
    assert narrow.upper - narrow.lower < (wide.upper - wide.lower) / 3  # type: ignore[operator]
    single = resample_groups(np.zeros(600, dtype=np.int64), 0)
    assert resample_metrics(many, single).score()["mae"].lower is None


def test_draws_have_the_scores_of_scikit_learn() -> None:
    from scipy.stats import spearmanr
    from sklearn import metrics

    rng = np.random.default_rng(0)
    groups = rng.integers(12, size=60)
    draws = resample_groups(groups, 3, 20)
    rows = [
        np.repeat(np.arange(60), times.astype(int)) for times in np.concatenate([*draws.weights()])
    ]
    assert all(
        (np.bincount(groups[one], minlength=12) % np.bincount(groups) == 0).all() for one in rows
    )
    actual, predicted = rng.normal(size=(2, 60))
    codes, ranks = rng.integers(3, size=(2, 60))
    chances = rng.dirichlet(np.ones(3), 60).round(1)
    chances /= chances.sum(axis=1, keepdims=True)
    names = ("a", "b", "c")
    numbers = resample_metrics(ScoredPredictions(actual, predicted), draws).draws
    classes = resample_metrics(ScoredPredictions(codes, ranks, (), names, chances), draws).draws
    ordered = resample_metrics(
        ScoredPredictions(codes, ranks, (), names, ordered=True), draws
    ).draws
    expected = {
        "r2": [metrics.r2_score(actual[one], predicted[one]) for one in rows],
        "mae": [metrics.mean_absolute_error(actual[one], predicted[one]) for one in rows],
        "rmse": [metrics.root_mean_squared_error(actual[one], predicted[one]) for one in rows],
        "spearman": [spearmanr(actual[one], predicted[one]).statistic for one in rows],
        "auc": [metrics.roc_auc_score(codes[one], chances[one], multi_class="ovr") for one in rows],
        "accuracy": [metrics.accuracy_score(codes[one], ranks[one]) for one in rows],
        "weighted_kappa": [
            metrics.cohen_kappa_score(codes[one], ranks[one], weights="quadratic") for one in rows
        ],
        "mae_ranks": [metrics.mean_absolute_error(codes[one], ranks[one]) for one in rows],
    }
    for name, values in (numbers | classes | ordered).items():
        np.testing.assert_allclose(values, expected[name], atol=1e-12, err_msg=name)


def test_draws_do_not_depend_on_the_size_of_a_block() -> None:
    """Many samples are scored in several blocks of draws."""
    groups = np.repeat(np.arange(5), 100_000)
    few, many = resample_groups(np.arange(5), 1, 30), resample_groups(groups, 1, 30)
    blocks = [weights_ZM[:, ::100_000] for weights_ZM in many.weights()]
    assert len(blocks) == 15
    np.testing.assert_array_equal(np.concatenate(blocks), np.concatenate([*few.weights()]))


@pytest.mark.medium
def test_a_paired_difference_is_narrower_than_the_scores() -> None:
    rng = np.random.default_rng(0)
    actual = rng.normal(size=200)
    poor = ScoredPredictions(actual, actual + rng.normal(size=200))
    better = ScoredPredictions(actual, (actual + poor.predicted) / 2)
    draws = resample_groups(np.arange(200), 0)
    known = resample_metrics(poor, draws)
    name, found = resample_metrics(better, draws).paired_difference(known)
    assert name == "r2"
    assert found.beyond_noise
    _, same = known.paired_difference(known)
    assert same == Score(0.0, 0.0, 0.0)
    assert not same.beyond_noise


def test_sentences() -> None:
    ahead = sentence("ensemble", "forest", "r2", Score(0.031, -0.004, 0.066), "42 groups of infant")
    assert ahead == (
        "ensemble is ahead of forest by 0.031 R² (95 % -0.004 to 0.066, 42 groups of infant); "
        "within noise"
    )
    behind = sentence("ensemble", "kernel", "auc", Score(-0.02, -0.03, -0.01), "90 samples")
    assert behind == "ensemble is behind kernel by 0.020 AUC (95 % 0.010 to 0.030, 90 samples)"


def test_ranks_within_folds_have_no_interval() -> None:
    """Those of a resample are biased; without folds the interval stays."""
    rng = np.random.default_rng(0)
    actual = rng.normal(size=60)
    folds = tuple(str(k % 5) for k in range(60))
    draws = resample_groups(np.arange(60))
    score = resample_metrics(ScoredPredictions(actual, actual**3, folds), draws).score()
    assert score["spearman"] == Score(1.0, None, None)
    assert score["r2"].lower is not None


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
        score = resample_metrics(scored, resample_groups(np.arange(100), study)).score()["spearman"]
        assert score.lower is not None and score.upper is not None
        covered += score.lower <= correlation <= score.upper
    assert 0.92 <= covered / 400 <= 0.98
