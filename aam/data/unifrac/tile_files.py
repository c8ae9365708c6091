"""HDF5 files of UniFrac distances: a complete matrix from tiles, and the tiles of a shard.

    order       ids of all N samples
    pairs       int64 [P, 2], the tiles (`aam.data.unifrac.tiles.Pair`)
    distances   float64, tile after tile, row by row

A process holds one tile; the layout of the matrix is that of `ssu`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np

from aam.data.io.distance_files import hdf5_array, hdf5_matrix
from aam.data.unifrac.matrix import fill
from aam.data.unifrac.tiles import Pair, Tile, Tiles, rows_of


def write_matrix(path: Path, ids: Sequence[str], tiles: Tiles) -> tuple[float, float]:
    """Compute and write a matrix; return the smallest and the largest distance."""
    with hdf5_matrix(path, ids) as matrix:
        return fill(matrix, tiles.compute(tiles.pairs))


def write_tiles(path: Path, ids: Sequence[str], tiles: Tiles, pairs: Sequence[Pair]) -> None:
    """Compute and write the tiles `pairs`."""
    shapes = [[rows_of(number, len(ids)) for number in pair] for pair in pairs]
    size = sum((rows.stop - rows.start) * (cols.stop - cols.start) for rows, cols in shapes)
    more = {"pairs": np.array(pairs, dtype=np.int64)}
    with hdf5_array(path, "distances", (size,), np.float64, ids, more) as distances:
        start = 0
        for _, _, tile in tiles.compute(pairs):
            distances[start : start + tile.size] = tile.ravel()
            start += tile.size


def join_tiles(files: Sequence[Path], output: Path) -> int:
    """Write the matrix of the tiles in `files`; return the number of samples."""
    with h5py.File(files[0], "r") as first:
        ids = first["order"].asstr()[()].tolist()
    with hdf5_matrix(output, ids) as matrix:
        fill(matrix, (tile for file in files for tile in _read_tiles(file, len(ids))))
    return len(ids)


def _read_tiles(path: Path, samples: int) -> Iterator[Tile]:
    with h5py.File(path, "r") as file:
        start = 0
        for row, column in file["pairs"][()].tolist():
            rows, columns = rows_of(row, samples), rows_of(column, samples)
            shape = (rows.stop - rows.start, columns.stop - columns.start)
            size = shape[0] * shape[1]
            yield rows, columns, file["distances"][start : start + size].reshape(shape)
            start += size
