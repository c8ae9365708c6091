"""Writer of stores (`aam prepare`): one table or several joined, block by block.

The table is read twice: once to validate it and to find the ASVs with reads, once to write it, with
ASVs ordered by id and without those that are not in the tree. Memory holds one block, and the ids,
sequences and tree. A study loaded from the store equals, bit for bit, the one that `load_study`
loads from the same files.

Several tables are joined: samples one after another, ASVs by their sequence. An ASV has the id of
the first table that holds it; trimmed ASVs have their sequence as id. Sample ids that stand in two
tables are refused unless each table has a prefix, as in Qiita, where sample 000003639 of study
10317 is 10317.000003639.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from aam import __version__
from aam.console import info, warn
from aam.contract.errors import DataError, UsageError, first_few, repeated
from aam.contract.files import sha256, write_json
from aam.contract.options import numbered
from aam.contract.options.commands.studies import Prepare
from aam.contract.options.study import listed
from aam.data.formats.npy import write_npy
from aam.data.formats.tables import BLOCK_BYTES, MAX_READS, TableBlocks, open_counts
from aam.data.metadata import Metadata, read_metadata
from aam.data.phylogeny import read_phylogeny
from aam.data.sequences import as_dna, encode, is_sequence, sequences_of
from aam.data.store import FORMAT, HEADER, StoredArray, StoreHeader
from aam.data.table import check_reads, leave_out_samples
from aam.memory import memory_budget

PREFIX_LENGTH = 8
"""First nucleotides by which ASVs of one region are recognized."""

SAME_REGION = 0.1
"""Smallest share of ASVs that begin like an ASV of the other table, in tables of one region.

Of three studies of 16S V4, 92 to 99 % begin like an ASV of another study, of V1-V2 none.
"""


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
    table, sequence_of = _open_tables(options, block_bytes, budget)
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
        phylogeny, placed = read_phylogeny(options.tree, ids, drop, midpoint, budget)
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

    metadata = None
    if options.metadata:
        read = [read_metadata(path) for path in options.metadata]
        metadata = read[0]
        if not len(read) == 1 < len(options.table):
            # One for each table, with its prefix; a cell is empty where the file of a sample lacks
            # a column.
            columns_of = {
                name: [cell for one in read for cell in one.columns.get(name, [""] * len(one.ids))]
                for name in dict.fromkeys(name for one in read for name in one.columns)
            }
            metadata = Metadata(_sample_ids(options, [one.ids for one in read]), columns_of)
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


def _open_tables(
    options: Prepare, block_bytes: int, budget: int
) -> tuple[TableBlocks, Mapping[str, str] | None]:
    """Open the tables, and join them if there are several or ASVs are trimmed."""
    paths, files = options.table, options.sequences
    for flag, given in (("--sequences", files), ("--metadata", options.metadata)):
        if len(given) not in (0, 1, len(paths)):
            raise UsageError(
                f"Too many or too few {flag}",
                f"{len(given)} times {flag} for {len(paths)} tables",
                "give it once for all tables, or once for each in their order",
            )
    prefixes = listed(options.sample_prefixes)
    if prefixes and (len(set(prefixes)) != len(paths) or len(prefixes) != len(paths)):
        evidence = f"--sample-prefixes {' '.join(prefixes)} for {len(paths)} tables"
        raise UsageError("Not one prefix for each table", evidence, "give as many different ones")
    if wrong := [prefix for prefix in prefixes if prefix.split() != [prefix]]:
        raise UsageError("A prefix with spaces", f"'{wrong[0]}'", "give letters and digits")
    tables = [open_counts(path, block_bytes, budget) for path in paths]
    samples = _sample_ids(options, [table.sample_ids for table in tables])
    if len(paths) == 1 and options.trim_length is None:
        return TableBlocks(samples, tables[0].feature_ids, tables[0].blocks), None

    sequences = []
    for number, table in enumerate(tables):
        ids = table.feature_ids
        known = len(files) == len(tables) or not all(map(is_sequence, ids))
        path = files[number % len(files)] if files and known else None
        sequences.append([as_dna(dna) for dna in sequences_of(ids, path, budget)])
    cut = _trim_length(options, sequences)
    kept = [[dna[:cut] for dna in each] for each in sequences]
    names = kept if cut is not None else [table.feature_ids for table in tables]
    id_of: dict[str, str] = {}
    for dnas, ids in zip(kept, names, strict=True):
        for dna, name in zip(dnas, ids, strict=True):
            id_of.setdefault(dna, name)
    if twice := repeated(id_of.values()):
        remedy = "name ASVs by their sequence or its MD5, or add --trim-length"
        raise DataError("Feature ids with different sequences", first_few(twice), remedy)
    info(f"{sum(map(len, kept))} ASVs of {len(paths)} tables are {len(id_of)} different sequences.")
    _warn_of_regions(paths, sequences)
    column_of = {dna: column for column, dna in enumerate(id_of)}
    columns = [np.array([column_of[dna] for dna in each], dtype=np.int64) for each in kept]

    def blocks() -> Iterator[csr_array]:
        for table, columns_F in zip(tables, columns, strict=True):
            for counts in table.blocks():
                # In int64, since the sum of joined ASVs could exceed int32 and wrap around unseen.
                parts = (counts.data.astype(np.int64), columns_F[counts.indices], counts.indptr)
                joined = csr_array(parts, shape=(counts.shape[0], len(column_of)))
                joined.sum_duplicates()
                if joined.data.max(initial=0) > MAX_READS:
                    cause = f"Counts beyond {MAX_READS} after trimming"
                    evidence = f"{counts.shape[0]} samples"
                    raise DataError(cause, evidence, "check how the tables were made")
                yield joined.astype(np.int32)

    sequence_of = {name: dna for dna, name in id_of.items()}
    return TableBlocks(samples, tuple(id_of.values()), blocks), sequence_of


def _sample_ids(options: Prepare, ids: Sequence[Sequence[str]]) -> Sequence[str]:
    """Return the sample ids of all files, with their prefixes."""
    if options.sample_prefixes:
        pairs = zip(listed(options.sample_prefixes), ids, strict=True)
        ids = [[f"{prefix}.{name}" for name in each] for prefix, each in pairs]
    if len(ids) == 1:
        return ids[0]
    found = tuple(name for each in ids for name in each)
    if twice := repeated(found):
        remedy = "give each table a prefix with --sample-prefixes if these are different samples"
        raise DataError("Sample ids stand in two files", first_few(twice), remedy)
    return found


def _trim_length(options: Prepare, sequences: Sequence[Sequence[str]]) -> int | None:
    """Return the nucleotides to keep, None for all; warn of ASVs that are never joined."""
    lengths = [np.array([len(dna) for dna in each], dtype=np.int64) for each in sequences]
    cut = options.trim_length
    if cut == "shortest":
        shortest = min((int(each.min()) for each in lengths if each.size), default=None)
        warn(f"All ASVs are trimmed to the shortest, {shortest} nucleotides.")
        return shortest
    if cut is None:
        usual = [int(np.median(each)) if each.size else 0 for each in lengths]
        if len(set(usual)) > 1:
            pairs = zip(usual, options.table, strict=True)
            named = ", ".join(f"{bp} in '{path}'" for bp, path in pairs)
            warn(
                f"The tables have ASVs of different lengths (median nucleotides: {named}), which "
                f"are never joined. --trim-length {min(usual)} cuts them to one length."
            )
        return None
    every = np.concatenate(lengths)
    if short := int((every < cut).sum()):
        warn(f"{short} of {every.size} ASVs are shorter than --trim-length and stay so.")
    return cut


def _warn_of_regions(paths: Sequence[Path], sequences: Sequence[Sequence[str]]) -> None:
    """Warn of tables whose ASVs begin differently, so that no ASV of one is in the other."""
    starts = [Counter(dna[:PREFIX_LENGTH] for dna in each) for each in sequences]
    for (path, one), (other_path, other) in combinations(zip(paths, starts, strict=True), 2):
        common = one.keys() & other.keys()
        share = max(
            sum(each[start] for start in common) / max(1, each.total()) for each in (one, other)
        )
        if share < SAME_REGION:
            warn(
                f"ASVs of '{path}' and '{other_path}' begin differently ({share:.0%} share "
                f"the first {PREFIX_LENGTH} nucleotides with an ASV of the other table): the "
                "tables are of different regions, primers or strands, so that no ASV of one is in "
                "the other. Trim primers and orient the reads alike, or keep them apart."
            )
