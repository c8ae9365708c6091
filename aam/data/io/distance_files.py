"""File formats of distance matrices: readers and writers of ids and values.

    lsmat, TSV, CSV   text with ids above and on the left; also `distance-matrix.tsv` of a .qza
    .h5               as ssu writes it (`matrix`, `order`), or `distances` with or without ids
    .npy, .npz        ids from a .txt of the same name, from an array of the .npz, or none

The format is recognized by the content of the file, not by its name. `aam.data.distances` validates
the values. To add a format, add an entry to `BINARY_READERS` or `WRITERS`.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from aam.contract.errors import DataError, reason_of
from aam.data.io.artifact import DAMAGE, is_artifact, read_payload
from aam.data.io.text import decoded, lines_of, read_text
from aam.memory import check_memory, memory_budget

_ID_NAMES = ("order", "ids", "sample_ids")
_VALUE_NAMES = ("matrix", "distances")
_HDF5_BYTES = 1 << 14
"""Size of an HDF5 file besides its arrays, and more."""

MatrixContent = tuple[tuple[str, ...] | None, NDArray[Any]]
"""Ids (None if the file has none) and values, square or condensed."""


def read_matrix_file(path: Path, max_bytes: int | None = None) -> MatrixContent:
    """Read the ids and values of a matrix file."""
    budget = max_bytes or memory_budget()
    with path.open("rb") as stream:
        magic = stream.read(8)
    readers = [read for start, read in BINARY_READERS.items() if magic.startswith(start)]
    try:
        if readers and not is_artifact(path):
            ids, values = readers[0](path, budget)
        else:
            data = read_payload(path, "distance-matrix.tsv", "DistanceMatrix", budget // 4)
            ids, values = _read_text(decoded(data, path, "distance matrix"), path)
        if values.dtype.kind not in "biuf":
            raise ValueError(f"its values are of the type {values.dtype}")
        return ids, values.astype(np.float32, copy=False)
    except (*DAMAGE, csv.Error, TypeError, SyntaxError, MemoryError) as error:
        evidence = f"'{path}', {reason_of(error)}"
        raise matrix_error("The distance matrix cannot be read", evidence) from error


def _read_hdf5(path: Path, budget: int) -> MatrixContent:
    with h5py.File(path, "r") as file:
        for name, found in file.items():
            if not isinstance(found, h5py.Dataset) or found.external or found.is_virtual:
                raise ValueError(f"'{name}' is not an array of the file")
            # HDF5 unpacks a complete chunk to read any part of it.
            chunk = int(np.prod(found.chunks or (0,), dtype=object)) * found.dtype.itemsize
            _check_size(max(found.nbytes, chunk), path, budget)
        return _named_arrays(file)


def _read_npz(path: Path, budget: int) -> MatrixContent:
    # A pickle is a program, which a matrix from elsewhere must not run.
    with np.load(path, allow_pickle=False) as arrays:
        for member in arrays.zip.infolist():
            _check_size(member.file_size, path, budget)
        return _named_arrays(arrays)


def _read_npy(path: Path, budget: int) -> MatrixContent:
    ids_path = path.with_suffix(".txt")
    ids = tuple(lines_of(read_text(ids_path, "list of ids"))) if ids_path.is_file() else None
    try:
        # Mapping allocates nothing, whatever the header describes.
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OverflowError, TypeError) as error:
        raise ValueError(f"it is cut off or not an array of numbers ({error})") from error
    _check_size(values.nbytes, path, budget)
    return ids, values


def _check_size(size: int, path: Path, budget: int) -> None:
    """Refuse a matrix (DataError) that takes more than half of the budget: it is copied once."""
    check_memory("distance matrix", f"'{path}'", size, budget / 2, "use --tree instead of a matrix")


def _named_arrays(arrays: Mapping[str, Any]) -> MatrixContent:
    name = next((name for name in _VALUE_NAMES if name in arrays), None)
    if name is None and len(arrays) == 1:
        name = next(iter(arrays))
    if name is None:
        raise KeyError(f"no array '{_VALUE_NAMES[0]}' among {', '.join(arrays) or 'none'}")
    id_name = next((name for name in _ID_NAMES if name in arrays), None)
    ids = None if id_name is None else arrays[id_name][()]
    names = None if ids is None else tuple(
        name.decode() if isinstance(name, bytes) else str(name) for name in ids
    )  # fmt: skip
    return names, np.asarray(arrays[name][()])


def _read_text(text: str, path: Path) -> MatrixContent:
    """Parse a matrix with ids in the first row and column, after comment lines of '#'."""
    lines = (line for line in io.StringIO(text, newline=None) if line.strip())
    first = next((line for line in lines if line.strip()[0] != "#" or "\t" in line.strip()
                  or "," in line), None)  # fmt: skip
    if first is None:
        raise matrix_error("The distance matrix is empty", f"'{path}'")
    delimiter = "\t" if "\t" in first else ","
    header = next(csv.reader([first], delimiter=delimiter))
    ids = tuple(name.strip() for name in header[1:])
    rows = csv.reader(lines, delimiter=delimiter)
    # A value takes at least two characters; do not allocate more than the text can contain.
    if 2 * len(ids) ** 2 > len(text):
        raise _not_square(path, len(ids), f" and {sum(1 for _ in rows)} rows")
    values = np.zeros((len(ids), len(ids)), dtype=np.float32)
    row = -1
    for row, (cell, *cells) in enumerate(rows):
        name = cell.strip()
        if row >= len(ids) or len(cells) != len(ids):
            found = f", but row {row + 1}, '{name}', has {len(cells)} values"
            raise _not_square(path, len(ids), found)
        if name != ids[row]:
            raise matrix_error(
                "The rows of the distance matrix are in another order than its columns",
                f"row {row + 1} of '{path}' is '{name}', column {row + 1} is '{ids[row]}'",
            )
        try:
            values[row] = np.array(cells, dtype=np.float64)
        except ValueError as error:
            where = f"row '{name}' of '{path}', {error}"
            raise matrix_error("A distance is not a number", where) from error
    if row + 1 < len(ids):
        raise _not_square(path, len(ids), f" and {row + 1} rows")
    return ids, values


def _not_square(path: Path, columns: int, found: str) -> DataError:
    evidence = f"'{path}' has {columns} columns{found}"
    return matrix_error("The distance matrix is not square", evidence)


def matrix_error(cause: str, evidence: str, remedy: str = "make the matrix again") -> DataError:
    """Return the error of a matrix that cannot be used."""
    return DataError(cause, evidence, remedy)


def _write_text(path: Path, ids: tuple[str, ...], values: NDArray[Any]) -> None:
    digits = 9 if values.dtype == np.float32 else 17  # They distinguish all numbers of the type.
    line = "\t".join(["%s"] + [f"%.{digits}g"] * len(ids)) + "\n"
    with path.open("w", encoding="utf-8") as stream:
        stream.write("\t" + "\t".join(ids) + "\n")
        for name, row in zip(ids, values, strict=True):
            stream.write(line % (name, *row.tolist()))


def _write_npy(path: Path, ids: tuple[str, ...], values: NDArray[Any]) -> None:
    np.save(path, values)


def _write_hdf5(path: Path, ids: tuple[str, ...], values: NDArray[Any]) -> None:
    with hdf5_matrix(path, ids, values.dtype) as matrix:
        matrix[...] = values


@contextmanager
def hdf5_matrix(path: Path, ids: Sequence[str], dtype: Any = np.float64) -> Iterator[h5py.Dataset]:
    """Create a matrix file as ssu writes it, and yield the matrix [N, N] to be filled.

    HDF5 can crash the process when it fails to write, so the space is reserved on the disk, and a
    full disk is found before it writes.

    Raises:
        OSError: the disk is full.
    """
    names = sum(len(each) + 32 for each in ids)
    _reserve(path, len(ids) ** 2 * np.dtype(dtype).itemsize + 2 * names + _HDF5_BYTES)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    # The space is taken with the data set, so that no later write needs any; a fill would write all
    # of it once more.
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(path, "w") as file:
        file.create_dataset("order", data=list(ids), dtype=h5py.string_dtype())
        file["format"], file["version"] = np.array([b"BDSM"]), np.array([b"2020.12"])
        file.create_dataset("matrix", (len(ids), len(ids)), dtype, dcpl=properties)
    _reserve(path, path.stat().st_size)
    with h5py.File(path, "r+") as file:
        yield file["matrix"]


def _reserve(path: Path, size: int) -> None:
    """Allocate the bytes of a file on the disk, where the system can."""
    if hasattr(os, "posix_fallocate"):
        with path.open("ab") as stream:
            os.posix_fallocate(stream.fileno(), 0, size)


BINARY_READERS: dict[bytes, Callable[[Path, int], MatrixContent]] = {
    b"\x89HDF": _read_hdf5,
    b"\x93NUMPY": _read_npy,
    b"PK": _read_npz,
}
"""First bytes of a file -> reader of a path within a memory budget in bytes."""

WRITERS: dict[str, Callable[[Path, tuple[str, ...], NDArray[Any]], None]] = {
    ".tsv": _write_text,
    ".lsmat": _write_text,
    ".npy": _write_npy,
    ".h5": _write_hdf5,
}
"""Suffix of a file -> writer of ids and values."""
