"""`aam neighbors`: the nearest samples of a collection by their embedding."""

from __future__ import annotations

from aam.console import say
from aam.contract.files import refuse_existing
from aam.contract.options.commands.use import Neighbors
from aam.data.distances import read_distances
from aam.data.neighbors import agreement, nearest, read_embeddings
from aam.training.output_tables import write_table


def run(options: Neighbors) -> None:
    """Write the table of neighbors; with a UniFrac matrix, print the agreement with UniFrac.

    Raises:
        MissingInput, DataError: see `aam.data.neighbors`.
        CannotCreate: the output exists, or cannot be written.
    """
    refuse_existing(options.output, options.overwrite)
    query = read_embeddings(options.embeddings)
    collection = query if options.collection is None else read_embeddings(options.collection)
    table = nearest(query, collection, options.neighbors)
    if options.unifrac_matrix is not None:
        matrix = read_distances(options.unifrac_matrix)
        found = agreement(collection, matrix, options.neighbors)
        say(
            f"Agreement with UniFrac in {found.samples} samples: {found.recall:.0%} of the "
            f"{options.neighbors} nearest samples by UniFrac are among those by embedding (by "
            f"chance {found.chance:.0%}); Spearman correlation of the distances "
            f"{found.correlation:.2f}."
        )
    write_table(options.output, table)
    say(
        f"{options.neighbors} neighbors of {len(query.ids)} samples among {len(collection.ids)}: "
        f"{options.output}"
    )
