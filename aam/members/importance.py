"""Importance of ASVs, and of taxa: how much the predictions of a model depend on each.

Measures of each member, their stability over folds, permutation importance of the whole ensemble,
which needs no derivative, and the attention of a network to the ASVs of one sample.
`docs/importance.md` documents the columns. U ASVs of the table, K folds; further shape suffixes:
see `samples`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.stats import rankdata, spearmanr

from aam.arrays import F64, Rows
from aam.console import info, track, warn
from aam.contract.errors import DataError, nearest
from aam.contract.options.groups import networks
from aam.data.covariates import Covariates
from aam.data.study import Study
from aam.data.taxonomy import named_ranks, require_common, taxon_cells
from aam.evaluation.association import (
    ADJUSTED,
    ADJUSTED_Z,
    ASSOCIATED,
    CONDITIONAL,
    EQUAL_DEPTH,
    MIN_SAMPLES,
    PERMUTATIONS,
    RATE,
    association_sentence,
    mixed_model_test,
    rank_test,
    study_agreement,
)
from aam.evaluation.folds import Folds
from aam.evaluation.permutation import standard_outputs
from aam.members.kernel import MEMBER as KERNEL
from aam.members.kernel import label_free_kernel
from aam.members.member import Importance, TrainingSamples, reader
from aam.members.model_file import TrainedModel
from aam.members.output_tables import InferenceSettings
from aam.members.samples import Samples

FOLD_RANK = "rank_fold_"  # prefix of the columns with the ranks of each fold
FIRST = 20  # ASVs whose presence among the first is compared

UNSTABLE = 0.5
"""Fraction of the first ASVs that two folds share, below which the list is no finding."""

SEED = 0  # of permutations, and of the samples over which importance is averaged

_SUMMED = ("effect", "forest", "transformer_effect", "permutation", "mean_relative_abundance")
"""Starts of the columns of an importance table that add up over ASVs."""


@dataclass(frozen=True)
class Stability:
    """Agreement of K folds about U ASVs."""

    folds: int  # K
    correlation: float  # mean Spearman correlation of the ranks of two folds
    common: float  # mean number of the first `FIRST` ASVs that two folds have in common
    first: int  # `FIRST`, or U if that is less
    times_U: Rows  # number of folds in which an ASV is among the first

    def sentence(self, q_U: F64 | None) -> str:
        """Describe the agreement; `q_U` has the false discovery rates of the rank test."""
        text = (
            f"Two of {self.folds} folds share {self.common:.1f} of their first {self.first} "
            f"ASVs on average (rank correlation {self.correlation:.2f})"
        )
        if self.common >= UNSTABLE * self.first:
            return f"{text}."
        text += ": the list depends on the fold"
        # The tests of the samples do not depend on the ranks in the model.
        if number := 0 if q_U is None else int(((self.times_U == self.folds) & (q_U < RATE)).sum()):
            verb = "ASVs are" if number > 1 else "ASV is"
            return f"{text}, but {number} {verb} among the first in every fold and have q < {RATE}."
        return f"{text} and is no finding."


def stability(ranks_KU: F64) -> Stability:
    """Compare the ranks of U ASVs in K folds, at least two of each."""
    first = min(FIRST, ranks_KU.shape[1])
    # ASVs of equal rank are all among the first, or none, whatever their order is.
    among_KU = ranks_KU <= first
    pairs = list(combinations(range(len(ranks_KU)), 2))
    # A fold whose model predicts a constant has equal ranks and agrees with no other fold.
    varies_K = np.ptp(ranks_KU, axis=1) > 0
    correlations = [
        spearmanr(ranks_KU[i], ranks_KU[j])[0] if varies_K[i] and varies_K[j] else 0.0
        for i, j in pairs
    ]
    return Stability(
        folds=len(ranks_KU),
        correlation=float(np.mean(correlations)),
        common=float(np.mean([(among_KU[i] & among_KU[j]).sum() for i, j in pairs])),
        first=first,
        times_U=among_KU.sum(axis=0),
    )


def q_values(
    samples: TrainingSamples,
    folds: Folds,
    reads: Rows | None = None,
    adjustment: Covariates | None = None,
) -> tuple[dict[str, F64], dict[str, float]]:
    """Return false discovery rates of each ASV, float64 [F], by the columns of importance.tsv.

    Also return the number of ASVs in each test, and its settings, for the run record.
    """
    relative, tests = samples.samples.relative, dict[str, F64]()
    numbers = {"samples": MIN_SAMPLES, "permutations": PERMUTATIONS, "rate": RATE}
    samples_F = np.bincount(relative.indices, minlength=1)
    if samples_F.max() < MIN_SAMPLES:
        info(f"No ASV is in {MIN_SAMPLES} samples or more: none is tested for association.")
    if (test := rank_test(relative, folds.labels, reads)) is not None:
        tests[ASSOCIATED] = test.q_values
        numbers[ASSOCIATED] = int((test.present_F >= MIN_SAMPLES).sum())
        if test.depth:
            tests[EQUAL_DEPTH] = np.full(len(test.q_values), float(test.depth))
    if adjustment is not None:
        if (test := rank_test(relative, folds.labels, reads, adjustment)) is not None:
            tests[ADJUSTED] = test.q_values
        else:
            names = ", ".join(adjustment.columns)
            reason = "too few samples have the same categories and differ in the target"
            warn(f"The tests of the ASVs are not adjusted for {names}: {reason}.")
    if (outputs_NC := standard_outputs(folds)) is not None:
        inputs = samples.inputs(KERNEL)
        kernel_NN = label_free_kernel(inputs).astype(np.float64)
        tests[CONDITIONAL] = mixed_model_test(kernel_NN, inputs.weights, outputs_NC, folds)
        numbers[CONDITIONAL] = int((samples_F >= MIN_SAMPLES).sum())
    return tests, numbers


def importance_table(
    loaded: TrainedModel,
    study: Study,
    taxa: Mapping[str, str] | None = None,
    covariates: Covariates | None = None,
    dense_bytes: int = 2**29,
) -> pd.DataFrame:
    """Return a row for each ASV that occurs in a study, the most important first."""
    samples, seen = Samples.of(study, covariates).present
    ids = [study.table.feature_ids[column] for column in seen.tolist()]
    rows, trained_rows = loaded.relations.known(samples.tokens_FL)
    models = loaded.models
    if not len(rows) and len(networks(tuple(models))) < len(models):
        evidence = f"{len(ids)} ASVs"
        remedy = "give a table of the same region, trimmed to the same length"
        raise DataError("The table has no ASV of the model's training data", evidence, remedy)
    columns: dict[str, object] = {"feature-id": ids}
    if taxa is not None:
        require_common(taxa, ids)
        columns["taxon"] = taxon_cells(taxa, ids)
    members: list[Importance] = []
    folds: list[Sequence[F64]] = []
    averaged = samples
    most = dense_bytes // (4 * max(1, len(loaded.tokens_FL)))
    if (number := samples.counts.shape[0]) > most:
        # The kernel compares each sample with each ASV of the training study.
        every = np.random.default_rng(SEED).permutation(number)
        averaged = samples.take(np.sort(every[:most]))
        info(f"Importance is averaged over {most} of the {number} samples, drawn at random.")
    for name, model in models.items():
        inputs = reader(name).read(averaged, loaded.relations)
        importance = model.importance(
            inputs, samples.tokens_FL, loaded.relations, loaded.facts.outputs
        )
        members.append(importance)
        columns |= importance.columns
        sizes_KU = np.zeros((len(loaded.fold_importance.get(name, ())), len(ids)))
        if len(sizes_KU):
            sizes_KU[:, rows] = loaded.fold_importance[name][:, trained_rows]
        folds.append(importance.folds or list(sizes_KU))
    relative = samples.relative
    columns["prevalence"] = relative.astype(bool).sum(axis=0) / relative.shape[0]
    columns["mean_relative_abundance"] = relative.mean(axis=0, dtype=np.float64)
    # A member of weight 0 contributes nothing to the predictions, nor to the ranks.
    weights = [loaded.facts.weights[name] for name in models]
    columns["rank"] = _mean_rank([member.size_U for member in members], weights)
    # ASVs that the training study does not have were not tested.
    q_values_U = {
        name: np.full(len(ids), np.nan if name == EQUAL_DEPTH else 1.0) for name in loaded.q_values
    }
    for name, q_U in q_values_U.items():
        q_U[rows] = loaded.q_values[name][trained_rows]
    columns |= q_values_U
    if q_values_U:
        info(association_sentence(q_values_U, loaded.column, loaded.performance.better))
    number = min(len(sizes) for sizes in folds)
    # A rank of a fold needs a model of that fold from every member.
    if number > 1 and len(ids) > 1 and number == max(len(sizes) for sizes in folds):
        ranks_KU = np.array([_mean_rank(sizes, weights) for sizes in zip(*folds, strict=True)])
        stable = stability(ranks_KU)
        columns["stability"] = stable.times_U / stable.folds
        columns |= {f"{FOLD_RANK}{k}": ranks_U for k, ranks_U in enumerate(ranks_KU, start=1)}
        info(stable.sentence(q_values_U.get(ASSOCIATED)))
    if len(rows) < len(ids):
        info(f"{len(rows)} of the {len(ids)} ASVs occur in the training data.")
    return pd.DataFrame(columns).sort_values("rank", kind="stable", ignore_index=True)


def rank_by_permutation(
    table: pd.DataFrame,
    loaded: TrainedModel,
    study: Study,
    covariates: Covariates | None,
    first: int,
    groups_N: Rows | None,
) -> pd.DataFrame:
    """Add the column `permutation` to the `first` rows of a table, and rank these rows by it."""
    column = {name: number for number, name in enumerate(study.table.feature_ids)}
    asvs = [column[name] for name in table["feature-id"][:first]]
    all_samples = Samples.of(study, covariates)
    facts, ensemble, classes = loaded.facts, loaded.facts.ensemble, bool(loaded.facts.classes)
    # Each model reads what it reads in `aam predict`: a network the reads that it draws.
    prepared = {name: model.prepared(all_samples) for name, model in loaded.models.items()}

    def predict(samples_of: Mapping[str, Samples]) -> F64:
        predictions = {
            name: model.apply(
                reader(name).read(samples_of[name].present[0], loaded.relations),
                facts.outputs.scale,
                InferenceSettings(),
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
            original = columns[:, [asv]].toarray().ravel()
            change = original[source_N] - original
            # A sample without any other ASV keeps its reads: without reads it has no abundances.
            change_of[name] = np.where(reads_of[name] + change == 0, 0, change)
        # Only changed samples are predicted again: permuting a rare ASV changes few of them.
        rows = np.flatnonzero(np.any(list(change_of.values()), axis=0))
        if len(rows):
            changed = {}
            for name, (_, samples) in prepared.items():
                taken = samples.take(rows)
                places, shape = (np.arange(len(rows)), np.full(len(rows), asv)), taken.counts.shape
                counts = taken.counts + sparse.csr_array((change_of[name][rows], places), shape)
                counts.eliminate_zeros()
                changed[name] = dataclasses.replace(taken, counts=counts)
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
    """
    lowest = taxa_of_asvs(table["taxon"])
    if not lowest:
        raise DataError("No ASV has a taxon", f"{len(table)} ASVs", "give another taxonomy")
    summed = [name for name in table.columns if name.startswith(_SUMMED)]
    values = table[summed].to_numpy(np.float64)
    taxa = pd.DataFrame(
        {
            "taxon": ["; ".join(taxon) for taxon in lowest],
            "level": [len(taxon) for taxon in lowest],
            "asvs": [len(rows) for rows in lowest.values()],
        }
    )
    # Only the first ASVs are permuted, see --first.
    taxa[summed] = np.array([np.nansum(values[rows], axis=0) for rows in lowest.values()])
    sizes = taxa[[name for name in summed if name != "mean_relative_abundance"]].abs()
    taxa["rank"] = sizes.groupby(taxa["level"]).rank(ascending=False).mean(axis=1)
    return taxa.sort_values(["level", "rank"], kind="stable", ignore_index=True)


def taxa_of_asvs(taxa: Iterable[str]) -> dict[tuple[str, ...], list[int]]:
    """Return the rows of the ASVs of each taxon of each rank.

    >>> taxa_of_asvs(["d__B; g__A", "d__B; g__C"])
    {('d__B',): [0, 1], ('d__B', 'g__A'): [0], ('d__B', 'g__C'): [1]}
    """
    members: dict[tuple[str, ...], list[int]] = {}
    for row, ranks in enumerate(map(named_ranks, taxa)):
        for level in range(1, len(ranks) + 1):
            members.setdefault(tuple(ranks[:level]), []).append(row)
    lowest: dict[tuple[int, ...], tuple[str, ...]] = {}
    for taxon, rows in members.items():
        lowest[tuple(rows)] = max(lowest.get(tuple(rows), ()), taxon, key=len)
    return {taxon: list(rows) for rows, taxon in lowest.items()}


def agreement_table(
    importance: pd.DataFrame,
    abundances: sparse.csr_array,
    feature_ids: Sequence[str],
    folds: Folds,
    reads: Rows | None,
    adjustment: Covariates | None = None,
) -> pd.DataFrame | None:
    """Return a row for each ASV and taxon that is tested in at least two studies."""
    tables = []
    column = {name: number for number, name in enumerate(feature_ids)}
    columns = [column[name] for name in importance["feature-id"]]
    of_asvs = sparse.csr_array(abundances[:, columns], dtype=np.float64)
    described = {"taxon": importance["taxon"]} if "taxon" in importance else {}
    kinds = [
        ("ASV", of_asvs, {"feature": importance["feature-id"], **described}, importance["rank"])
    ]
    if "taxon" in importance and (taxa := taxa_of_asvs(importance["taxon"])):
        places = [(row, k) for k, rows in enumerate(taxa.values()) for row in rows]
        rows, taxon = np.array(places).T
        shape = len(importance), len(taxa)
        member = sparse.csr_array((np.ones(len(rows)), (rows, taxon)), shape)
        names = ["; ".join(ranks) for ranks in taxa]
        kinds.append(("taxon", of_asvs @ member, {"feature": names, "taxon": names}, np.nan))
    for kind, shares, names_of, rank in kinds:
        agreement = study_agreement(shares, folds.labels, reads)
        if agreement is None:
            return None
        described = {"kind": kind, "studies": agreement.studies_F, "agreeing": agreement.agreeing_F}
        if folds.labels.classes:
            described["class"] = [folds.labels.classes[code] for code in agreement.class_F.tolist()]
        statistics_of_studies = {
            f"z_{name}": z_F for name, z_F in zip(folds.studies, agreement.z_KF, strict=True)
        }
        statistics = {"z": agreement.z_F, "p": agreement.p_F, "q": agreement.q_F, "rank": rank}
        if agreement.depth:
            statistics["depth"] = agreement.depth
        if adjustment is not None:
            adjusted = rank_test(shares, folds.labels, reads, adjustment)
            statistics |= {ADJUSTED: np.nan, ADJUSTED_Z: np.nan}
            if adjusted is not None:
                # Of the class to which z refers; the second of two classes has the only column.
                outputs_F = agreement.class_F - (len(folds.labels.classes) == 2)
                statistics[ADJUSTED] = adjusted.q_values
                statistics[ADJUSTED_Z] = adjusted.z_FD[np.arange(len(outputs_F)), outputs_F]
        table = pd.DataFrame({**names_of, **described, **statistics, **statistics_of_studies})
        tables.append(table[table["studies"] > 1].sort_values("p", kind="stable"))
    return pd.concat(tables, ignore_index=True)


def _mean_rank(sizes: Sequence[F64], weights: Sequence[float]) -> F64:
    return np.average([rankdata(-size_U) for size_U in sizes], axis=0, weights=weights)


def attention_table(
    loaded: TrainedModel,
    study: Study,
    sample: str,
    taxa: Mapping[str, str] | None,
    covariates: Covariates | None,
) -> tuple[pd.DataFrame, F64]:
    """Return a row for each ASV of a sample, and the attention between them [U, U]."""
    ids = study.table.sample_ids
    if sample not in ids:
        evidence = f"--attention {sample}, {len(ids)} samples"
        raise DataError("The table has no such sample", evidence, nearest(sample, ids, "name one"))
    all_samples = Samples.of(study, covariates)
    present, seen = all_samples.take(np.array([list(ids).index(sample)])).present
    networks = [
        attention for model in loaded.models.values() for attention in model.attention(present)
    ]
    if not networks:
        evidence = f"its members are {', '.join(loaded.models)}"
        raise DataError("The model has no attention", evidence, "train with the member transformer")
    first = networks[0]  # every network reads the same reads of the sample
    pooling_U = np.mean([attention.pooling_S for attention in networks], axis=0)
    order = np.argsort(-pooling_U, kind="stable")
    names = [study.table.feature_ids[asv] for asv in seen[first.asvs_S[order]].tolist()]
    columns: dict[str, object] = {"feature-id": names}
    if taxa is not None:
        columns["taxon"] = [taxa.get(name, "") for name in names]
    columns |= {"relative_abundance": first.abundance_S[order], "attention": pooling_U[order]}
    mixing_UU = np.mean([attention.mixing_SS for attention in networks], axis=0)
    return pd.DataFrame(columns), mixing_UU[np.ix_(order, order)]
