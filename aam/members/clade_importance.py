"""Importance of taxa: that of their ASVs, summed over the ranks of a taxonomy."""

from __future__ import annotations

import numpy as np
import pandas as pd

from aam.contract.errors import DataError
from aam.data.taxonomy import named_ranks

_SUMMED = ("effect", "forest", "transformer_effect", "permutation", "mean_relative_abundance")
"""Starts of the columns of an importance table that add up over ASVs."""


def clade_table(table: pd.DataFrame) -> pd.DataFrame:
    """Sum a table of `aam importance` over the ASVs of each taxon of each rank.

    An effect is the change of the prediction for one standard deviation of the feature of each ASV
    of the taxon. Of taxa with the same ASVs, such as a family with one genus, the lowest is listed.

    Args:
        table: with the column `taxon`, ranks separated by semicolons.

    Returns:
        Rows with taxon, level (1 for the highest rank), asvs (their number), the sums, and the
        rank within the level; by level, the most important first.

    Raises:
        DataError: no ASV has a taxon.
    """
    members: dict[tuple[str, ...], list[int]] = {}
    for row, named in enumerate(map(named_ranks, table["taxon"])):
        for level in range(1, len(named) + 1):
            members.setdefault(tuple(named[:level]), []).append(row)
    lowest: dict[tuple[int, ...], tuple[str, ...]] = {}
    for taxon, rows in members.items():
        lowest[tuple(rows)] = max(lowest.get(tuple(rows), ()), taxon, key=len)
    if not lowest:
        raise DataError("No ASV has a taxon", f"{len(table)} ASVs", "give another taxonomy")
    summed = [name for name in table.columns if name.startswith(_SUMMED)]
    values = table[summed].to_numpy(np.float64)
    found = pd.DataFrame(
        {
            "taxon": ["; ".join(taxon) for taxon in lowest.values()],
            "level": [len(taxon) for taxon in lowest.values()],
            "asvs": [len(rows) for rows in lowest],
        }
    )
    # Only the first ASVs are permuted, see --first.
    found[summed] = np.array([np.nansum(values[list(rows)], axis=0) for rows in lowest])
    sizes = found[[name for name in summed if name != "mean_relative_abundance"]].abs()
    found["rank"] = sizes.groupby(found["level"]).rank(ascending=False).mean(axis=1)
    return found.sort_values(["level", "rank"], kind="stable", ignore_index=True)
