"""Splits of samples by groups and classes."""

from __future__ import annotations

import numpy as np
import pytest

from aam.contract.errors import DataError
from aam.data.splits import Split, make_splits


def stratified(groups: int, folds: int) -> tuple[Split, ...]:
    """Split samples of two classes, twelve of each group."""
    rows = np.arange(12 * groups)
    names = [f"subject {row % groups}" for row in rows]
    classes = (rows // groups) % 2
    return make_splits(len(rows), test_size=0.2, folds=folds, seed=1, groups=names, classes=classes)


def test_few_groups_are_stratified() -> None:
    """Outside the test samples there are fewer groups than the parts of the test size."""
    for split in stratified(groups=6, folds=3):
        parts = [set(rows % 6) for rows in (split.train, split.validation, split.test)]
        assert [len(part) for part in parts] == [3, 1, 2]
        assert len(set.union(*parts)) == 6


def test_one_group_outside_the_test_samples_is_refused() -> None:
    with pytest.raises(DataError, match="Too few groups to stratify: 1 outside the test samples"):
        stratified(groups=2, folds=2)
