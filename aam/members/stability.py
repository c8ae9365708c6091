"""Stability of the importance of ASVs over folds: whether models of other samples agree."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.stats import spearmanr

from aam.members.base import F64, Rows

FOLD_RANK = "rank_fold_"
"""Prefix of the columns with the ranks of each fold."""

FIRST = 20
"""ASVs whose presence among the first is compared."""

UNSTABLE = 0.5
"""Part of the first ASVs that two folds have in common, below which a list is no finding."""


@dataclass(frozen=True)
class Stability:
    """Agreement of K folds about U ASVs.

    Attributes:
        folds: K.
        correlation: mean Spearman correlation of the ranks of two folds.
        common: mean number of the first `FIRST` ASVs that two folds have in common.
        first: `FIRST`, or U if that is less.
        times_U: number of folds in which an ASV is among the first.
    """

    folds: int
    correlation: float
    common: float
    first: int
    times_U: Rows

    @property
    def sentence(self) -> str:
        """Describe the agreement."""
        text = (
            f"Two of {self.folds} folds have {self.common:.1f} of their first {self.first} ASVs in "
            f"common (rank correlation {self.correlation:.2f})"
        )
        if self.common < UNSTABLE * self.first:
            return f"{text}: the list changes with the fold and is no finding."
        return f"{text}."


def stability(ranks_KU: F64) -> Stability:
    """Compare the ranks of U ASVs in K folds, at least two of each.

    >>> stability(np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 3.0]])).correlation
    0.5
    """
    first = min(FIRST, ranks_KU.shape[1])
    among_KU = np.argsort(np.argsort(ranks_KU, axis=1, kind="stable"), axis=1) < first
    pairs = list(combinations(range(len(ranks_KU)), 2))
    return Stability(
        folds=len(ranks_KU),
        correlation=float(np.mean([spearmanr(ranks_KU[i], ranks_KU[j])[0] for i, j in pairs])),
        common=float(np.mean([(among_KU[i] & among_KU[j]).sum() for i, j in pairs])),
        first=first,
        times_U=among_KU.sum(axis=0),
    )
