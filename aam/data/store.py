"""Store: a prepared study, as .npy arrays that commands memory-map (written by `data.prepare`).

    store.json            format, origin, shape and SHA-256 of each array; written last
    counts.npy            int32 [entries], sample after sample
    counts_asvs.npy       int32 [entries], ascending within a sample
    counts_ends.npy       int64 [N + 1], where samples begin and end
    reads.npy             int64 [N]
    samples.npy  samples_ends.npy          ids, packed (`aam.data.table.PackedStrings`)
    asvs.npy  asvs_ends.npy                ids, packed, in ascending order
    tokens.npy            uint8 [F, L]
    lengths.npy  ancestors.npy  ancestors_ends.npy                  the sheared tree, if any
    metadata_rows.npy     int64 [m], samples that have metadata     if any
    metadata_cells.npy  metadata_ends.npy                           column after column, packed
    taxa.npy  taxa_ends.npy                taxon of each ASV, packed    if any

Processes that open one store share its pages. Opening finds arrays that are absent, cut off or of
another shape, or whose ends are not in order, without reading counts. A command that reads
the whole study compares the checksums of the arrays first, as `aam prepare --verify` does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aam.console import track
from aam.contract.errors import AamError, DataError, MissingInput, reason_of
from aam.contract.files import sha256
from aam.contract.records import Sha256, read_json
from aam.contract.version import __version__
from aam.data.phylogeny import Phylogeny
from aam.data.table import FeatureTable, MappedCounts, PackedStrings

HEADER = "store.json"
FORMAT = 2  # version of the layout above; a store of another one is refused

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
    # columns of the metadata that the line #q2:types calls categorical
    categorical: list[str] = field(default_factory=list)

    @property
    def has_tree(self) -> bool:
        """Whether the store holds a phylogeny."""
        return "ancestors" in self.arrays


def is_store(path: Path) -> bool:
    """Return whether a path is a store, complete or not: a folder with some of its files."""
    # Unlike pathlib's, these do not raise where a folder may not be looked into.
    return any(os.path.exists(path / name) for name in (HEADER, "counts.npy"))


def is_part(path: Path) -> bool:
    """Return whether a file of a store has the name of one that `aam prepare` writes."""
    return path.name == HEADER or path.suffix == ".npy"


def read_header(path: Path) -> StoreHeader:
    """Read `store.json`."""
    file = path / HEADER
    if not os.path.lexists(file):
        raise DataError("The store is incomplete", f"'{path}' has no {HEADER}", _AGAIN)
    header = read_json(file, StoreHeader, "store", _AGAIN)
    if header.format != FORMAT:
        made = f"'{path}' has format {header.format}, made by aam {header.aam}"
        here = f"this is aam {__version__}, which reads format {FORMAT}"
        raise DataError("The store is of another version", f"{made}; {here}", _PREPARE)
    return header


def open_store(
    path: Path, whole: bool = False
) -> tuple[FeatureTable, NDArray[np.uint8], Phylogeny | None]:
    """Map the table of a store, its ASVs ordered by id, their complete sequences and the tree.

    `whole` compares the checksums: 0.5 CPU-seconds for a GiB, which reading it all takes anyway.
    """
    header = read_header(path)

    def arrays(*names: str) -> list[NDArray[Any]]:
        return [_map(path, header, name, whole) for name in names]

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
    """Return the ids of the samples with metadata, their cells by column, categorical columns."""
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
    """Return the taxon of each ASV that has one, by feature id."""
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
    # `numpy.save` writes with `ndarray.tofile`, whose OSError has no errno: a quota or a limit of
    # the file size could not be told from a fault.
    contiguous = np.ascontiguousarray(array)
    description = np.lib.format.header_data_from_array_1_0(contiguous)
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, description)
        stream.write(contiguous.data)


def verify(path: Path) -> int:
    """Read every byte and compare the checksums; return the number of files."""
    header = read_header(path)
    for name in track(header.arrays, "Checksums", len(header.arrays), "files"):
        _map(path, header, name, whole=True)
    return len(header.arrays)


def _map(path: Path, header: StoreHeader, name: str, whole: bool = False) -> NDArray[Any]:
    """Map an array read-only: pages are read when touched, and shared; of a `whole` one all are."""
    file, expected = path / f"{name}.npy", header.arrays.get(name)
    try:
        # Mapping compares the size of the file with its header, and so finds missing values.
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # of a damaged header NumPy raises errors of its parser
        raise _refused(file, error) from error
    if expected is None or array.shape != expected.shape:
        raise _damaged(f"'{file}' has the shape {array.shape}")
    if name.endswith("_ends"):
        of = "metadata_cells" if name == "metadata_ends" else name.removesuffix("_ends")
        last = header.arrays[of].shape[0]
        if not array.size or array[0] or array[-1] != last or (array[1:] < array[:-1]).any():
            raise _damaged(f"'{file}' is not in order from 0 to {last}")
    if name == "reads" and (array < 1).any():
        raise _damaged(f"'{file}' has a sample without reads")
    if whole and sha256(file) != expected.sha256:
        raise _damaged(f"'{file}' has another checksum")
    return np.asarray(array)


def _refused(file: Path, error: Exception) -> AamError:
    """Return the error of a file that the system refuses to read, or that is no whole array."""
    if isinstance(error, PermissionError):
        remedy = "check its permissions"
        return MissingInput("The store cannot be read", f"'{file}', {error.strerror}", remedy)
    return _damaged(f"'{file}', {getattr(error, 'strerror', None) or reason_of(error)}")


def _damaged(evidence: str) -> DataError:
    return DataError("The store is damaged", evidence, _AGAIN)
