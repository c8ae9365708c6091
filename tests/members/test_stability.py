"""Stability of the importance over folds."""

from __future__ import annotations

import numpy as np
import pytest

from aam.members.importance import stability


def test_equal_lists_agree_and_random_lists_are_no_finding() -> None:
    ranks = np.tile(np.arange(1.0, 101), (5, 1))
    same = stability(ranks)
    assert same.correlation == pytest.approx(1)
    assert (same.common, same.first) == (20, 20)
    assert (same.times_U[:20] == 5).all()
    assert (same.times_U[20:] == 0).all()
    assert "no finding" not in same.sentence
    rng = np.random.default_rng(0)
    other = stability(np.array([rng.permutation(row) for row in ranks]))
    assert other.correlation == pytest.approx(0, abs=0.2)
    assert other.common == pytest.approx(4, abs=2)  # 20 * 20 / 100
    assert "is no finding" in other.sentence


def test_few_asvs_are_all_among_the_first() -> None:
    found = stability(np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 3.0]]))
    assert (found.first, found.common, found.correlation) == (3, 3, 0.5)
