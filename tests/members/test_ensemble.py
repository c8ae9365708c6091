"""Members of the ensemble: which are left out by the evidence of the held-out predictions."""

from __future__ import annotations

import numpy as np
import pytest

from aam.data.splits import Split
from aam.members.base import F64, Labels, Rows
from aam.members.ensemble import choose_weights, combine_members
from aam.members.folds import Folds

GROUPS = np.arange(200) // 5


def noisy(*deviations: float, seed: int = 0) -> tuple[F64, list[F64]]:
    """Return true numbers, and predictions with independent errors of these deviations."""
    rng = np.random.default_rng(seed)
    actual_MC = rng.normal(size=(200, 1))
    return actual_MC, [actual_MC + scale * rng.normal(size=(200, 1)) for scale in deviations]


@pytest.mark.parametrize(
    ("deviations", "weights"),
    [
        ((0.5, 0.5), (1 / 2, 1 / 2)),
        ((0.5, 0.7), (1 / 2, 1 / 2)),
        ((0.5, 2.0), (1, 0)),
        ((0.5, 0.6, 3.0), (1 / 2, 1 / 2, 0)),
        ((3.0, 0.5, 3.0), (0, 1, 0)),
        ((0.5,), (1,)),
    ],
)
def test_a_member_that_harms_the_mean_is_left_out(
    deviations: tuple[float, ...], weights: tuple[float, ...]
) -> None:
    """A weaker member whose errors are independent still improves the mean, and stays."""
    actual_MC, members = noisy(*deviations)
    assert choose_weights(members, actual_MC, GROUPS, np.zeros((200, 1))) == pytest.approx(weights)


@pytest.mark.parametrize("groups", [GROUPS // 40, np.zeros(200, dtype=np.int64)])
def test_a_single_group_is_no_evidence(groups: Rows) -> None:
    actual_MC, members = noisy(0.1, 0.8)
    assert choose_weights(members, actual_MC, groups, np.zeros((200, 1))).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("deviations", "weights"), [((0.5, 2.0), [1, 0]), ((3.0, 2.0, 3.0), [0, 1, 0])]
)
def test_a_member_worse_than_the_mean_of_the_labels_is_left_out(
    deviations: tuple[float, ...], weights: list[float]
) -> None:
    """Also where few groups are no evidence against it; without a better one the best stays."""
    actual_MC, members = noisy(*deviations)
    assert choose_weights(members, actual_MC, GROUPS // 40, np.zeros((200, 1))).tolist() == weights


def test_a_member_better_than_the_mean_of_the_training_samples_stays() -> None:
    """The labels of each fold differ from those of its training samples: a guess has R² < 0."""
    fold_N = np.arange(200) // 50
    values = 3.0 * fold_N + np.random.default_rng(0).normal(size=200)
    splits = tuple(
        Split(np.flatnonzero(fold_N != k), np.arange(0), np.flatnonzero(fold_N == k))
        for k in range(4)
    )
    folds = Folds(Labels.of(values, (), [str(k) for k in fold_N]), splits, 0)
    nearer = 0.9 * folds.dummy_MC + 0.1 * values[:, None]
    assert np.square(nearer[:, 0] - values).sum() > np.square(values - values.mean()).sum()
    found = combine_members({"one": nearer, "other": nearer}, folds).ensemble
    assert found.weights == {"one": 0.5, "other": 0.5}
    worse = 2 * folds.dummy_MC
    assert combine_members({"one": nearer, "worse": worse}, folds).ensemble.weights["worse"] == 0


def test_errors_in_one_of_many_groups_are_noise() -> None:
    """The same squared errors, once in one group and once in all of them."""
    actual_MC, (good, bad) = noisy(0.1, 0.1)
    bad[GROUPS == 3] += 6
    assert choose_weights([good, bad], actual_MC, GROUPS, np.zeros((200, 1))).tolist() == [0.5, 0.5]
    actual_MC, (good, bad) = noisy(0.1, 0.1)
    bad += 6 / np.sqrt(40)
    assert choose_weights([good, bad], actual_MC, GROUPS, np.zeros((200, 1))).tolist() == [1.0, 0.0]


def test_probabilities_of_classes_count_by_their_squared_error() -> None:
    rng = np.random.default_rng(0)
    outputs_MC = np.eye(3)[rng.integers(0, 3, 200)]
    good, useless = 0.7 * outputs_MC + 0.1, rng.dirichlet(np.ones(3), 200)
    assert choose_weights([useless, good], outputs_MC, GROUPS, outputs_MC).tolist() == [0.0, 1.0]


def test_no_held_out_samples_leave_equal_weights() -> None:
    none = np.zeros((0, 1))
    groups = np.zeros(0, np.int64)
    assert choose_weights([none, none], none, groups, none).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("groups", "sharpened", "changes"), [(40, 3, True), (40, 1, False), (1, 3, False)]
)
def test_a_temperature_needs_evidence_of_many_groups(
    groups: int, sharpened: float, changes: bool
) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 3))
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    codes = np.array([rng.choice(3, p=chance) for chance in chances])
    given = chances**sharpened / (chances**sharpened).sum(axis=1, keepdims=True)
    labels = Labels.of(
        codes.astype(np.float64), ("a", "b", "c"), [str(n % groups) for n in range(200)]
    )
    fold = np.arange(200) % groups % 5
    rows = [np.flatnonzero(fold == k) for k in np.unique(fold)]
    splits = tuple(Split(np.arange(200), one[:0], one) for one in rows)
    folds = Folds(labels, splits, 0)
    ensemble = combine_members({"one": given[folds.rows_M]}, folds).ensemble
    assert (ensemble.temperature != 1) is changes
