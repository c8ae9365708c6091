"""Writer of stores (`aam prepare`): one table or several joined tables, written block by block.

The table is read twice: first to validate it and to find the ASVs with reads, then to write it,
with ASVs ordered by id and without ASVs that are missing from the tree. Memory holds one block, the
ids, the sequences and the tree. A study loaded from the store equals, bit for bit, the study that
`load_study` loads from the same files. Several tables are joined first (`aam.data.joined_tables`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aam.console import info, warn
from aam.contract.errors import DataError
from aam.contract.files import sha256
from aam.contract.options import numbered
from aam.contract.options.commands.studies import Prepare
from aam.data.formats.tables import BLOCK_BYTES, TableBlocks
from aam.data.joined_metadata import join_metadata
from aam.data.joined_tables import join_tables, study_names
from aam.data.metadata import Metadata
from aam.data.phylogeny import read_phylogeny
from aam.data.sequences import encode, sequences_of
from aam.data.store import Store, StoredArray, write_npy
from aam.data.table import check_reads, leave_out_samples
from aam.data.taxonomy import named_ranks, read_taxonomy, require_common, taxon_cells
from aam.memory import memory_budget


def prepare(options: Prepare, folder: Path, block_bytes: int = BLOCK_BYTES) -> tuple[int, int, int]:
    """Write the files of a store into an empty folder, `store.json` last."""
    budget = memory_budget(options.max_memory_gb)
    joined = join_tables(options, block_bytes, budget)
    # Metadata and taxonomy are checked first: writing the counts takes long.
    metadata = join_metadata(options, joined.id_of_sample)
    taxonomies = [read_taxonomy(path) for path in options.taxonomy]
    taxa = join_taxonomies(taxonomies, joined.id_of_asv) if taxonomies else None
    table, sequence_of = joined.table, joined.sequence_of
    richness_N, prevalence_F = _occurrences(table)
    source = ", ".join(f"'{path}'" for path in options.table)
    drop_empty = options.drop_empty_samples
    _, with_reads = check_reads(richness_N, prevalence_F, table.sample_ids, source, drop_empty)
    # ASVs with reads, ordered by id.
    columns = np.array(
        sorted(with_reads.tolist(), key=table.feature_ids.__getitem__), dtype=np.int64
    )
    arrays = _Arrays(folder, {})
    if options.tree is not None:
        ids = [table.feature_ids[column] for column in columns.tolist()]
        drop, midpoint = options.drop_missing_asvs, options.root_at_midpoint
        phylogeny, placed = read_phylogeny(options.tree, ids, drop, midpoint, budget, joined.tips)
        columns = columns[placed]
        arrays.save("lengths", phylogeny.lengths_G)
        arrays.save("ancestors", phylogeny.indices)
        arrays.save("ancestors_ends", phylogeny.indptr)
        del phylogeny
    names = tuple(table.feature_ids[column] for column in columns.tolist())
    if sequence_of is None:
        sequences = sequences_of(names, next(iter(options.sequences), None), budget)
    else:
        sequences = tuple(sequence_of[name] for name in names)
    arrays.save("tokens", encode(sequences, None, budget))
    arrays.save_strings("asvs", names)
    if taxa is not None:
        arrays.save_strings("taxa", taxon_cells(taxa, names))

    entries = int(prevalence_F[columns].sum())
    kept_richness_N, reads_N = arrays.save_counts(table, columns, entries)
    kept_N = kept_richness_N > 0
    emptied = [table.sample_ids[row] for row in np.flatnonzero((richness_N > 0) & ~kept_N).tolist()]
    leave_out_samples("Samples without an ASV of the tree", emptied, drop_empty)
    arrays.save("counts_ends", np.concatenate([[0], np.cumsum(kept_richness_N[kept_N])]))
    arrays.save("reads", reads_N[kept_N])
    samples = [table.sample_ids[row] for row in np.flatnonzero(kept_N).tolist()]
    for study, new_ids in zip(study_names(options), joined.id_of_sample, strict=False):
        if set(samples).isdisjoint(new_ids.values()):
            evidence = f"none of its {len(new_ids)} has reads of the ASVs that are kept"
            raise DataError(f"Study '{study}' has no sample", evidence, "leave out its table")
    arrays.save_strings("samples", samples)
    if metadata is not None:
        arrays.save_metadata(metadata, samples)
    Store(folder).write_header(
        metadata=None if metadata is None else list(metadata.columns),
        made_from=_sources(options),
        arrays=arrays.saved,
        categorical=[] if metadata is None else sorted(metadata.categorical),
    )
    return len(samples), len(columns), entries


def _occurrences(table: TableBlocks) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ASVs of each sample [N] and the samples of each ASV [F]."""
    richness_N = np.zeros(len(table.sample_ids), dtype=np.int64)
    prevalence_F = np.zeros(len(table.feature_ids), dtype=np.int64)
    first = 0
    for counts in table.blocks():
        richness_N[first : first + counts.shape[0]] = np.diff(counts.indptr)
        prevalence_F += np.bincount(counts.indices, minlength=len(prevalence_F))
        first += counts.shape[0]
    return richness_N, prevalence_F


@dataclass(frozen=True)
class _Arrays:
    """Arrays written to a store in `folder`; `saved` has shape and checksum by name."""

    folder: Path
    saved: dict[str, StoredArray]

    def save(self, name: str, values: NDArray[Any]) -> None:
        """Write an array as a file."""
        write_npy(self.folder / f"{name}.npy", values)
        self._add(name, values.shape)

    def save_strings(self, name: str, strings: Iterable[str]) -> None:
        """Write strings as two arrays."""
        letters, ends = pack(strings)
        self.save(name, letters)
        self.save(f"{name}_ends", ends)

    def save_counts(
        self, table: TableBlocks, columns: NDArray[np.int64], entries: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Write the counts of the ASVs at `columns`; return ASVs and reads of each sample [N].

        The first reading has counted the `entries`, so the header is written first and the blocks
        follow. (Writing through a memory map, a full disk would kill the process.)
        """
        description = {"descr": "<i4", "fortran_order": False, "shape": (entries,)}
        richness, reads = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        paths = [self.folder / f"{name}.npy" for name in ("counts", "counts_asvs")]
        with paths[0].open("wb") as values, paths[1].open("wb") as asvs:
            for stream in (values, asvs):
                np.lib.format.write_array_header_1_0(stream, description)
            # Unlike a loop, map drops each block as soon as its columns are selected.
            for counts in map(itemgetter((slice(None), columns)), table.blocks()):
                counts.sort_indices()
                values.write(counts.data.astype("<i4", copy=False).data)
                asvs.write(counts.indices.astype("<i4", copy=False).data)
                richness.append(np.diff(counts.indptr).astype(np.int64))
                reads.append(np.asarray(counts.sum(axis=1, dtype=np.int64)).ravel())
        for path in paths:
            self._add(path.stem, (entries,))
        return np.concatenate(richness), np.concatenate(reads)

    def save_metadata(self, metadata: Metadata, samples: Sequence[str]) -> None:
        """Write the metadata of the samples that have a row."""
        row_of = {name: row for row, name in enumerate(metadata.ids)}
        rows = [row for row, name in enumerate(samples) if name in row_of]
        if not rows:
            raise metadata.no_common_sample(samples)
        if len(rows) < len(samples):
            info(f"Samples without metadata: {len(samples) - len(rows)} of {len(samples)}.")
        order = [row_of[samples[row]] for row in rows]
        letters, ends = pack(cells[row] for cells in metadata.columns.values() for row in order)
        self.save("metadata_rows", np.array(rows))
        self.save("metadata_cells", letters)
        self.save("metadata_ends", ends)

    def _add(self, name: str, shape: tuple[int, ...]) -> None:
        self.saved[name] = StoredArray(shape, sha256(self.folder / f"{name}.npy"))


def _sources(options: Prepare) -> dict[str, dict[str, Any]]:
    files_of_flag = {
        "--table": options.table,
        "--sequences": options.sequences,
        "--tree": () if options.tree is None else (options.tree,),
        "--metadata": options.metadata,
        "--taxonomy": options.taxonomy,
    }
    return {
        name: {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)}
        for flag, paths in files_of_flag.items()
        for name, path in numbered(flag, paths).items()
    }


def pack(strings: Iterable[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return letters and ends of strings, as `PackedStrings` takes them."""
    letters, ends = bytearray(), array("q", [0])
    for string in strings:
        letters += string.encode()
        ends.append(len(letters))
    return np.frombuffer(letters, dtype=np.uint8), np.frombuffer(ends, dtype=np.int64)


def join_taxonomies(
    taxonomies: Sequence[Mapping[str, str]], id_of_asv: Sequence[Mapping[str, str]]
) -> dict[str, str]:
    """Join taxonomies: a joined ASV keeps the ranks that its ASVs have in common.

    >>> whole = {"ACGT": "d__B; g__A; s__a", "ACGA": "d__B; g__A; s__c"}
    >>> join_taxonomies([whole], [{"ACGT": "ACG", "ACGA": "ACG"}])
    {'ACG': 'd__B; g__A'}
    """
    ranks_of: dict[str, list[str]] = {}
    differing: dict[str, tuple[str, ...]] = {}  # ASV -> first ranks that differ
    for number, new_ids in enumerate(id_of_asv):
        taxa, earlier = taxonomies[number % len(taxonomies)], set(ranks_of)
        require_common(taxa, list(new_ids))
        for name, joined in new_ids.items():
            if name in taxa:
                ranks = [rank.strip() for rank in taxa[name].split(";")]
                pairs = list(zip(ranks_of.get(joined, ranks), ranks, strict=False))
                common = list(takewhile(lambda pair: pair[0] == pair[1], pairs))
                ranks_of[joined] = [rank for rank, _ in common]
                difference = next(iter(pairs[len(common) :]), ())
                both_named = len(named_ranks(";".join(difference))) == 2
                if both_named and joined in earlier and len(taxonomies) > 1:
                    differing.setdefault(joined, difference)
    if differing:
        warn(
            f"The taxonomies differ for {len(differing)} ASVs, and these keep their common ranks; "
            f"one is {' and '.join(next(iter(differing.values())))}: name all by one reference."
        )
    return {name: "; ".join(ranks) for name, ranks in ranks_of.items()}
