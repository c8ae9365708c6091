"""Relations of the ASVs of a training study: mismatches, similarity, linkage and its dendrogram.

They depend on the sequences alone. One `AsvRelations` is made for a study, and estimators, folds,
trials of a search, importance and the training summary share it. The dendrogram is the average
linkage of the mismatches of all pairs; with more than `MAX_LINKED` ASVs, of clusters around
representative ASVs and within each cluster (docs/experiments/members.md). The kernel compares the
log abundance of samples below each branch. A new ASV joins the path of its most similar ASV at the
height of their mismatches.

F ASVs of the training study, U and V any ASVs, K ASVs of a block, L nucleotides, G branches, of
which branch g leads from node g up to its parent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy import sparse
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from aam.arrays import F32, F64, Arrays, Rows, Tokens
from aam.console import info
from aam.contract.records import Mismatch
from aam.nucleotide_codes import PAD, WIDTH
from aam.serialization.model_folder import indices, numbers


@dataclass(frozen=True)
class NearestAsvs:
    """Most similar ASVs of the training study."""

    nearest_U: Rows  # int64, row of the ASV with the fewest mismatches, the first of several
    mismatches_U: F32  # float32, its mismatches; 0 for an ASV of the training study

    @classmethod
    def of_training(cls, asvs: int) -> NearestAsvs:
        """Return the ASVs of the training study."""
        return cls(np.arange(asvs), np.zeros(asvs, dtype=np.float32))


@dataclass(frozen=True)
class Dendrogram:
    """Binary tree of F ASVs: 2F - 1 nodes, first the ASVs."""

    parents_G: Rows  # int64, parent of each node; the last node is the root, its own parent
    heights_G: F64  # mean mismatches between the two clades of a node; 0 for an ASV

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
        return self.heights_G[self.parents_G] - self.heights_G

    @cached_property
    def paths_FG(self) -> sparse.csr_array:
        """Branches between each ASV and the root, float64 [F, G] of zeros and ones."""
        row = node = np.arange((len(self.parents_G) + 1) // 2)
        rows, nodes = [], []
        # All ASVs take one step towards the root at a time: the loop is as long as the longest
        # path, not as the number of ASVs.
        while len(node):
            rows.append(row)
            nodes.append(node)
            below_root = self.parents_G[node] != node
            row, node = row[below_root], self.parents_G[node[below_root]]
        entries = np.concatenate(rows), np.concatenate(nodes)
        shape = len(rows[0]), len(self.parents_G)
        return sparse.csr_array((np.ones(len(entries[0])), entries), shape)

    def membership(self, nearest: NearestAsvs) -> sparse.csr_array:
        """Return the branches above each ASV, float64 [U, G] of zeros and ones."""
        member_UG = sparse.csr_array(self.paths_FG[nearest.nearest_U])
        reached = np.repeat(nearest.mismatches_U, np.diff(member_UG.indptr))
        member_UG.data = (self.heights_G[member_UG.indices] >= reached).astype(np.float64)
        member_UG.eliminate_zeros()
        return member_UG

    def abundances(self, weights: sparse.csr_array, nearest: NearestAsvs) -> sparse.csr_array:
        """Return FINEST times the relative abundance below each branch, float64 [N, G]."""
        # The abundances follow from the log weights, so that a stored model needs no counts.
        data = 10.0 ** weights.data.astype(np.float64) - 1
        relative = sparse.csr_array((data, weights.indices, weights.indptr), weights.shape)
        return sparse.csr_array(relative @ self.membership(nearest))

    def features(self, weights: sparse.csr_array, nearest: NearestAsvs) -> sparse.csr_array:
        """Return the log abundance below each branch times the root of its length, [N, G]."""
        features_NG = self.abundances(weights, nearest)
        features_NG.sort_indices()  # one order of the sums, whatever other samples there are
        logs = np.log10(1 + features_NG.data)
        features_NG.data = logs * np.sqrt(self.lengths_G)[features_NG.indices]
        return features_NG

    @classmethod
    def restore(cls, arrays: Arrays, asvs: int) -> Dendrogram:
        """Build the dendrogram of a study of `asvs` ASVs from its state; raises Mismatch."""
        nodes = 2 * asvs - 1
        parents_G = indices(arrays, "parents", nodes, nodes)
        # A parent after its child excludes cycles, on which the loop of `paths_FG` would not end.
        if (parents_G[:-1] <= np.arange(nodes - 1)).any():
            raise Mismatch("the array 'parents' is not a tree")
        return cls(parents_G, numbers(arrays, "heights", nodes))


MAX_LINKED = 10_000
"""Most ASVs, or clusters of ASVs, whose pairs are all linked; a pair needs 12 bytes."""

_MAX_KEPT = 16_384
"""Most ASVs whose mismatches of all pairs stay in memory, 4 bytes a pair: 1 GiB."""

_BLOCK = 4096  # ASVs of a block of the similarity of all pairs: 64 MiB

_NUCLEOTIDES = range(1, 5)
_CHUNK = 1024
_CHUNK_ENTRIES = 2**25


@dataclass(frozen=True, eq=False)
class AsvRelations:
    """Relations of the F ASVs of a training study, each computed when it is first used."""

    tokens_FL: Tokens  # sequence of each ASV, codes of `aam.data.sequences`
    largest: int = MAX_LINKED  # ASVs up to which the linkage is exact

    def of_table(self, tokens_UL: Tokens) -> AsvRelations:
        """Return the relations of a table's ASVs; these, if it is the table of the study."""
        return self if tokens_UL is self.tokens_FL else AsvRelations(tokens_UL)

    def mismatches(self, tokens_UL: Tokens) -> Iterator[tuple[slice, F32]]:
        """Yield blocks of ASVs of the study, and the mismatches [U, K] of U ASVs with them."""
        is_cached = tokens_UL is self.tokens_FL and len(tokens_UL) <= _MAX_KEPT
        for chunk in chunks(len(self.tokens_FL)):
            if is_cached:
                yield chunk, self._mismatches_FF[:, chunk]
            else:
                yield chunk, mismatches(tokens_UL, self.tokens_FL[chunk])

    def smooth(self, weights: sparse.csr_array, tokens_VL: Tokens) -> F32:
        """Return the sum over V ASVs of weight [N, V] times similarity to each ASV, [N, F]."""
        smoothed_NF = np.empty((weights.shape[0], len(self.tokens_FL)), dtype=np.float32)
        for chunk, smoothed_NK in self.smoothed(weights, tokens_VL):
            smoothed_NF[:, chunk] = smoothed_NK
        return smoothed_NF

    def smoothed(self, weights: sparse.csr_array, tokens_VL: Tokens) -> Iterator[tuple[slice, F32]]:
        """Yield blocks of K ASVs and the columns [N, K] of `smooth` of each."""
        if len(tokens_VL) > _MAX_KEPT:  # only ASVs that these samples have
            seen = np.unique(weights.indices)
            weights, tokens_VL = weights[:, seen], tokens_VL[seen]
        for chunk, mismatches_VK in self.mismatches(tokens_VL):
            yield chunk, weights @ similarity(mismatches_VK)

    def sample_products(self, weights: sparse.csr_array) -> F32:
        """Return the products of the smoothed weights [N, F] of all pairs of samples, [N, N].

        With many ASVs they need a fraction of the memory of the smoothed weights. The similarity is
        symmetric, so half of its blocks suffice.
        """
        by_asv, asvs = sparse.csc_array(weights), len(self.tokens_FL)
        products_NN = np.zeros((weights.shape[0],) * 2, dtype=np.float32)
        blocks = [slice(start, start + _BLOCK) for start in range(0, asvs, _BLOCK)]
        for number, block in enumerate(blocks):
            columns = min(block.stop, asvs) - block.start
            smoothed_NK = np.zeros((weights.shape[0], columns), dtype=np.float32)
            for later in blocks[number:]:
                similar_VK = similarity(self._mismatches_between(later, block))
                # The other half comes from the transpose, added below.
                smoothed_NK += by_asv[:, later] @ (similar_VK / 2 if later == block else similar_VK)
            weights_NK = by_asv[:, block]
            for rows in chunks(len(products_NN)):  # in place, as below
                products_NN[rows] += (weights_NK @ smoothed_NK[rows].T).T
        for rows in chunks(len(products_NN)):  # in place: a copy would take as much memory again
            symmetric = products_NN[rows, rows.start :] + products_NN[rows.start :, rows].T
            products_NN[rows, rows.start :] = symmetric
            products_NN[rows.start :, rows] = symmetric.T
        return products_NN

    def landmark_products(self, weights: sparse.csr_array, landmarks: Rows) -> F32:
        """Return the columns of `sample_products` of some samples, [N, R]."""
        by_asv, of_landmarks = sparse.csc_array(weights), weights[landmarks]
        products_NR = np.zeros((weights.shape[0], len(landmarks)), dtype=np.float32)
        for block, smoothed_RK in self.smoothed(of_landmarks, self.tokens_FL):
            products_NR += by_asv[:, block] @ smoothed_RK.T
        return products_NR

    def self_products(self, weights: sparse.csr_array) -> F64:
        """Return the diagonal of `sample_products`, [N]."""
        norms = []
        for start, stop in pairwise(weights.indptr.tolist()):
            of_sample = weights.data[start:stop]
            tokens_SL = self.tokens_FL[weights.indices[start:stop]]
            norms.append(of_sample @ similarity(mismatches(tokens_SL, tokens_SL)) @ of_sample)
        return np.array(norms, dtype=np.float64)

    def _mismatches_between(self, rows: slice, columns: slice) -> F32:
        if len(self.tokens_FL) <= _MAX_KEPT:
            return self._mismatches_FF[rows, columns]
        return mismatches(self.tokens_FL[rows], self.tokens_FL[columns])

    def known(self, tokens_UL: Tokens) -> tuple[Rows, Rows]:
        """Return which of U ASVs are ASVs of the study: their rows and its rows."""
        pairs = [
            (row, self._rows[sequence])
            for row, sequence in enumerate(_sequences(tokens_UL))
            if sequence in self._rows
        ]
        rows, columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return rows, columns

    @cached_property
    def linkage(self) -> F64 | None:
        """SciPy's matrix of the average linkage, [F - 1, 4]; None for fewer than 2 ASVs."""
        number = len(self.tokens_FL)
        if number > self.largest:
            info(
                f"The clades of {number} ASVs are approximated by average linkage of clusters "
                f"around at most {self.largest} ASVs."
            )
            return average_linkage(self.tokens_FL, self.largest)
        return _linked(self._mismatches_FF) if number > 1 else None

    @cached_property
    def dendrogram(self) -> Dendrogram | None:
        """Dendrogram of the linkage; None without linkage."""
        return None if self.linkage is None else Dendrogram.of(self.linkage)

    @cached_property
    def _mismatches_FF(self) -> F32:
        mismatches_FF = np.empty((len(self.tokens_FL),) * 2, dtype=np.float32)
        for chunk in chunks(len(self.tokens_FL)):
            mismatches_FF[:, chunk] = mismatches(self.tokens_FL, self.tokens_FL[chunk])
        return mismatches_FF

    @cached_property
    def _rows(self) -> dict[bytes, int]:
        # In reverse, so that equal sequences have the first row.
        numbered = [*enumerate(_sequences(self.tokens_FL))]
        return {sequence: row for row, sequence in reversed(numbered)}


def mismatches(one_UL: Tokens, two_VL: Tokens) -> F32:
    """Return the positions at which each pair of sequences differs, float32 [U, V].

    A position counts half where one of the two has no nucleotide (its end, or an ambiguous letter).
    """
    length = min(one_UL.shape[1], two_VL.shape[1])
    (letters, one_U), (two, two_V) = _letters(one_UL, length), _letters(two_VL, length)
    # The number of equal letters is an inner product of indicators, by BLAS; sums of halves up to
    # the length of a sequence are exact in float32.
    return (one_U[:, None] + two_V[None]) / 2 - letters @ two.T


def average_linkage(tokens_FL: Tokens, most: int = MAX_LINKED) -> F64:
    """Return SciPy's matrix of the average linkage of F > 1 sequences, float64 [F - 1, 4].

    It is exact for at most `most` sequences. More of them are divided into clusters around at most
    `most` representatives. Each cluster is linked within, and then the clusters by the mean
    mismatches of their pairs of sequences; no height is lower than those below it.
    """
    number = len(tokens_FL)
    if number <= most:
        return _linked(mismatches(tokens_FL, tokens_FL))
    _, cluster_F, sizes_K = np.unique(
        _nearest_representatives(tokens_FL, most), return_inverse=True, return_counts=True
    )
    clusters = np.split(np.argsort(cluster_F, kind="stable"), np.cumsum(sizes_K)[:-1])
    if len(clusters) == 1:  # all sequences are equal
        later = np.arange(1, number)
        first = np.append(0, later[:-1] + number - 1)
        return np.stack([first, later, 0 * later, later + 1], axis=1).astype(np.float64)
    trees, tops, total = [], [], number
    for cluster in clusters:
        if len(cluster) > 1:
            trees.append((average_linkage(tokens_FL[cluster], most), cluster))
            total += len(cluster) - 1
        tops.append(cluster[0] if len(cluster) == 1 else total - 1)
    trees.append((_linked(mean_mismatches(tokens_FL, clusters)), np.array(tops)))
    merges, row = np.concatenate([tree for tree, _ in trees]), 0
    for tree, leaves in trees:  # the nodes of each tree are numbered within the whole tree
        nodes = np.concatenate([leaves, number + row + np.arange(len(tree))])
        merges[row : row + len(tree), :2] = nodes[tree[:, :2].astype(np.int64)]
        row += len(tree)
    heights, sizes = np.zeros(number + row), np.ones(number + row)
    for node, (first, second) in enumerate(merges[:, :2].astype(np.int64).tolist(), start=number):
        heights[node] = max(merges[node - number, 2], heights[first], heights[second])
        sizes[node] = sizes[first] + sizes[second]
    merges[:, 2], merges[:, 3] = heights[number:], sizes[number:]
    return merges


def _linked(mismatches_FF: F32) -> F64:
    pairs = squareform(mismatches_FF, checks=False)
    del mismatches_FF  # SciPy's copies of the pairs are larger
    return linkage(pairs, "average")


def _nearest_representatives(tokens_FL: Tokens, most: int) -> Rows:
    """Return the nearest of at most `most` representatives of each sequence, int64 [F].

    Their radius is the least power of 1.25 at which they are few enough.
    """
    radius = 1.0
    while (centres := _representatives(tokens_FL, radius, most)) is None:
        radius *= 1.25
    if len(centres) == 1:  # all are within one radius of it, and too many within less
        centres = np.arange(most)
    nearest_F = np.empty(len(tokens_FL), dtype=np.int64)
    for chunk in chunks(len(tokens_FL)):
        nearest_F[chunk] = mismatches(tokens_FL[chunk], tokens_FL[centres]).argmin(axis=1)
    return nearest_F


def _representatives(tokens_FL: Tokens, radius: float, most: int) -> Rows | None:
    """Return sequences of which no two are within a radius, and one is within it of each other one.

    None if there are more than `most`.
    """
    centres = np.empty(0, dtype=np.int64)
    for chunk in chunks(len(tokens_FL)):
        far = np.arange(chunk.start, min(chunk.stop, len(tokens_FL)))
        if len(centres):
            far = far[(mismatches(tokens_FL[far], tokens_FL[centres]) > radius).all(axis=1)]
        if not len(far):
            continue
        near_KK = mismatches(tokens_FL[far], tokens_FL[far]) <= radius
        chosen: list[int] = []
        for k in range(len(far)):
            if not near_KK[k, chosen].any():
                chosen.append(k)
        centres = np.concatenate([centres, far[chosen]])
        if len(centres) > most:
            return None
    return centres


def mean_mismatches(tokens_FL: Tokens, clusters: Sequence[Rows]) -> F32:
    """Return the mean mismatches of the pairs of two clusters, float32 [K, K]; 0 in the diagonal.

    A mean of inner products of indicators is the inner product of their means.
    """
    means = [[array.mean(axis=0) for array in _letters(tokens_FL[rows], tokens_FL.shape[1])]
             for rows in clusters]  # fmt: skip
    letters = np.stack([letters for letters, _ in means])
    number_K = np.array([number for _, number in means], dtype=np.float32)
    means_KK: F32 = letters @ letters.T
    for chunk in chunks(len(clusters)):  # in place: K² numbers are 400 MB
        np.subtract((number_K[chunk, None] + number_K) / 2, means_KK[chunk], out=means_KK[chunk])
    np.fill_diagonal(means_KK, 0)
    return means_KK.clip(min=0, out=means_KK)


def similarity(mismatches_UV: F32) -> F32:
    """Return exp(-mismatches / WIDTH), float32."""
    return np.exp(np.float32(-1 / WIDTH) * mismatches_UV)


def chunks(number: int, columns: int = 0) -> Iterator[slice]:
    """Yield slices of at most 1,024 rows, and of at most 2²⁵ entries of `columns` each."""
    size = max(1, min(_CHUNK, _CHUNK_ENTRIES // max(columns, 1)))
    return (slice(start, start + size) for start in range(0, number, size))


def _letters(tokens_UL: Tokens, length: int) -> tuple[F32, F32]:
    """Return the indicators of the first `length` letters, [U, 4 length], and all their numbers."""
    present = (tokens_UL >= _NUCLEOTIDES[0]) & (tokens_UL <= _NUCLEOTIDES[-1])
    codes = tokens_UL[:, :length, None] == np.array(_NUCLEOTIDES, dtype=np.uint8)
    return codes.reshape(len(tokens_UL), -1).astype(np.float32), present.sum(1, dtype=np.float32)


def _sequences(tokens_UL: Tokens) -> list[bytes]:
    return [bytes(row[row != PAD]) for row in tokens_UL]
