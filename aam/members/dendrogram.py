"""Dendrogram of ASVs: average linkage of the mismatches of their sequences.

The kernel compares the log abundance of samples below each branch. An ASV that the training study
does not have joins the path of its most similar ASV where the clades differ by as many mismatches.
G branches, of which branch g leads from node g up to its parent; U ASVs of the samples; further
shape suffixes: see `base`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.contract.schema import Mismatch
from aam.members.base import F64, Arrays, Rows
from aam.members.state import indices, numbers

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Places:
    """Most similar ASVs of the training study.

    Attributes:
        nearest_U: int64, row of the ASV with the fewest mismatches, the first of several.
        mismatches_U: float32, its mismatches; 0 for an ASV of the training study.
    """

    nearest_U: Rows
    mismatches_U: F32

    @classmethod
    def of_training(cls, asvs: int) -> Places:
        """Return the places of the ASVs of the training study."""
        return cls(np.arange(asvs), np.zeros(asvs, dtype=np.float32))


@dataclass(frozen=True)
class Dendrogram:
    """Binary tree of F ASVs, which are its first nodes; 2F - 1 nodes.

    Attributes:
        parents_G: int64, parent of each node; the last node is the root, its own parent.
        heights_G: float64, mean mismatches between the two clades of a node; 0 for an ASV.
    """

    parents_G: Rows
    heights_G: F64

    @classmethod
    def of(cls, merges: F64) -> Dendrogram:
        """Build the dendrogram of a linkage matrix of SciPy, [F - 1, 4]."""
        asvs = len(merges) + 1
        parents_G = np.full(2 * asvs - 1, 2 * asvs - 2)
        parents_G[merges[:, :2].astype(np.int64)] = np.arange(asvs, 2 * asvs - 1)[:, None]
        return cls(parents_G, np.concatenate([np.zeros(asvs), merges[:, 2]]))

    @property
    def lengths_G(self) -> F64:
        """Mismatches between the two ends of each branch; 0 for the root."""
        lengths_G: F64 = self.heights_G[self.parents_G] - self.heights_G
        return lengths_G

    @cached_property
    def paths_FG(self) -> sparse.csr_array:
        """Branches between each ASV and the root, float64 [F, G] of zeros and ones."""
        row = here = np.arange((len(self.parents_G) + 1) // 2)
        rows, nodes = [], []
        # All ASVs take one step towards the root at a time: the loop is as long as the longest
        # path, not as the number of ASVs.
        while len(here):
            rows.append(row)
            nodes.append(here)
            below_root = self.parents_G[here] != here
            row, here = row[below_root], self.parents_G[here[below_root]]
        entries = np.concatenate(rows), np.concatenate(nodes)
        shape = len(rows[0]), len(self.parents_G)
        return sparse.csr_array((np.ones(len(entries[0])), entries), shape)

    def membership(self, places: Places) -> sparse.csr_array:
        """Return the branches above each ASV, float64 [U, G] of zeros and ones."""
        member_UG = sparse.csr_array(self.paths_FG[places.nearest_U])
        reached = np.repeat(places.mismatches_U, np.diff(member_UG.indptr))
        member_UG.data = (self.heights_G[member_UG.indices] >= reached).astype(np.float64)
        member_UG.eliminate_zeros()
        return member_UG

    def abundances(self, weights: sparse.csr_array, places: Places) -> sparse.csr_array:
        """Return FINEST times the relative abundance below each branch, float64 [N, G].

        Args:
            weights: [N, U], see `base.Samples.log_abundances`.
            places: places of the U ASVs.
        """
        # The abundances follow from the log weights, so that a stored model needs no counts.
        data = 10.0 ** weights.data.astype(np.float64) - 1
        relative = sparse.csr_array((data, weights.indices, weights.indptr), weights.shape)
        return sparse.csr_array(relative @ self.membership(places))

    def features(self, weights: sparse.csr_array, places: Places) -> sparse.csr_array:
        """Return the log abundance below each branch times the root of its length, [N, G]."""
        features_NG = self.abundances(weights, places)
        features_NG.sort_indices()  # one order of the sums, whatever other samples there are
        logs = np.log10(1 + features_NG.data)
        features_NG.data = logs * np.sqrt(self.lengths_G)[features_NG.indices]
        return features_NG

    def arrays(self) -> Arrays:
        """Return the state, see `FittedModel`."""
        return {"parents": self.parents_G, "heights": self.heights_G}

    @classmethod
    def restore(cls, arrays: Arrays, asvs: int) -> Dendrogram:
        """Build the dendrogram of a study of `asvs` ASVs from its state; raises Mismatch."""
        nodes = 2 * asvs - 1
        parents_G = indices(arrays, "parents", nodes, nodes)
        heights_G = numbers(arrays, "heights", nodes)
        # A parent after its child excludes cycles, on which the loop of `paths_FG` would not end.
        above = parents_G[:-1] > np.arange(nodes - 1)
        if not above.all() or parents_G[-1] != nodes - 1:
            raise Mismatch("the array 'parents' is not a tree")
        # Average linkage has no inversions. With one, a length would be negative and its root NaN.
        if heights_G.min() < 0 or (heights_G[parents_G] < heights_G).any():
            raise Mismatch("the array 'heights' is not ascending")
        return cls(parents_G, heights_G)
