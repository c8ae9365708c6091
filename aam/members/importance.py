"""Importance of ASVs, and of taxa: how much the predictions of a model depend on each.

Measures of each member, their stability over folds, permutation importance of the whole ensemble,
which needs no derivative, and the attention of a network to the ASVs of one sample.
`docs/importance.md` documents the columns. U ASVs of the table, K folds; further shape suffixes:
see `base`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.stats import rankdata, spearmanr

from aam.arrays import F64, Rows
from aam.console import info, track
from aam.contract.errors import DataError, nearest
from aam.contract.options.members import networks
from aam.data.covariates import Covariates
from aam.data.study import Study
from aam.data.taxonomy import named_ranks, require_common
from aam.evaluation.folds import Folds
from aam.evaluation.permutation import shuffled_rows, standard_outputs
from aam.inference.tables import InferenceSettings
from aam.members.base import Samples
from aam.members.kernel import MEMBER as KERNEL
from aam.members.kernel import label_free_kernels
from aam.members.kernel_ridge import PENALTIES
from aam.members.member import Importance, TrainingSamples, reader
from aam.members.model_file import TrainedModel

FOLD_RANK = "rank_fold_"
"""Prefix of the columns with the ranks of each fold."""

FIRST = 20
"""ASVs whose presence among the first is compared."""

UNSTABLE = 0.5
"""Part of the first ASVs that two folds have in common, below which a list is no finding."""


@dataclass(frozen=True)
class Stability:
    """Agreement of K folds about U ASVs."""

    folds: int  # K
    correlation: float  # mean Spearman correlation of the ranks of two folds
    common: float  # mean number of the first `FIRST` ASVs that two folds have in common
    first: int  # `FIRST`, or U if that is less
    times_U: Rows  # number of folds in which an ASV is among the first

    @property
    def sentence(self) -> str:
        """Describe the agreement."""
        text = (
            f"Two of {self.folds} folds have {self.common:.1f} of their first {self.first} ASVs in "
            f"common (rank correlation {self.correlation:.2f})"
        )
        if self.common < UNSTABLE * self.first:
            return f"{text}: the list changes with the fold and is no finding."
        return f"{text}."


def stability(ranks_KU: F64) -> Stability:
    """Compare the ranks of U ASVs in K folds, at least two of each."""
    first = min(FIRST, ranks_KU.shape[1])
    among_KU = np.argsort(np.argsort(ranks_KU, axis=1, kind="stable"), axis=1) < first
    pairs = list(combinations(range(len(ranks_KU)), 2))
    return Stability(
        folds=len(ranks_KU),
        correlation=float(np.mean([spearmanr(ranks_KU[i], ranks_KU[j])[0] for i, j in pairs])),
        common=float(np.mean([(among_KU[i] & among_KU[j]).sum() for i, j in pairs])),
        first=first,
        times_U=among_KU.sum(axis=0),
    )


RATE = 0.1
"""False discovery rate at which ASVs are counted."""

SHUFFLED = 200
"""Shufflings of the labels, of which all ASVs share the null distribution."""

MIN_SAMPLES = 5
"""Samples that have an ASV, below which its association is not tested."""


def q_values(samples: TrainingSamples, folds: Folds) -> F64 | None:
    """Return the false discovery rate at which each ASV is associated with the target, [F].

    The statistic of an ASV is the correlation of its log abundance with the label in a mixed model
    whose random effect is the kernel (as of relatives in genetics: Kang et al. 2010,
    doi:10.1038/ng.548): associations that the ASV shares with the whole community count little.
    Shuffled labels have the null distribution, of all ASVs together, by which Benjamini and
    Hochberg's q-values are computed. None is below the part of the shufflings of which the least
    q-value of all ASVs is as low: without any association, at most a part q of the studies has an
    ASV at q. An ASV of fewer than `MIN_SAMPLES` samples has 1. There are none of too many samples,
    or where all labels are equal.
    """
    if (outputs_NC := standard_outputs(folds)) is None:
        return None
    number, inputs = len(outputs_NC), samples.inputs(KERNEL)
    kernel_NN = label_free_kernels(inputs)[0].astype(np.float64)
    mean_N = kernel_NN.mean(axis=0)
    values, vectors = np.linalg.eigh(kernel_NN - mean_N - mean_N[:, None] + mean_N.mean())
    kept = values > max(values[-1] * 1e-10, 0)
    values, U = values[kept], vectors[:, kept]
    # The variance of the noise, relative to the kernel's, has the least leave-one-out error.
    shrunk_PK = values / (values + PENALTIES[:, None] * values.sum())
    residuals_PNC = outputs_NC - U @ (shrunk_PK[:, :, None] * (U.T @ outputs_NC))
    leverage_PN1 = (1 / number + shrunk_PK @ np.square(U).T)[:, :, None]
    errors_P = np.square(residuals_PNC / (1 - leverage_PN1).clip(min=1e-9)).sum(axis=(1, 2))
    shrunk_K = shrunk_PK[errors_P.argmin()]
    # The inverse of the covariance of the mixed model is I - U diag(shrunk) U^T, up to a factor.
    labels_NX = outputs_NC[shuffled_rows(folds, SHUFFLED).T].reshape(number, -1)
    labels_NX -= labels_NX.mean(axis=0)
    whitened_NX = labels_NX - U @ (shrunk_K[:, None] * (U.T @ labels_NX))
    norms_X = np.sqrt((labels_NX * whitened_NX).sum(axis=0).clip(min=1e-12))
    weights = sparse.csc_array(inputs.weights, dtype=np.float64)
    tested = np.flatnonzero(np.diff(weights.indptr) >= MIN_SAMPLES)
    columns_TN = sparse.csr_array(weights[:, tested].T)
    squares_T = columns_TN.power(2).sum(axis=1) - number * columns_TN.mean(axis=1) ** 2
    squares_T -= np.square((columns_TN @ U) * np.sqrt(shrunk_K)).sum(axis=1)
    correlations_TX = (columns_TN @ whitened_NX) / norms_X
    correlations_TX /= np.sqrt(squares_T.clip(min=1e-9))[:, None]
    by_class = correlations_TX.reshape(len(tested), SHUFFLED + 1, -1)
    size_BT = np.sqrt(np.square(by_class).sum(axis=2)).T.round(9)
    null = np.sort(size_BT[1:].ravel())

    def benjamini_hochberg(size_T: F64) -> F64:
        order = np.argsort(-size_T)
        expected = (len(null) - np.searchsorted(null, size_T[order]) + 1) / SHUFFLED
        ratio = expected / np.arange(1, len(order) + 1)
        q_T = np.empty(len(order))
        q_T[order] = np.minimum.accumulate(ratio[::-1])[::-1].clip(max=1)
        return q_T

    q_F = np.ones(weights.shape[1])
    if len(tested):
        q_BT = np.array([benjamini_hochberg(size_T) for size_T in size_BT])
        least_B = np.sort(q_BT[1:].min(axis=1))
        as_low_T = np.searchsorted(least_B, q_BT[0], side="right")
        q_F[tested] = np.maximum(q_BT[0], (1 + as_low_T) / (SHUFFLED + 1))
    return q_F


def evidence_sentence(q_U: F64, target: str) -> str:
    """Say how many ASVs are associated with the target at the false discovery rate `RATE`."""
    number = int((q_U <= RATE).sum())
    count = "No ASV is" if not number else f"{number} ASV{'s are' if number > 1 else ' is'}"
    return f"{count} associated with '{target}' at a false discovery rate of {RATE:.0%} (q_value)."


SEED = 0

_SETTINGS = InferenceSettings()


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
        1), mean_relative_abundance (0 to 1), rank (1 for the most important ASV), q_value and, of
        several folds, stability, rank_fold_1 and so on; `docs/importance.md` defines the measures.

    Raises:
        DataError: no ASV occurs in the training study, or no ASV has a taxon.
    """
    samples, seen = Samples.of(study, covariates).present
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
        require_common(taxa, ids)
        if unmatched := sum(name not in taxa for name in ids):
            info(f"{unmatched} of {len(ids)} ASVs are not in the taxonomy.")
        columns["taxon"] = [taxa.get(name, "") for name in ids]
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
    if loaded.q_values_F is not None:
        q_U = np.ones(len(ids))
        q_U[rows] = loaded.q_values_F[known]
        columns["q_value"] = q_U
        info(evidence_sentence(q_U, loaded.column))
    number = min(len(sizes) for sizes in folds)
    # A rank of a fold needs a model of that fold from every member.
    if number > 1 and len(ids) > 1 and number == max(len(sizes) for sizes in folds):
        ranks_KU = np.array([_mean_rank(sizes) for sizes in zip(*folds, strict=True)])
        stable = stability(ranks_KU)
        columns["stability"] = stable.times_U / stable.folds
        columns |= {f"{FOLD_RANK}{k}": ranks_U for k, ranks_U in enumerate(ranks_KU, start=1)}
        info(stable.sentence)
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

    It is the mean change of the model's predictions over all samples if the reads of an ASV are
    permuted. A number changes by the absolute difference, in its units; classes by half the sum of
    the absolute differences of their probabilities (total variation, 0 to 1). Samples are permuted
    within `groups_N`. The rows after the first keep their order.
    """
    column = {name: number for number, name in enumerate(study.table.feature_ids)}
    asvs = [column[name] for name in table["feature-id"][:first]]
    whole = Samples.of(study, covariates)
    facts, ensemble, classes = loaded.facts, loaded.facts.ensemble, bool(loaded.facts.classes)
    # Each model reads what it reads in `aam predict`: a network the reads that it draws.
    prepared = {name: model.prepared(whole) for name, model in loaded.models.items()}

    def predict(samples_of: Mapping[str, Samples]) -> F64:
        predictions = {
            name: model.apply(
                reader(name).read(samples_of[name].present[0], loaded.relations),
                facts.outputs.scale,
                _SETTINGS,
            ).values_NC
            for name, (model, _) in prepared.items()
        }
        return ensemble.combine(predictions, classes)

    original_NC = predict({name: samples for name, (_, samples) in prepared.items()})
    number = len(original_NC)
    columns_of = {name: sparse.csc_array(samples.counts) for name, (_, samples) in prepared.items()}
    reads_of = {name: samples.counts.sum(axis=1) for name, (_, samples) in prepared.items()}
    rng = np.random.default_rng(SEED)
    groups_N = np.zeros(number, dtype=np.int64) if groups_N is None else groups_N
    by_group = np.argsort(groups_N, kind="stable")
    changes = np.zeros(len(asvs))
    for k, asv in enumerate(track(asvs, "Permutation", len(asvs), "ASVs")):
        # Samples are permuted within each group.
        source_N = np.empty(number, dtype=np.int64)
        source_N[by_group] = np.lexsort((rng.random(number), groups_N))
        change_of = {}
        for name, columns in columns_of.items():
            before = columns[:, [asv]].toarray().ravel()
            after = before[source_N]
            # A sample without any other ASV keeps its reads: without reads it has no abundances.
            change_of[name] = np.where(reads_of[name] - before + after == 0, 0, after - before)
        # Only changed samples are predicted again: permuting a rare ASV changes few of them.
        rows = np.flatnonzero(np.any(list(change_of.values()), axis=0))
        if len(rows):
            changed = {}
            for name, (_, samples) in prepared.items():
                part, places = samples.take(rows), (np.arange(len(rows)), np.full(len(rows), asv))
                counts = part.counts + sparse.csr_array(
                    (change_of[name][rows], places), shape=part.counts.shape
                )
                counts.eliminate_zeros()
                changed[name] = dataclasses.replace(part, counts=counts)
            difference = np.abs(predict(changed) - original_NC[rows])
            changes[k] = difference.sum() / (2 if classes else 1) / number
    table.insert(table.columns.get_loc("prevalence"), "permutation", pd.Series(changes))
    table = table.sort_values("permutation", ascending=False, kind="stable", ignore_index=True)
    permuted = len(asvs)
    table["rank"] = [*rankdata(-np.sort(changes)[::-1]), *range(permuted + 1, len(table) + 1)]
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


def attention_table(
    loaded: TrainedModel,
    study: Study,
    sample: str,
    taxa: Mapping[str, str] | None,
    covariates: Covariates | None,
) -> tuple[pd.DataFrame, F64]:
    """Return a row for each ASV of a sample, and the attention between them [U, U].

    The columns are feature-id, taxon (with a taxonomy), relative_abundance, and attention, whose
    sum is 1; the ASV with the highest attention is the first.
    """
    ids = study.table.sample_ids
    if sample not in ids:
        evidence = f"--attention {sample}, {len(ids)} samples"
        raise DataError("The table has no such sample", evidence, nearest(sample, ids, "name one"))
    whole = Samples.of(study, covariates)
    present, seen = whole.take(np.array([list(ids).index(sample)])).present
    each = [one for model in loaded.models.values() for one in model.attention(present)]
    if not each:
        raise DataError(
            "The model has no attention",
            f"its members are {', '.join(loaded.models)}",
            "train with the member transformer",
        )
    first = each[0]  # every network reads the same reads of the sample
    pooling_U = np.mean([one.pooling_S for one in each], axis=0)
    order = np.argsort(-pooling_U, kind="stable")
    names = [study.table.feature_ids[asv] for asv in seen[first.asvs_S[order]].tolist()]
    columns: dict[str, object] = {"feature-id": names}
    if taxa is not None:
        columns["taxon"] = [taxa.get(name, "") for name in names]
    columns |= {"relative_abundance": first.abundance_S[order], "attention": pooling_U[order]}
    mixing_UU = np.mean([one.mixing_SS for one in each], axis=0)
    return pd.DataFrame(columns), mixing_UU[np.ix_(order, order)]
