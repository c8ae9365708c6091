"""A study as the rest of the program knows it, and how it is put together from files."""

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
    """How to map a study again.

    Attributes:
        path: the store.
        max_bp: longest sequence kept; None for whole ones.
        with_tree: whether its phylogeny is part of the study.
        rows: int64 [N], samples of the store; None for all.
    """

    path: Path
    max_bp: int | None
    with_tree: bool
    rows: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Study:
    """Samples, their ASVs, and what relates the ASVs.

    Attributes:
        table: counts [N, F] with ids, ASVs ordered by id.
        tokens_FL: uint8, the sequence of each ASV.
        phylogeny: tree of the ASVs, aligned with the table's columns; None without one.
        distances: matrix made elsewhere, aligned with the table's rows; None without one.
        origin: the store it is mapped from; None for a study in memory.
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
        """Keep the samples of `rows`, in that order; ASVs stay."""
        table = self.table.take_samples(rows)
        distances = self.distances and self.distances.aligned(table.sample_ids)
        origin = self.origin
        if origin is not None:
            kept = rows if origin.rows is None else origin.rows[rows]
            origin = dataclasses.replace(origin, rows=kept)
        return Study(table, self.tokens_FL, self.phylogeny, distances, origin)

    def __reduce__(self) -> Any:
        # A process that is sent a mapped study maps it too, instead of being sent a copy.
        if self.origin is not None and self.distances is None:
            return _reopened, (self.origin,)
        return super().__reduce__()


def load_study(
    input: TableOptions, phylogeny: PhylogenyOptions | None = None, max_bp: int | None = None
) -> Study:
    """Read a study's files.

    Args:
        input: table and sequences.
        phylogeny: tree or matrix; None for neither.
        max_bp: longest sequence to keep; None for the longest of the table.

    Raises:
        MissingInput, DataError, UsageError: see the readers.
    """
    if is_store(input.table):
        return _load_store(input, phylogeny, max_bp)
    budget = memory_budget(input.max_memory_gb)
    table = _in_order(read_table(input.table, input.drop_empty_samples, budget))
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
    """Read a table alone into memory, with its ASVs in the order of its file.

    Raises:
        MissingInput, DataError, UsageError: see the readers.
    """
    if is_store(input.table):
        check_store_options(input, None)
        return open_store(input.table).as_read()
    budget = memory_budget(input.max_memory_gb)
    return read_table(input.table, input.drop_empty_samples, budget)


def has_phylogeny(input: TableOptions, phylogeny: PhylogenyOptions) -> bool:
    """Tell whether `load_study` will find a tree or a matrix for these options.

    Raises:
        MissingInput, DataError: a store whose header is not what it should be.
    """
    if phylogeny.tree is not None or phylogeny.unifrac_matrix is not None:
        return True
    return is_store(input.table) and has_tree(input.table)


def check_store_options(input: TableOptions, tree: Path | None) -> None:
    """Refuse options that would say otherwise than the store.

    Raises:
        UsageError: --sequences or --tree.
    """
    given = {"--tree": tree, "--sequences": input.sequences}
    if beside := [f"{flag} {path}" for flag, path in given.items() if path is not None]:
        raise UsageError(
            "A store has its own tree and sequences",
            f"{', '.join(beside)} beside '{input.table}'",
            "leave them out, or make the store again with them (`aam prepare`)",
        )


def _load_store(
    input: TableOptions, phylogeny: PhylogenyOptions | None, max_bp: int | None
) -> Study:
    """Map a store: its tree is used unless no phylogeny, or a matrix, is asked for."""
    check_store_options(input, None if phylogeny is None else phylogeny.tree)
    path = input.table.absolute()
    if phylogeny is None or phylogeny.unifrac_matrix is None:
        return _reopened(StoreOrigin(path, max_bp, with_tree=phylogeny is not None))
    study = _reopened(StoreOrigin(path, max_bp, with_tree=False))
    distances = _read_matrix(
        phylogeny, phylogeny.unifrac_matrix, study.table, memory_budget(input.max_memory_gb)
    )
    return dataclasses.replace(study, distances=distances)


def _reopened(origin: StoreOrigin) -> Study:
    """Map what `origin` names."""
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


def _in_order(table: FeatureTable) -> FeatureTable:
    """Order the ASVs by id, so that the reads drawn do not depend on the order of the file."""
    return table.take_features(
        sorted(range(len(table.feature_ids)), key=table.feature_ids.__getitem__)
    )


def keep_asvs_of_tree(
    table: FeatureTable, columns: npt.NDArray[np.int64], drop_empty: bool
) -> FeatureTable:
    """Leave out the ASVs that the tree lacks, and samples that held nothing else.

    Args:
        table: the table.
        columns: the ASVs that the tree has, as `read_phylogeny` returns them.
        drop_empty: leave such samples out instead of refusing the table.

    Raises:
        DataError: samples hold nothing else, and `drop_empty` is false.
    """
    if len(columns) == len(table.feature_ids):
        return table
    placed = table.take_features(columns)
    sizes = placed.richness
    if not sizes.all():
        emptied = (placed.sample_ids[row] for row in np.flatnonzero(sizes == 0).tolist())
        check_emptied(emptied, drop_empty)
    return placed.take_samples(np.flatnonzero(sizes))


def check_emptied(emptied: Iterable[str], drop_empty: bool) -> None:
    """Refuse samples that held only ASVs that the tree lacks, or say that they are left out.

    Raises:
        DataError: `drop_empty` is false.
    """
    named = first_few(emptied)
    if not drop_empty:
        raise DataError("Samples have no ASV of the tree", named, "add --drop-empty-samples")
    say(f"Left out samples without an ASV of the tree: {named}.")
