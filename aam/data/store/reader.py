"""Reader of stores: memory-maps the arrays that `aam prepare` writes.

Opening costs the same for ten samples and ten million, and processes that open one store share its
pages (see `aam.data.store.files` for what lies where).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aam.contract.errors import DataError
from aam.data.store.files import COUNTS, METADATA, TREE, Header, map_array, read_header
from aam.data.store.integrity import check_files
from aam.data.store.mapped_counts import MappedCounts
from aam.data.store.packed import PackedStrings
from aam.data.table import FeatureTable
from aam.data.unifrac.phylogeny import Phylogeny


@dataclass(frozen=True)
class Store:
    """An open store.

    Attributes:
        table: counts [N, F], ASVs ordered by id.
        columns_F: int64 [F], where the table that was prepared had each ASV.
        tokens_FL: uint8, whole sequences.
        phylogeny: None if the store was made without a tree.
    """

    table: FeatureTable
    columns_F: NDArray[np.int64]
    tokens_FL: NDArray[np.uint8]
    phylogeny: Phylogeny | None

    def in_memory(self) -> FeatureTable:
        """Return the table with scipy's matrix, for those who need all of it at once."""
        table = self.table
        return FeatureTable(tuple(table.sample_ids), tuple(table.feature_ids), table.counts.whole())

    def as_read(self) -> FeatureTable:
        """Return the table in memory, with its ASVs in the order of the file it was read from."""
        return self.in_memory().take_features(np.argsort(self.columns_F))


def open_store(path: Path) -> Store:
    """Open the store at `path`.

    Raises:
        MissingInput: it may not be read.
        DataError: it is not whole, damaged, or of another version.
    """
    header = read_header(path)
    _require(path, header, COUNTS)
    check_files(path, header)
    arrays = {name: map_array(path, name, header.facts[name]) for name in COUNTS}
    counts = MappedCounts(
        arrays["counts"],
        arrays["counts_asvs"],
        arrays["counts_ends"],
        arrays["reads"],
        len(arrays["tokens"]),
    )
    table = FeatureTable(
        PackedStrings(arrays["samples"], arrays["samples_ends"]),
        PackedStrings(arrays["asvs"], arrays["asvs_ends"]),
        counts,
    )
    phylogeny = None
    if header.has_tree:
        _require(path, header, TREE)
        lengths, ancestors, ends = (map_array(path, name, header.facts[name]) for name in TREE)
        phylogeny = Phylogeny(lengths, ends, ancestors)
    return Store(table, arrays["asv_columns"], arrays["tokens"], phylogeny)


def has_tree(path: Path) -> bool:
    """Return whether the store at `path` contains a tree.

    Raises:
        MissingInput, DataError: as `open_store`, as far as its header tells.
    """
    return read_header(path).has_tree


def stored_metadata(path: Path) -> tuple[PackedStrings, dict[str, PackedStrings]]:
    """Return the ids of the samples with metadata, and their cells by column.

    Raises:
        MissingInput: it may not be read.
        DataError: it is not whole, damaged, of another version, or was made without metadata.
    """
    header = read_header(path)
    if header.columns is None:
        raise DataError(
            "The store holds no metadata",
            f"'{path}'",
            "give the TSV itself, or make the store again with --metadata",
        )
    _require(path, header, (*COUNTS, *METADATA))
    check_files(path, header)
    names = ("samples", "samples_ends", *METADATA)
    ids, ids_ends, rows, cells, ends = (map_array(path, n, header.facts[n]) for n in names)
    columns = {
        name: PackedStrings(cells, ends[k * len(rows) : (k + 1) * len(rows) + 1])
        for k, name in enumerate(header.columns)
    }
    return PackedStrings(ids, ids_ends, rows), columns


def _require(path: Path, header: Header, names: tuple[str, ...]) -> None:
    if lacking := [name for name in names if name not in header.facts]:
        evidence = f"'{path}' lacks {', '.join(lacking)}"
        raise DataError("The store is damaged", evidence, "make it again with `aam prepare`")
