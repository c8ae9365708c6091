"""A study as the rest of the program knows it, and how it is put together from files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aam.console import say
from aam.errors import DataError, UsageError, first_few
from aam.options.groups import PhylogenyOptions, TableOptions
from aam.study.distances import DistanceMatrix, read_distances
from aam.study.phylogeny import Phylogeny, read_phylogeny
from aam.study.sequences import encode, sequences_of
from aam.study.table import FeatureTable, read_table


@dataclass(frozen=True)
class Study:
    """Samples, their ASVs, and what relates the ASVs.

    Attributes:
        table: counts [N, F] with ids, ASVs ordered by id.
        tokens_FL: uint8, the sequence of each ASV.
        phylogeny: tree of the ASVs, aligned with the table's columns; None without one.
        distances: matrix made elsewhere, aligned with the table's rows; None without one.
    """

    table: FeatureTable
    tokens_FL: npt.NDArray[np.uint8]
    phylogeny: Phylogeny | None = None
    distances: DistanceMatrix | None = None

    @property
    def reads(self) -> npt.NDArray[np.int64]:
        """Reads of each sample, [N]."""
        return np.asarray(self.table.counts.sum(axis=1, dtype=np.int64)).ravel()

    def take_samples(self, rows: npt.NDArray[np.int64]) -> Study:
        """Keep the samples of `rows`, in that order; ASVs stay."""
        table = FeatureTable(
            tuple(self.table.sample_ids[row] for row in rows),
            self.table.feature_ids,
            self.table.counts[rows],
        )
        distances = self.distances and self.distances.aligned(table.sample_ids)
        return Study(table, self.tokens_FL, self.phylogeny, distances)


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
    table = _in_order(read_table(input.table, input.drop_empty_samples))
    tree, distances = None, None
    if phylogeny is not None and phylogeny.tree is not None:
        if phylogeny.unifrac_matrix is not None:
            raise UsageError("Both a tree and a matrix", "--tree --unifrac-matrix", "give one")
        tree, columns = read_phylogeny(
            phylogeny.tree, table.feature_ids, phylogeny.drop_missing_asvs
        )
        table = keep_placed(table, columns, input.drop_empty_samples)
    elif phylogeny is not None and phylogeny.unifrac_matrix is not None:
        if phylogeny.unifrac_metric == "faith_pd":
            raise UsageError("Faith PD is no distance", "--unifrac-matrix", "give --tree")
        matrix = read_distances(phylogeny.unifrac_matrix, table.sample_ids)
        distances = matrix.aligned(table.sample_ids)
    tokens_FL = encode(sequences_of(table.feature_ids, input.sequences), max_bp)
    return Study(table, tokens_FL, tree, distances)


def _in_order(table: FeatureTable) -> FeatureTable:
    """Order the ASVs by id, so that the reads drawn do not depend on the order of the file."""
    return table.take_features(
        sorted(range(len(table.feature_ids)), key=table.feature_ids.__getitem__)
    )


def keep_placed(
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
    sizes = np.diff(placed.counts.indptr)
    emptied = [placed.sample_ids[row] for row in np.flatnonzero(sizes == 0)]
    if emptied and not drop_empty:
        raise DataError(
            "Samples have no ASV of the tree", first_few(emptied), "add --drop-empty-samples"
        )
    if emptied:
        say(f"Left out samples without an ASV of the tree: {first_few(emptied)}.")
    return placed.take_samples(np.flatnonzero(sizes))
