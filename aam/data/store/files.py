"""Files of a store: .npy arrays, and `store.json` with their description.

    store.json            format, sizes, where it came from, size and SHA-256 of each array's file;
                          written last, with a checksum of its own
    counts.npy            int32 [entries], sample after sample
    counts_asvs.npy       int32 [entries], ascending within a sample
    counts_ends.npy       int64 [N + 1], where samples begin and end
    reads.npy             int64 [N]
    samples.npy  samples_ends.npy          ids, packed (`aam.data.store.mapped`)
    asvs.npy  asvs_ends.npy                ids, packed, in ascending order
    asv_columns.npy       int64 [F], their columns in the table that was read
    tokens.npy            uint8 [F, L]
    lengths.npy  ancestors.npy  ancestors_ends.npy                  the sheared tree, if any
    metadata_rows.npy     int64 [m], samples that have metadata     if any
    metadata_cells.npy  metadata_ends.npy                           column after column, packed

Any program that reads .npy can read them; none of them holds code.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aam import __version__
from aam.contract import schema
from aam.contract.errors import DataError, MissingInput
from aam.contract.files import sha256
from aam.contract.records import Mismatch
from aam.contract.schema import read_json

HEADER = "store.json"
FORMAT = 1
"""Version of the layout above; a store of another one is refused."""

COUNTS = ("counts", "counts_asvs", "counts_ends", "reads", "samples", "samples_ends",
          "asvs", "asvs_ends", "asv_columns", "tokens")  # fmt: skip
TREE = ("lengths", "ancestors", "ancestors_ends")
METADATA = ("metadata_rows", "metadata_cells", "metadata_ends")

_PREPARE = "make it again with `aam prepare`"
_AGAIN = f"copy it again and compare the sizes, or {_PREPARE}"


@dataclass(frozen=True)
class ArrayDescription:
    """Description of an array in `store.json`."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Header:
    """Content of `store.json`.

    Attributes:
        arrays: description of each array, by name.
        columns: names of the metadata's columns; None without metadata.
        made_from: name, size and SHA-256 of each file that was read, by option.
        checksum: SHA-256 of the other entries, in hexadecimal digits.
    """

    arrays: dict[str, ArrayDescription]
    columns: list[str] | None
    made_from: dict[str, dict[str, Any]]
    checksum: str

    @property
    def has_tree(self) -> bool:
        """Whether the store holds a phylogeny."""
        return "ancestors" in self.arrays


_CONTENT = {
    "arrays": dict[str, ArrayDescription],
    "metadata": list[str] | None,
    "made_from": dict[str, dict[str, Any]],
}


class ArrayFile:
    """Writer of an array of known shape piece by piece."""

    def __init__(self, folder: Path, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        self._path, self._dtype, self._shape = folder / f"{name}.npy", dtype, shape
        self._stream = self._path.open("wb")
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._stream, header)

    def append(self, piece: NDArray[Any]) -> None:
        """Write the next values."""
        self._stream.write(np.ascontiguousarray(piece, dtype=self._dtype).data)

    def close(self) -> ArrayDescription:
        """Finish the file."""
        self._stream.close()
        # Mapping compares the size of the file with its header, and so finds missing values.
        array = map_array(self._path, self._shape)
        size = self._path.stat().st_size
        return ArrayDescription(array.dtype.str, array.shape, size, sha256(self._path))

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def write_array(folder: Path, name: str, array: NDArray[Any]) -> ArrayDescription:
    """Write a complete array as NAME.npy.

    Args:
        folder: folder of the store that is being written.
        name: name of the array.
        array: its values, with any number of axes.

    Returns:
        Type, shape, size and SHA-256 of the file, for the header.
    """
    with ArrayFile(folder, name, array.dtype.str, array.shape) as file:
        file.append(array)
        return file.close()


def write_header(
    folder: Path,
    arrays: dict[str, ArrayDescription],
    columns: list[str] | None,
    made_from: dict[str, dict[str, Any]],
) -> None:
    """Write `store.json`; a folder without it is not a complete store."""
    content = {
        "format": FORMAT,
        "aam": __version__,
        "samples": arrays["reads"].shape[0],
        "asvs": arrays["tokens"].shape[0],
        "longest": arrays["tokens"].shape[1],
        "entries": arrays["counts"].shape[0],
        "metadata": columns,
        "made_from": made_from,
        "arrays": {name: asdict(each) for name, each in arrays.items()},
    }
    content["checksum"] = _checksum(content)
    (folder / HEADER).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def is_store(path: Path) -> bool:
    """Return whether a path is a store, complete or not: a folder with some of its files."""
    # Unlike pathlib's, these do not raise where a folder may not be looked into.
    return any(os.path.exists(path / name) for name in (HEADER, "counts.npy"))


def read_header(path: Path) -> Header:
    """Read `store.json`.

    Raises:
        MissingInput: it cannot be read.
        DataError: it is absent, damaged or of another version.
    """
    file = path / HEADER
    if not os.path.lexists(file):
        raise DataError("The store is incomplete", f"'{path}' has no {HEADER}", _AGAIN)
    content = read_json(file, {"checksum": str, "format": Any}, "store", _AGAIN)
    checksum = content.pop("checksum")
    if content["format"] != FORMAT:
        made = f"'{path}' has format {content.get('format')}, made by aam {content.get('aam')}"
        here = f"this is aam {__version__}, which reads format {FORMAT}"
        raise DataError("The store is of another version", f"{made}; {here}", _PREPARE)
    if checksum != _checksum(content):
        raise damaged(f"'{file}' was changed")
    try:
        found = schema.parse(_CONTENT, content, HEADER)
    except Mismatch as error:
        raise damaged(f"'{file}', {error}") from error
    return Header(found["arrays"], found["metadata"], found["made_from"], checksum)


def read_arrays(path: Path, header: Header, names: tuple[str, ...]) -> list[NDArray[Any]]:
    """Map arrays of a store read-only: pages are read when touched, and shared by processes.

    Args:
        path: folder of the store.
        header: its header, which describes the arrays.
        names: names of the arrays to map.

    Returns:
        The arrays in the order of `names`.

    Raises:
        DataError: an array is not the one that the header describes.
    """
    found = []
    for name in names:
        if name not in header.arrays:
            raise damaged(f"'{path}' lacks {name}")
        file, expected = path / f"{name}.npy", header.arrays[name]
        try:
            array = map_array(file, expected.shape)
        except (OSError, ValueError) as error:
            raise damaged(f"'{file}', {error}") from error
        if array.dtype.str != expected.dtype or array.shape != expected.shape:
            raise damaged(f"'{file}' is {array.dtype} {array.shape}")
        found.append(array)
    return found


def map_array(file: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    """Map a .npy read-only; an empty one, of `shape` with a zero, cannot be mapped and is read."""
    mode: Any = None if 0 in shape else "r"
    return np.asarray(np.load(file, mmap_mode=mode, allow_pickle=False))


def damaged(evidence: str) -> DataError:
    """Return the error of a store that is not as `aam prepare` wrote it."""
    return DataError("The store is damaged", evidence, _AGAIN)


def unreadable(file: Path, error: OSError) -> MissingInput:
    """Return the error of a file of a store that the system refuses to read."""
    reason = f"'{file}', {error.strerror}"
    return MissingInput("The store cannot be read", reason, "check its permissions")


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
