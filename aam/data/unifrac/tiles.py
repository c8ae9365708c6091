"""UniFrac distances between all samples of a table in tiles of samples x samples.

A tile depends on its samples and the tree alone. Tiles can be computed one at a time, in any order
and by several processes, with the same bits; memory holds one tile and the reads of its samples
below the branches. Only tiles on and above the diagonal are computed.

Most branches are near the tips and have reads of few samples, so of the branches that two samples
have in common

* those with reads of many samples of the tile are dense: a matrix product of presences
  (unweighted), or `torch.cdist` with p = 1 (weighted);
* the other ones are sparse: a product of sparse presences, or the smaller of each two values, as
      sum l |p_i - p_j| = sum l p_i + sum l p_j - 2 sum l min(p_i, p_j),
  and likewise for the sums of generalized UniFrac.

On a GPU all branches are dense. For the definition of the metrics see `aam.data.unifrac.batch`.

Shapes: N samples, F features, G branches, n and m samples of two blocks, g branches at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from aam.console import track
from aam.contract.options.study import Metric
from aam.data.unifrac.batch import power, ratio
from aam.data.unifrac.phylogeny import Phylogeny

TILE = 512
"""Samples in a row and in a column of a tile. Other values give other rounding errors."""

BRANCHES = 256
"""Dense branches that are processed at a time."""

ROWS = 4
"""Samples whose sparse branches are compared with those of a block at a time."""

DENSE_FROM = {"unweighted": 0.02, "weighted": 0.1, "generalized": 0.2}
"""Share of the pairs of a tile that have reads below a branch, from which on it is dense.

Near these shares the dense and the sparse computation take the same time on one core.
"""

Array = NDArray[np.float64]
Branches = NDArray[np.int64]
Mask = NDArray[np.bool_]
Pair = tuple[int, int]
"""Place of a tile: numbers of its blocks of samples, in rows and in columns."""

Tile = tuple[slice, slice, Array]
"""Rows and columns of the matrix, and their distances [n, m]."""


@dataclass(frozen=True)
class SampleBlock:
    """Reads of n samples below the branches.

    Attributes:
        by_sample: float64 [n, G]: proportions of the reads of a sample; for weighted UniFrac, times
            the branch length; for unweighted UniFrac, 1.
        by_branch: the same, [G, n].
        totals: float64 [n], length of the branches above a sample's ASVs (unweighted UniFrac), or
            mean distance of its reads from the root.
    """

    by_sample: sparse.csr_array
    by_branch: sparse.csr_array
    totals: Array

    @property
    def bytes(self) -> int:
        """Memory that the block takes."""
        both = (self.by_sample, self.by_branch)
        return sum(one.data.nbytes + one.indices.nbytes + one.indptr.nbytes for one in both)


class Tiles:
    """The tiles of a distance matrix.

    Args:
        counts: reads [N, F], whose columns are the features of `phylogeny`; rows are selected by
            an array of their numbers.
        phylogeny: the tree of the features.
        metric: name of the UniFrac metric; "unifrac" is "unweighted".
        alpha: exponent of generalized UniFrac, 0 to 1.
        device: device on which torch computes dense branches, "cpu" by default.
        max_bytes: memory for blocks that several tiles use; it does not change the result.
    """

    def __init__(
        self,
        counts: sparse.csr_array,
        phylogeny: Phylogeny,
        metric: Metric,
        alpha: float = 0.5,
        device: str = "cpu",
        max_bytes: int = 1 << 30,
    ) -> None:
        self._counts, self._lengths_G = counts, np.asarray(phylogeny.lengths_G)
        self._device, self._alpha, self._max_bytes = device, alpha, max_bytes
        self._normalized = metric != "weighted"
        self._kind = "unweighted" if metric in ("unifrac", "unweighted") else "weighted"
        if metric == "generalized" and alpha != 1:
            self._kind = "generalized"
        ones = np.ones(phylogeny.indices.size, dtype=np.int64)
        shape = (counts.shape[1], self._lengths_G.size)
        self._ancestors = sparse.csr_array((ones, phylogeny.indices, phylogeny.indptr), shape=shape)
        self._kept: dict[int, SampleBlock] = {}

    @property
    def pairs(self) -> list[Pair]:
        """The tiles of the matrix, row by row, from the diagonal on."""
        blocks = -(-self._counts.shape[0] // TILE)
        return [(row, column) for row in range(blocks) for column in range(row, blocks)]

    def compute(self, pairs: Sequence[Pair]) -> Iterator[Tile]:
        """Yield rows, columns and distances [n, m] of tiles; those on the diagonal are symmetric.

        Args:
            pairs: some of `pairs`, in their order.
        """
        for row, column in track(pairs, "UniFrac", len(pairs), "tiles"):
            for unused in [number for number in self._kept if number < row]:
                del self._kept[unused]
            distances = self._distances(self._block(row), self._block(column))
            if row == column:
                distances = np.triu(distances, 1)
                distances += distances.T
            yield self._rows(row), self._rows(column), distances

    def _rows(self, number: int) -> slice:
        return rows_of(number, self._counts.shape[0])

    def _block(self, number: int) -> SampleBlock:
        if number in self._kept:
            return self._kept[number]
        rows = self._rows(number)
        counts = self._counts[np.arange(rows.start, rows.stop)].astype(np.int64)
        below = counts @ self._ancestors
        below.sort_indices()  # Sums take the branches in one order, which fixes their rounding.
        lengths = self._lengths_G[below.indices]
        if self._kind == "unweighted":
            values, parts = np.ones(below.nnz), lengths
        else:
            reads = np.asarray(counts.sum(axis=1)).ravel()
            values = below.data / np.repeat(reads, np.diff(below.indptr))
            parts = values * lengths
        if self._kind == "weighted":
            # |l p - l q| = l |p - q|, and the same for the minimum: lengths are multiplied once.
            values = parts
        by_sample = sparse.csr_array((values, below.indices, below.indptr), shape=below.shape)
        of_entry = np.repeat(np.arange(below.shape[0]), np.diff(below.indptr))
        totals = _bincount(of_entry, parts, below.shape[0])
        block = SampleBlock(by_sample, by_sample.T.tocsr(), totals)
        if sum(one.bytes for one in self._kept.values()) + block.bytes <= self._max_bytes:
            self._kept[number] = block
        return block

    def _distances(self, a: SampleBlock, b: SampleBlock) -> Array:
        # Pairs of samples that both have reads below a branch: the number of its sparse products.
        pairs = np.diff(a.by_branch.indptr).astype(np.int64) * np.diff(b.by_branch.indptr)
        share = DENSE_FROM[self._kind] if self._device == "cpu" else 0.0
        is_dense = pairs > share * a.by_sample.shape[0] * b.by_sample.shape[0]
        some = np.flatnonzero((pairs > 0) & ~is_dense)
        if self._kind == "unweighted":
            return self._unweighted(a, b, some, is_dense)
        if self._kind == "weighted":
            return self._weighted(a, b, some, is_dense)
        return self._generalized(a, b, some, is_dense)

    def _unweighted(self, a: SampleBlock, b: SampleBlock, some: Branches, is_dense: Mask) -> Array:
        # Unlike in `batch`, branches stay those of the complete tree: a block serves many tiles.
        rows = a.by_sample[:, some]
        rows.data *= self._lengths_G[some][rows.indices]
        shared = (rows @ b.by_branch[some]).toarray()
        for one, other, length in self._dense(a, b, is_dense):
            shared += ((one * length) @ other.T).cpu().numpy()
        both = a.totals[:, None] + b.totals
        return _ratio((both - 2 * shared).clip(min=0), both - shared)

    def _weighted(self, a: SampleBlock, b: SampleBlock, some: Branches, is_dense: Mask) -> Array:
        # Both sums are in the order of the branches, so equal samples are at distance 0.
        rows, columns = (block.by_sample @ (~is_dense).astype(float) for block in (a, b))
        (common,) = _sums(a, b, some, None, lambda p, q: (np.minimum(p, q),))
        distances: Array = (rows[:, None] + columns - 2 * common).clip(min=0)
        for one, two, _ in self._dense(a, b, is_dense):
            distances += torch.cdist(one, two, p=1).cpu().numpy()
        return _ratio(distances, a.totals[:, None] + b.totals) if self._normalized else distances

    def _generalized(self, a: SampleBlock, b: SampleBlock, some: Branches, is_dense: Mask) -> Array:
        alpha = self._alpha

        def less_than_alone(p: Array, q: Array) -> tuple[Array, ...]:
            both = p + q
            weight = power(torch.from_numpy(both), alpha - 1).numpy()
            # A branch of one sample alone adds p ** alpha to both sums. `rows` and `columns` add it
            # for all branches, so it is subtracted where both samples have reads.
            alone = p**alpha + q**alpha
            return np.abs(p - q) * weight - alone, both * weight - alone

        weights_G = self._lengths_G * ~is_dense
        rows, columns = (_powers(block.by_sample, alpha) @ weights_G for block in (a, b))
        sums = _sums(a, b, some, self._lengths_G[some], less_than_alone)
        difference, total = (one + rows[:, None] + columns for one in sums)
        for one, two, length in self._dense(a, b, is_dense):
            for row, p in enumerate(one):
                both = two + p
                weight = power(both, alpha - 1)
                difference[row] += ((two - p).abs_().mul_(weight) @ length).cpu().numpy()
                total[row] += (both.mul_(weight) @ length).cpu().numpy()
        return _ratio(difference.clip(min=0), total)

    def _dense(
        self, a: SampleBlock, b: SampleBlock, is_dense: Mask
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield values [n, g] and [m, g] of dense branches of two blocks, and their lengths [g]."""
        branches = np.flatnonzero(is_dense)
        for start in range(0, branches.size, BRANCHES):
            chosen = branches[start : start + BRANCHES]
            parts = (a.by_branch[chosen].toarray().T, b.by_branch[chosen].toarray().T)
            one, two, lengths = (
                # A copy, whose alignment in memory is always the same.
                torch.tensor(np.ascontiguousarray(part), device=self._device)
                for part in (*parts, self._lengths_G[chosen])
            )
            yield one, two, lengths


def rows_of(number: int, samples: int) -> slice:
    """Return the samples of a block."""
    return slice(number * TILE, min((number + 1) * TILE, samples))


def _sums(
    a: SampleBlock,
    b: SampleBlock,
    branches: Branches,
    lengths_g: Array | None,
    function: Callable[[Array, Array], tuple[Array, ...]],
) -> list[Array]:
    """Sum functions of the values of all pairs of samples over the branches that both have."""
    rows, columns = a.by_sample[:, branches], b.by_branch[branches]
    samples, others = rows.shape[0], columns.shape[1]
    found: list[list[Array]] = []
    for start in range(0, samples, ROWS):
        indptr = rows.indptr[start : start + ROWS + 1]
        entries = slice(indptr[0], indptr[-1])
        # For each entry (sample, branch) of a, the samples of b with reads below that branch.
        chosen = columns[rows.indices[entries]]
        repeats = np.diff(chosen.indptr)
        # `bincount` sums by place (row * m + column) in the order of the entries, so that a sum has
        # the same bits in any process.
        first = np.repeat(np.arange(len(indptr) - 1) * others, np.diff(indptr))
        places = np.repeat(first, repeats) + chosen.indices
        values = function(np.repeat(rows.data[entries], repeats), chosen.data)
        if lengths_g is not None:
            weights = np.repeat(lengths_g[rows.indices[entries]], repeats)
            values = tuple(value * weights for value in values)
        size = (len(indptr) - 1) * others
        found.append([_bincount(places, value, size).reshape(-1, others) for value in values])
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


def _powers(values: sparse.csr_array, alpha: float) -> sparse.csr_array:
    """Return the values to the power of alpha; zeros stay zeros."""
    powers = values.data**alpha
    return sparse.csr_array((powers, values.indices, values.indptr), shape=values.shape)


def _bincount(places: NDArray[np.int64], weights: Array, size: int) -> Array:
    # Without entries, numpy's function returns integers.
    return np.bincount(places, weights, size).astype(np.float64, copy=False)


def _ratio(numerator: Array, denominator: Array) -> Array:
    """Divide elementwise; 0 where the denominator is 0."""
    values: Array = ratio(torch.from_numpy(numerator), torch.from_numpy(denominator)).numpy()
    return values
