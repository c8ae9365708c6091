"""UniFrac matrices and Faith PD of all samples of a table, for ordinations and statistics.

Training computes UniFrac of its batches by `aam.data.unifrac.batch` instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from aam.contract.options.study import Metric
from aam.data.distances import DistanceMatrix
from aam.data.table import FeatureTable
from aam.data.unifrac.batch import faith_pd
from aam.data.unifrac.phylogeny import Phylogeny
from aam.data.unifrac.tiles import TILE, Tile, Tiles
from aam.data.unifrac.unifrac_binaries import ENGINES
from aam.memory import GIB

Engine = Literal["auto", "torch", "ssu", "unifrac"]


class Matrix(Protocol):
    """An array or an HDF5 dataset [N, N]."""

    def __setitem__(self, part: tuple[slice, slice], values: NDArray[np.float64], /) -> None:
        """Write a part of the matrix."""


def unifrac_matrix(
    table: FeatureTable,
    phylogeny: Phylogeny,
    metric: Metric,
    alpha: float = 0.5,
    engine: Engine = "auto",
    max_bytes: int = GIB,
    device: str = "cpu",
) -> DistanceMatrix:
    """Compute the distances between all samples of a table, in float64.

    Args:
        table: reads of N samples; its features are those of `phylogeny`, in this order.
        phylogeny: the tree of the features.
        metric: name of the UniFrac metric; "unifrac" is "unweighted".
        alpha: exponent of generalized UniFrac, 0 to 1.
        engine: "ssu" is the program of unifrac-binaries, "unifrac" its Python package; "auto" is
            "torch"; for their times see docs/experiments/unifrac.md.
        max_bytes: memory for tiles, in addition to the result of N * N * 8 bytes.
        device: device on which torch computes, "cpu" by default.

    Raises:
        Unavailable: `engine` is "ssu" or "unifrac", which is not installed or fails.
        ValueError: `metric` is not a distance.
    """
    if metric == "faith_pd":
        raise ValueError(f"{metric} is not a distance between samples")
    samples = len(table.sample_ids)
    if engine in ENGINES:
        values = ENGINES[engine](table.counts[np.arange(samples)], phylogeny, metric, alpha)
    else:
        tiles = Tiles(table.counts, phylogeny, metric, alpha, device, max_bytes)
        values = np.zeros((samples, samples))
        fill(values, tiles.compute(tiles.pairs))
    return DistanceMatrix(tuple(table.sample_ids), values)


def fill(matrix: Matrix, tiles: Iterable[Tile]) -> tuple[float, float]:
    """Write tiles on both sides of the diagonal; return the smallest and the largest distance.

    They are infinity and minus infinity without any pair of samples.
    """
    low, high = np.inf, -np.inf
    for rows, columns, distances in tiles:
        matrix[rows, columns] = distances
        if rows != columns:
            matrix[columns, rows] = distances.T
        pairs = distances[np.triu_indices(len(distances), 1)] if rows == columns else distances
        low = min(low, float(pairs.min(initial=np.inf)))
        high = max(high, float(pairs.max(initial=-np.inf)))
    return low, high


def faith_pd_of_all(table: FeatureTable, phylogeny: Phylogeny) -> NDArray[np.float64]:
    """Compute Faith's phylogenetic diversity (Faith 1992) of all samples of a table.

    Args:
        table: reads of N samples; its features are those of `phylogeny`, in this order.
        phylogeny: the tree of the features.

    Returns:
        float64 [N], length of all branches above the ASVs of each sample, in the tree's unit.
    """
    samples = np.arange(len(table.sample_ids))
    starts = range(0, len(samples), TILE // 2)
    # Parts of the samples, since the branches of a part are dense in memory.
    parts = (table.counts[samples[start : start + TILE // 2]] for start in starts)
    return np.concatenate([np.zeros(0), *(faith_pd(part, phylogeny).numpy() for part in parts)])
