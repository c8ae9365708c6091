"""Study: feature table, sequences, and phylogeny or distances, loaded from files or a store."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from aam.console import info
from aam.contract.errors import UsageError
from aam.contract.options.commands.studies import Unifrac
from aam.contract.options.groups import PhylogenyOptions, TableOptions
from aam.data.distances import DistanceMatrix, read_distances
from aam.data.phylogeny import Phylogeny, read_phylogeny
from aam.data.sequences import encode, sequences_of
from aam.data.store import Store, is_store
from aam.data.table import FeatureTable, leave_out_samples, read_table
from aam.memory import memory_budget
from aam.nucleotide_codes import PAD


@dataclass(frozen=True)
class StoreOrigin:
    """The store and selection from which a study is memory-mapped."""

    path: Path  # the store
    max_bp: int | None  # nucleotides kept of each sequence; None for all
    with_tree: bool  # whether its phylogeny is part of the study
    rows: npt.NDArray[np.int64] | None = None  # [N], samples of the store; None for all


@dataclass(frozen=True)
class Study:
    """Samples with their reads, sequences, and phylogeny or distances."""

    table: FeatureTable  # counts [N, F] with ids, ASVs ordered by id
    tokens_FL: npt.NDArray[np.uint8]  # uint8, the sequence of each ASV
    phylogeny: Phylogeny | None = None  # aligned with the table's columns
    distances: DistanceMatrix | None = None  # precomputed, aligned with the table's rows
    origin: StoreOrigin | None = None  # the store that is memory-mapped; None for a study in memory

    @property
    def reads(self) -> npt.NDArray[np.int64]:
        """Reads of each sample, [N]."""
        return self.table.reads

    def counts(self, rows: npt.NDArray[np.int64]) -> csr_array:
        """Gather the reads of the samples at `rows`, [n, F]."""
        return self.table.counts[rows]

    def shallow(self, depth: int) -> list[str]:
        """Return the ids of the samples with fewer reads than `depth`."""
        below = np.flatnonzero(self.reads < depth).tolist()
        return [self.table.sample_ids[row] for row in below]

    def take_samples(self, rows: npt.NDArray[np.int64]) -> Study:
        """Return the study of the samples at `rows`, in that order, with all ASVs."""
        table = self.table.take_samples(rows)
        distances = self.distances and self.distances.aligned(table.sample_ids)
        origin = self.origin
        if origin is not None:
            stored_rows = rows if origin.rows is None else origin.rows[rows]
            origin = dataclasses.replace(origin, rows=stored_rows)
        return Study(table, self.tokens_FL, self.phylogeny, distances, origin)

    def sorted_by_id(self) -> Study:
        """Return the study with its samples in the order of their ids.

        Random choices by row (folds, bags, halves, batches) then do not depend on the order of the
        file.
        """
        ids = self.table.sample_ids
        order = sorted(range(len(ids)), key=ids.__getitem__)
        # Most tables are sorted already; taking all samples would copy the counts.
        return self if order == [*range(len(ids))] else self.take_samples(np.array(order))

    def part(self, rows: range) -> Study:
        """Copy the samples at `rows` into memory, with their ASVs, without distances."""
        chosen = np.arange(rows.start, rows.stop)
        counts = self.table.counts[chosen]
        asvs = np.unique(counts.indices)
        ids = tuple(self.table.sample_ids[row] for row in rows)
        table = dataclasses.replace(self.table, sample_ids=ids, counts=counts).take_features(asvs)
        return Study(table, self.tokens_FL[asvs])

    def __reduce__(self) -> Any:
        # Pickling a memory-mapped study (for a data loader process) passes its path, not a copy.
        if self.origin is not None and self.distances is None:
            return _map_store, (self.origin,)
        return super().__reduce__()

    def sum_equal_sequences(self) -> Study:
        """Sum the reads of ASVs with equal sequences (after cutting or joining) in the first."""
        asvs, length = self.tokens_FL.shape
        if not asvs or not length:  # tokens without sequences have length 0
            return self
        # A random linear hash of the tokens: sorting sequences of millions of ASVs takes minutes.
        factors_L = np.random.default_rng(0).integers(2**63, size=length, dtype=np.uint64)
        blocks = np.array_split(self.tokens_FL, 1 + asvs // 2**16)
        sums_F = np.concatenate([block_FL @ factors_L for block_FL in blocks])
        _, first, inverse = np.unique(sums_F, return_index=True, return_inverse=True)
        if len(first) == asvs:
            return self
        info(f"Reads of equal sequences are summed: {asvs} ASVs have {len(first)} different ones.")
        columns = np.sort(first)
        column_F = np.searchsorted(columns, first[inverse]).astype(np.int32)
        return dataclasses.replace(
            self,
            table=self.table.sum_features(columns, column_F),
            tokens_FL=self.tokens_FL[columns],
            phylogeny=self.phylogeny and self.phylogeny.take(columns),
        )


def load_study(
    input: TableOptions, phylogeny: PhylogenyOptions | None = None, max_bp: int | None = None
) -> Study:
    """Read the files of a study, or memory-map its store."""
    budget = memory_budget(input.max_memory_gb)
    if not is_store(input.table):
        table = read_table(input.table, input.drop_empty_samples, budget)
        return make_study(table, input.sequences, input, phylogeny, max_bp)
    check_store_options(input, None if phylogeny is None else phylogeny.tree)
    matrix = None if phylogeny is None else phylogeny.unifrac_matrix
    with_tree = phylogeny is not None and matrix is None
    # One rank verifies the checksums for all.
    checksums = os.environ.get("RANK", "0") == "0"
    study = _map_store(StoreOrigin(input.table.absolute(), max_bp, with_tree), checksums)
    if matrix is None:
        return study
    distances = read_distances(matrix, tuple(study.table.sample_ids), budget)
    return dataclasses.replace(study, distances=distances.aligned(study.table.sample_ids))


def make_study(
    table: FeatureTable,
    sequences: Path | Mapping[str, str] | None,
    input: TableOptions,
    phylogeny: PhylogenyOptions | None = None,
    max_bp: int | None = None,
) -> Study:
    """Make a study from a table in memory (ASVs in any order), sequences and phylogeny."""
    budget = memory_budget(input.max_memory_gb)
    ids = table.feature_ids
    # Sorted by id, so that rarefaction does not depend on the order of the file.
    table = table.take_features(sorted(range(len(ids)), key=ids.__getitem__))
    tree = distances = None
    if phylogeny is not None and phylogeny.tree is not None:
        table, tree = with_phylogeny(table, phylogeny.tree, phylogeny, input)
    elif phylogeny is not None and phylogeny.unifrac_matrix is not None:
        distances = read_distances(phylogeny.unifrac_matrix, tuple(table.sample_ids), budget)
        distances = distances.aligned(table.sample_ids)
    dna = sequences_of(table.feature_ids, sequences, budget)
    study = Study(table, encode(dna, max_bp, budget), tree, distances)
    return study.sum_equal_sequences()


def load_table(input: TableOptions) -> FeatureTable:
    """Read only the feature table into memory."""
    if is_store(input.table):
        check_store_options(input, None)
        table, _, _ = Store(input.table).open(checksums=True)
        counts = table.counts[np.arange(len(table.sample_ids))]
        return FeatureTable(tuple(table.sample_ids), tuple(table.feature_ids), counts)
    budget = memory_budget(input.max_memory_gb)
    return read_table(input.table, input.drop_empty_samples, budget)


def check_store_options(input: TableOptions, tree: Path | None) -> None:
    """Refuse --sequences and --tree (UsageError): a store already contains both."""
    files = {"--tree": tree, "--sequences": input.sequences}
    if conflicting := [f"{flag} {path}" for flag, path in files.items() if path is not None]:
        raise UsageError(
            "A store contains its own tree and sequences",
            f"{', '.join(conflicting)} with '{input.table}'",
            "leave them out, or make the store again with them (`aam prepare`)",
        )


def _map_store(origin: StoreOrigin, checksums: bool = False) -> Study:
    """Memory-map the store and the samples of `origin`."""
    table, whole_FL, tree = Store(origin.path).open(checksums)
    tokens_FL = whole_FL[:, : origin.max_bp]
    if origin.max_bp is not None and tokens_FL.shape[1] < whole_FL.shape[1]:
        longer = int((whole_FL[:, origin.max_bp] != PAD).sum())
        info(f"Cut to {origin.max_bp} nucleotides: {longer} of {len(tokens_FL)} sequences.")
    tree = tree if origin.with_tree else None
    mapped = Study(table, tokens_FL, tree, origin=dataclasses.replace(origin, rows=None))
    study = mapped.sum_equal_sequences()
    return study if origin.rows is None else study.take_samples(origin.rows)


def with_phylogeny(
    table: FeatureTable, path: Path, options: PhylogenyOptions | Unifrac, input: TableOptions
) -> tuple[FeatureTable, Phylogeny]:
    """Read a tree; reduce the table to the ASVs in it, and to samples with such ASVs."""
    phylogeny, columns = read_phylogeny(
        path,
        table.feature_ids,
        options.drop_missing_asvs,
        options.root_at_midpoint,
        memory_budget(input.max_memory_gb),
    )
    if len(columns) == len(table.feature_ids):
        return table, phylogeny
    in_tree = table.take_features(columns)
    emptied = [in_tree.sample_ids[row] for row in np.flatnonzero(in_tree.richness == 0).tolist()]
    leave_out_samples("Samples without an ASV of the tree", emptied, input.drop_empty_samples)
    return in_tree.take_samples(np.flatnonzero(in_tree.richness)), phylogeny
