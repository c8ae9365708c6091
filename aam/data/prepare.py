"""Writer of stores (`aam prepare`): one table or several joined, block by block.

The table is read twice: once to validate it and to find the ASVs with reads, once to write it, with
ASVs ordered by id and without those that are not in the tree. Memory holds one block, and the ids,
sequences and tree. A study loaded from the store equals, bit for bit, the one that `load_study`
loads from the same files. Several
tables are joined first (`aam.data.joined_tables`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aam.console import info
from aam.contract.files import sha256, write_json
from aam.contract.options import numbered
from aam.contract.options.commands.studies import Prepare
from aam.contract.version import __version__
from aam.data.formats.npy import write_npy
from aam.data.formats.tables import BLOCK_BYTES
from aam.data.joined_metadata import join_metadata
from aam.data.joined_tables import join_tables
from aam.data.phylogeny import read_phylogeny
from aam.data.sequences import encode, sequences_of
from aam.data.store import FORMAT, HEADER, StoredArray, StoreHeader
from aam.data.table import check_reads, leave_out_samples
from aam.data.taxonomy import join_taxonomies, read_taxonomy, taxon_cells
from aam.memory import memory_budget


def prepare(options: Prepare, folder: Path, block_bytes: int = BLOCK_BYTES) -> tuple[int, int, int]:
    """Write the files of a store into an empty folder, `store.json` last.

    Args:
        options: the input files, and which samples and ASVs to leave out; the output is not used.
        folder: the empty folder.
        block_bytes: largest size of a block of the table in memory.

    Returns:
        Samples, ASVs and entries of the store.
    """
    budget = memory_budget(options.max_memory_gb)
    joined = join_tables(options, block_bytes, budget)
    # Before the counts are written, which takes long.
    metadata = join_metadata(options, joined.id_of_sample)
    taxonomies = [read_taxonomy(path) for path in options.taxonomy]
    taxa = join_taxonomies(taxonomies, joined.id_of_asv) if taxonomies else None
    table, sequence_of = joined.table, joined.sequence_of
    richness_N = np.zeros(len(table.sample_ids), dtype=np.int64)
    prevalence_F = np.zeros(len(table.feature_ids), dtype=np.int64)
    first = 0
    for counts in table.blocks():
        richness_N[first : first + counts.shape[0]] = np.diff(counts.indptr)
        prevalence_F += np.bincount(counts.indices, minlength=len(prevalence_F))
        first += counts.shape[0]
    source = ", ".join(f"'{path}'" for path in options.table)
    drop_empty = options.drop_empty_samples
    _, held = check_reads(richness_N, prevalence_F, table.sample_ids, source, drop_empty)
    # ASVs are ordered by id; those without reads in any sample are left out.
    columns = np.array(sorted(held.tolist(), key=table.feature_ids.__getitem__), dtype=np.int64)
    arrays: dict[str, StoredArray] = {}

    def save(**written: NDArray[Any]) -> None:
        for name, values in written.items():
            write_npy(folder / f"{name}.npy", values)
            arrays[name] = StoredArray(values.shape, sha256(folder / f"{name}.npy"))

    if options.tree is not None:
        ids = [table.feature_ids[column] for column in columns.tolist()]
        drop, midpoint = options.drop_missing_asvs, options.root_at_midpoint
        phylogeny, placed = read_phylogeny(options.tree, ids, drop, midpoint, budget, joined.tips)
        columns = columns[placed]
        save(
            lengths=phylogeny.lengths_G,
            ancestors=phylogeny.indices,
            ancestors_ends=phylogeny.indptr,
        )
        del phylogeny
    names = tuple(table.feature_ids[column] for column in columns.tolist())
    if sequence_of is None:
        sequences = sequences_of(names, next(iter(options.sequences), None), budget)
    else:
        sequences = tuple(sequence_of[name] for name in names)
    letters, ends = pack(names)
    save(tokens=encode(sequences, None, budget), asvs=letters, asvs_ends=ends)
    if taxa is not None:
        letters, ends = pack(taxon_cells(taxa, names))
        save(taxa=letters, taxa_ends=ends)

    # Counts are written block by block below a header with their number, which is known from the
    # first reading. (Through a mapping, a full disk would kill the process.)
    entries = int(prevalence_F[columns].sum())
    description = {"descr": "<i4", "fortran_order": False, "shape": (entries,)}
    richness, reads = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    files = {name: folder / f"{name}.npy" for name in ("counts", "counts_asvs")}
    with files["counts"].open("wb") as values, files["counts_asvs"].open("wb") as asvs:
        for stream in (values, asvs):
            np.lib.format.write_array_header_1_0(stream, description)
        # Unlike a loop over the blocks, map drops each block once its columns are selected.
        for counts in map(itemgetter((slice(None), columns)), table.blocks()):
            counts.sort_indices()
            values.write(counts.data.astype("<i4", copy=False).data)
            asvs.write(counts.indices.astype("<i4", copy=False).data)
            richness.append(np.diff(counts.indptr).astype(np.int64))
            reads.append(np.asarray(counts.sum(axis=1, dtype=np.int64)).ravel())
    arrays |= {name: StoredArray((entries,), sha256(file)) for name, file in files.items()}
    kept_N = np.concatenate(richness) > 0
    emptied = [table.sample_ids[row] for row in np.flatnonzero((richness_N > 0) & ~kept_N).tolist()]
    leave_out_samples("Samples without an ASV of the tree", emptied, drop_empty)
    counts_ends = np.concatenate([[0], np.cumsum(np.concatenate(richness)[kept_N])])
    save(counts_ends=counts_ends, reads=np.concatenate(reads)[kept_N])
    samples = [table.sample_ids[row] for row in np.flatnonzero(kept_N).tolist()]
    letters, ends = pack(samples)
    save(samples=letters, samples_ends=ends)

    if metadata is not None:
        row_of = {name: row for row, name in enumerate(metadata.ids)}
        rows = [row for row, name in enumerate(samples) if name in row_of]
        if not rows:
            raise metadata.no_common_sample(samples)
        if len(rows) < len(samples):
            info(f"Samples without metadata: {len(samples) - len(rows)} of {len(samples)}.")
        order = [row_of[samples[row]] for row in rows]
        letters, ends = pack(cells[row] for cells in metadata.columns.values() for row in order)
        save(metadata_rows=np.array(rows), metadata_cells=letters, metadata_ends=ends)
    given = {
        "--table": options.table,
        "--sequences": options.sequences,
        "--tree": () if options.tree is None else (options.tree,),
        "--metadata": options.metadata,
        "--taxonomy": options.taxonomy,
    }
    made_from = {
        name: {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)}
        for flag, paths in given.items()
        for name, path in numbered(flag, paths).items()
    }
    metadata_columns = None if metadata is None else list(metadata.columns)
    header = StoreHeader(FORMAT, __version__, metadata_columns, made_from, arrays)
    write_json(folder / HEADER, asdict(header))
    return len(samples), len(columns), entries


def pack(strings: Iterable[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return letters and ends of strings, as `PackedStrings` takes them."""
    letters, ends = bytearray(), array("q", [0])
    for string in strings:
        letters += string.encode()
        ends.append(len(letters))
    return np.frombuffer(letters, dtype=np.uint8), np.frombuffer(ends, dtype=np.int64)
