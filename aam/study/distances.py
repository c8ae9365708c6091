"""Distance matrices made elsewhere: reading, checking, matching to a table by id, and writing.

    lsmat, TSV, CSV   text with ids above and on the left; also `distance-matrix.tsv` of a .qza
    .h5               as ssu writes it (`matrix`, `order`), or `distances` with or without ids
    .npy, .npz        ids from a .txt beside it or an array beside it; without, in table order

The form is told from what the file holds, not from its name. Matrices may be square or condensed
(the upper half, row by row) where they are binary.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from aam.errors import DataError, UsageError, first_few
from aam.files import require, written_aside
from aam.study.artifact import contents, is_artifact

ROUNDING = 1e-5
"""Asymmetry and diagonal up to this part of the largest distance are taken for float32 noise."""

_ID_NAMES = ("order", "ids", "sample_ids")
_VALUE_NAMES = ("matrix", "distances")
_CHECKED_ROWS = 1024
_Found = tuple[tuple[str, ...] | None, NDArray[Any]]


@dataclass(frozen=True)
class DistanceMatrix:
    """Distances between N samples.

    Attributes:
        ids: N names, unique.
        values: float32 [N, N], symmetric, finite, >= 0, with a diagonal of zeros.
    """

    ids: tuple[str, ...]
    values: NDArray[np.float32]

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


def read_distances(path: Path, sample_ids: Sequence[str] | None = None) -> DistanceMatrix:
    """Read and check a distance matrix.

    Args:
        path: the file, in one of the forms that this module lists.
        sample_ids: the table's samples, to name the rows of a matrix without ids.

    Raises:
        MissingInput: there is no such file.
        DataError: the file cannot be read as a matrix; it is not square, or not of the table's size
            if it has no ids; ids occur twice; a distance is absent, negative or differs from the
            one across; the diagonal is not zero.
    """
    ids, values = _read(require(path, "distance matrix"))
    if values.ndim == 1:
        values = _squared(values, path)
    if values.ndim != 2 or values.shape[0] != values.shape[1] or not values.size:
        shape = " x ".join(map(str, values.shape))
        raise _refused("The distance matrix is not square", f"'{path}' is {shape}")
    if ids is None:
        ids = _table_order(len(values), sample_ids, path)
    if len(ids) != len(values):
        raise _refused(
            "The distance matrix has another size than its ids",
            f"'{path}' has {len(values)} rows and {len(ids)} ids",
        )
    if twice := [name for name, times in Counter(ids).items() if times > 1]:
        raise _refused("Ids occur twice in the distance matrix", f"{first_few(twice)} in '{path}'")
    return DistanceMatrix(ids, _checked(ids, values, path))


def write_distances(path: Path, matrix: DistanceMatrix) -> None:
    """Write a matrix in the form that the suffix names: .tsv, .lsmat, .npy or .h5.

    A .npy has its ids in a .txt of the same name, one a line; .h5 is laid out as ssu does.

    Raises:
        UsageError: another suffix.
        CannotCreate: the folder cannot be written to.
    """
    write = _WRITERS[checked_suffix(path)]
    if path.suffix == ".npy":
        with written_aside(path.with_suffix(".txt")) as aside:
            aside.write_text("".join(f"{name}\n" for name in matrix.ids), "utf-8")
    with written_aside(path) as aside:
        write(aside, matrix)


def checked_suffix(path: Path) -> str:
    """Return the suffix of an output file if it names a form that can be written.

    Raises:
        UsageError: it does not.
    """
    if path.suffix not in _WRITERS:
        raise UsageError(
            "The form of the matrix is not clear",
            f"'{path.name}'",
            f"end its name with one of {', '.join(_WRITERS)}",
        )
    return path.suffix


def _read(path: Path) -> _Found:
    with path.open("rb") as stream:
        magic = stream.read(8)
    if magic.startswith(b"\x89HDF"):
        return _binary(path, _read_hdf5)
    if magic.startswith(b"\x93NUMPY"):
        return _binary(path, _read_npy)
    if magic.startswith(b"PK") and not is_artifact(path):
        return _binary(path, _read_npz)
    return _read_text(contents(path, "distance-matrix.tsv", "DistanceMatrix"), path)


def _binary(path: Path, read: Callable[[Path], _Found]) -> _Found:
    try:
        ids, values = read(path)
        return ids, values.astype(np.float32, copy=False)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise _refused("The distance matrix cannot be read", f"'{path}', {error}") from error


def _read_hdf5(path: Path) -> _Found:
    with h5py.File(path, "r") as file:
        return _named_arrays({name: file[name] for name in file})


def _read_npz(path: Path) -> _Found:
    with np.load(path, allow_pickle=False) as arrays:
        return _named_arrays(arrays)


def _named_arrays(arrays: Mapping[str, Any]) -> _Found:
    name = next((name for name in _VALUE_NAMES if name in arrays), None)
    if name is None and len(arrays) == 1:
        name = next(iter(arrays))
    if name is None:
        raise KeyError(f"no array '{_VALUE_NAMES[0]}' among {', '.join(arrays) or 'none'}")
    id_name = next((name for name in _ID_NAMES if name in arrays), None)
    return None if id_name is None else _decoded(arrays[id_name][()]), np.asarray(arrays[name][()])


def _decoded(names: NDArray[Any]) -> tuple[str, ...]:
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def _read_npy(path: Path) -> _Found:
    beside = path.with_suffix(".txt")
    ids = tuple(beside.read_text("utf-8").splitlines()) if beside.is_file() else None
    return ids, np.load(path, allow_pickle=False)


def _read_text(text: bytes, path: Path) -> _Found:
    """Read ids above and on the left; lines of '#' above that hold one cell are comments."""
    try:
        stream = io.StringIO(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _refused("The distance matrix cannot be read", f"'{path}' is no text") from error
    first = next((line for line in stream if _is_content(line)), None)
    if first is None:
        raise _refused("The distance matrix is empty", f"'{path}'")
    delimiter = "\t" if "\t" in first else ","
    header = next(csv.reader([first], delimiter=delimiter))
    ids = tuple(name.strip() for name in header[1:])
    values = np.zeros((len(ids), len(ids)), dtype=np.float32)
    row_ids = []
    for row, cells in enumerate(_rows(stream, delimiter)):
        name = cells[0].strip()
        if row >= len(ids) or len(cells) != len(ids) + 1:
            raise _refused(
                "The distance matrix is not square",
                f"'{path}' has {len(ids)} columns, but row {row + 1}, '{name}', "
                f"has {len(cells) - 1} values",
            )
        try:
            values[row] = np.array(cells[1:], dtype=np.float64)
        except ValueError as error:
            raise _refused(
                "The distance matrix holds what is no number", f"row '{name}' of '{path}', {error}"
            ) from error
        row_ids.append(name)
    if len(row_ids) != len(ids):
        raise _refused(
            "The distance matrix is not square",
            f"'{path}' has {len(ids)} columns and {len(row_ids)} rows",
        )
    if tuple(row_ids) != ids:
        row, (left, above) = next(
            (row, pair)
            for row, pair in enumerate(zip(row_ids, ids, strict=True))
            if pair[0] != pair[1]
        )
        raise _refused(
            "The rows of the distance matrix are in another order than its columns",
            f"row {row + 1} of '{path}' is '{left}', column {row + 1} is '{above}'",
        )
    return ids, values


def _rows(stream: io.StringIO, delimiter: str) -> Iterator[list[str]]:
    return (cells for cells in csv.reader(stream, delimiter=delimiter) if any(cells))


def _is_content(line: str) -> bool:
    stripped = line.strip()
    return bool(stripped) and (stripped[0] != "#" or "\t" in stripped or "," in stripped)


def _squared(condensed: NDArray[Any], path: Path) -> NDArray[np.float32]:
    size = (1 + isqrt(1 + 8 * condensed.size)) // 2
    if size * (size - 1) // 2 != condensed.size or size < 2:
        raise _refused(
            "The distance matrix is neither square nor condensed",
            f"'{path}' is one row of {condensed.size} values",
        )
    square = np.zeros((size, size), dtype=np.float32)
    start = 0
    for row in range(size - 1):
        stop = start + size - 1 - row
        square[row, row + 1 :] = square[row + 1 :, row] = condensed[start:stop]
        start = stop
    return square


def _table_order(size: int, sample_ids: Sequence[str] | None, path: Path) -> tuple[str, ...]:
    if sample_ids is None or len(sample_ids) != size:
        table = "no table" if sample_ids is None else f"the table has {len(sample_ids)} samples"
        raise _refused(
            "The distance matrix has no ids and does not fit the table",
            f"'{path}' is {size} x {size}, {table}",
            f"write its ids into '{path.with_suffix('.txt').name}', one a line, or give a .tsv",
        )
    return tuple(sample_ids)


def _checked(ids: tuple[str, ...], values: NDArray[np.float32], path: Path) -> NDArray[np.float32]:
    """Return the matrix without rounding noise, or refuse it; a few rows at a time."""
    clean = np.empty_like(values)
    noise = 0.0
    for start in range(0, len(ids), _CHECKED_ROWS):
        rows = slice(start, start + _CHECKED_ROWS)
        here, across = values[rows], values[:, rows].T
        if (wrong := np.argwhere(~np.isfinite(here))).size:
            pair = wrong[0] + (start, 0)
            raise _pair_refused("A distance is not a number", ids, values, pair, path)
        noise = max(noise, ROUNDING * float(np.abs(here).max()))
        clean[rows] = (here + across) / 2
    for start in range(0, len(ids), _CHECKED_ROWS):
        rows = slice(start, start + _CHECKED_ROWS)
        for cause, wrong_ones in (
            ("The distance matrix is not symmetric", np.abs(values[rows] - clean[rows]) > noise),
            ("A distance is negative", clean[rows] < -noise),
        ):
            if (wrong := np.argwhere(wrong_ones)).size:
                raise _pair_refused(cause, ids, values, wrong[0] + (start, 0), path)
    if (off := np.flatnonzero(np.abs(np.diagonal(clean)) > noise)).size:
        raise _refused(
            "The diagonal of the distance matrix is not zero",
            f"{first_few(ids[row] for row in off)} in '{path}'",
            "give distances, not similarities",
        )
    np.fill_diagonal(clean, 0)
    return np.maximum(clean, 0, out=clean)


def _pair_refused(
    cause: str, ids: tuple[str, ...], values: NDArray[Any], pair: NDArray[np.int64], path: Path
) -> DataError:
    i, j = pair
    return _refused(
        cause,
        f"'{ids[i]}' to '{ids[j]}' is {values[i, j]:g} in '{path}', back it is {values[j, i]:g}",
    )


def _refused(cause: str, evidence: str, remedy: str = "make the matrix again") -> DataError:
    return DataError(cause, evidence, remedy)


def _write_text(path: Path, matrix: DistanceMatrix) -> None:
    line = "\t".join(["%s"] + ["%.9g"] * len(matrix.ids)) + "\n"  # Nine digits tell all float32.
    with path.open("w", encoding="utf-8") as stream:
        stream.write("\t" + "\t".join(matrix.ids) + "\n")
        for name, row in zip(matrix.ids, matrix.values, strict=True):
            stream.write(line % (name, *row.tolist()))


def _write_npy(path: Path, matrix: DistanceMatrix) -> None:
    np.save(path, matrix.values)


def _write_hdf5(path: Path, matrix: DistanceMatrix) -> None:
    with h5py.File(path, "w") as file:
        file["matrix"] = matrix.values
        file.create_dataset("order", data=list(matrix.ids), dtype=h5py.string_dtype())
        file["format"] = np.array([b"BDSM"])
        file["version"] = np.array([b"2020.12"])


_WRITERS = {".tsv": _write_text, ".lsmat": _write_text, ".npy": _write_npy, ".h5": _write_hdf5}
