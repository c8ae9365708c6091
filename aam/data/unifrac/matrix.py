"""UniFrac matrices of all samples of a table, computed in tiles to bound memory.

For ordinations and statistics; training uses `aam.data.unifrac.batch` instead.

* Branches are processed in blocks: a sparse product of table and ancestors gives the reads below
  each branch, dense [N, u]. Only half of the pairs is computed.
* Unweighted: the shared branch length is a matrix product of presences.
* Weighted: only branches of the row's sample matter, a tenth of all or fewer, since
      sum l |p_i - p_j| = sum l p_i + sum l p_j - 2 sum over branches of i of l min(p_i, p_j),
  and likewise for the sums of generalized UniFrac, to which a branch of j alone adds l p_j^a.

`auto` is torch: measured on one core with 948 samples of 4,910 ASVs, ssu
needs the same time for unweighted (0.5 s) and three to five times as long for the others.

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
from aam.contract.options.groups import Metric
from aam.data.distances import DistanceMatrix
from aam.data.table import FeatureTable
from aam.data.unifrac.batch import faith_pd, power, ratio
from aam.data.unifrac.phylogeny import Phylogeny
from aam.data.unifrac.ssu import run_ssu

TILE = 1024
"""Samples of a tile: rows of a matrix product, or columns that one row is compared with."""

ROWS = 64
"""Rows per step of the progress bar where rows are processed one by one."""

_BYTES_PER_VALUE = 40  # Reads as int64, sparse and dense; presence or parts, twice, as float32.


def unifrac_matrix(
    table: FeatureTable,
    phylogeny: Phylogeny,
    metric: Metric,
    alpha: float = 0.5,
    engine: Literal["auto", "torch", "ssu"] = "auto",
    max_memory_gb: float = 1.0,
    device: str = "cpu",
) -> DistanceMatrix:
    """Compute the distances between all samples of a table, in float32.

    Args:
        table: reads of N samples; its features are those of `phylogeny`, in this order.
        phylogeny: the tree of the features.
        metric: which UniFrac; "unifrac" is "unweighted".
        alpha: exponent of generalized UniFrac, 0 to 1.
        engine: "ssu" runs the program of unifrac-binaries; "auto" is "torch".
        max_memory_gb: GiB that tiles may use in addition to the result of N * N * 4 bytes (twice
            that for generalized UniFrac).
        device: of the computation with torch.

    Raises:
        Unavailable: `engine` is "ssu", which is not installed or fails.
        ValueError: `metric` is not a distance.
    """
    if metric == "faith_pd":
        raise ValueError(f"{metric} is not a distance between samples")
    if engine == "ssu":
        return DistanceMatrix(
            tuple(table.sample_ids), run_ssu(table.counts, phylogeny, metric, alpha)
        )
    width = int(max_memory_gb * 2**30 / _BYTES_PER_VALUE / max(1, len(table.sample_ids)))
    blocks = _Blocks(table.counts, phylogeny, max(1, width), device)
    if metric in ("unifrac", "unweighted"):
        distances = _unweighted(blocks)
    elif metric == "generalized" and alpha != 1:
        distances = _generalized(blocks, alpha)
    else:
        distances = _weighted(blocks, metric != "weighted")
    return DistanceMatrix(tuple(table.sample_ids), _mirrored(distances))


def faith_pd_of_all(table: FeatureTable, phylogeny: Phylogeny) -> NDArray[np.float64]:
    """Compute Faith's PD [N] of all samples of a table, in the tree's unit."""
    starts = range(0, len(table.sample_ids), TILE // 4)
    parts = [faith_pd(table.counts[start : start + TILE // 4], phylogeny) for start in starts]
    return torch.cat(parts).numpy() if parts else np.zeros(0)


class _Blocks:
    """Reads below the branches, in blocks of branches."""

    def __init__(
        self, counts: sparse.csr_array, phylogeny: Phylogeny, width: int, device: str
    ) -> None:
        self.samples, self.device = counts.shape[0], device
        self._counts = counts.astype(np.int64)
        self._lengths_K = phylogeny.lengths_K
        self._width = min(width, max(1, self._lengths_K.size))
        ones = np.ones(phylogeny.indices.size, dtype=np.int64)
        shape = (counts.shape[1], self._lengths_K.size)
        ancestors = sparse.csr_array((ones, phylogeny.indices, phylogeny.indptr), shape=shape)
        self._ancestors = ancestors.tocsc()

    def presences(self, rows: int) -> Iterator[tuple[Tensor, Tensor, slice]]:
        """Yield presences [N, u] (0 or 1) below the branches, branch lengths [u], and rows."""
        return self._tiled((reads > 0 for reads in self._reads()), rows)

    def parts(self, rows: int) -> Iterator[tuple[Tensor, Tensor, slice]]:
        """Yield proportions [u, N] of reads below the branches, branch lengths [u], and rows."""
        totals = np.maximum(np.asarray(self._counts.sum(axis=1)).ravel(), 1)
        return self._tiled((reads.T / totals for reads in self._reads()), rows)

    def zeros(self) -> Tensor:
        """Return zeros, float32 [N, N]."""
        return torch.zeros(self.samples, self.samples, device=self.device)

    def _reads(self) -> Iterator[NDArray[np.int64]]:
        for start in range(0, self._lengths_K.size, self._width):
            yield (self._counts @ self._ancestors[:, start : start + self._width]).toarray()

    def _tiled(
        self, blocks: Iterator[NDArray[Any]], rows: int
    ) -> Iterator[tuple[Tensor, Tensor, slice]]:
        """Yield each block once per tile of rows of the result, with a progress bar."""
        work = (
            (block, self._tensor(self._lengths_K[at : at + self._width]), slice(row, row + rows))
            for at, block in zip(
                range(0, self._lengths_K.size, self._width), map(self._tensor, blocks), strict=True
            )
            for row in range(0, self.samples, rows)
        )
        steps = -(-self._lengths_K.size // self._width) * -(-self.samples // rows)
        return track(work, "UniFrac", steps, "tiles")

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(self.device)


def _unweighted(blocks: _Blocks) -> Tensor:
    shared = blocks.zeros()
    own = shared.new_zeros(blocks.samples)
    for present, lengths, rows in blocks.presences(TILE):
        weighted = present[rows] * lengths
        own[rows] += weighted.sum(1)
        shared[rows, rows.start :] += weighted @ present[rows.start :].T
    for rows in _tiles(blocks.samples):
        both = own[rows, None] + own
        shared[rows] = ratio((both - 2 * shared[rows]).clamp_(min=0), both - shared[rows])
    return shared


def _weighted(blocks: _Blocks, normalized: bool) -> Tensor:
    common = blocks.zeros()
    heights = common.new_zeros(blocks.samples)  # Mean distance of a read from the root.
    for parts, lengths, rows in blocks.parts(ROWS):
        heights[rows] += lengths @ parts[:, rows]
        for row, own, others, columns in _compared(parts, rows):
            common[row, columns] += lengths[own] @ torch.minimum(others, parts[own, row, None])
    for rows in _tiles(blocks.samples):
        both = heights[rows, None] + heights
        differences = (both - 2 * common[rows]).clamp_(min=0)
        common[rows] = ratio(differences, both) if normalized else differences
    return common


def _generalized(blocks: _Blocks, alpha: float) -> Tensor:
    differences, totals = blocks.zeros(), blocks.zeros()
    own_sums = differences.new_zeros(blocks.samples)  # Sum over the branches of a sample alone.
    for parts, lengths, rows in blocks.parts(ROWS):
        own_sums[rows] += lengths @ (parts[:, rows] * power(parts[:, rows], alpha - 1))
        for row, own, others, columns in _compared(parts, rows):
            both = others + parts[own, row, None]
            weight = power(both, alpha - 1)
            without = others * power(others, alpha - 1)
            difference = (others - parts[own, row, None]).abs_()
            differences[row, columns] += lengths[own] @ (difference.mul_(weight).sub_(without))
            totals[row, columns] += lengths[own] @ (both.mul_(weight).sub_(without))
    for rows in _tiles(blocks.samples):
        differences[rows] = ratio(
            (differences[rows] + own_sums).clamp_(min=0), totals[rows] + own_sums
        )
    return differences


def _compared(parts: Tensor, rows: slice) -> Iterator[tuple[int, Tensor, Tensor, slice]]:
    """Yield each row, its branches [v], proportions [v, n] of later samples, and their columns."""
    samples = parts.shape[1]
    for row in range(*rows.indices(samples)):
        own = torch.nonzero(parts[:, row])[:, 0]
        for start in range(row + 1, samples, TILE):
            columns = slice(start, start + TILE)
            yield row, own, parts[:, columns].index_select(0, own), columns


def _tiles(samples: int) -> Iterator[slice]:
    return (slice(start, start + TILE) for start in range(0, samples, TILE))


def _mirrored(upper: Tensor) -> NDArray[np.float32]:
    """Copy the upper triangle to the lower one in place and set the diagonal to zero."""
    for rows in _tiles(len(upper)):
        upper[rows, rows] = upper[rows, rows].triu(1)
        upper[rows, rows] += upper[rows, rows].T.clone()
        upper[rows.stop :, rows] = upper[rows, rows.stop :].T
    values: NDArray[np.float32] = upper.cpu().numpy()
    return values
