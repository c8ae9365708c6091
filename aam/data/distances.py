"""Distance matrices: reading, validation, alignment to a table by sample id, and writing.

`aam.data.io.distance_files` has the file formats. A binary matrix may be square or condensed (the
upper half, row by row); the rows of a matrix without ids are in the order of the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import squareform

from aam.contract.errors import DataError, UsageError, first_few
from aam.contract.files import atomic_write, require, write_text
from aam.data.io.distance_files import WRITERS, matrix_error, read_matrix_file

ROUNDING = 1e-5
"""Asymmetry and diagonal up to this fraction of the largest distance are float32 rounding."""

_ROWS_PER_BLOCK = 1024


@dataclass(frozen=True)
class DistanceMatrix:
    """Distances between N samples.

    Attributes:
        ids: N names, unique.
        values: [N, N], symmetric, finite, >= 0, with a diagonal of zeros; float64 where this
            program computed them, float32 where they were read.
    """

    ids: tuple[str, ...]
    values: NDArray[Any]

    def aligned(self, sample_ids: Sequence[str]) -> DistanceMatrix:
        """Return the distances between `sample_ids`, in their order.

        Raises:
            DataError: samples are not in the matrix.
        """
        if tuple(sample_ids) == self.ids:
            return self
        places = {name: place for place, name in enumerate(self.ids)}
        if missing := [name for name in sample_ids if name not in places]:
            raise DataError(
                "Samples are not in the distance matrix",
                f"{first_few(missing)} of {len(sample_ids)}; the matrix has {first_few(self.ids)}",
                "make the matrix from this table, or leave these samples out of the table",
            )
        rows = np.array([places[name] for name in sample_ids], dtype=np.int64)
        return DistanceMatrix(tuple(sample_ids), self.values[np.ix_(rows, rows)])


def read_distances(
    path: Path, sample_ids: Sequence[str] | None = None, max_bytes: int | None = None
) -> DistanceMatrix:
    """Read and check a distance matrix.

    Args:
        path: the file, in one of the formats of `distance_files`.
        sample_ids: the table's samples, to name the rows of a matrix without ids.
        max_bytes: bytes of memory that the matrix may use; None for half of the available memory.

    Raises:
        MissingInput: there is no such file.
        DataError: the file is not a matrix; it is not square, or not of the table's size if it has
            no ids; ids occur twice; a distance is absent or negative; the matrix is not symmetric;
            the diagonal is not zero.
    """
    ids, values = read_matrix_file(require(path, "distance matrix"), max_bytes)
    if values.ndim == 1:
        values = _square(values, path)
    if values.ndim != 2 or values.shape[0] != values.shape[1] or not values.size:
        shape = " x ".join(map(str, values.shape))
        raise matrix_error("The distance matrix is not square", f"'{path}' is {shape}")
    if ids is None:
        ids = _table_order(len(values), sample_ids, path)
    if len(ids) != len(values):
        raise matrix_error(
            "The distance matrix has another size than its ids",
            f"'{path}' has {len(values)} rows and {len(ids)} ids",
        )
    if twice := [name for name, count in Counter(ids).items() if count > 1]:
        raise matrix_error(
            "Ids occur twice in the distance matrix", f"{first_few(twice)} in '{path}'"
        )
    return DistanceMatrix(ids, _checked(ids, values, path))


def write_distances(path: Path, matrix: DistanceMatrix) -> None:
    """Write a matrix in the format of the suffix: .tsv, .lsmat, .npy or .h5.

    The ids of a .npy are in a .txt of the same name, one per line; .h5 has the layout of ssu.

    Args:
        path: file to write; an existing one is replaced when the new one is complete.
        matrix: distances of N samples with their ids.

    Raises:
        UsageError: another suffix.
        CannotCreate: the folder cannot be written to.
    """
    write = WRITERS[checked_suffix(path)]
    if path.suffix == ".npy":
        write_text(path.with_suffix(".txt"), "".join(f"{name}\n" for name in matrix.ids))
    with atomic_write(path) as temporary:
        write(temporary, matrix.ids, matrix.values)


def checked_suffix(path: Path) -> str:
    """Return the suffix of an output file; UsageError if no matrix is written in that format."""
    if path.suffix not in WRITERS:
        raise UsageError(
            "Unknown format of the distance matrix",
            f"'{path.name}'",
            f"end its name with one of {', '.join(WRITERS)}",
        )
    return path.suffix


def _square(condensed: NDArray[Any], path: Path) -> NDArray[np.float32]:
    size = (1 + isqrt(1 + 8 * condensed.size)) // 2
    if size * (size - 1) // 2 != condensed.size or size < 2:
        raise matrix_error(
            "The distance matrix is neither square nor condensed",
            f"'{path}' is one row of {condensed.size} values",
        )
    # The size is checked above, and the values are checked with those of all formats.
    values: NDArray[np.float32] = squareform(condensed, checks=False).astype(np.float32, copy=False)
    return values


def _table_order(size: int, sample_ids: Sequence[str] | None, path: Path) -> tuple[str, ...]:
    if sample_ids is None or len(sample_ids) != size:
        table = "no table" if sample_ids is None else f"the table has {len(sample_ids)} samples"
        raise matrix_error(
            "The distance matrix has no ids and does not fit the table",
            f"'{path}' is {size} x {size}, {table}",
            f"write its ids into '{path.with_suffix('.txt').name}', one per line, or give a .tsv",
        )
    return tuple(sample_ids)


def _checked(ids: tuple[str, ...], values: NDArray[np.float32], path: Path) -> NDArray[np.float32]:
    """Validate the matrix and remove rounding noise, a few rows at a time."""
    clean = np.empty_like(values)
    noise = 0.0
    for start in range(0, len(ids), _ROWS_PER_BLOCK):
        rows = slice(start, start + _ROWS_PER_BLOCK)
        block, transposed = values[rows], values[:, rows].T
        if (wrong := np.argwhere(~np.isfinite(block))).size:
            pair = wrong[0] + (start, 0)
            raise _pair_error("A distance is not a number", ids, values, pair, path)
        # Relative to the largest distance of all, so the comparison below needs a second pass.
        noise = max(noise, ROUNDING * float(np.abs(block).max()))
        clean[rows] = (block + transposed) / 2
    for start in range(0, len(ids), _ROWS_PER_BLOCK):
        rows = slice(start, start + _ROWS_PER_BLOCK)
        for cause, wrong_ones in (
            ("The distance matrix is not symmetric", np.abs(values[rows] - clean[rows]) > noise),
            ("A distance is negative", clean[rows] < -noise),
        ):
            if (wrong := np.argwhere(wrong_ones)).size:
                raise _pair_error(cause, ids, values, wrong[0] + (start, 0), path)
    if (off := np.flatnonzero(np.abs(np.diagonal(clean)) > noise)).size:
        raise matrix_error(
            "The diagonal of the distance matrix is not zero",
            f"{first_few(ids[row] for row in off)} in '{path}'",
            "give distances, not similarities",
        )
    np.fill_diagonal(clean, 0)
    return np.maximum(clean, 0, out=clean)


def _pair_error(
    cause: str, ids: tuple[str, ...], values: NDArray[Any], pair: NDArray[np.int64], path: Path
) -> DataError:
    i, j = pair
    return matrix_error(
        cause,
        f"'{ids[i]}' to '{ids[j]}' is {values[i, j]:g} in '{path}', reversed {values[j, i]:g}",
    )
