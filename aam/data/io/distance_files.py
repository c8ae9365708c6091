"""File formats of distance matrices: from a file to ids and values, and back.

    lsmat, TSV, CSV   text with ids above and on the left; also `distance-matrix.tsv` of a .qza
    .h5               as ssu writes it (`matrix`, `order`), or `distances` with or without ids
    .npy, .npz        ids from a .txt beside it or an array beside it, or none

The form is told from what the file holds, not from its name. Nothing is checked here that the form
itself does not ask for; the rules of distances stand in `aam.data.distances`.
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
Found = tuple[tuple[str, ...] | None, NDArray[Any]]
"""Ids, None where the file has none, and values as they are, square or condensed."""


def read_matrix_file(path: Path, max_bytes: int | None = None) -> Found:
    """Read the ids and values of a matrix file.

    Args:
        path: the file.
        max_bytes: most memory that the matrix may take; None for half of what is available.

    Raises:
        DataError: the file cannot be read as any of the forms, or memory does not hold it.
    """
    budget = memory_budget() if max_bytes is None else max_bytes
    with path.open("rb") as stream:
        magic = stream.read(8)
    if magic.startswith(b"\x89HDF"):
        return _binary(path, _read_hdf5, budget)
    if magic.startswith(b"\x93NUMPY"):
        return _binary(path, _read_npy, budget)
    if magic.startswith(b"PK") and not is_artifact(path):
        return _binary(path, _read_npz, budget)
    data = read_payload(path, "distance-matrix.tsv", "DistanceMatrix", budget // 4)
    return _read_text(decoded(data, path, "distance matrix"), path)


def _binary(path: Path, read: Callable[[Path, int], Found], budget: int) -> Found:
    try:
        ids, values = read(path, budget)
        return ids, values.astype(np.float32, copy=False)
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, EOFError, struct.error,
            OverflowError, SyntaxError, zlib.error, lzma.LZMAError,
            zipfile.BadZipFile) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise matrix_error("The distance matrix cannot be read", f"'{path}', {reason}") from error


def _read_hdf5(path: Path, budget: int) -> Found:
    with h5py.File(path, "r") as file:
        arrays = {}
        for name in file:
            found = file[name]
            if not isinstance(found, h5py.Dataset) or found.external or found.is_virtual:
                raise ValueError(f"'{name}' is not an array of the file")
            # HDF5 unpacks a chunk as a whole, whatever part of it is read.
            piece = int(np.prod(found.chunks or (0,), dtype=object)) * found.dtype.itemsize
            _check_size(max(found.nbytes, piece), path, budget)
            arrays[name] = found
        return _named_arrays(arrays)


def _read_npz(path: Path, budget: int) -> Found:
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            _check_size(member.file_size, path, budget)
            with archive.open(member) as stream:
                array = _read_array(stream, member.file_size, path, budget)
            arrays[member.filename.removesuffix(".npy")] = array
    return _named_arrays(arrays)


def _read_array(stream: IO[bytes], size: int, path: Path, budget: int) -> NDArray[Any]:
    """Read a .npy of `size` bytes whose header describes no more than there is.

    Raises:
        ValueError: it is no whole .npy, or one of Python objects.
    """
    version = np.lib.format.read_magic(stream)
    read = (np.lib.format.read_array_header_1_0 if version == (1, 0)
            else np.lib.format.read_array_header_2_0)  # fmt: skip
    shape, is_fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("the array holds Python objects")
    whole = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if whole > size:
        raise ValueError(f"its header tells of {whole} bytes, but the file has {size}")
    _check_size(whole, path, budget)
    data = stream.read(whole)
    return np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")


def _check_size(size: int, path: Path, budget: int) -> None:
    """Refuse what memory does not hold.

    Raises:
        DataError: `size` bytes are more than half of the budget; the matrix is copied once.
    """
    if 2 * size > budget:
        raise matrix_error(
            "The distance matrix takes more memory than there is for it",
            f"'{path}' describes {shown_size(size)}, {shown_size(budget / 2)} may be taken",
            "use --tree instead of a matrix",
        )


def _named_arrays(arrays: Mapping[str, Any]) -> Found:
    name = next((name for name in _VALUE_NAMES if name in arrays), None)
    if name is None and len(arrays) == 1:
        name = next(iter(arrays))
    if name is None:
        raise KeyError(f"no array '{_VALUE_NAMES[0]}' among {', '.join(arrays) or 'none'}")
    id_name = next((name for name in _ID_NAMES if name in arrays), None)
    return None if id_name is None else _decoded(arrays[id_name][()]), np.asarray(arrays[name][()])


def _decoded(names: NDArray[Any]) -> tuple[str, ...]:
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def _read_npy(path: Path, budget: int) -> Found:
    beside = path.with_suffix(".txt")
    ids = tuple(read_text(beside, "list of ids").splitlines()) if beside.is_file() else None
    with path.open("rb") as stream:
        return ids, _read_array(stream, path.stat().st_size, path, budget)


def _read_text(text: str, path: Path) -> Found:
    """Read ids above and on the left; lines of '#' above that hold one cell are comments."""
    lines = (line for line in io.StringIO(text, newline=None) if line.strip())
    first = next((line for line in lines if _is_content(line)), None)
    if first is None:
        raise matrix_error("The distance matrix is empty", f"'{path}'")
    delimiter = "\t" if "\t" in first else ","
    header = _cells(first, delimiter, path)
    ids = tuple(name.strip() for name in header[1:])
    # A value takes two characters and more, so what the text cannot hold is not allocated.
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
                "The distance matrix holds what is no number", f"row '{name}' of '{path}', {error}"
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
    line = "\t".join(["%s"] + ["%.9g"] * len(ids)) + "\n"  # Nine digits tell all float32.
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


WRITERS: dict[str, Callable[[Path, tuple[str, ...], NDArray[np.float32]], None]] = {
    ".tsv": _write_text,
    ".lsmat": _write_text,
    ".npy": _write_npy,
    ".h5": _write_hdf5,
}
"""Suffix -> function that writes ids and values in that form."""
