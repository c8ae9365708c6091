"""Study: feature table, sequences and phylogeny or distances, loaded from files or a store."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.console import say
from aam.contract.errors import DataError, UsageError, first_few
from aam.contract.options.groups import PhylogenyOptions, TableOptions
from aam.data.distances import DistanceMatrix, read_distances
from aam.data.sequences import PAD, encode, sequences_of
from aam.data.store.files import is_store
from aam.data.store.reader import has_tree, open_store
from aam.data.table import FeatureTable, read_table
from aam.data.unifrac.phylogeny import Phylogeny, read_phylogeny
from aam.memory import memory_budget


@dataclass(frozen=True)
class StoreOrigin:
    """The store and selection from which a study is memory-mapped.

    Attributes:
        path: the store.
        max_bp: nucleotides kept of each sequence; None for all.
        with_tree: whether its phylogeny is part of the study.
        rows: int64 [N], samples of the store; None for all.
    """

    path: Path
    max_bp: int | None
    with_tree: bool
    rows: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Study:
    """Samples with their reads, sequences, and phylogeny or distances.

    Attributes:
        table: counts [N, F] with ids, ASVs ordered by id.
        tokens_FL: uint8, the sequence of each ASV.
        phylogeny: tree of the ASVs, aligned with the table's columns; None without one.
        distances: precomputed matrix, aligned with the table's rows; None without one.
        origin: the store that is memory-mapped; None for a study in memory.
    """

    table: FeatureTable
    tokens_FL: npt.NDArray[np.uint8]
    phylogeny: Phylogeny | None = None
    distances: DistanceMatrix | None = None
    origin: StoreOrigin | None = None

    @property
    def reads(self) -> npt.NDArray[np.int64]:
        """Reads of each sample, [N]."""
        return self.table.reads

    def take_samples(self, rows: npt.NDArray[np.int64]) -> Study:
        """Return the study of the samples at `rows`, in that order, with all ASVs."""
        table = self.table.take_samples(rows)
        distances = self.distances and self.distances.aligned(table.sample_ids)
        origin = self.origin
        if origin is not None:
            kept = rows if origin.rows is None else origin.rows[rows]
            origin = dataclasses.replace(origin, rows=kept)
        return Study(table, self.tokens_FL, self.phylogeny, distances, origin)

    def __reduce__(self) -> Any:
        # Pickling a memory-mapped study (for a data-loader process) passes its origin, not a copy.
        if self.origin is not None and self.distances is None:
            return _map_store, (self.origin,)
        return super().__reduce__()


def load_study(
    input: TableOptions, phylogeny: PhylogenyOptions | None = None, max_bp: int | None = None
) -> Study:
    """Read the files of a study, or memory-map its store.

    Args:
        input: table and sequences.
        phylogeny: tree or matrix; None for neither.
        max_bp: nucleotides to keep of each sequence; None for all.

    Raises:
        MissingInput, DataError, UsageError: see the readers.
    """
    if is_store(input.table):
        return _load_store(input, phylogeny, max_bp)
    budget = memory_budget(input.max_memory_gb)
    table = _sort_features(read_table(input.table, input.drop_empty_samples, budget))
    tree, distances = None, None
    if phylogeny is not None and phylogeny.tree is not None:
        if phylogeny.unifrac_matrix is not None:
            raise UsageError("Both a tree and a matrix", "--tree --unifrac-matrix", "give one")
        tree, columns = read_phylogeny(
            phylogeny.tree,
            table.feature_ids,
            phylogeny.drop_missing_asvs,
            phylogeny.root_at_midpoint,
            budget,
        )
        table = keep_asvs_of_tree(table, columns, input.drop_empty_samples)
    elif phylogeny is not None and phylogeny.unifrac_matrix is not None:
        distances = _read_matrix(phylogeny, phylogeny.unifrac_matrix, table, budget)
    sequences = sequences_of(table.feature_ids, input.sequences, budget)
    tokens_FL = encode(sequences, max_bp, budget)
    return Study(table, tokens_FL, tree, distances)


def load_table(input: TableOptions) -> FeatureTable:
    """Read only the feature table into memory, with its ASVs in the order of the file.

    Raises:
        MissingInput, DataError, UsageError: see the readers.
    """
    if is_store(input.table):
        check_store_options(input, None)
        return open_store(input.table).as_read()
    budget = memory_budget(input.max_memory_gb)
    return read_table(input.table, input.drop_empty_samples, budget)


def has_phylogeny(input: TableOptions, phylogeny: PhylogenyOptions) -> bool:
    """Return whether `load_study` finds a tree or a distance matrix for these options.

    Raises:
        MissingInput, DataError: the header of the store cannot be read or is invalid.
    """
    if phylogeny.tree is not None or phylogeny.unifrac_matrix is not None:
        return True
    return is_store(input.table) and has_tree(input.table)


def check_store_options(input: TableOptions, tree: Path | None) -> None:
    """Refuse options for files that the store already contains.

    Raises:
        UsageError: --sequences or --tree.
    """
    given = {"--tree": tree, "--sequences": input.sequences}
    if conflicting := [f"{flag} {path}" for flag, path in given.items() if path is not None]:
        raise UsageError(
            "A store contains its own tree and sequences",
            f"{', '.join(conflicting)} with '{input.table}'",
            "leave them out, or make the store again with them (`aam prepare`)",
        )


def _load_store(
    input: TableOptions, phylogeny: PhylogenyOptions | None, max_bp: int | None
) -> Study:
    """Memory-map a store, with its tree unless `phylogeny` is None or names a matrix."""
    check_store_options(input, None if phylogeny is None else phylogeny.tree)
    path = input.table.absolute()
    if phylogeny is None or phylogeny.unifrac_matrix is None:
        return _map_store(StoreOrigin(path, max_bp, with_tree=phylogeny is not None))
    study = _map_store(StoreOrigin(path, max_bp, with_tree=False))
    distances = _read_matrix(
        phylogeny, phylogeny.unifrac_matrix, study.table, memory_budget(input.max_memory_gb)
    )
    return dataclasses.replace(study, distances=distances)


def _map_store(origin: StoreOrigin) -> Study:
    """Memory-map the store and the samples of `origin`."""
    store = open_store(origin.path)
    tokens_FL = store.tokens_FL[:, : origin.max_bp]
    if origin.max_bp is not None and tokens_FL.shape[1] < store.tokens_FL.shape[1]:
        longer = int((store.tokens_FL[:, origin.max_bp] != PAD).sum())
        say(f"Cut to {origin.max_bp} nucleotides: {longer} of {len(tokens_FL)} sequences.")
    study = Study(
        store.table,
        tokens_FL,
        store.phylogeny if origin.with_tree else None,
        origin=dataclasses.replace(origin, rows=None),
    )
    return study if origin.rows is None else study.take_samples(origin.rows)


def _read_matrix(
    options: PhylogenyOptions, path: Path, table: FeatureTable, budget: int
) -> DistanceMatrix:
    if options.unifrac_metric == "faith_pd":
        raise UsageError("Faith PD is no distance", "--unifrac-matrix", "give --tree")
    matrix = read_distances(path, tuple(table.sample_ids), budget)
    return matrix.aligned(table.sample_ids)


def _sort_features(table: FeatureTable) -> FeatureTable:
    """Sort the ASVs by id, so that rarefaction does not depend on the order of the file."""
    return table.take_features(
        sorted(range(len(table.feature_ids)), key=table.feature_ids.__getitem__)
    )


def keep_asvs_of_tree(
    table: FeatureTable, columns: npt.NDArray[np.int64], drop_empty: bool
) -> FeatureTable:
    """Keep the ASVs of the tree, and the samples that have any of them.

    Args:
        table: the table.
        columns: columns of the ASVs in the tree, as `read_phylogeny` returns them.
        drop_empty: leave out samples without any ASV of the tree instead of raising DataError.

    Raises:
        DataError: samples have no ASV of the tree, and `drop_empty` is false.
    """
    if len(columns) == len(table.feature_ids):
        return table
    kept = table.take_features(columns)
    sizes = kept.richness
    if not sizes.all():
        emptied = (kept.sample_ids[row] for row in np.flatnonzero(sizes == 0).tolist())
        check_emptied(emptied, drop_empty)
    return kept.take_samples(np.flatnonzero(sizes))


def check_emptied(emptied: Iterable[str], drop_empty: bool) -> None:
    """Refuse samples without any ASV of the tree, or print that they are left out.

    Raises:
        DataError: `drop_empty` is false.
    """
    named = first_few(emptied)
    if not drop_empty:
        raise DataError("Samples have no ASV of the tree", named, "add --drop-empty-samples")
    say(f"Left out samples without an ASV of the tree: {named}.")
