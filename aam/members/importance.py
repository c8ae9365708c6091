"""Importance of ASVs, and of taxa: tables of how much the predictions of a model depend on each.

`docs/importance.md` documents the columns. U ASVs of the table, K folds; further shape suffixes:
see `base`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from aam.console import info
from aam.contract.errors import DataError
from aam.contract.options.members import networks
from aam.data.covariates import Covariates
from aam.data.study import Study
from aam.data.taxonomy import named_ranks, require_common
from aam.members.base import F64, Rows, Samples
from aam.members.model import Importance
from aam.members.model_file import TrainedModel
from aam.members.permutation import permutation_importance
from aam.members.registry import reader
from aam.members.stability import FOLD_RANK, stability

_SUMMED = ("effect", "forest", "transformer_effect", "permutation", "mean_relative_abundance")
"""Starts of the columns of an importance table that add up over ASVs."""


def importance_table(
    loaded: TrainedModel,
    study: Study,
    taxa: Mapping[str, str] | None = None,
    covariates: Covariates | None = None,
) -> pd.DataFrame:
    """Return a row for each ASV that occurs in a study, the most important first.

    Args:
        loaded: the model.
        study: samples over which the importance is averaged.
        taxa: taxon of each ASV by feature id; None without taxonomy.
        covariates: metadata that the model reads; None if it reads the counts alone.

    Returns:
        Columns feature-id, taxon (with a taxonomy), the measures of each member, prevalence (0 to
        1), mean_relative_abundance (0 to 1), rank (1 for the most important ASV) and, of several
        folds, rank_fold_1 and so on; `docs/importance.md` defines the measures.

    Raises:
        DataError: no ASV occurs in the training study, or no ASV has a taxon.
    """
    samples, seen = Samples.of(study.table, study.tokens_FL, covariates).present
    ids = [study.table.feature_ids[column] for column in seen.tolist()]
    rows, known = loaded.relations.known(samples.tokens_FL)
    models = loaded.models
    if not len(rows) and len(networks(tuple(models))) < len(models):
        raise DataError(
            "The table has no ASV of the model's training data",
            f"{len(ids)} ASVs",
            "give a table of the same region, trimmed to the same length",
        )
    columns: dict[str, object] = {"feature-id": ids}
    if taxa is not None:
        columns["taxon"] = _taxa(taxa, ids)
    members: list[Importance] = []
    folds: list[Sequence[F64]] = []
    for name, model in models.items():
        inputs = reader(name).read(samples, loaded.relations)
        found = model.importance(inputs, samples.tokens_FL, loaded.relations, loaded.facts.outputs)
        members.append(found)
        columns |= found.columns
        sizes_KU = np.zeros((len(loaded.fold_importance.get(name, ())), len(ids)))
        if len(sizes_KU):
            sizes_KU[:, rows] = loaded.fold_importance[name][:, known]
        folds.append(found.folds or list(sizes_KU))
    relative = samples.relative
    columns["prevalence"] = relative.astype(bool).sum(axis=0) / relative.shape[0]
    columns["mean_relative_abundance"] = relative.mean(axis=0, dtype=np.float64)
    columns["rank"] = _mean_rank([member.size_U for member in members])
    number = min(len(sizes) for sizes in folds)
    # A rank of a fold needs a model of that fold from every member.
    if number > 1 and len(ids) > 1 and number == max(len(sizes) for sizes in folds):
        for fold, sizes in enumerate(zip(*folds, strict=True), start=1):
            columns[f"{FOLD_RANK}{fold}"] = _mean_rank(sizes)
        ranks_KU = np.array([columns[name] for name in columns if name.startswith(FOLD_RANK)])
        info(stability(ranks_KU).sentence)
    info(f"{len(rows)} of {len(ids)} ASVs are in the training data.")
    return pd.DataFrame(columns).sort_values("rank", kind="stable", ignore_index=True)


def rank_by_permutation(
    table: pd.DataFrame,
    loaded: TrainedModel,
    study: Study,
    covariates: Covariates | None,
    first: int,
    groups_N: Rows | None,
) -> pd.DataFrame:
    """Add the column `permutation` to the `first` rows of a table, and rank these rows by it.

    Args:
        table: result of `importance_table`.
        loaded, study, covariates: arguments of which the table was made.
        first: number of ASVs to permute; the others keep their order, after these.
        groups_N: see `permutation_importance`.
    """
    column = {name: number for number, name in enumerate(study.table.feature_ids)}
    asvs = [column[name] for name in table["feature-id"][:first]]
    changes = permutation_importance(loaded, study, covariates, asvs, groups_N)
    place = table.columns.get_loc("prevalence")
    table.insert(place, "permutation", pd.Series(changes))
    table = table.sort_values("permutation", ascending=False, kind="stable", ignore_index=True)
    number = len(asvs)
    table["rank"] = [*rankdata(-np.sort(changes)[::-1]), *range(number + 1, len(table) + 1)]
    return table


def clade_table(table: pd.DataFrame) -> pd.DataFrame:
    """Sum a table of `aam importance` over the ASVs of each taxon of each rank.

    An effect is the change of the prediction for one standard deviation of the feature of each ASV
    of the taxon. Of taxa with the same ASVs, such as a family with one genus, the lowest is listed.

    Args:
        table: importance of ASVs with the column `taxon`, ranks separated by semicolons.

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
    taxa = pd.DataFrame(
        {
            "taxon": ["; ".join(taxon) for taxon in lowest.values()],
            "level": [len(taxon) for taxon in lowest.values()],
            "asvs": [len(rows) for rows in lowest],
        }
    )
    # Only the first ASVs are permuted, see --first.
    taxa[summed] = np.array([np.nansum(values[list(rows)], axis=0) for rows in lowest])
    sizes = taxa[[name for name in summed if name != "mean_relative_abundance"]].abs()
    taxa["rank"] = sizes.groupby(taxa["level"]).rank(ascending=False).mean(axis=1)
    return taxa.sort_values(["level", "rank"], kind="stable", ignore_index=True)


def _mean_rank(sizes: Sequence[F64]) -> F64:
    ranks: F64 = np.mean([rankdata(-size_U) for size_U in sizes], axis=0)
    return ranks


def _taxa(taxa: Mapping[str, str], ids: Sequence[str]) -> list[str]:
    require_common(taxa, ids)
    if unmatched := sum(name not in taxa for name in ids):
        info(f"{unmatched} of {len(ids)} ASVs are not in the taxonomy.")
    return [taxa.get(name, "") for name in ids]
