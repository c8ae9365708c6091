"""Writer of stores: converts the files of a study, block by block.

The table is read twice: once to validate it and to find the ASVs with reads, once to write it, with
ASVs ordered by id and without those that are not in the tree. Memory holds one
block, and the ids, sequences and tree. A study loaded from the store equals, bit for bit, the one
that `load_study` loads from the same files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from aam.console import say
from aam.contract.errors import DataError, first_few
from aam.contract.files import sha256
from aam.data.io.table_blocks import TableBlock, TableBlocks
from aam.data.io.table_formats import BLOCK_BYTES, open_blocks
from aam.data.metadata import Metadata, read_metadata
from aam.data.sequences import encode, sequences_of
from aam.data.store.files import ArrayDescription, ArrayFile, write_array, write_header
from aam.data.store.packed import pack
from aam.data.study import check_emptied
from aam.data.table import (
    check_counts,
    check_empty,
    check_orientation,
    check_reads,
    report_unused,
)
from aam.data.unifrac.phylogeny import read_phylogeny


@dataclass(frozen=True)
class StoreSources:
    """Input files of a store and the options of `aam prepare` for leaving out data."""

    table: Path
    sequences: Path | None = None
    tree: Path | None = None
    metadata: Path | None = None
    drop_empty_samples: bool = False
    drop_missing_asvs: bool = False
    root_at_midpoint: bool = False
    max_bytes: int | None = None


@dataclass(frozen=True)
class StoreSizes:
    """Numbers of samples, ASVs and entries of a store."""

    samples: int
    asvs: int
    entries: int


@dataclass(frozen=True)
class _TableScan:
    """Result of the first pass over a table.

    Attributes:
        filled_N: bool, samples with reads.
        holders_F: int64, samples that hold each feature.
    """

    filled_N: NDArray[np.bool_]
    holders_F: NDArray[np.int64]


def prepare(sources: StoreSources, folder: Path, block_bytes: int = BLOCK_BYTES) -> StoreSizes:
    """Write the files of a store into an empty folder, `store.json` last.

    Raises:
        MissingInput, DataError: see the readers; what `load_study` refuses is refused alike.
    """
    scratch = folder / "scratch"
    scratch.mkdir()
    blocks = open_blocks(sources.table, scratch, block_bytes, sources.max_bytes)
    check_orientation(blocks.sample_ids, blocks.feature_ids, sources.table)
    scan = _scan(blocks, sources)
    # ASVs are ordered by id; those without reads in any sample are left out.
    names = blocks.feature_ids
    held = np.flatnonzero(scan.holders_F).tolist()
    columns = np.array(sorted(held, key=names.__getitem__), dtype=np.int64)
    facts: dict[str, ArrayDescription] = {}
    if sources.tree is not None:
        ids = [names[column] for column in columns.tolist()]
        phylogeny, placed = read_phylogeny(
            sources.tree,
            ids,
            sources.drop_missing_asvs,
            sources.root_at_midpoint,
            sources.max_bytes,
        )
        columns = columns[placed]
        facts["lengths"] = write_array(folder, "lengths", phylogeny.lengths_K)
        facts["ancestors"] = write_array(folder, "ancestors", phylogeny.indices)
        facts["ancestors_ends"] = write_array(folder, "ancestors_ends", phylogeny.indptr)
        del phylogeny
    facts |= _write_asvs(folder, names, columns, sources)
    counts, kept = _write_counts(folder, blocks, scan, columns, sources)
    facts |= counts
    samples = [name for name, is_kept in zip(blocks.sample_ids, kept, strict=True) if is_kept]
    facts |= _write_strings(folder, "samples", samples)
    named = None
    if sources.metadata is not None:
        metadata = read_metadata(sources.metadata)
        named = list(metadata.columns)
        facts |= _write_metadata(folder, metadata, samples)
    for file in scratch.iterdir():
        file.unlink()
    scratch.rmdir()
    write_header(folder, facts, named, _made_from(sources))
    return StoreSizes(len(samples), len(columns), facts["counts"].shape[0])


def _scan(blocks: TableBlocks, sources: StoreSources) -> _TableScan:
    """Validate every value and find the samples and features with reads.

    Raises:
        DataError: what `read_table` refuses.
    """
    filled = np.zeros(len(blocks.sample_ids), dtype=np.bool_)
    holders = np.zeros(len(blocks.feature_ids), dtype=np.int64)
    for block in blocks.blocks():
        counts = _as_counts(block, blocks.sample_ids, sources.table)
        for low in range(0, len(counts), 1 << 20):
            part = slice(low, low + (1 << 20))
            found = block.indices[part][counts[part] > 0]
            holders += np.bincount(found, minlength=len(holders))
        reads = _sums(counts, block.indptr)
        filled[block.start : block.start + len(reads)] = reads > 0
    shape = len(filled), len(holders)
    check_reads(int(holders.sum()), shape, sources.table)
    if not filled.all():
        empty = (blocks.sample_ids[row] for row in np.flatnonzero(~filled).tolist())
        check_empty(empty, sources.table, sources.drop_empty_samples)
    if not holders.all():
        report_unused(holders > 0)
    return _TableScan(filled, holders)


def _as_counts(block: TableBlock, sample_ids: Sequence[str], table: Path) -> NDArray[np.int32]:
    with np.errstate(invalid="ignore"):
        counts = block.data.astype(np.int32)
    if counts.size and not (counts.min() >= 0 and np.array_equal(counts, block.data)):
        own = sample_ids[block.start : block.start + len(block.indptr) - 1]
        shape = len(own), int(block.indices.max()) + 1
        parts = (block.data, block.indices, block.indptr)
        check_counts(csr_array(parts, shape=shape), own, table)
    return counts


def _sums(counts: NDArray[np.int32], indptr: NDArray[np.int64]) -> NDArray[np.int64]:
    """Reads of each sample of a block."""
    sums = np.zeros(len(indptr) - 1, dtype=np.int64)
    filled = np.flatnonzero(np.diff(indptr))
    if filled.size:
        # The spans of samples with entries follow one another without a gap.
        sums[filled] = np.add.reduceat(counts, indptr[filled], dtype=np.int64)
    return sums


def _write_counts(
    folder: Path,
    blocks: TableBlocks,
    scan: _TableScan,
    columns: NDArray[np.int64],
    sources: StoreSources,
) -> tuple[dict[str, ArrayDescription], NDArray[np.bool_]]:
    """Write counts, their ASVs and ends, and reads; return which samples [N] were written."""
    place_of = np.full(len(blocks.feature_ids), -1, dtype=np.int32)
    place_of[columns] = np.arange(len(columns), dtype=np.int32)
    entries = int(scan.holders_F[columns].sum())
    richness = np.zeros(len(blocks.sample_ids), dtype=np.int64)
    reads = np.zeros(len(blocks.sample_ids), dtype=np.int64)
    with (
        ArrayFile(folder, "counts", "<i4", (entries,)) as values,
        ArrayFile(folder, "counts_asvs", "<i4", (entries,)) as asvs,
    ):
        for block in blocks.blocks():
            rows = slice(block.start, block.start + len(block.indptr) - 1)
            own = _placed(block, place_of, len(columns))
            del block
            richness[rows] = np.diff(own.indptr)
            reads[rows] = _sums(own.data, own.indptr)
            values.append(own.data)
            asvs.append(own.indices)
        facts = {"counts": values.close(), "counts_asvs": asvs.close()}
    emptied = np.flatnonzero(scan.filled_N & (richness == 0)).tolist()
    if emptied:
        check_emptied((blocks.sample_ids[row] for row in emptied), sources.drop_empty_samples)
    kept = richness > 0
    ends = np.concatenate([[0], np.cumsum(richness[kept])])
    facts["counts_ends"] = write_array(folder, "counts_ends", ends)
    facts["reads"] = write_array(folder, "reads", reads[kept])
    return facts, kept


def _placed(block: TableBlock, place_of: NDArray[np.int32], asvs: int) -> csr_array:
    """Return the counts [n, F] of a block: ASVs renumbered, those without a place left out."""
    counts = block.data.astype(np.int32)
    places = place_of[block.indices]
    absent = places < 0
    counts[absent] = 0
    places[absent] = 0
    parts = (counts, places, block.indptr.astype(np.int32))
    found = csr_array(parts, shape=(len(block.indptr) - 1, asvs))
    found.eliminate_zeros()
    found.sort_indices()
    return found


def _write_asvs(
    folder: Path, names: Sequence[str], columns: NDArray[np.int64], sources: StoreSources
) -> dict[str, ArrayDescription]:
    ids = tuple(names[column] for column in columns.tolist())
    sequences = sequences_of(ids, sources.sequences, sources.max_bytes)
    tokens_FL = encode(sequences, None, sources.max_bytes)
    kept_order = np.argsort(np.argsort(columns)).astype(np.int64)
    return {
        "tokens": write_array(folder, "tokens", tokens_FL),
        "asv_columns": write_array(folder, "asv_columns", kept_order),
        **_write_strings(folder, "asvs", ids),
    }


def _write_strings(folder: Path, name: str, strings: Sequence[str]) -> dict[str, ArrayDescription]:
    letters, ends = pack(strings)
    return {
        name: write_array(folder, name, letters),
        f"{name}_ends": write_array(folder, f"{name}_ends", ends),
    }


def _write_metadata(
    folder: Path, metadata: Metadata, samples: Sequence[str]
) -> dict[str, ArrayDescription]:
    """Write the metadata of the store's samples, in their order.

    Raises:
        DataError: table and metadata have no sample in common.
    """
    row_of = {name: row for row, name in enumerate(metadata.ids)}
    rows = [row for row, name in enumerate(samples) if name in row_of]
    if not rows:
        raise DataError(
            "The table and the metadata have no sample in common",
            f"the table has {first_few(samples)}, the metadata {first_few(metadata.ids)}",
            "make the ids alike (prefixes, '.' for '_', zeros lost in a spreadsheet)",
        )
    if len(rows) < len(samples):
        say(f"Samples without metadata: {len(samples) - len(rows)} of {len(samples)}.")
    order = [row_of[samples[row]] for row in rows]
    cells = (column[row] for column in metadata.columns.values() for row in order)
    letters, ends = pack(cells)
    return {
        "metadata_rows": write_array(folder, "metadata_rows", np.array(rows, dtype=np.int64)),
        "metadata_cells": write_array(folder, "metadata_cells", letters),
        "metadata_ends": write_array(folder, "metadata_ends", ends),
    }


def _made_from(sources: StoreSources) -> dict[str, dict[str, Any]]:
    paths = {
        "--table": sources.table,
        "--sequences": sources.sequences,
        "--tree": sources.tree,
        "--metadata": sources.metadata,
    }
    return {
        flag: {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)}
        for flag, path in paths.items()
        if path is not None
    }
