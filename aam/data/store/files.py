"""Files of a store: .npy arrays, and `store.json` with their description.

    store.json            format, sizes, where it came from, size and SHA-256 of each array's file;
                          written last, with a checksum of its own
    counts.npy            int32 [entries], sample after sample
    counts_asvs.npy       int32 [entries], ascending within a sample
    counts_ends.npy       int64 [N + 1], where samples begin and end
    reads.npy             int64 [N]
    samples.npy  samples_ends.npy          ids, packed (`aam.data.store.packed`)
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
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aam import __version__
from aam.contract.errors import DataError, MissingInput

HEADER = "store.json"
FORMAT = 1
"""Version of the layout above; a store of another one is refused."""

COUNTS = ("counts", "counts_asvs", "counts_ends", "reads", "samples", "samples_ends",
          "asvs", "asvs_ends", "asv_columns", "tokens")  # fmt: skip
TREE = ("lengths", "ancestors", "ancestors_ends")
METADATA = ("metadata_rows", "metadata_cells", "metadata_ends")

_AGAIN = "make it again with `aam prepare`"


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
        facts: of each array, by name.
        columns: names of the metadata's columns; None without metadata.
        made_from: name, size and SHA-256 of each file that was read, by option.
        checksum: of all of this, in hexadecimal digits.
    """

    facts: dict[str, ArrayDescription]
    columns: list[str] | None
    made_from: dict[str, dict[str, Any]]
    checksum: str

    @property
    def has_tree(self) -> bool:
        """Whether the store holds a phylogeny."""
        return "ancestors" in self.facts


class ArrayFile:
    """Writes an array of known shape piece by piece, and its SHA-256 on the way."""

    def __init__(self, folder: Path, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = np.dtype(dtype), shape
        self._path = folder / f"{name}.npy"
        self._stream = self._path.open("wb")
        self._digest = hashlib.sha256()
        descr = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self, descr)

    def write(self, data: Any) -> int:
        """Write bytes (numpy's header comes through here)."""
        self._digest.update(data)
        return self._stream.write(data)

    def append(self, piece: NDArray[Any]) -> None:
        """Write the next values."""
        self.write(np.ascontiguousarray(piece, dtype=self.dtype).data.cast("B"))

    def close(self) -> ArrayDescription:
        """Finish the file.

        Raises:
            RuntimeError: the values were more or fewer than announced, which is a bug.
        """
        size = self._stream.tell()
        self._stream.close()
        whole = self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))
        if not whole <= size < whole + 1024:
            raise RuntimeError(f"{self._path.name} has {size} bytes for an array of {whole}")
        return ArrayDescription(self.dtype.str, self.shape, size, self._digest.hexdigest())

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()


def write_array(folder: Path, name: str, array: NDArray[Any]) -> ArrayDescription:
    """Write a whole array."""
    with ArrayFile(folder, name, array.dtype.str, array.shape) as file:
        if array.size:
            file.append(array)
        return file.close()


def write_header(
    folder: Path,
    facts: dict[str, ArrayDescription],
    columns: list[str] | None,
    made_from: dict[str, dict[str, Any]],
) -> None:
    """Write `store.json`: with it a store is whole, and without it none."""
    content = {
        "format": FORMAT,
        "aam": __version__,
        "samples": facts["reads"].shape[0],
        "asvs": facts["tokens"].shape[0],
        "longest": facts["tokens"].shape[1],
        "entries": facts["counts"].shape[0],
        "metadata": columns,
        "made_from": made_from,
        "arrays": {name: asdict(fact) for name, fact in facts.items()},
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
        MissingInput: it may not be read.
        DataError: it is absent, damaged or of another version.
    """
    file = path / HEADER
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        checksum = content.pop("checksum")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError("The store is not whole", f"'{path}' has no {HEADER}", _AGAIN) from error
    except OSError as error:
        reason = f"'{file}', {error.strerror}"
        raise MissingInput("The store may not be read", reason, "check permissions") from error
    except (ValueError, LookupError, AttributeError) as error:
        raise DataError(
            "The store is damaged", f"'{file}' is not what aam writes", _AGAIN
        ) from error
    if content.get("format") != FORMAT:
        made = f"'{path}' has format {content.get('format')}, made by aam {content.get('aam')}"
        here = f"this is aam {__version__}, which reads format {FORMAT}"
        raise DataError("The store is of another version", f"{made}; {here}", _AGAIN)
    if checksum != _checksum(content):
        raise DataError("The store is damaged", f"'{file}' was changed", _AGAIN)
    facts = {
        name: ArrayDescription(**{**fact, "shape": tuple(fact["shape"])})
        for name, fact in content["arrays"].items()
    }
    return Header(facts, content["metadata"], content["made_from"], checksum)


def map_array(path: Path, name: str, facts: ArrayDescription) -> NDArray[Any]:
    """Map an array read-only: its pages are read when touched, and shared with other processes.

    Raises:
        DataError: it is not the array that the header describes.
    """
    file = path / f"{name}.npy"
    try:
        array = np.load(file, mmap_mode=None if 0 in facts.shape else "r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError("The store is damaged", f"'{file}', {error}", _AGAIN) from error
    if array.dtype.str != facts.dtype or array.shape != facts.shape:
        found = f"'{file}' is {array.dtype} {array.shape}"
        raise DataError("The store is damaged", found, _AGAIN)
    return np.asarray(array)


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
