"""Scores over several studies: summary, next study, what is left out."""

from __future__ import annotations

import numpy as np
import pytest

from aam.evaluation.intervals import ResampledMetrics, resample_metrics, units_of
from aam.evaluation.metrics import ScoredPredictions
from aam.evaluation.studies import Spread, random_effects, score_study, summarise
from benchmarks.studies_intervals import coverage


def cases(positive: int, negative: int, separation: float, seed: int = 0) -> ScoredPredictions:
    """Draw normal scores of two classes."""
    codes = np.repeat([0, 1], [negative, positive])
    score_N = codes * separation + np.random.default_rng(seed).normal(size=len(codes))
    chance_N = 1 / (1 + np.exp(-score_N))
    chances = np.stack([1 - chance_N, chance_N], axis=1)
    return ScoredPredictions(codes, chances.argmax(axis=1), (), ("no", "yes"), chances)


def resampled(scored: ScoredPredictions, repeats: int = 1) -> ResampledMetrics:
    """Score samples, `repeats` in a row of which are one subject's."""
    return resample_metrics(scored, units_of(np.arange(len(scored.actual)) // repeats))


@pytest.mark.medium
@pytest.mark.parametrize("number", [3, 5, 10])
def test_intervals_cover_the_mean_and_the_next_study(number: int) -> None:
    """With the published spread; 200 replicates, so a rate of 95 % is above 91 % nearly always."""
    ours, _ = coverage("auc-0.75", "published", number, 200)
    assert ours.summary >= 0.91
    assert ours.following >= 0.91


@pytest.mark.medium
def test_few_studies_are_not_more_certain_without_prior() -> None:
    """Hartung and Knapp alone: three studies have an interval of no use, the next one none."""
    ours, usual = coverage("auc-0.75", "published", 3, 100)
    assert ours.summary_width < 0.75 * usual.summary_width
    _, usual = coverage("auc-0.75", "published", 10, 200)
    assert usual.following < 0.93


def test_agreement_of_studies_makes_no_interval_shorter_than_a_fixed_effect() -> None:
    variance_K = np.array([0.01, 0.02, 0.04])
    fixed = 1.96 / np.sqrt((1 / variance_K).sum())
    for spread in (Spread(0.0, 0.0), Spread(0.3, 6.0), Spread(0.01, 0.0)):
        found = random_effects(np.full(3, 1.0), variance_K, spread)
        assert found.half >= 0.999 * fixed
        assert found.next_half >= found.half
        assert found.i2 == 0


def test_the_spread_of_many_studies_is_that_of_the_studies() -> None:
    """The prior has a part in few studies alone."""
    value_K = np.random.default_rng(0).normal(scale=0.8, size=200)
    found = random_effects(value_K, np.full(200, 1e-4), Spread(0.3, 6.0))
    assert found.tau == pytest.approx(0.8, rel=0.15)
    assert found.i2 > 0.99
    assert found.next_half == pytest.approx(1.96 * 0.8, rel=0.15)


def test_without_prior_it_is_hartung_and_knapp() -> None:
    """By hand, with equal variances: the t interval of the scores."""
    value_K = np.array([0.2, 0.5, 1.1, 1.4])
    found = random_effects(value_K, np.full(4, 0.01), Spread(0.4, 0.0))
    assert found.mean == pytest.approx(value_K.mean())
    assert found.half == pytest.approx(3.1824 * value_K.std(ddof=1) / 2, rel=1e-4)


def test_an_auc_of_1_is_finite_and_weighs_as_its_samples() -> None:
    """It would have no variance of its own."""
    others = [resampled(cases(30, 30, 1.0, seed)) for seed in (1, 2)]
    summary = summarise("auc", [*others, resampled(cases(30, 30, 9.0))])
    without = summarise("auc", [*others, resampled(cases(30, 30, 1.0, 3))])
    assert summary is not None and without is not None
    assert without.value < summary.value < 0.98
    assert summary.next_lower < summary.lower < summary.value < summary.upper < 1


def test_subjects_with_many_samples_weigh_as_subjects() -> None:
    one = summarise("auc", [resampled(cases(12, 12, 1.0, seed)) for seed in range(3)])
    repeated = []
    for seed in range(3):
        scored = cases(12, 12, 1.0, seed)
        repeated.append(resampled(scored.take(np.repeat(np.arange(24), 20)), repeats=20))
    many = summarise("auc", repeated)
    assert one is not None and many is not None
    assert many.upper - many.lower == pytest.approx(one.upper - one.lower, rel=0.02)


def test_two_studies_have_no_summary() -> None:
    models = [resampled(cases(30, 30, 2.0, seed)) for seed in (0, 1)]
    assert summarise("auc", models) is None
    assert all(score_study("a", model).better for model in models)


@pytest.mark.parametrize(
    "scored", [cases(0, 20, 1.0), cases(2, 1, 1.0), cases(3, 40, 3.0)],
    ids=["one class", "three samples", "three cases"],
)  # fmt: skip
def test_a_study_without_interval_is_left_out(scored: ScoredPredictions) -> None:
    """Whatever its score is, the summary of the others stays."""
    models = [resampled(cases(20, 20, 1.0, seed)) for seed in range(3)]
    study = score_study("small", resampled(scored))
    assert study.left_out and not study.better
    assert summarise("auc", [*models, resampled(scored)]) == summarise("auc", models)


def test_numbers_are_summarised_on_their_scales() -> None:
    """The mean error is between those of the studies; R² of a shifted study may be far below 0."""
    rng = np.random.default_rng(0)
    models = []
    for shift in (0.0, 0.5, 3.0):
        actual = rng.normal(size=40)
        models.append(resampled(ScoredPredictions(actual, actual + shift + rng.normal(size=40))))
    errors = [model.whole["mae"] for model in models]
    mae, r2 = summarise("mae", models), summarise("r2", models)
    assert mae is not None and r2 is not None
    assert min(errors) < mae.value < max(errors)
    assert mae.next_lower < mae.lower < mae.value < mae.upper < mae.next_upper
    assert r2.next_lower < r2.lower < r2.value < r2.upper < r2.next_upper < 1
    equal = ScoredPredictions(np.ones(20), rng.normal(size=20))
    assert score_study("equal", resampled(equal)).left_out
    assert summarise("r2", [*models, resampled(equal)]) == r2
