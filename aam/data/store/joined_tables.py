"""Join of several feature tables: samples one after another, ASVs by their sequence.

An ASV has the id of the first table that holds it; trimmed ASVs have their sequence as id. Sample
ids that stand in two tables are refused unless each table has a prefix, as in Qiita, where sample
000003639 of study 10317 is 10317.000003639.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from aam.console import info, warn
from aam.contract.errors import DataError, UsageError, first_few
from aam.contract.options.commands.studies import Prepare
from aam.data.io.table_blocks import TableBlocks
from aam.data.io.table_formats import open_blocks
from aam.data.metadata import Metadata, read_metadata
from aam.data.sequences import as_dna, is_sequence, sequences_of

PREFIX_LENGTH = 8
"""First nucleotides by which ASVs of one region are recognized."""

SAME_REGION = 0.1
"""Smallest share of ASVs that begin like an ASV of the other table, in tables of one region.

Of three studies of 16S V4, 92 to 99 % begin like an ASV of another study, of V1-V2 none.
"""

_MAX_READS = int(np.iinfo(np.int32).max)


@dataclass(frozen=True)
class JoinedTables:
    """The tables of `aam prepare` as one.

    Attributes:
        table: samples and ASVs of all tables.
        sequence_of: the sequence of each ASV, by id; None for a single table, whose sequences are
            read when its ASVs are chosen.
        name: the files, for messages.
    """

    table: TableBlocks
    sequence_of: Mapping[str, str] | None
    name: str

    def sequences(self, ids: Sequence[str], options: Prepare, budget: int) -> tuple[str, ...]:
        """Return the sequences of the ASVs `ids`."""
        if self.sequence_of is None:
            return sequences_of(ids, next(iter(options.sequences), None), budget)
        return tuple(self.sequence_of[name] for name in ids)


def open_tables(options: Prepare, scratch: Path, block_bytes: int, budget: int) -> JoinedTables:
    """Open the tables of `aam prepare`, and join them if there are several or ASVs are trimmed."""
    paths = options.table
    tables = []
    for number, each in enumerate(paths):
        folder = scratch / str(number)
        folder.mkdir()
        tables.append(open_blocks(each, folder, block_bytes, budget))
    samples = _sample_ids(options, [table.sample_ids for table in tables])
    if len(paths) == 1 and options.trim_length is None:
        table = TableBlocks(samples, tables[0].feature_ids, tables[0].blocks)
        return JoinedTables(table, None, str(paths[0]))
    sequences = []
    for number, table in enumerate(tables):
        ids, files = table.feature_ids, options.sequences
        known = len(files) == len(tables) or not all(map(is_sequence, ids))
        path = files[number % len(files)] if files and known else None
        sequences.append([as_dna(dna) for dna in sequences_of(ids, path, budget)])
    _report_lengths(options, sequences)
    cut = _trim_length(options, sequences)
    kept = [[dna[:cut] for dna in each] for each in sequences]
    names = kept if cut is not None else [table.feature_ids for table in tables]
    id_of: dict[str, str] = {}
    for dnas, ids in zip(kept, names, strict=True):
        for dna, name in zip(dnas, ids, strict=True):
            id_of.setdefault(dna, name)
    if twice := [name for name, count in Counter(id_of.values()).items() if count > 1]:
        remedy = "name ASVs by their sequence or its MD5, or add --trim-length"
        raise DataError("Feature ids with different sequences", first_few(twice), remedy)
    _report_join(paths, sequences, kept, len(id_of))
    column_of = {dna: column for column, dna in enumerate(id_of)}
    columns = [np.array([column_of[dna] for dna in each], dtype=np.int64) for each in kept]

    def blocks() -> Iterator[csr_array]:
        for table, columns_F in zip(tables, columns, strict=True):
            for counts in table.blocks():
                yield _placed(counts, columns_F, len(column_of))

    joined = TableBlocks(samples, tuple(id_of.values()), blocks)
    return JoinedTables(
        joined, {name: dna for dna, name in id_of.items()}, "', '".join(map(str, paths))
    )


def joined_metadata(options: Prepare) -> Metadata:
    """Read the metadata files; one for each table has the prefixes of the tables.

    The columns are those of all files; a cell is empty where the file of a sample lacks a column.
    """
    files = [read_metadata(path) for path in options.metadata]
    if len(files) == 1 < len(options.table):
        return files[0]
    ids = _sample_ids(options, [file.ids for file in files])
    names = dict.fromkeys(name for file in files for name in file.columns)
    columns = {
        name: [cell for f in files for cell in f.columns.get(name, [""] * len(f.ids))]
        for name in names
    }
    return Metadata(ids, columns)


def check_numbers(options: Prepare) -> None:
    """Compare the numbers of files and prefixes with that of the tables.

    Raises:
        UsageError: they differ, or a prefix stands twice or is not usable.
    """
    tables, prefixes = len(options.table), options.sample_prefixes
    for flag, given in (("--sequences", options.sequences), ("--metadata", options.metadata)):
        if len(given) not in (0, 1, tables):
            evidence = f"{len(given)} times {flag} for {tables} tables"
            raise UsageError(f"Too many or too few {flag}", evidence, "give it once for all tables"
                             ", or once for each in their order")  # fmt: skip
    if prefixes and (len(set(prefixes)) != tables or len(prefixes) != tables):
        evidence = f"--sample-prefixes {' '.join(prefixes)} for {tables} tables"
        raise UsageError("Not one prefix for each table", evidence, "give as many different ones")
    if wrong := [prefix for prefix in prefixes if not prefix or prefix.split() != [prefix]]:
        raise UsageError("A prefix with spaces", f"'{wrong[0]}'", "give letters and digits")


def _sample_ids(options: Prepare, ids: Sequence[Sequence[str]]) -> Sequence[str]:
    """Return the sample ids of all files, with their prefixes."""
    if options.sample_prefixes:
        pairs = zip(options.sample_prefixes, ids, strict=True)
        ids = [[f"{prefix}.{name}" for name in each] for prefix, each in pairs]
    if len(ids) == 1:
        return ids[0]
    found = tuple(name for each in ids for name in each)
    if twice := [name for name, count in Counter(found).items() if count > 1]:
        remedy = "give each table a prefix with --sample-prefixes if these are different samples"
        raise DataError("Sample ids stand in two files", first_few(twice), remedy)
    return found


def _trim_length(options: Prepare, sequences: Sequence[Sequence[str]]) -> int | None:
    """Return the nucleotides to keep; None for all."""
    if options.trim_length != "shortest":
        return options.trim_length
    shortest = min((len(dna) for each in sequences for dna in each), default=None)
    warn(f"All ASVs are trimmed to the shortest, {shortest} nucleotides.")
    return shortest


def _report_lengths(options: Prepare, sequences: Sequence[Sequence[str]]) -> None:
    """Warn of tables whose ASVs differ in length, and of ASVs that are shorter than the trim."""
    usual = [int(np.median([len(dna) for dna in each] or [0])) for each in sequences]
    if options.trim_length is None and len(set(usual)) > 1:
        named = ", ".join(
            f"{bp} in '{path}'" for bp, path in zip(usual, options.table, strict=True)
        )
        warn(
            f"The tables have ASVs of different lengths (median nucleotides: {named}), which are "
            f"never joined. --trim-length {min(usual)} cuts them to one length."
        )
    if isinstance(options.trim_length, int):
        lengths = np.array([len(dna) for each in sequences for dna in each])
        if short := int((lengths < options.trim_length).sum()):
            warn(f"{short} of {lengths.size} ASVs are shorter than --trim-length and stay so.")


def _report_join(
    paths: Sequence[Path],
    sequences: Sequence[Sequence[str]],
    kept: Sequence[Sequence[str]],
    joined: int,
) -> None:
    """Print how many ASVs the tables have in common; warn of tables of different regions."""
    info(f"{sum(map(len, kept))} ASVs of {len(paths)} tables are {joined} different sequences.")
    starts = [Counter(dna[:PREFIX_LENGTH] for dna in each) for each in sequences]
    for (path, one), (other_path, other) in combinations(zip(paths, starts, strict=True), 2):
        share = max(_share(one, other), _share(other, one))
        if share < SAME_REGION:
            warn(
                f"ASVs of '{path}' and '{other_path}' begin differently ({share:.0%} share "
                f"the first {PREFIX_LENGTH} nucleotides with an ASV of the other table): the "
                "tables are of different regions, primers or strands, so that no ASV of one is in "
                "the other. Trim primers and orient the reads alike, or keep them apart."
            )


def _share(starts: Counter[str], others: Counter[str]) -> float:
    """Return the share of `starts` that are among `others`."""
    return sum(starts[start] for start in starts.keys() & others) / max(1, starts.total())


def _placed(counts: csr_array, columns_F: NDArray[np.int64], width: int) -> csr_array:
    """Return counts [n, F] of one table at its columns of the joined table, [n, width]."""
    shape = (counts.shape[0], width)
    # In int64, since the sum of joined ASVs could exceed int32 and wrap around unseen.
    data = counts.data.astype(np.int64)
    placed = csr_array((data, columns_F[counts.indices], counts.indptr), shape=shape)
    placed.sum_duplicates()
    if placed.data.max(initial=0) > _MAX_READS:
        remedy = "check how the tables were made"
        raise DataError(f"Counts beyond {_MAX_READS} after trimming", f"{shape[0]} samples", remedy)
    return placed.astype(np.int32)
