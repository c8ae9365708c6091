"""The forms in which distance matrices are kept: from a file to ids and values, and back.

    lsmat, TSV, CSV   text with ids above and on the left; also `distance-matrix.tsv` of a .qza
    .h5               as ssu writes it (`matrix`, `order`), or `distances` with or without ids
    .npy, .npz        ids from a .txt beside it or an array beside it, or none

The form is told from what the file holds, not from its name. Nothing is checked here that the form
itself does not ask for; the rules of distances stand in `aam.study.distances`.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from aam.errors import DataError
from aam.study.artifact import contents, is_artifact

_ID_NAMES = ("order", "ids", "sample_ids")
_VALUE_NAMES = ("matrix", "distances")
Found = tuple[tuple[str, ...] | None, NDArray[Any]]
"""Ids, None where the file has none, and values as they are, square or condensed."""


def read_form(path: Path) -> Found:
    """Read the ids and values of a matrix file.

    Raises:
        DataError: the file cannot be read as any of the forms.
    """
    with path.open("rb") as stream:
        magic = stream.read(8)
    if magic.startswith(b"\x89HDF"):
        return _binary(path, _read_hdf5)
    if magic.startswith(b"\x93NUMPY"):
        return _binary(path, _read_npy)
    if magic.startswith(b"PK") and not is_artifact(path):
        return _binary(path, _read_npz)
    return _read_text(contents(path, "distance-matrix.tsv", "DistanceMatrix"), path)


def _binary(path: Path, read: Callable[[Path], Found]) -> Found:
    try:
        ids, values = read(path)
        return ids, values.astype(np.float32, copy=False)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise refused("The distance matrix cannot be read", f"'{path}', {error}") from error


def _read_hdf5(path: Path) -> Found:
    with h5py.File(path, "r") as file:
        return _named_arrays({name: file[name] for name in file})


def _read_npz(path: Path) -> Found:
    with np.load(path, allow_pickle=False) as arrays:
        return _named_arrays(arrays)


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


def _read_npy(path: Path) -> Found:
    beside = path.with_suffix(".txt")
    ids = tuple(beside.read_text("utf-8").splitlines()) if beside.is_file() else None
    return ids, np.load(path, allow_pickle=False)


def _read_text(text: bytes, path: Path) -> Found:
    """Read ids above and on the left; lines of '#' above that hold one cell are comments."""
    try:
        stream = io.StringIO(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise refused("The distance matrix cannot be read", f"'{path}' is no text") from error
    first = next((line for line in stream if _is_content(line)), None)
    if first is None:
        raise refused("The distance matrix is empty", f"'{path}'")
    delimiter = "\t" if "\t" in first else ","
    header = next(csv.reader([first], delimiter=delimiter))
    ids = tuple(name.strip() for name in header[1:])
    values = np.zeros((len(ids), len(ids)), dtype=np.float32)
    row_ids = []
    for row, cells in enumerate(_rows(stream, delimiter)):
        name = cells[0].strip()
        if row >= len(ids) or len(cells) != len(ids) + 1:
            raise refused(
                "The distance matrix is not square",
                f"'{path}' has {len(ids)} columns, but row {row + 1}, '{name}', "
                f"has {len(cells) - 1} values",
            )
        try:
            values[row] = np.array(cells[1:], dtype=np.float64)
        except ValueError as error:
            raise refused(
                "The distance matrix holds what is no number", f"row '{name}' of '{path}', {error}"
            ) from error
        row_ids.append(name)
    if len(row_ids) != len(ids):
        raise refused(
            "The distance matrix is not square",
            f"'{path}' has {len(ids)} columns and {len(row_ids)} rows",
        )
    if tuple(row_ids) != ids:
        row, (left, above) = next(
            (row, pair)
            for row, pair in enumerate(zip(row_ids, ids, strict=True))
            if pair[0] != pair[1]
        )
        raise refused(
            "The rows of the distance matrix are in another order than its columns",
            f"row {row + 1} of '{path}' is '{left}', column {row + 1} is '{above}'",
        )
    return ids, values


def _rows(stream: io.StringIO, delimiter: str) -> Iterator[list[str]]:
    return (cells for cells in csv.reader(stream, delimiter=delimiter) if any(cells))


def _is_content(line: str) -> bool:
    stripped = line.strip()
    return bool(stripped) and (stripped[0] != "#" or "\t" in stripped or "," in stripped)


def refused(cause: str, evidence: str, remedy: str = "make the matrix again") -> DataError:
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
