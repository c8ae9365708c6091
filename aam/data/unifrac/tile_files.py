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
    """Compute and write a matrix; return the smallest and the largest distance.

    Args:
        path: .h5 file to write; an existing one is replaced when the new one is complete.
        ids: ids of the N samples of the tiles.
        tiles: tiles of the matrix, of which one at a time is in memory.

    Raises:
        CannotCreate: the folder cannot be written to, or the disk is full.
    """
    with hdf5_matrix(path, ids) as matrix:
        return fill(matrix, tiles.compute(tiles.pairs))


def write_tiles(path: Path, ids: Sequence[str], tiles: Tiles, pairs: Sequence[Pair]) -> None:
    """Compute and write some tiles: a shard of a matrix, for `join_tiles`.

    Args:
        path: .h5 file to write; an existing one is replaced when the new one is complete.
        ids: ids of all N samples of the matrix.
        tiles: tiles of the matrix.
        pairs: tiles to compute, some of `tiles.pairs` in their order.

    Raises:
        CannotCreate: the folder cannot be written to, or the disk is full.
    """
    shapes = [[rows_of(number, len(ids)) for number in pair] for pair in pairs]
    size = sum((rows.stop - rows.start) * (cols.stop - cols.start) for rows, cols in shapes)
    more = {"pairs": np.array(pairs, dtype=np.int64)}
    with hdf5_array(path, "distances", (size,), np.float64, ids, more) as distances:
        start = 0
        for _, _, tile in tiles.compute(pairs):
            distances[start : start + tile.size] = tile.ravel()
            start += tile.size


def join_tiles(files: Sequence[Path], output: Path) -> int:
    """Write the matrix of the tiles in several files; return the number of samples.

    Args:
        files: files of `write_tiles`, which together have all tiles of one matrix.
        output: .h5 file to write.
    """
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
