"""The ensemble: mean of the members, with a temperature that has evidence."""

from __future__ import annotations

import numpy as np
import pytest

from aam.data.splits import Split
from aam.members.base import Labels
from aam.members.ensemble import combine_members
from aam.members.scores import Folds


def test_the_ensemble_is_the_mean_of_its_members() -> None:
    """Also where one of them is far worse: a choice by other folds would know the labels."""
    values = np.random.default_rng(0).normal(size=200)
    fold_N = np.arange(200) // 50
    splits = tuple(
        Split(np.flatnonzero(fold_N != k), np.arange(0), np.flatnonzero(fold_N == k))
        for k in range(4)
    )
    folds = Folds(Labels.of(values, (), [str(k) for k in fold_N]), splits, 0)
    members = {"good": 0.9 * values[:, None], "bad": -9 * values[:, None]}
    found = combine_members(members, folds)
    assert found.predictions_MC == pytest.approx((members["good"] + members["bad"]) / 2)
    assert found.ensemble.combine(members, False) == pytest.approx(found.predictions_MC)


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
