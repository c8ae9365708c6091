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
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from aam.contract.errors import DataError
from aam.data.io.artifact import is_artifact, read_payload
from aam.data.io.text import decoded, read_text
from aam.memory import memory_budget, shown_size

_ID_NAMES = ("order", "ids", "sample_ids")
_VALUE_NAMES = ("matrix", "distances")
MatrixContent = tuple[tuple[str, ...] | None, NDArray[Any]]
"""Ids (None if the file has none) and values, square or condensed."""


def read_matrix_file(path: Path, max_bytes: int | None = None) -> MatrixContent:
    """Read the ids and values of a matrix file.

    Args:
        path: the file.
        max_bytes: bytes of memory that the matrix may use; None for half of the available memory.

    Raises:
        DataError: the file has none of the formats, or does not fit in memory.
    """
    budget = memory_budget() if max_bytes is None else max_bytes
    with path.open("rb") as stream:
        magic = stream.read(8)
    for start, read in BINARY_READERS.items():
        if magic.startswith(start) and not is_artifact(path):
            return _read_binary(path, read, budget)
    data = read_payload(path, "distance-matrix.tsv", "DistanceMatrix", budget // 4)
    return _read_text(decoded(data, path, "distance matrix"), path)


def _read_binary(
    path: Path, read: Callable[[Path, int], MatrixContent], budget: int
) -> MatrixContent:
    try:
        ids, values = read(path, budget)
        return ids, values.astype(np.float32, copy=False)
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, EOFError, struct.error,
            OverflowError, SyntaxError, zlib.error, lzma.LZMAError,
            zipfile.BadZipFile) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise matrix_error("The distance matrix cannot be read", f"'{path}', {reason}") from error


def _read_hdf5(path: Path, budget: int) -> MatrixContent:
    with h5py.File(path, "r") as file:
        arrays = {}
        for name in file:
            found = file[name]
            if not isinstance(found, h5py.Dataset) or found.external or found.is_virtual:
                raise ValueError(f"'{name}' is not an array of the file")
            # HDF5 unpacks a complete chunk to read any part of it.
            chunk = int(np.prod(found.chunks or (0,), dtype=object)) * found.dtype.itemsize
            _check_size(max(found.nbytes, chunk), path, budget)
            arrays[name] = found
        return _named_arrays(arrays)


def _read_npz(path: Path, budget: int) -> MatrixContent:
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            _check_size(member.file_size, path, budget)
            with archive.open(member) as stream:
                array = _read_array(stream, member.file_size, path, budget)
            arrays[member.filename.removesuffix(".npy")] = array
    return _named_arrays(arrays)


def _read_array(stream: IO[bytes], size: int, path: Path, budget: int) -> NDArray[Any]:
    """Read a .npy of `size` bytes, if its header describes at most that size.

    Raises:
        ValueError: the .npy is incomplete or contains Python objects.
    """
    version = np.lib.format.read_magic(stream)
    read = (np.lib.format.read_array_header_1_0 if version == (1, 0)
            else np.lib.format.read_array_header_2_0)  # fmt: skip
    shape, is_fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("the array contains Python objects")
    described = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if described > size:
        raise ValueError(f"its header describes {described} bytes, but the file has {size}")
    _check_size(described, path, budget)
    data = stream.read(described)
    return np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")


def _check_size(size: int, path: Path, budget: int) -> None:
    """Refuse a matrix that does not fit in memory.

    Raises:
        DataError: `size` bytes are more than half of the budget (the matrix is copied once).
    """
    if 2 * size > budget:
        raise matrix_error(
            "The distance matrix does not fit in memory",
            f"'{path}' describes {shown_size(size)}, the limit is {shown_size(budget / 2)}",
            "use --tree instead of a matrix",
        )


def _named_arrays(arrays: Mapping[str, Any]) -> MatrixContent:
    name = next((name for name in _VALUE_NAMES if name in arrays), None)
    if name is None and len(arrays) == 1:
        name = next(iter(arrays))
    if name is None:
        raise KeyError(f"no array '{_VALUE_NAMES[0]}' among {', '.join(arrays) or 'none'}")
    id_name = next((name for name in _ID_NAMES if name in arrays), None)
    return None if id_name is None else _decoded(arrays[id_name][()]), np.asarray(arrays[name][()])


def _decoded(names: NDArray[Any]) -> tuple[str, ...]:
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def _read_npy(path: Path, budget: int) -> MatrixContent:
    ids_path = path.with_suffix(".txt")
    ids = tuple(read_text(ids_path, "list of ids").splitlines()) if ids_path.is_file() else None
    with path.open("rb") as stream:
        return ids, _read_array(stream, path.stat().st_size, path, budget)


def _read_text(text: str, path: Path) -> MatrixContent:
    """Parse a matrix with ids in the first row and column, after comment lines of '#'."""
    lines = (line for line in io.StringIO(text, newline=None) if line.strip())
    first = next((line for line in lines if _is_content(line)), None)
    if first is None:
        raise matrix_error("The distance matrix is empty", f"'{path}'")
    delimiter = "\t" if "\t" in first else ","
    header = _cells(first, delimiter, path)
    ids = tuple(name.strip() for name in header[1:])
    # A value takes at least two characters; do not allocate more than the text can contain.
    if 2 * len(ids) ** 2 > len(text):
        rows = sum(1 for _ in lines)
        raise matrix_error(
            "The distance matrix is not square",
            f"'{path}' has {len(ids)} columns and {rows} rows",
        )
    values = np.zeros((len(ids), len(ids)), dtype=np.float32)
    row_ids = []
    for row, line in enumerate(lines):
        cells = _cells(line, delimiter, path)
        name = cells[0].strip()
        if row >= len(ids) or len(cells) != len(ids) + 1:
            raise matrix_error(
                "The distance matrix is not square",
                f"'{path}' has {len(ids)} columns, but row {row + 1}, '{name}', "
                f"has {len(cells) - 1} values",
            )
        try:
            values[row] = np.array(cells[1:], dtype=np.float64)
        except ValueError as error:
            raise matrix_error(
                "A distance is not a number", f"row '{name}' of '{path}', {error}"
            ) from error
        row_ids.append(name)
    if len(row_ids) != len(ids):
        raise matrix_error(
            "The distance matrix is not square",
            f"'{path}' has {len(ids)} columns and {len(row_ids)} rows",
        )
    if tuple(row_ids) != ids:
        row, (left, above) = next(
            (row, pair)
            for row, pair in enumerate(zip(row_ids, ids, strict=True))
            if pair[0] != pair[1]
        )
        raise matrix_error(
            "The rows of the distance matrix are in another order than its columns",
            f"row {row + 1} of '{path}' is '{left}', column {row + 1} is '{above}'",
        )
    return ids, values


def _cells(line: str, delimiter: str, path: Path) -> list[str]:
    """Split a line, whose cells may be quoted."""
    try:
        return next(csv.reader([line.rstrip("\n")], delimiter=delimiter))
    except csv.Error as error:
        raise matrix_error("The distance matrix cannot be read", f"'{path}', {error}") from error


def _is_content(line: str) -> bool:
    stripped = line.strip()
    return bool(stripped) and (stripped[0] != "#" or "\t" in stripped or "," in stripped)


def matrix_error(cause: str, evidence: str, remedy: str = "make the matrix again") -> DataError:
    """Return the error of a matrix that cannot be used."""
    return DataError(cause, evidence, remedy)


def _write_text(path: Path, ids: tuple[str, ...], values: NDArray[np.float32]) -> None:
    line = "\t".join(["%s"] + ["%.9g"] * len(ids)) + "\n"  # Nine digits distinguish all float32.
    with path.open("w", encoding="utf-8") as stream:
        stream.write("\t" + "\t".join(ids) + "\n")
        for name, row in zip(ids, values, strict=True):
            stream.write(line % (name, *row.tolist()))


def _write_npy(path: Path, ids: tuple[str, ...], values: NDArray[np.float32]) -> None:
    np.save(path, values)


def _write_hdf5(path: Path, ids: tuple[str, ...], values: NDArray[np.float32]) -> None:
    with h5py.File(path, "w") as file:
        file["matrix"] = values
        file.create_dataset("order", data=list(ids), dtype=h5py.string_dtype())
        file["format"] = np.array([b"BDSM"])
        file["version"] = np.array([b"2020.12"])


BINARY_READERS: dict[bytes, Callable[[Path, int], MatrixContent]] = {
    b"\x89HDF": _read_hdf5,
    b"\x93NUMPY": _read_npy,
    b"PK": _read_npz,
}
"""First bytes of a file -> reader of a path within a memory budget in bytes."""

WRITERS: dict[str, Callable[[Path, tuple[str, ...], NDArray[np.float32]], None]] = {
    ".tsv": _write_text,
    ".lsmat": _write_text,
    ".npy": _write_npy,
    ".h5": _write_hdf5,
}
"""Suffix of a file -> writer of ids and values."""
