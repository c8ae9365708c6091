"""Writer of stores (`aam prepare`): one table or several joined tables, written block by block.

The table is read twice: first to validate it and to find the ASVs with reads, then to write it,
with ASVs ordered by id and without ASVs that are missing from the tree. Memory holds one block, the
ids, the sequences and the tree. A study loaded from the store equals, bit for bit, the study that
`load_study` loads from the same files.

Several tables are joined first, with ASVs matched by their sequence. An ASV keeps its id of the
first table that holds it; the id of a trimmed ASV is its sequence. If two tables share sample ids,
studies with names get a prefix, as in Qiita (sample 000003639 of study 10317 is 10317.000003639);
without names the tables are refused. Axes: K tables, N samples, F ASVs.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csr_array

from aam.console import info, warn
from aam.contract.errors import DataError, UsageError, first_few, repeated
from aam.contract.files import sha256
from aam.contract.options import numbered
from aam.contract.options.commands.studies import Prepare
from aam.contract.options.groups import listed
from aam.data.formats.tables import BLOCK_BYTES, MAX_READS, TableBlocks, open_counts
from aam.data.identity import Abundances, joined, named_pairs
from aam.data.joined_metadata import join_metadata
from aam.data.metadata import Metadata, is_missing
from aam.data.phylogeny import TrimmedTips, read_phylogeny
from aam.data.sequences import as_dna, encode, is_sequence, sequences_of
from aam.data.store import Store, StoredArray, write_npy
from aam.data.table import check_reads, leave_out_samples
from aam.data.taxonomy import named_ranks, read_taxonomy, require_common, taxon_cells
from aam.memory import memory_budget

PREFIX_LENGTH = 8  # first nucleotides that identify the region of an ASV

SAME_REGION = 0.1
"""Share of ASVs that begin like an ASV of the other table, from which both have one region.

In three studies of 16S V4, 92 to 99 % begin like an ASV of another study; in V1-V2 none does.
"""

SHORTER = 0.01
"""Share of a study's ASVs that may be shorter than the common length.

The shortest ASV is often an artefact: among 4,919 ASVs of a V4 study the minimum is 198
nucleotides, the first percentile 230, the median 231.
"""

_COMPLEMENT = str.maketrans("ACGT", "TGCA")

_COMPARED = 200
"""ASVs per table that are compared to find the offset between two tables."""


@dataclass(frozen=True)
class JoinedTables:
    """Several tables as one."""

    studies: Sequence[str]  # names of --studies; empty without the option
    table: TableBlocks  # the joined table
    sequence_of: Mapping[str, str] | None  # by ASV id; None for a single table that is not cut
    # for each table: sample id in its file -> sample id in the joined table
    id_of_sample: Sequence[Mapping[str, str]]
    id_of_asv: Sequence[Mapping[str, str]]  # the same for its ASVs
    tips: TrimmedTips | None  # names of the tree's tips if ASVs are cut


def join_tables(options: Prepare, block_bytes: int, budget: int) -> JoinedTables:
    """Open the tables of `aam prepare`; join several tables, and cut ASVs to a common length."""
    paths, files = options.table, options.sequences
    studies = _study_names(options)
    names = [f"study '{name}'" for name in studies] or [f"'{path}'" for path in paths]
    tables = [open_counts(path, block_bytes, budget) for path in paths]
    id_of_sample = _sample_ids(studies, [table.sample_ids for table in tables])
    samples = tuple(name for new_ids in id_of_sample for name in new_ids.values())
    # A single table that is not cut keeps its ids, and its sequences are not read.
    if len(paths) == 1 and options.trim_length in ("auto", 0):
        table = TableBlocks(samples, tables[0].feature_ids, tables[0].blocks)
        unchanged = {name: name for name in table.feature_ids}
        return JoinedTables(studies, table, None, id_of_sample, (unchanged,), None)

    dna_KF = []
    for number, table in enumerate(tables):
        ids = table.feature_ids
        # One file of sequences may serve all tables whose ids are hashes; the ids of other tables
        # are the sequences.
        needs_file = len(files) == len(tables) or not all(map(is_sequence, ids))
        path = files[number % len(files)] if files and needs_file else None
        dna_KF.append([as_dna(dna) for dna in sequences_of(ids, path, budget)])
    _compare_regions(names, dna_KF, refuse=bool(studies))
    cut = _length(options, names, dna_KF)
    kept_KF = [[dna[:cut] for dna in dnas] for dnas in dna_KF]
    id_of: dict[str, str] = {}
    for dnas, table in zip(kept_KF, tables, strict=True):
        for dna, name in zip(dnas, table.feature_ids, strict=True):
            # The id of a cut ASV is its sequence: its old id names the uncut sequence.
            id_of.setdefault(dna, name if cut is None else dna)
    if twice := repeated(id_of.values()):
        remedy = "name ASVs by their sequence or its MD5, or add --trim-length"
        raise DataError("Feature ids with different sequences", first_few(twice), remedy)
    asvs = sum(map(len, kept_KF))
    info(f"{asvs} ASVs of {len(paths)} tables are {len(id_of)} different sequences.")
    column_of = {dna: column for column, dna in enumerate(id_of)}
    columns_K = [np.array([column_of[dna] for dna in dnas], dtype=np.int64) for dnas in kept_KF]

    def blocks_of(number: int) -> Iterator[csr_array]:
        for counts in tables[number].blocks():
            # In int64, because the sum of joined ASVs could overflow int32 unnoticed.
            columns = columns_K[number][counts.indices]
            arrays = (counts.data.astype(np.int64), columns, counts.indptr)
            summed = csr_array(arrays, shape=(counts.shape[0], len(column_of)))
            summed.sum_duplicates()
            if summed.data.max(initial=0) > MAX_READS:
                cause = f"Counts beyond {MAX_READS} after trimming"
                evidence = f"{counts.shape[0]} samples"
                raise DataError(cause, evidence, "check how the tables were made")
            yield summed.astype(np.int32)

    # The tables are read twice, here and when they are written.
    blocks_K = [blocks_of(number) for number in range(len(tables))]
    kept_KN = None
    if studies:
        ids_K = [list(new_ids.values()) for new_ids in id_of_sample]
        kept_KN = _compare_reads(studies, ids_K, blocks_K, len(column_of))
        samples = tuple(np.array(samples, dtype=object)[np.concatenate(kept_KN)].tolist())

    def blocks() -> Iterator[csr_array]:
        for number in range(len(tables)):
            first = 0
            for counts in blocks_of(number):
                rows = slice(first, first := first + counts.shape[0])
                yield counts if kept_KN is None else counts[np.flatnonzero(kept_KN[number][rows])]

    id_of_asv = [
        {name: id_of[dna] for name, dna in zip(table.feature_ids, dnas, strict=True)}
        for table, dnas in zip(tables, kept_KF, strict=True)
    ]
    tips = None
    if cut is not None:
        items = (item for new_ids in id_of_asv for item in new_ids.items())
        tips = TrimmedTips(cut, {name: dna for name, dna in items if not is_sequence(name)})
    table = TableBlocks(samples, tuple(id_of.values()), blocks)
    sequence_of = {name: dna for dna, name in id_of.items()}
    return JoinedTables(studies, table, sequence_of, id_of_sample, id_of_asv, tips)


def _study_names(options: Prepare) -> tuple[str, ...]:
    """Check the names of --studies against the files; empty without the option."""
    tables = len(options.table)
    files_of_flag = {
        "--sequences": options.sequences,
        "--metadata": options.metadata,
        "--taxonomy": options.taxonomy,
    }
    for flag, files in files_of_flag.items():
        if len(files) not in (0, 1, tables):
            raise UsageError(
                f"Too many or too few {flag}",
                f"{len(files)} times {flag} for {tables} tables",
                "give it once for all tables, or once for each in their order",
            )
    names = listed(options.studies)
    if not names:
        return ()
    evidence = f"--studies {','.join(names)} for {tables} tables"
    if twice := repeated(name.casefold() for name in names):
        remedy = "give each study a name of its own; join the tables of one study first"
        raise UsageError("Two studies with one name", first_few(twice), remedy)
    if len(names) != tables:
        remedy = "give as many names as tables, in their order, separated by commas"
        raise UsageError("Not one name for each table", evidence, remedy)
    if tables == 1:
        remedy = "give --table once for each study, or leave --studies out"
        raise UsageError("One study alone cannot be joined", evidence, remedy)
    if wrong := [name for name in names if name.split() != [name] or is_missing(name)]:
        cause = "A study's name with spaces, or that counts as a missing value"
        raise UsageError(cause, f"'{wrong[0]}'", "give letters and digits")
    return names


def _sample_ids(
    studies: Sequence[str], ids_KN: Sequence[Sequence[str]]
) -> tuple[dict[str, str], ...]:
    """Map the sample ids of each table to the sample ids of the joined table."""
    twice = repeated(name for ids in ids_KN for name in ids) if len(ids_KN) > 1 else []
    if twice and not studies:
        remedy = "name the tables with --studies a,b if these are different samples"
        raise DataError("Sample ids stand in two files", first_few(twice), remedy)
    if not twice:
        return tuple({name: name for name in ids} for ids in ids_KN)
    common = set(twice)
    new_ids_K = tuple(
        {name: f"{study}.{name}" if name in common else name for name in ids}
        for study, ids in zip(studies, ids_KN, strict=True)
    )
    if still := repeated(name for new_ids in new_ids_K for name in new_ids.values()):
        remedy = "give --studies other names"
        raise DataError("Two studies still share sample ids", first_few(still), remedy)
    example = f"{twice[0]} is now {new_ids_K[0].get(twice[0]) or f'STUDY.{twice[0]}'}"
    info(f"Sample ids of two studies get the study's name: {first_few(twice)}; {example}.")
    return new_ids_K


def _length(options: Prepare, names: Sequence[str], dna_KF: Sequence[Sequence[str]]) -> int | None:
    """Choose the length to which ASVs are cut, None for no cut; warn of different lengths."""
    lengths_KF = [np.array([len(dna) for dna in dnas], dtype=np.int64) for dnas in dna_KF]
    cut = options.trim_length
    if cut == "auto":
        usual = [int(np.median(lengths)) if lengths.size else 0 for lengths in lengths_KF]
        if len(set(usual)) == 1:
            return None
        by_length = sorted(zip(usual, names, strict=True))
        medians = " to ".join(f"{bp} in {name}" for bp, name in (by_length[0], by_length[-1]))
        cut = int(min(np.quantile(ls, SHORTER, method="nearest") for ls in lengths_KF if ls.size))
        if not options.studies:
            warn(
                f"ASVs of different lengths are never joined (median nucleotides: {medians}). "
                f"--trim-length {cut} cuts them to one length."
            )
            return None
        info(
            f"ASVs are cut to {cut} nucleotides: {1 - SHORTER:.0%} of each study's are that long "
            f"(medians: {medians}); --trim-length sets another length."
        )
    if cut == 0:
        return None
    every = np.concatenate(lengths_KF)
    if short := int((every < cut).sum()):
        warn(f"{short} of {every.size} ASVs are shorter than {cut} nucleotides and stay so.")
    return cut


# --- comparison of tables


def _compare_regions(
    names: Sequence[str], dna_KF: Sequence[Sequence[str]], *, refuse: bool
) -> None:
    """Compare the first nucleotides of the tables' ASVs; refuse or warn of different regions."""
    starts_K = [Counter(dna[:PREFIX_LENGTH] for dna in dnas) for dnas in dna_KF]
    for (first, first_starts), (second, second_starts) in combinations(enumerate(starts_K), 2):
        common = first_starts.keys() & second_starts.keys()
        share = max(
            sum(counted[start] for start in common) / max(1, counted.total())
            for counted in (first_starts, second_starts)
        )
        if share >= SAME_REGION:
            for index, reference in ((first, second), (second, first)):
                starts, dnas = starts_K[reference], dna_KF[index]
                unlike = (dna for dna in dnas if dna[:PREFIX_LENGTH] not in starts)
                turned = sum(_reverse_complement(dna)[:PREFIX_LENGTH] in starts for dna in unlike)
                if turned >= SAME_REGION * len(dnas):
                    warn(
                        f"{turned} of {len(dnas)} ASVs of {names[index]} and the ASVs of "
                        f"{names[reference]} have opposite directions: reverse-complement one."
                    )
            continue
        pair = f"{names[first]} and {names[second]}"
        evidence = (
            f"{share:.0%} share the first {PREFIX_LENGTH} nucleotides with an ASV of the other"
        )
        remedy = _difference(names[first], dna_KF[first], names[second], dna_KF[second])
        if refuse:
            raise DataError(f"ASVs of {pair} begin differently", evidence, remedy)
        warn(f"ASVs of {pair} begin differently ({evidence}), so none is in both; {remedy}.")


def _reverse_complement(dna: str) -> str:
    return dna.translate(_COMPLEMENT)[::-1]


def _difference(first: str, dna_F: Sequence[str], second: str, other_F: Sequence[str]) -> str:
    """Return the remedy for two tables whose ASVs begin differently, by their likely difference."""

    def offset(starts: Sequence[str], within: Sequence[str]) -> int | None:
        """Return the most frequent position at which ASVs of one table begin in the other's."""
        counts: Counter[int] = Counter()
        for dna in starts:
            counts.update({longer.find(dna[: 2 * PREFIX_LENGTH]) for longer in within} - {-1})
        position, times = counts.most_common(1)[0] if counts else (0, 0)
        return position if times >= SAME_REGION * len(starts) else None

    ours, theirs = dna_F[:_COMPARED], other_F[:_COMPARED]
    for short, long, pair in ((second, first, (theirs, ours)), (first, second, (ours, theirs))):
        if (start := offset(*pair)) is not None:
            return (
                f"ASVs of {short} begin {start} nucleotides later: cut {start} nucleotides, such "
                f"as a primer, off the start of the ASVs of {long}"
            )
    reversed_F = [_reverse_complement(dna) for dna in theirs]
    if offset(ours, reversed_F) is not None or offset(reversed_F, ours) is not None:
        return f"ASVs of {second} have the opposite direction: give their reverse complement"
    return "regions or primers differ: cut the ASVs to a common region, or keep the tables apart"


def _compare_reads(
    studies: Sequence[str],
    ids_KN: Sequence[Sequence[str]],
    blocks_K: Sequence[Iterator[csr_array]],
    asvs: int,
) -> list[NDArray[np.bool_]]:
    """Find copied samples and shared ASVs of studies; return the samples to keep, bool [N]."""
    counts_K = [
        sparse.vstack([csr_array((0, asvs), dtype=np.int32), *blocks], format="csr")
        for blocks in blocks_K
    ]
    ids = [name for names in ids_KN for name in names]
    study_N = np.repeat(np.arange(len(studies)), [len(names) for names in ids_KN])
    # The columns are the sequences.
    abundances = Abundances.from_counts(sparse.vstack(counts_K, format="csr"), np.arange(asvs))
    sample_N = joined(len(ids), abundances.equal_pairs())
    first_S = np.full(sample_N.max(initial=-1) + 1, len(studies))
    np.minimum.at(first_S, sample_N, study_N)
    kept_N = study_N == first_S[sample_N]
    if not kept_N.all():
        copies = np.flatnonzero(~kept_N)
        first = ids[np.flatnonzero(kept_N & (sample_N == sample_N[copies[0]]))[0]]
        warn(
            f"Samples with the reads of a sample of an earlier study are left out: "
            f"{first_few(ids[row] for row in copies.tolist())}; {ids[copies[0]]} is a copy of "
            f"{first} of '{studies[first_S[sample_N[copies[0]]]]}'."
        )
    alike = abundances.alike_pairs()
    alike = alike[study_N[alike[:, 0]] != study_N[alike[:, 1]]]
    if len(alike := alike[kept_N[alike].all(axis=1)]):
        warn(
            "Samples of two studies as alike as two draws of reads from one sample: "
            f"{named_pairs(alike, ids)}. If they are copies, leave one of each pair out."
        )
    kept_KN = [kept_N[study_N == number] for number in range(len(studies))]
    if empty := [name for name, keep_N in zip(studies, kept_KN, strict=True) if not keep_N.any()]:
        raise DataError(
            f"Study '{empty[0]}' has no sample of its own",
            "all have the reads of samples of other studies",
            "leave out its table",
        )
    reads_KF = np.stack(
        [
            counts.T @ keep_N.astype(np.int64)
            for counts, keep_N in zip(counts_K, kept_KN, strict=True)
        ]
    )
    # Copies that are left out do not count: they share all ASVs by definition.
    has_KF = reads_KF > 0
    studies_F = has_KF.sum(axis=0)
    info(
        f"{len(studies)} studies: {int((studies_F == len(studies)).sum())} ASVs are in all of "
        f"them, {int((studies_F > 1).sum())} of {int((studies_F > 0).sum())} in two or more."
    )
    for name, kept_N, has_F, reads_F in zip(studies, kept_KN, has_KF, reads_KF, strict=True):
        shared = has_F & (studies_F > 1)
        info(
            f"Study '{name}': {int(kept_N.sum())} samples, {int(has_F.sum())} ASVs; "
            f"{int(shared.sum())} with {reads_F[shared].sum() / max(1, reads_F.sum()):.0%} of the "
            "reads are in another study."
        )
    # The usual causes are another region, or primers that were not removed.
    pairs = combinations(range(len(studies)), 2)
    if apart := [(i, j) for i, j in pairs if not (has_KF[i] & has_KF[j]).any()]:
        names = first_few(f"{studies[i]} and {studies[j]}" for i, j in apart)
        warn(
            f"Studies without an ASV in common: {names}. A model finds what they share by similar "
            "sequences alone; check that the ASVs begin and end at the same place."
        )
    return kept_KN


def prepare(options: Prepare, folder: Path, block_bytes: int = BLOCK_BYTES) -> tuple[int, int, int]:
    """Write the files of a store into an empty folder, `store.json` last."""
    budget = memory_budget(options.max_memory_gb)
    tables = join_tables(options, block_bytes, budget)
    # Metadata and taxonomy are checked first: writing the counts takes long.
    metadata = join_metadata(options, tables.studies, tables.id_of_sample)
    taxonomies = [read_taxonomy(path) for path in options.taxonomy]
    taxa = join_taxonomies(taxonomies, tables.id_of_asv) if taxonomies else None
    table, sequence_of = tables.table, tables.sequence_of
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
        phylogeny, placed = read_phylogeny(options.tree, ids, drop, midpoint, budget, tables.tips)
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
    for study, new_ids in zip(tables.studies, tables.id_of_sample, strict=False):
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
        for name, new_id in new_ids.items():
            if name in taxa:
                ranks = [rank.strip() for rank in taxa[name].split(";")]
                pairs = list(zip(ranks_of.get(new_id, ranks), ranks, strict=False))
                common = list(takewhile(lambda pair: pair[0] == pair[1], pairs))
                ranks_of[new_id] = [rank for rank, _ in common]
                difference = next(iter(pairs[len(common) :]), ())
                both_named = len(named_ranks(";".join(difference))) == 2
                if both_named and new_id in earlier and len(taxonomies) > 1:
                    differing.setdefault(new_id, difference)
    if differing:
        warn(
            f"The taxonomies differ for {len(differing)} ASVs, and these keep their common ranks; "
            f"one is {' and '.join(next(iter(differing.values())))}: name all by one reference."
        )
    return {name: "; ".join(ranks) for name, ranks in ranks_of.items()}
