"""Importance of ASVs, and of taxa: tables of how much the predictions of a model depend on each.

`docs/importance.md` documents the columns. U ASVs of the table, K folds; further shape suffixes:
see `base`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from aam.console import info
from aam.contract.errors import DataError
from aam.contract.files import require
from aam.contract.options.device import DeviceOptions
from aam.data.covariates import Covariates
from aam.data.study import Study
from aam.data.target_transforms import UNSCALED
from aam.data.taxonomy import named_ranks
from aam.inference.integrated_gradients import integrated_gradients
from aam.members import checkpoint
from aam.members.base import F64, Labels, Rows, Samples
from aam.members.checkpoint import EnsembleCheckpoint, StoredEnsemble
from aam.members.effects import Importance, contributed_effects, estimator_importance, of_effects
from aam.members.ensemble import Ensemble
from aam.members.estimators import ESTIMATORS
from aam.members.option_checks import TRANSFORMER
from aam.members.permutation import permutation_importance
from aam.members.stability import FOLD_RANK, stability
from aam.numerics.device import choose_device
from aam.training.run_files import checkpoints
from aam.training.run_files.checkpoints import checkpoint_files

BATCH_SIZE = 16

_SUMMED = ("effect", "forest", "transformer_effect", "permutation", "mean_relative_abundance")
"""Starts of the columns of an importance table that add up over ASVs."""


def read_members(path: Path) -> EnsembleCheckpoint:
    """Read the ensemble or the networks of a run folder, or a checkpoint.

    Raises:
        MissingInput: there is no such path, or no checkpoint.
        DataError: see `checkpoint.read` and `checkpoints.read`; a network without target.
    """
    file = checkpoint.find(path)
    if file is not None:
        return checkpoint.read(file)
    if not path.is_dir():
        require(path, "model")
    networks = [checkpoints.read(one) for one in checkpoint_files(path)]
    config, _ = networks[0]
    if (target := config.target) is None:
        raise DataError(
            "The model has no target", f"'{path}' was only pretrained", "use `aam train` first"
        )
    labels = Labels(np.empty(0), target.classes, np.empty(0, dtype=np.int64))
    one = Ensemble({TRANSFORMER: 1.0}, np.inf, 1.0)
    stored = StoredEnsemble.of(target.column, labels, UNSCALED, one, config.options)
    none = np.empty((0, config.shape.max_bp), dtype=np.uint8)
    return EnsembleCheckpoint(stored, none, {}, None, networks)


def importance_table(
    loaded: EnsembleCheckpoint,
    study: Study,
    taxa: Mapping[str, str] | None = None,
    covariates: Covariates | None = None,
    device: DeviceOptions | None = None,
) -> pd.DataFrame:
    """Return a row for each ASV that occurs in a study, the most important first.

    Args:
        loaded: the ensemble; members without weight are left out.
        study: samples over which the importance is averaged.
        taxa: taxon of each ASV by feature id; None without taxonomy.
        covariates: metadata that the ensemble reads; None if it reads the counts alone.
        device: of the transformer; the default without it.

    Raises:
        DataError: no ASV occurs in the training study of an ensemble of kernel and forest, or no
            ASV has a taxon.
    """
    stored = loaded.stored
    counts = Samples.of(study.table, study.tokens_FL).counts
    seen = np.unique(counts.indices)
    ids = [study.table.feature_ids[column] for column in seen.tolist()]
    samples = Samples(counts[:, seen], study.tokens_FL[seen], covariates)
    models = {name: model for name, model in loaded.models.items() if stored.weights[name]}
    rows, known = loaded.relations.known(samples.tokens_FL)
    if models and not len(rows):
        raise DataError(
            "The table has no ASV of the model's training data",
            f"{len(ids)} ASVs",
            "give a table of the same region, trimmed to the same length",
        )
    columns: dict[str, object] = {"feature-id": ids}
    if taxa is not None:
        columns["taxon"] = _taxa(taxa, ids)
    members: list[Importance] = []
    folds: list[list[F64]] = []
    for name, model in models.items():
        inputs = ESTIMATORS[name].read(samples, loaded.relations)
        tokens = samples.tokens_FL, loaded.relations
        members.append(
            estimator_importance(model, inputs, *tokens, stored.classes, stored.transform)
        )
        sizes_KU = np.zeros((len(loaded.fold_importance.get(name, ())), len(ids)))
        if len(sizes_KU):
            sizes_KU[:, rows] = loaded.fold_importance[name][:, known]
        folds.append(list(sizes_KU))
    if loaded.networks and stored.weights[TRANSFORMER]:
        each = _network_importances(loaded, study, seen, samples, device or DeviceOptions())
        members.append(_mean(each))
        folds.append([one.size_U for one in each])
    for member in members:
        columns |= member.columns
    relative = samples.relative
    columns["prevalence"] = relative.astype(bool).sum(axis=0) / relative.shape[0]
    columns["mean_relative_abundance"] = relative.mean(axis=0, dtype=np.float64)
    columns["rank"] = _mean_rank([member.size_U for member in members])
    number = min(len(sizes) for sizes in folds)
    if number > 1 and len(ids) > 1 and number == max(len(sizes) for sizes in folds):
        for fold, sizes in enumerate(zip(*folds, strict=True), start=1):
            columns[f"{FOLD_RANK}{fold}"] = _mean_rank(sizes)
        ranks_KU = np.array([columns[name] for name in columns if name.startswith(FOLD_RANK)])
        info(stability(ranks_KU).sentence)
    if models:
        info(f"{len(rows)} of {len(ids)} ASVs are in the training data.")
    return pd.DataFrame(columns).sort_values("rank", kind="stable", ignore_index=True)


def rank_by_permutation(
    table: pd.DataFrame,
    loaded: EnsembleCheckpoint,
    study: Study,
    covariates: Covariates | None,
    first: int,
    groups_N: Rows | None,
    device: DeviceOptions,
) -> pd.DataFrame:
    """Add the column `permutation` to the `first` rows of a table, and rank these rows by it.

    Args:
        table: of `importance_table`.
        loaded, study, covariates: of the table.
        first: number of ASVs to permute; the others keep their order, after these.
        groups_N: see `permutation_importance`.
        device: of the transformer.
    """
    column = {name: number for number, name in enumerate(study.table.feature_ids)}
    asvs = [column[name] for name in table["feature-id"][:first]]
    changes = permutation_importance(loaded, study, covariates, asvs, groups_N, device)
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


def _network_importances(
    loaded: EnsembleCheckpoint,
    study: Study,
    seen: Rows,
    samples: Samples,
    options: DeviceOptions,
) -> list[Importance]:
    """Compute the importance for the network of each fold."""
    device = choose_device(options)
    features = samples.log_abundances
    importances = []
    for network in loaded.build_networks(options):
        contributions = integrated_gradients(
            network, study, BATCH_SIZE, device, covariates=samples.covariates
        )
        effects_UC = contributed_effects(contributions, seen, features)
        importances.append(of_effects("transformer_effect", effects_UC, loaded.stored.classes))
    return importances


def _mean(each: Sequence[Importance]) -> Importance:
    """Average the columns of the folds' networks; the size follows from their means."""
    columns = {
        name: np.mean([one.columns[name] for one in each], axis=0) for name in each[0].columns
    }
    return Importance(columns, np.abs(list(columns.values())).max(axis=0))


def _mean_rank(sizes: Sequence[F64]) -> F64:
    ranks: F64 = np.mean([rankdata(-size_U) for size_U in sizes], axis=0)
    return ranks


def _taxa(taxa: Mapping[str, str], ids: Sequence[str]) -> list[str]:
    named = [taxa.get(name, "") for name in ids]
    unmatched = sum(name not in taxa for name in ids)
    if unmatched == len(ids):
        raise DataError(
            "The taxonomy and the table have no ASV in common",
            f"the table has {ids[0]}, the taxonomy {next(iter(taxa), 'no ASV')}",
            "give the taxonomy of the same representative sequences",
        )
    if unmatched:
        info(f"{unmatched} of {len(ids)} ASVs are not in the taxonomy.")
    return named
