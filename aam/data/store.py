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


def write_header(
    folder: Path,
    sources: dict[str, dict[str, Any]],
    arrays: dict[str, StoredArray],
    columns: list[str] | None,
    categorical: list[str],
) -> None:
    """Write `store.json`, the last file of a store."""
    header = StoreHeader(FORMAT, __version__, columns, sources, arrays, categorical)
    write_json(folder / HEADER, asdict(header))


def is_store(path: Path) -> bool:
    """Return whether a path is a store, complete or not: a folder with some of its files."""
    # pathlib's `exists` raises for a folder without permission.
    return any(os.path.exists(path / name) for name in (HEADER, "counts.npy"))


def is_part(path: Path) -> bool:
    """Return whether `aam prepare` writes files with this name."""
    return path.name == HEADER or path.suffix == ".npy"


def read_header(path: Path) -> StoreHeader:
    """Read the header `store.json` of a store."""
    file = path / HEADER
    if not os.path.lexists(file):
        raise DataError("The store is incomplete", f"'{path}' has no {HEADER}", _AGAIN)
    header = read_json(file, StoreHeader, "store", _AGAIN)
    if header.format != FORMAT:
        evidence = f"'{path}' has format {header.format}, made by aam {header.aam}"
        evidence += f"; this is aam {__version__} and reads format {FORMAT}"
        raise DataError("The store has another version", evidence, _PREPARE)
    return header


def open_store(
    path: Path, checksums: bool = False
) -> tuple[FeatureTable, NDArray[np.uint8], Phylogeny | None]:
    """Memory-map a store: its table (ASVs ordered by id), complete sequences and tree.

    `checksums` verifies the arrays: 0.5 CPU-seconds per GiB, as long as reading them takes.
    """
    header = read_header(path)

    def arrays(*names: str) -> list[NDArray[Any]]:
        return [_map(path, header, name, checksums) for name in names]

    (tokens_FL,) = arrays("tokens")
    data, indices, indptr, reads = arrays("counts", "counts_asvs", "counts_ends", "reads")
    counts = MappedCounts(data, indices, indptr, reads, len(tokens_FL))
    ids = (
        PackedStrings(*arrays("samples", "samples_ends")),
        PackedStrings(*arrays("asvs", "asvs_ends")),
    )
    tree = ("lengths", "ancestors_ends", "ancestors")
    phylogeny = Phylogeny(*arrays(*tree)) if header.has_tree else None
    return FeatureTable(*ids, counts), tokens_FL, phylogeny


def stored_metadata(
    path: Path,
) -> tuple[PackedStrings, dict[str, PackedStrings], frozenset[str]]:
    """Memory-map the metadata of a store: sample ids, cells by column, categorical columns."""
    header = read_header(path)
    if header.metadata is None:
        remedy = "give the TSV itself, or make the store again with --metadata"
        raise DataError("The store holds no metadata", f"'{path}'", remedy)
    names = ("samples", "samples_ends", "metadata_rows", "metadata_cells", "metadata_ends")
    ids, ids_ends, rows, cells, ends = (_map(path, header, name, True) for name in names)
    columns = {
        name: PackedStrings(cells, ends[k * len(rows) : (k + 1) * len(rows) + 1])
        for k, name in enumerate(header.metadata)
    }
    return PackedStrings(ids, ids_ends, rows), columns, frozenset(header.categorical)


def stored_taxa(path: Path) -> dict[str, str]:
    """Read the taxonomy of a store: feature id -> taxon."""
    header = read_header(path)
    if "taxa" not in header.arrays:
        remedy = "give the taxonomy itself, or make the store again with --taxonomy"
        raise DataError("The store holds no taxonomy", f"'{path}'", remedy)
    names = ("asvs", "asvs_ends", "taxa", "taxa_ends")
    ids, ids_ends, taxa, taxa_ends = (_map(path, header, name, True) for name in names)
    pairs = zip(PackedStrings(ids, ids_ends), PackedStrings(taxa, taxa_ends), strict=True)
    return {name: taxon for name, taxon in pairs if taxon}


def write_npy(path: Path, array: NDArray[Any]) -> None:
    """Write an array as an .npy file."""
    # `numpy.save` uses `ndarray.tofile`, whose OSError has no errno: a full quota would look like a
    # defect.
    contiguous = np.ascontiguousarray(array)
    description = np.lib.format.header_data_from_array_1_0(contiguous)
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, description)
        stream.write(contiguous.data)


def verify(path: Path) -> int:
    """Verify the checksums of a store (`aam prepare --verify`); return the number of files."""
    header = read_header(path)
    for name in track(header.arrays, "Checksums", len(header.arrays), "files"):
        _map(path, header, name, checksum=True)
    return len(header.arrays)


def _map(path: Path, header: StoreHeader, name: str, checksum: bool = False) -> NDArray[Any]:
    """Memory-map an array read-only: pages are read when touched, and shared between processes."""
    file, expected = path / f"{name}.npy", header.arrays.get(name)
    try:
        # Mapping compares the size of the file with its header, so it detects missing values.
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy raises any error of its parser for a damaged header
        raise _refused(file, error) from error
    if expected is None or array.shape != expected.shape:
        raise _damaged(f"'{file}' has the shape {array.shape}")
    if name.endswith("_ends"):
        letters = "metadata_cells" if name == "metadata_ends" else name.removesuffix("_ends")
        last = header.arrays[letters].shape[0]
        if not array.size or array[0] or array[-1] != last or (array[1:] < array[:-1]).any():
            raise _damaged(f"'{file}' is not in order from 0 to {last}")
    if name == "reads" and (array < 1).any():
        raise _damaged(f"'{file}' has a sample without reads")
    if checksum and sha256(file) != expected.sha256:
        raise _damaged(f"'{file}' has another checksum")
    return np.asarray(array)


def _refused(file: Path, error: Exception) -> AamError:
    """Return the error for an array file that cannot be read: permission or damage."""
    if isinstance(error, PermissionError):
        remedy = "check its permissions"
        return MissingInput("The store cannot be read", f"'{file}', {error.strerror}", remedy)
    return _damaged(f"'{file}', {getattr(error, 'strerror', None) or reason_of(error)}")


def _damaged(evidence: str) -> DataError:
    return DataError("The store is damaged", evidence, _AGAIN)
