"""UniFrac matrices of all samples of a table, computed in tiles to bound memory.

For ordinations and statistics; training uses `aam.data.unifrac.batch` instead.

* Branches are processed in blocks: a sparse product of table and ancestors gives the reads below
  each branch, dense [N, u]. Only half of the pairs is computed.
* Unweighted: the shared branch length is a matrix product of presences.
* Weighted: only branches of the row's sample matter, a tenth of all or fewer, since
      sum l |p_i - p_j| = sum l p_i + sum l p_j - 2 sum over branches of i of l min(p_i, p_j),
  and likewise for the sums of generalized UniFrac, to which a branch of j alone adds l p_j^a.
* float64: on ecam (741 samples) it takes 1.3 to 1.8 times as long as float32 and differs from
  scikit-bio by at most 1e-15 instead of 6e-7.

Shapes: N samples, F features, K branches, u of them at a time, n samples of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from aam.console import track
from aam.contract.options.study import Metric
from aam.data.distances import DistanceMatrix
from aam.data.table import FeatureTable
from aam.data.unifrac.batch import faith_pd, power, ratio
from aam.data.unifrac.phylogeny import Phylogeny
from aam.data.unifrac.ssu import run_ssu

TILE = 1024
"""Samples of a tile: rows of a matrix product, or columns that one row is compared with."""

ROWS = 64
"""Rows per step of the progress bar where rows are processed one by one."""

BYTES_PER_VALUE = 48
"""Memory of a read of a block: int64, sparse and dense; presence or part, twice, as float64."""


def unifrac_matrix(
    table: FeatureTable,
    phylogeny: Phylogeny,
    metric: Metric,
    alpha: float = 0.5,
    engine: Literal["auto", "torch", "ssu"] = "auto",
    max_memory_gb: float = 1.0,
    device: str = "cpu",
) -> DistanceMatrix:
    """Compute the distances between all samples of a table, in float64.

    Args:
        table: reads of N samples; its features are those of `phylogeny`, in this order.
        phylogeny: the tree of the features.
        metric: which UniFrac; "unifrac" is "unweighted".
        alpha: exponent of generalized UniFrac, 0 to 1.
        engine: "ssu" runs the program of unifrac-binaries; "auto" is "torch"; for their times see
            docs/results.md.
        max_memory_gb: GiB that tiles may use in addition to the result of N * N * 8 bytes (twice
            that for generalized UniFrac).
        device: of the computation with torch.

    Raises:
        Unavailable: `engine` is "ssu", which is not installed or fails.
        ValueError: `metric` is not a distance.
    """
    if metric == "faith_pd":
        raise ValueError(f"{metric} is not a distance between samples")
    if engine == "ssu":
        values = run_ssu(table.counts, phylogeny, metric, alpha)
    else:
        width = int(max_memory_gb * 2**30 / BYTES_PER_VALUE / max(1, len(table.sample_ids)))
        blocks = _Blocks(table.counts, phylogeny, max(1, width), device)
        if metric in ("unifrac", "unweighted"):
            distances = _unweighted(blocks)
        elif metric == "generalized" and alpha != 1:
            distances = _generalized(blocks, alpha)
        else:
            distances = _weighted(blocks, metric != "weighted")
        values = _mirrored(distances)
    return DistanceMatrix(tuple(table.sample_ids), values)


def faith_pd_of_all(table: FeatureTable, phylogeny: Phylogeny) -> NDArray[np.float64]:
    """Compute Faith's PD [N] of all samples of a table, in the tree's unit."""
    parts = [
        faith_pd(table.counts[start : start + TILE // 4], phylogeny).numpy()
        for start in range(0, len(table.sample_ids), TILE // 4)
    ]
    return np.concatenate([np.zeros(0), *parts])


class _Blocks:
    """Reads below the branches, in blocks of branches."""

    def __init__(
        self, counts: sparse.csr_array, phylogeny: Phylogeny, width: int, device: str
    ) -> None:
        self.samples, self._device = counts.shape[0], device
        self._counts = counts.astype(np.int64)
        self._lengths_K = phylogeny.lengths_K
        self._width = width
        ones = np.ones(phylogeny.indices.size, dtype=np.int64)
        shape = (counts.shape[1], self._lengths_K.size)
        ancestors = sparse.csr_array((ones, phylogeny.indices, phylogeny.indptr), shape=shape)
        self._ancestors = ancestors.tocsc()

    def zeros(self) -> Tensor:
        """Return zeros, float64 [N, N]."""
        size = (self.samples, self.samples)
        return torch.zeros(size, dtype=torch.float64, device=self._device)

    def tiles(self, rows: int, proportions: bool) -> Iterator[tuple[Tensor, Tensor, slice]]:
        """Yield each block once per tile of `rows` samples, with a progress bar.

        Yields:
            Presences [N, u] (0 or 1) below the branches, or proportions [u, N] of reads; branch
            lengths [u]; the rows of the tile.
        """
        starts = range(0, self._lengths_K.size, self._width)
        firsts = range(0, self.samples, rows)
        work = (
            (block, lengths, slice(first, first + rows))
            for block, lengths in (self._block(start, proportions) for start in starts)
            for first in firsts
        )
        return track(work, "UniFrac", len(starts) * len(firsts), "tiles")

    def _block(self, start: int, proportions: bool) -> tuple[Tensor, Tensor]:
        branches = slice(start, start + self._width)
        reads = (self._counts @ self._ancestors[:, branches]).toarray()
        if proportions:
            values = reads.T / np.maximum(np.asarray(self._counts.sum(axis=1)).ravel(), 1)
        else:
            values = reads > 0
        return self._tensor(values), self._tensor(self._lengths_K[branches])

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        # A copy: the lengths of a store are mapped read-only, of which torch warns.
        return torch.from_numpy(np.array(values, dtype=np.float64, order="C")).to(self._device)


def _unweighted(blocks: _Blocks) -> Tensor:
    shared = blocks.zeros()
    own = shared.new_zeros(blocks.samples)
    for present, lengths, rows in blocks.tiles(TILE, proportions=False):
        weighted = present[rows] * lengths
        own[rows] += weighted.sum(1)
        shared[rows, rows.start :] += weighted @ present[rows.start :].T
    for rows in _slices(blocks.samples):
        both = own[rows, None] + own
        shared[rows] = ratio((both - 2 * shared[rows]).clamp_(min=0), both - shared[rows])
    return shared


def _weighted(blocks: _Blocks, normalized: bool) -> Tensor:
    common = blocks.zeros()
    heights = common.new_zeros(blocks.samples)  # Mean distance of a read from the root.
    for parts, lengths, rows in blocks.tiles(ROWS, proportions=True):
        heights[rows] += lengths @ parts[:, rows]
        for row, own, others, columns in _compared(parts, rows):
            common[row, columns] += lengths[own] @ torch.minimum(others, parts[own, row, None])
    for rows in _slices(blocks.samples):
        both = heights[rows, None] + heights
        differences = (both - 2 * common[rows]).clamp_(min=0)
        common[rows] = ratio(differences, both) if normalized else differences
    return common


def _generalized(blocks: _Blocks, alpha: float) -> Tensor:
    differences, totals = blocks.zeros(), blocks.zeros()
    own_sums = differences.new_zeros(blocks.samples)  # Sum over the branches of a sample alone.
    for parts, lengths, rows in blocks.tiles(ROWS, proportions=True):
        own_sums[rows] += lengths @ (parts[:, rows] * power(parts[:, rows], alpha - 1))
        for row, own, others, columns in _compared(parts, rows):
            both = others + parts[own, row, None]
            weight = power(both, alpha - 1)
            without = others * power(others, alpha - 1)
            difference = (others - parts[own, row, None]).abs_()
            differences[row, columns] += lengths[own] @ (difference.mul_(weight).sub_(without))
            totals[row, columns] += lengths[own] @ (both.mul_(weight).sub_(without))
    for rows in _slices(blocks.samples):
        difference = (differences[rows] + own_sums).clamp_(min=0)
        differences[rows] = ratio(difference, totals[rows] + own_sums)
    return differences


def _compared(parts: Tensor, rows: slice) -> Iterator[tuple[int, Tensor, Tensor, slice]]:
    """Yield each row, its branches [v], proportions [v, n] of later samples, and their columns."""
    samples = parts.shape[1]
    for row in range(*rows.indices(samples)):
        own = torch.nonzero(parts[:, row])[:, 0]
        for start in range(row + 1, samples, TILE):
            columns = slice(start, start + TILE)
            yield row, own, parts[:, columns].index_select(0, own), columns


def _slices(samples: int) -> Iterator[slice]:
    return (slice(start, start + TILE) for start in range(0, samples, TILE))


def _mirrored(upper: Tensor) -> NDArray[np.float64]:
    """Copy the upper triangle to the lower one in place and set the diagonal to zero."""
    for rows in _slices(len(upper)):
        upper[rows, rows] = upper[rows, rows].triu(1)
        upper[rows, rows] += upper[rows, rows].T.clone()
        upper[rows.stop :, rows] = upper[rows, rows.stop :].T
    values: NDArray[np.float64] = upper.cpu().numpy()
    return values
