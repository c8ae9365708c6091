"""Clades of ASVs: clusters of similar sequences, whose abundances are features of the forest.

A forest splits on one feature at a time, so it needs many splits for an effect that related ASVs
share. Clades are average-linkage clusters of the sequences; they need no tree.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.cluster.hierarchy import fcluster

from aam.members.base import Rows, Tokens
from aam.members.dendrogram import average_linkage

LEVELS = (0.03, 0.1)
"""Mean part of the positions at which two ASVs of a clade differ, at most."""


def clades(tokens_FL: Tokens) -> Rows:
    """Return the clade of each ASV at each of the `LEVELS`, int64 [levels, F].

    Clades have the numbers from 1, each level its own; 0 is an ASV that is alone.
    """
    number = len(tokens_FL)
    found = np.zeros((len(LEVELS), number), dtype=np.int64)
    if (tree := average_linkage(tokens_FL)) is None:
        return found
    length = (tokens_FL > 0).sum(axis=1).mean()
    for own, level in zip(found, LEVELS, strict=True):
        labels = fcluster(tree, level * length, "distance")
        shared = np.flatnonzero(np.bincount(labels)[labels] > 1)
        numbers = np.unique(labels[shared], return_inverse=True)[1]
        own[shared] = 1 + found.max(initial=0) + numbers
    return found


def membership(clades_VF: Rows) -> sparse.csr_array:
    """Return which ASVs are in which clade, float32 [F, clades] of zeros and ones."""
    level, asv = np.nonzero(clades_VF)
    ones = np.ones(len(asv), dtype=np.float32)
    shape = clades_VF.shape[1], int(clades_VF.max(initial=0))
    return sparse.csr_array((ones, (asv, clades_VF[level, asv] - 1)), shape)
