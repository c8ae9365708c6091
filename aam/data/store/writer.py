"""Writer of stores: converts the files of a study, block by block.

The table is read twice: once to validate it and to find the ASVs with reads, once to write it, with
ASVs ordered by id and without those that are not in the tree. Memory holds one block, and the ids,
sequences and tree. A study loaded from the store equals, bit for bit, the one that `load_study`
loads from the same files.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aam.console import info
from aam.contract.files import sha256
from aam.contract.options.commands.studies import Prepare
from aam.contract.options.field import numbered
from aam.data.io.table_blocks import TableBlocks
from aam.data.io.table_formats import BLOCK_BYTES
from aam.data.metadata import Metadata
from aam.data.sequences import encode
from aam.data.store.files import ArrayDescription, ArrayFile, write_array, write_header
from aam.data.store.joined_tables import joined_metadata, open_tables
from aam.data.store.mapped import pack
from aam.data.table import check_reads, leave_out_samples
from aam.data.unifrac.phylogeny import read_phylogeny
from aam.memory import memory_budget


@dataclass(frozen=True)
class StoreSizes:
    """Numbers of samples, ASVs and entries of a store."""

    samples: int
    asvs: int
    entries: int


def prepare(options: Prepare, folder: Path, block_bytes: int = BLOCK_BYTES) -> StoreSizes:
    """Write the files of a store into an empty folder, `store.json` last.

    Args:
        options: the input files, and which samples and ASVs to leave out; the output is not used.
        folder: the empty folder.
        block_bytes: largest size of a block of the table in memory.

    Raises:
        MissingInput, DataError: the errors of `load_study` for the same files.
    """
    budget = memory_budget(options.max_memory_gb)
    scratch = folder / "scratch"
    scratch.mkdir()
    joined = open_tables(options, scratch, block_bytes, budget)
    table = joined.table
    richness_N = np.zeros(len(table.sample_ids), dtype=np.int64)
    prevalence_F = np.zeros(len(table.feature_ids), dtype=np.int64)
    first = 0
    for counts in table.blocks():
        richness_N[first : first + counts.shape[0]] = np.diff(counts.indptr)
        prevalence_F += np.bincount(counts.indices, minlength=len(prevalence_F))
        first += counts.shape[0]
    _, held = check_reads(
        richness_N,
        prevalence_F,
        table.sample_ids,
        f"'{joined.name}'",
        options.drop_empty_samples,
    )
    # ASVs are ordered by id; those without reads in any sample are left out.
    columns = np.array(sorted(held.tolist(), key=table.feature_ids.__getitem__), dtype=np.int64)
    arrays: dict[str, ArrayDescription] = {}
    if options.tree is not None:
        phylogeny, placed = read_phylogeny(
            options.tree,
            [table.feature_ids[column] for column in columns.tolist()],
            options.drop_missing_asvs,
            options.root_at_midpoint,
            budget,
        )
        columns = columns[placed]
        arrays["lengths"] = write_array(folder, "lengths", phylogeny.lengths_G)
        arrays["ancestors"] = write_array(folder, "ancestors", phylogeny.indices)
        arrays["ancestors_ends"] = write_array(folder, "ancestors_ends", phylogeny.indptr)
        del phylogeny
    ids = tuple(table.feature_ids[column] for column in columns.tolist())
    tokens_FL = encode(joined.sequences(ids, options, budget), None, budget)
    arrays["tokens"] = write_array(folder, "tokens", tokens_FL)
    # Ranks and not columns, since ASVs are left out: `Store.as_read` sorts by them.
    ranks = np.argsort(np.argsort(columns)).astype(np.int64)
    arrays["asv_columns"] = write_array(folder, "asv_columns", ranks)
    arrays |= _write_strings(folder, "asvs", pack(ids))
    # Known before the counts are written: the shape stands at the beginning of a .npy.
    entries = int(prevalence_F[columns].sum())
    counts_arrays, kept_N = _write_counts(folder, table, columns, entries)
    arrays |= counts_arrays
    emptied = np.flatnonzero((richness_N > 0) & ~kept_N).tolist()
    what = "Samples without an ASV of the tree"
    named = [table.sample_ids[row] for row in emptied]
    leave_out_samples(what, named, options.drop_empty_samples)
    samples = [table.sample_ids[row] for row in np.flatnonzero(kept_N).tolist()]
    arrays |= _write_strings(folder, "samples", pack(samples))
    metadata_columns = None
    if options.metadata:
        metadata = joined_metadata(options)
        metadata_columns = list(metadata.columns)
        arrays |= _write_metadata(folder, metadata, samples)
    shutil.rmtree(scratch)
    write_header(folder, arrays, metadata_columns, _made_from(options))
    return StoreSizes(len(samples), len(columns), entries)


def _write_counts(
    folder: Path, table: TableBlocks, columns: NDArray[np.int64], entries: int
) -> tuple[dict[str, ArrayDescription], NDArray[np.bool_]]:
    """Write the counts of the features `columns`; return which samples [N] have any."""
    richness: list[NDArray[np.int64]] = []
    reads: list[NDArray[np.int64]] = []
    with (
        ArrayFile(folder, "counts", "<i4", (entries,)) as values,
        ArrayFile(folder, "counts_asvs", "<i4", (entries,)) as asvs,
    ):
        # Unlike a loop over the blocks, map drops each block once its columns are selected.
        for counts in map(itemgetter((slice(None), columns)), table.blocks()):
            counts.sort_indices()
            values.append(counts.data)
            asvs.append(counts.indices)
            richness.append(np.diff(counts.indptr).astype(np.int64))
            reads.append(np.asarray(counts.sum(axis=1, dtype=np.int64)).ravel())
        arrays = {"counts": values.close(), "counts_asvs": asvs.close()}
    richness_N = np.concatenate(richness)
    kept_N = richness_N > 0
    ends = np.concatenate([[0], np.cumsum(richness_N[kept_N])])
    arrays["counts_ends"] = write_array(folder, "counts_ends", ends)
    arrays["reads"] = write_array(folder, "reads", np.concatenate(reads)[kept_N])
    return arrays, kept_N


def _write_strings(
    folder: Path, name: str, packed: tuple[NDArray[np.uint8], NDArray[np.int64]]
) -> dict[str, ArrayDescription]:
    letters, ends = packed
    return {
        name: write_array(folder, name, letters),
        f"{name}_ends": write_array(folder, f"{name}_ends", ends),
    }


def _write_metadata(
    folder: Path, metadata: Metadata, samples: Sequence[str]
) -> dict[str, ArrayDescription]:
    """Write the metadata of the store's samples, in their order."""
    row_of = {name: row for row, name in enumerate(metadata.ids)}
    rows = [row for row, name in enumerate(samples) if name in row_of]
    if not rows:
        raise metadata.no_common_sample(samples)
    if len(rows) < len(samples):
        info(f"Samples without metadata: {len(samples) - len(rows)} of {len(samples)}.")
    order = [row_of[samples[row]] for row in rows]
    letters, ends = pack(cells[row] for cells in metadata.columns.values() for row in order)
    return {
        "metadata_rows": write_array(folder, "metadata_rows", np.array(rows, dtype=np.int64)),
        "metadata_cells": write_array(folder, "metadata_cells", letters),
        "metadata_ends": write_array(folder, "metadata_ends", ends),
    }


def _made_from(options: Prepare) -> dict[str, dict[str, Any]]:
    tree = () if options.tree is None else (options.tree,)
    files = {
        "--table": options.table,
        "--sequences": options.sequences,
        "--tree": tree,
        "--metadata": options.metadata,
    }
    return {
        name: {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)}
        for flag, paths in files.items()
        for name, path in numbered(flag, paths).items()
    }
