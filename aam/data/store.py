"""Store: a prepared study, as .npy arrays that commands memory-map (written by `data.prepare`).

    store.json            format, origin, shape and SHA-256 of each array; written last
    counts.npy            int32 [entries], sample after sample
    counts_asvs.npy       int32 [entries], ascending within a sample
    counts_ends.npy       int64 [N + 1], start and end of each sample
    reads.npy             int64 [N]
    samples.npy  samples_ends.npy          ids, packed (`aam.data.table.PackedStrings`)
    asvs.npy  asvs_ends.npy                ids, packed, in ascending order
    tokens.npy            uint8 [F, L]
    lengths.npy  ancestors.npy  ancestors_ends.npy                  the sheared tree, if any
    metadata_rows.npy     int64 [m], samples that have metadata     if any
    metadata_cells.npy  metadata_ends.npy                           column after column, packed
    taxa.npy  taxa_ends.npy                taxon of each ASV, packed    if any

Processes that open one store share its pages. Opening detects missing and truncated arrays, wrong
shapes and unordered ends, without reading counts. Commands that read the whole study verify the
checksums first, as `aam prepare --verify` does.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aam.console import track
from aam.contract.errors import AamError, DataError, MissingInput, reason_of
from aam.contract.files import sha256, write_json
from aam.contract.records import Sha256, read_json
from aam.contract.version import __version__
from aam.data.phylogeny import Phylogeny
from aam.data.table import FeatureTable, MappedCounts, PackedStrings

HEADER = "store.json"
FORMAT = 2  # version of the layout above; other versions are refused

_PREPARE = "make it again with `aam prepare`"
_AGAIN = f"copy it again and compare the sizes, or {_PREPARE}"


@dataclass(frozen=True)
class StoredArray:
    """Shape and checksum of an array in `store.json`."""

    shape: tuple[int, ...]
    sha256: Sha256


@dataclass(frozen=True)
class StoreHeader:
    """Content of `store.json`."""

    # format, aam: versions of the layout and of the program that wrote it
    format: int
    aam: str
    metadata: list[str] | None  # names of the metadata's columns; None without metadata
    made_from: dict[str, dict[str, Any]]  # option -> name, size and SHA-256 of its file
    arrays: dict[str, StoredArray]  # description of each array, by name
    # columns of the metadata with the #q2:types "categorical"
    categorical: list[str] = field(default_factory=list)

    @property
    def has_tree(self) -> bool:
        """Whether the store holds a phylogeny."""
        return "ancestors" in self.arrays


StoredStudy = tuple[FeatureTable, NDArray[np.uint8], Phylogeny | None]
"""Table, sequences [F, L] and tree of a store."""


def is_store(path: Path) -> bool:
    """Return whether a path is a store, complete or not: a folder with some of its files."""
    # pathlib's `exists` raises for a folder without permission.
    return any(os.path.exists(path / name) for name in (HEADER, "counts.npy"))


def is_part(path: Path) -> bool:
    """Return whether `aam prepare` writes files with this name."""
    return path.name == HEADER or path.suffix == ".npy"


@dataclass(frozen=True)
class Store:
    """Prepared study in a folder: its table, metadata and taxonomy, memory-mapped."""

    path: Path

    @cached_property
    def header(self) -> StoreHeader:
        """Content of `store.json`."""
        file = self.path / HEADER
        if not os.path.lexists(file):
            raise DataError("The store is incomplete", f"'{self.path}' has no {HEADER}", _AGAIN)
        header = read_json(file, StoreHeader, "store", _AGAIN)
        if header.format != FORMAT:
            evidence = f"'{self.path}' has format {header.format}, made by aam {header.aam}"
            evidence += f"; this is aam {__version__} and reads format {FORMAT}"
            raise DataError("The store has another version", evidence, _PREPARE)
        return header

    def write_header(self, **entries: Any) -> None:
        """Write `store.json`, the last file of a store, with entries of `StoreHeader`."""
        write_json(self.path / HEADER, asdict(StoreHeader(FORMAT, __version__, **entries)))

    def open(self, checksums: bool = False) -> StoredStudy:
        """Memory-map the table (ASVs ordered by id), the complete sequences and the tree.

        `checksums` verifies the arrays: 0.5 CPU-seconds per GiB, as long as reading them takes.
        """
        (tokens_FL,) = self._arrays("tokens", checksum=checksums)
        names = ("counts", "counts_asvs", "counts_ends", "reads")
        data, indices, indptr, reads = self._arrays(*names, checksum=checksums)
        counts = MappedCounts(data, indices, indptr, reads, len(tokens_FL))
        samples, asvs = (
            PackedStrings(*self._arrays(name, f"{name}_ends", checksum=checksums))
            for name in ("samples", "asvs")
        )
        tree = ("lengths", "ancestors_ends", "ancestors")
        has_tree = self.header.has_tree
        phylogeny = Phylogeny(*self._arrays(*tree, checksum=checksums)) if has_tree else None
        return FeatureTable(samples, asvs, counts), tokens_FL, phylogeny

    def metadata(self) -> tuple[PackedStrings, dict[str, PackedStrings], frozenset[str]]:
        """Memory-map the metadata: sample ids, cells by column, categorical columns."""
        if self.header.metadata is None:
            remedy = "give the TSV itself, or make the store again with --metadata"
            raise DataError("The store holds no metadata", f"'{self.path}'", remedy)
        names = ("samples", "samples_ends", "metadata_rows", "metadata_cells", "metadata_ends")
        ids, ids_ends, rows, cells, ends = self._arrays(*names, checksum=True)
        columns = {
            name: PackedStrings(cells, ends[k * len(rows) : (k + 1) * len(rows) + 1])
            for k, name in enumerate(self.header.metadata)
        }
        return PackedStrings(ids, ids_ends, rows), columns, frozenset(self.header.categorical)

    def taxa(self) -> dict[str, str]:
        """Read the taxonomy: feature id -> taxon."""
        if "taxa" not in self.header.arrays:
            remedy = "give the taxonomy itself, or make the store again with --taxonomy"
            raise DataError("The store holds no taxonomy", f"'{self.path}'", remedy)
        ids, ids_ends, taxa, ends = self._arrays(
            "asvs", "asvs_ends", "taxa", "taxa_ends", checksum=True
        )
        pairs = zip(PackedStrings(ids, ids_ends), PackedStrings(taxa, ends), strict=True)
        return {name: taxon for name, taxon in pairs if taxon}

    def verify(self) -> int:
        """Verify all checksums (`aam prepare --verify`); return the number of files."""
        arrays = self.header.arrays
        for name in track(arrays, "Checksums", len(arrays), "files"):
            self._arrays(name, checksum=True)
        return len(arrays)

    def _arrays(self, *names: str, checksum: bool) -> list[NDArray[Any]]:
        """Memory-map arrays read-only: pages are read when touched, and shared by processes."""
        return [self._array(name, checksum) for name in names]

    def _array(self, name: str, checksum: bool) -> NDArray[Any]:
        file, expected = self.path / f"{name}.npy", self.header.arrays.get(name)
        try:
            # Mapping compares the size of the file with its header, so it detects missing values.
            array = np.load(file, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # NumPy raises any error of its parser for a damaged header
            raise _refused(file, error) from error
        if expected is None or array.shape != expected.shape:
            raise _damaged(f"'{file}' has the shape {array.shape}")
        if name.endswith("_ends"):
            letters = "metadata_cells" if name == "metadata_ends" else name.removesuffix("_ends")
            last = self.header.arrays[letters].shape[0]
            if not array.size or array[0] or array[-1] != last or (array[1:] < array[:-1]).any():
                raise _damaged(f"'{file}' is not in order from 0 to {last}")
        if name == "reads" and (array < 1).any():
            raise _damaged(f"'{file}' has a sample without reads")
        if checksum and sha256(file) != expected.sha256:
            raise _damaged(f"'{file}' has another checksum")
        return np.asarray(array)


def write_npy(path: Path, array: NDArray[Any]) -> None:
    """Write an array as an .npy file."""
    # `numpy.save` uses `ndarray.tofile`, whose OSError has no errno: a full quota would look like a
    # defect.
    contiguous = np.ascontiguousarray(array)
    description = np.lib.format.header_data_from_array_1_0(contiguous)
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, description)
        stream.write(contiguous.data)


def _refused(file: Path, error: Exception) -> AamError:
    """Return the error for an array file that cannot be read: permission or damage."""
    if isinstance(error, PermissionError):
        remedy = "check its permissions"
        return MissingInput("The store cannot be read", f"'{file}', {error.strerror}", remedy)
    return _damaged(f"'{file}', {getattr(error, 'strerror', None) or reason_of(error)}")


def _damaged(evidence: str) -> DataError:
    return DataError("The store is damaged", evidence, _AGAIN)
