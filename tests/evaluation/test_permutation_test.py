"""Permutation test through the fit, and the verdict on the model."""

from __future__ import annotations

import numpy as np
import pytest

from aam.evaluation.ensemble import combine_members
from aam.evaluation.permutation import PermutationTest, permutation_test, shuffled_rows
from aam.evaluation.scores import evaluate
from aam.members.kernel import MEMBER as KERNEL
from aam.members.kernel import label_free_kernels
from benchmarks.random_labels import SETTINGS, study

SIGNALS = ("two", "three/groups", "ordered", "numbers", "varying/groups")


@pytest.mark.parametrize("setting", SETTINGS)
def test_groups_are_shuffled_as_wholes(setting: str) -> None:
    target, _, grouped = setting.partition("/")
    _, folds = study(np.random.default_rng(3), target, bool(grouped))
    rows_BN = shuffled_rows(folds, 20)
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
    for rows in shuffled_rows(folds, 50):
        shuffled = folds.labels.values[rows]
        for split in folds.splits:
            assert shuffled[split.test].sum() == folds.labels.values[split.test].sum()


@pytest.mark.medium
@pytest.mark.parametrize("setting", SIGNALS)
def test_a_signal_is_found(setting: str) -> None:
    target, _, grouped = setting.partition("/")
    samples, folds = study(np.random.default_rng(0), target, bool(grouped), signal=4.0)
    found = permutation_test(label_free_kernels(samples.inputs(KERNEL)), folds)
    assert found is not None
    assert found.p < 0.02


@pytest.mark.medium
def test_random_labels_have_uniform_p_values() -> None:
    p = []
    for run in range(60):
        samples, folds = study(np.random.default_rng(run), "two", False)
        found = permutation_test(label_free_kernels(samples.inputs(KERNEL)), folds)
        assert found is not None
        p.append(found.p)
    assert 0.4 < np.mean(p) < 0.6
    # The probability of ten or more of 60 at a level of 5 % is 0.0009.
    assert sum(one <= 0.05 for one in p) < 10


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_random_labels_are_seldom_predictable(setting: str) -> None:
    """`benchmarks/random_labels.py` has 400 runs of each setting."""
    target, _, grouped = setting.partition("/")
    p = []
    for run in range(120):
        samples, folds = study(np.random.default_rng([1, run]), target, bool(grouped))
        found = permutation_test(label_free_kernels(samples.inputs(KERNEL)), folds)
        p.append(1.0 if found is None else found.p)
    # By chance more than 13 have p <= 0.05, or more than 5 p <= 0.01, with a probability of 0.5 %.
    assert sum(one <= 0.05 for one in p) <= 13
    assert sum(one <= 0.01 for one in p) <= 5


@pytest.mark.parametrize(
    ("noise", "p", "outcome"),
    [(0.3, 0.001, "better"), (0.3, None, "better"), (0.3, 0.2, "undecided"), (9, 0.9, "worse")],
)
def test_the_verdict_reconciles_interval_and_test(
    noise: float, p: float | None, outcome: str
) -> None:
    rng = np.random.default_rng(0)
    _, folds = study(rng, "numbers", False)
    predictions_MC = folds.held_out.outputs_NC + noise * rng.normal(size=(len(folds.rows_M), 1))
    test = None if p is None else PermutationTest(p, 999)
    scores = evaluate("ph", folds, combine_members({"kernel": predictions_MC}, folds), {}, test)
    assert next(iter(scores)) == "verdict"
    verdict = scores["verdict"]
    assert verdict["outcome"] == outcome
    assert verdict["p"] == p
    r2 = {name: model["metrics"]["r2"]["value"] for name, model in scores["models"].items()}
    assert verdict["model"], verdict["dummy"] == (r2["ensemble"], r2["dummy"])
    assert verdict["difference"] == pytest.approx(r2["ensemble"] - r2["dummy"])
    assert "'ph'" in verdict["sentence"]


def test_the_dummy_is_not_better_than_itself() -> None:
    _, folds = study(np.random.default_rng(0), "two", False)
    scores = evaluate("ill", folds, combine_members({"kernel": folds.dummy_MC}, folds), {})
    assert scores["verdict"]["outcome"] == "not better"
    assert (scores["verdict"]["lower"], scores["verdict"]["upper"]) == (0, 0)
