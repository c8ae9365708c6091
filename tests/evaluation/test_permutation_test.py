"""Permutation test through the fit, and the verdict on the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2, norm

from aam.arrays import F64
from aam.evaluation.ensemble import combine_members
from aam.evaluation.folds import Folds
from aam.evaluation.permutation import PermutationTest, permutation_test, permuted_rows
from aam.evaluation.scores import evaluate
from aam.evaluation.splits import Split
from aam.members.member import TrainingSamples, estimator
from aam.pipeline.cross_validation import combine_results
from benchmarks.random_labels import SETTINGS, study

SIGNALS = ("two", "three/groups", "ordered", "numbers", "varying/groups")


@pytest.mark.parametrize("setting", SETTINGS)
def test_groups_are_shuffled_as_wholes(setting: str) -> None:
    target, _, grouped = setting.partition("/")
    _, folds = study(np.random.default_rng(3), target, bool(grouped))
    rows_BN = permuted_rows(folds, 20)
    groups = folds.labels.groups
    assert (rows_BN[0] == np.arange(len(groups))).all()
    assert len(np.unique(rows_BN, axis=0)) == 21
    for rows in rows_BN:
        pairs = np.unique(np.stack([groups, groups[rows]]), axis=1)
        # Each group receives the labels of one group, and gives its own to one.
        assert len(pairs.T) == len(np.unique(groups)) == len(np.unique(pairs[1]))
        if not grouped:
            assert sorted(rows) == list(range(len(rows)))


def test_stratified_folds_keep_their_classes() -> None:
    _, folds = study(np.random.default_rng(1), "rare", False)
    for rows in permuted_rows(folds, 50):
        shuffled = folds.labels.values[rows]
        for split in folds.splits:
            assert shuffled[split.test].sum() == folds.labels.values[split.test].sum()


@pytest.mark.medium
@pytest.mark.parametrize("setting", SIGNALS)
def test_a_signal_is_found(setting: str) -> None:
    target, _, grouped = setting.partition("/")
    samples, folds = study(np.random.default_rng(0), target, bool(grouped), signal=4.0)
    found = permutation_test(folds, kernel_predictions(samples, folds))
    assert found is not None
    assert found.p < 0.05


def test_the_test_is_of_the_predictions_that_are_given() -> None:
    """On one study p follows the predictions, not the table: none is significant without skill."""
    _, folds = study(np.random.default_rng(0), "numbers", False, signal=4.0)
    noise_MC = np.random.default_rng(1).normal(size=(len(folds.rows_M), 1))
    p = [permutation_test(folds, folds.held_out.outputs_NC + k * noise_MC) for k in (0.3, 100)]
    assert p[0] is not None and p[1] is not None
    assert p[0].p == 1 / 1000 and p[1].p > 0.05


@pytest.mark.parametrize("groups", [2, 4])
def test_few_groups_have_no_test(groups: int) -> None:
    """Four studies have 24 orders."""
    _, folds = study(np.random.default_rng(0), "numbers", False)
    group_N = np.arange(len(folds.labels.values)) % groups
    none = np.arange(0)
    splits = tuple(
        Split(np.flatnonzero(group_N != k), none, np.flatnonzero(group_N == k))
        for k in range(groups)
    )
    few = replace(folds, labels=replace(folds.labels, groups=group_N), splits=splits)
    assert permutation_test(few, few.held_out.outputs_NC) is None


@pytest.mark.medium
def test_random_labels_are_seldom_significant() -> None:
    p = []
    for run in range(40):
        samples, folds = study(np.random.default_rng(run), "two", False)
        found = permutation_test(folds, kernel_predictions(samples, folds))
        assert found is not None
        p.append(found.p)
    # The probability of seven or more of 40 at a level of 5 % is 0.003.
    assert sum(one <= 0.05 for one in p) < 7


@pytest.mark.medium
def test_labels_that_train_other_folds_keep_the_level() -> None:
    """A kernel of random labels: without the factor of the folds z would have the variance 2."""
    rng = np.random.default_rng(0)
    _, folds = study(rng, "numbers", False)
    number = len(folds.rows_M)
    # The held-out predictions of a kernel with a small weight of every label.
    kernel_NN = rng.normal(size=(number, 200))
    kernel_NN = kernel_NN @ kernel_NN.T / 2000
    apart_MM = folds.fold_M[:, None] != folds.fold_M
    z = []
    for _ in range(120):
        values = rng.normal(size=number)
        shuffled = replace(folds, labels=replace(folds.labels, values=values))
        predicted_M = (kernel_NN[np.ix_(folds.rows_M, folds.rows_M)] * apart_MM) @ (
            shuffled.held_out.values
        )
        test = permutation_test(shuffled, predicted_M[:, None])
        assert test is not None
        z.append(norm.isf(test.p - 0.5 / (test.shufflings + 1)))
    # The square is chi-squared: it is outside with a probability of 0.2 %, and with the variance 2
    # inside with one of 1 %.
    lower, upper = chi2.ppf([0.001, 0.999], 120)
    assert lower < np.square(z).sum() < upper


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_random_labels_are_seldom_predictable(setting: str) -> None:
    """`benchmarks/random_labels.py` has more runs, and the forest and the ensemble."""
    target, _, grouped = setting.partition("/")
    p = []
    for run in range(120):
        samples, folds = study(np.random.default_rng([1, run]), target, bool(grouped))
        found = permutation_test(folds, kernel_predictions(samples, folds))
        p.append(1.0 if found is None else found.p)
    # By chance more than 13 have p <= 0.05, or more than 5 p <= 0.01, with a probability of 0.5 %.
    assert sum(one <= 0.05 for one in p) <= 13
    assert sum(one <= 0.01 for one in p) <= 5


def kernel_predictions(samples: TrainingSamples, folds: Folds) -> F64:
    """Return the ensemble of a kernel alone."""
    found = {"kernel": estimator("kernel").cross_validate(samples, folds, False, weighed=False)}
    return combine_results(found, folds).predictions_MC


@pytest.mark.parametrize(
    ("noise", "p", "p_worse", "outcome"),
    [
        (0.3, 0.001, 1.0, "better"),
        (0.3, None, 1.0, "better"),
        (0.3, 0.2, 0.8, "undecided"),
        (9, 0.9, 0.01, "worse"),
        (9, None, 1.0, "worse"),
        (9, 0.9, 0.1, "not better"),
    ],
)
def test_the_verdict_reconciles_interval_and_test(
    noise: float, p: float | None, p_worse: float, outcome: str
) -> None:
    rng = np.random.default_rng(0)
    _, folds = study(rng, "numbers", False)
    predictions_MC = folds.held_out.outputs_NC + noise * rng.normal(size=(len(folds.rows_M), 1))
    test = None if p is None else PermutationTest(p, 999, p_worse)
    scores = evaluate("ph", folds, combine_members({"kernel": predictions_MC}, folds), {}, test)
    verdict = scores.verdict
    assert verdict.outcome == outcome
    assert verdict.p == p
    r2 = {name: model.metrics["r2"].value for name, model in scores.models.items()}
    assert (verdict.model, verdict.guess) == (r2["ensemble"], r2["guess"])
    assert verdict.difference == pytest.approx(r2["ensemble"] - r2["guess"])
    assert "R²" in verdict.sentence


@pytest.mark.parametrize(("noise", "target"), [(9.0, "numbers"), (-0.5, "two")])
def test_predictions_far_below_a_guess_are_worse(noise: float, target: str) -> None:
    """Large errors, or the opposite of the truth; only of the second shuffled labels are better."""
    rng = np.random.default_rng(0)
    _, folds = study(rng, target, False)
    noise_MC = rng.normal(size=folds.held_out.outputs_NC.shape)
    truth_MC = folds.held_out.outputs_NC
    predictions_MC = truth_MC + noise * noise_MC
    if target == "two":
        chance_M = 1 / (1 + np.exp(2 * truth_MC[:, 1] + noise_MC[:, 1]))
        predictions_MC = np.stack([1 - chance_M, chance_M], axis=1)
    found = permutation_test(folds, predictions_MC)
    assert found is not None and found.p_worse <= 0.025 < found.p
    combined = combine_members({"kernel": predictions_MC}, folds)
    assert evaluate("ph", folds, combined, {}, found).verdict.outcome == "worse"


@pytest.mark.slow
def test_models_of_random_labels_are_seldom_worse_than_a_guess() -> None:
    """Of 30 studies; the interval alone is below the guess in about one of eight."""
    outcomes = []
    for run in range(30):
        samples, folds = study(np.random.default_rng([7, run]), "numbers", False)
        predictions_MC = kernel_predictions(samples, folds)
        combined = combine_members({"kernel": predictions_MC}, folds)
        test = permutation_test(folds, predictions_MC)
        outcomes.append(evaluate("ph", folds, combined, {}, test).verdict.outcome)
    assert outcomes.count("worse") <= 2


def test_a_score_below_that_of_no_skill_is_not_better() -> None:
    """The guess of these folds is worse still: R² -0.1 is above it and significant."""
    rng = np.random.default_rng(0)
    _, folds = study(rng, "numbers", False)
    order = np.argsort(folds.labels.values)
    none = np.arange(0)
    splits = tuple(
        Split(np.sort(np.setdiff1d(order, part)), none, np.sort(part))
        for part in np.array_split(order, 5)
    )
    folds = replace(folds, splits=splits)
    guess_MC = folds.baseline_MC
    predictions_MC = guess_MC + 0.05 * (folds.held_out.outputs_NC - guess_MC)
    combined = combine_members({"kernel": predictions_MC}, folds)
    verdict = evaluate("ph", folds, combined, {}, PermutationTest(0.001, 999, 1.0)).verdict
    assert verdict.guess < verdict.model < 0 < verdict.lower
    assert verdict.outcome == "not better"


def test_the_dummy_is_not_better_than_itself() -> None:
    _, folds = study(np.random.default_rng(0), "two", False)
    scores = evaluate("ill", folds, combine_members({"kernel": folds.baseline_MC}, folds), {})
    assert scores.verdict.outcome == "not better"
    assert (scores.verdict.lower, scores.verdict.upper) == (0, 0)
