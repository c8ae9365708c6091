"""Reader of stores: memory-maps the arrays that `aam prepare` writes.

Opening costs the same for ten samples and ten million, and processes that open one store share its
pages (`aam.data.store.files` lists the files).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aam.contract.errors import DataError
from aam.data.store.files import COUNTS, METADATA, TREE, read_arrays, read_header
from aam.data.store.integrity import check_files
from aam.data.store.mapped import MappedCounts, PackedStrings
from aam.data.table import FeatureTable
from aam.data.unifrac.phylogeny import Phylogeny


@dataclass(frozen=True)
class Store:
    """An open store.

    Attributes:
        table: counts [N, F], ASVs ordered by id.
        columns_F: int64 [F], column of each ASV in the table that was prepared.
        tokens_FL: uint8, complete sequences.
        phylogeny: None if the store was made without a tree.
    """

    table: FeatureTable
    columns_F: NDArray[np.int64]
    tokens_FL: NDArray[np.uint8]
    phylogeny: Phylogeny | None

    def in_memory(self) -> FeatureTable:
        """Return the table with scipy's matrix."""
        ids = tuple(self.table.sample_ids), tuple(self.table.feature_ids)
        return FeatureTable(*ids, self.table.counts.complete())

    def as_read(self) -> FeatureTable:
        """Return the table in memory, with its ASVs in the order of the file it was read from."""
        return self.in_memory().take_features(np.argsort(self.columns_F))


def open_store(path: Path) -> Store:
    """Open the store at `path`.

    Raises:
        MissingInput: it cannot be read.
        DataError: it is not complete, damaged, or of another version.
    """
    header = read_header(path)
    check_files(path, header)
    arrays = dict(zip(COUNTS, read_arrays(path, header, COUNTS), strict=True))
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
        lengths, ancestors, ends = read_arrays(path, header, TREE)
        phylogeny = Phylogeny(lengths, ends, ancestors)
    return Store(table, arrays["asv_columns"], arrays["tokens"], phylogeny)


def stored_metadata(path: Path) -> tuple[PackedStrings, dict[str, PackedStrings]]:
    """Return the ids of the samples with metadata, and their cells by column."""
    header = read_header(path)
    if header.columns is None:
        raise DataError(
            "The store holds no metadata",
            f"'{path}'",
            "give the TSV itself, or make the store again with --metadata",
        )
    check_files(path, header)
    names = ("samples", "samples_ends", *METADATA)
    ids, ids_ends, rows, cells, ends = read_arrays(path, header, names)
    columns = {
        name: PackedStrings(cells, ends[k * len(rows) : (k + 1) * len(rows) + 1])
        for k, name in enumerate(header.columns)
    }
    return PackedStrings(ids, ids_ends, rows), columns
