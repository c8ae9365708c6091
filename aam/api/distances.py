"""UniFrac distances of a table in memory."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from skbio import DistanceMatrix, TreeNode

from aam.api.arguments import arguments
from aam.api.tables import Table, table_files, tree_file
from aam.commands.unifrac import distances
from aam.contract.errors import UsageError
from aam.contract.options.commands.studies import Unifrac
from aam.contract.options.device import Device
from aam.contract.options.study import Metric


def unifrac(
    table: Table,
    tree: str | PathLike[str] | TreeNode,
    metric: Metric = "unweighted",
    *,
    alpha: float = 0.5,
    drop_missing_asvs: bool = False,
    root_at_midpoint: bool = False,
    device: Device = "auto",
) -> DistanceMatrix:
    """Compute the UniFrac distances between all samples of a table, in float64.

    Unweighted and weighted UniFrac are those of Lozupone and Knight (2005) and Lozupone et al.
    (2007), generalized UniFrac is that of Chen et al. (2012).

    Args:
        table: see `aam.api.tables.Table`; reads of N samples.
        tree: rooted phylogeny with branch lengths: Newick, .qza or TreeNode. Its tips are the
            feature ids; there may be more.
        metric: `unweighted`, `weighted`, `weighted_normalized` or `generalized`.
        alpha: exponent of generalized UniFrac, 0 to 1.
        drop_missing_asvs: leave out features that are not in the tree.
        root_at_midpoint: root an unrooted tree between its two most distant tips.
        device: device of the computation.

    Returns:
        N x N distances with the sample ids.

    Raises:
        UsageError: `metric` is no distance, or another argument is not of its type or range.
        MissingInput, DataError: the table or the tree cannot be used.

    >>> import pandas as pd
    >>> reads = pd.DataFrame([[5, 5, 0], [0, 5, 5]], ["one", "two"], ["a", "b", "c"])
    >>> tree = TreeNode.read(["((a:1,b:1):1,c:2);"])
    >>> round(float(unifrac(reads, tree, device="cpu")["one", "two"]), 3)
    0.6
    """
    if metric == "faith_pd":
        raise UsageError("Faith PD is no distance", "metric='faith_pd'", "use `aam unifrac`")
    with table_files(table) as (input, folder):
        given = arguments(
            Unifrac,
            {
                "unifrac_metric": metric,
                "unifrac_alpha": alpha,
                "drop_missing_asvs": drop_missing_asvs,
                "root_at_midpoint": root_at_midpoint,
                "device": device,
            },
            {"unifrac_metric": "metric", "unifrac_alpha": "alpha"},
        )
        tree = tree_file(tree, folder)
        found = distances(Unifrac(input=input, tree=tree, output=Path("unwritten.tsv"), **given))
    return DistanceMatrix(found.values, found.ids)
