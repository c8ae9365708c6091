"""`aam neighbors`: the nearest samples of a collection by their embedding."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aam.console import info
from aam.contract.errors import UsageError
from aam.contract.files import refuse_existing
from aam.contract.options.commands.use import Neighbors
from aam.contract.options.study import PhylogenyOptions, TableOptions
from aam.data.distances import DistanceMatrix, read_distances
from aam.data.embeddings import read_embeddings
from aam.data.neighbors import agreement, nearest
from aam.data.study import load_study
from aam.data.table import FeatureTable
from aam.data.unifrac.matrix import unifrac_matrix
from aam.inference.tables import write_table

SEED = 42
"""Seed of the random samples of --check-unifrac."""


def run(options: Neighbors) -> None:
    """Write the table of neighbors; on request, print the agreement with UniFrac.

    Raises:
        UsageError: UniFrac without a tree.
        MissingInput, DataError: see `aam.data.neighbors` and the readers.
        CannotCreate: the output exists, or cannot be written.
    """
    refuse_existing(options.output, options.overwrite)
    query = read_embeddings(options.embeddings)
    collection = query if options.collection is None else read_embeddings(options.collection)
    table = nearest(query, collection, options.neighbors)
    matrix = _unifrac(options, collection.ids)
    if matrix is not None:
        agreed = agreement(collection, matrix, options.neighbors)
        info(
            f"Agreement with UniFrac in {agreed.samples} samples: {agreed.recall:.0%} of the "
            f"{options.neighbors} nearest samples by UniFrac are among those by embedding (by "
            f"chance {agreed.chance:.0%}); Spearman correlation of the distances "
            f"{agreed.correlation:.2f}."
        )
    write_table(options.output, table)
    info(
        f"{options.neighbors} neighbors of {len(query.ids)} samples among {len(collection.ids)}: "
        f"{options.output}"
    )


def _unifrac(options: Neighbors, ids: npt.NDArray[np.str_]) -> DistanceMatrix | None:
    """Read or compute the unweighted UniFrac of samples of the collection; None without a request.

    Raises:
        UsageError: there is no tree.
        MissingInput, DataError: see the readers.
    """
    if options.unifrac_matrix is not None:
        return read_distances(options.unifrac_matrix)
    if options.check_unifrac is None or options.table is None:
        return None
    study = load_study(TableOptions(table=options.table), PhylogenyOptions(tree=options.tree))
    if study.phylogeny is None:
        raise UsageError("UniFrac needs a phylogeny", f"'{options.table}'", "add --tree")
    known = np.flatnonzero(np.isin(np.array(list(study.table.sample_ids)), ids))
    number = min(options.check_unifrac, len(known))
    # The matrix grows with the square of the samples; a fixed part of them shows the agreement.
    rows = np.sort(np.random.default_rng(SEED).choice(known, number, replace=False))
    names = tuple(study.table.sample_ids[row] for row in rows)
    table = FeatureTable(names, study.table.feature_ids, study.table.counts[rows])
    return unifrac_matrix(table, study.phylogeny, "unweighted")
