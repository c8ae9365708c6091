"""Explanations: effects of ASVs and metadata columns on the prediction of one sample.

The effects of a sample and a remainder add up to its prediction minus the mean training label.
Kernel and network are explained by integrated gradients (Sundararajan et al. 2017,
arXiv:1703.01365), the forest by the change of the mean label along the decision paths (Saabas
2014), each on the scale on which the member is additive (transformed numbers, logits), times the
mean slope of the prediction between the mean label and the prediction on that scale.
`docs/importance.md` has the definitions.

N samples, U ASVs of their table, V ASVs of the training study (the first F) and of the table, R
landmarks, G branches or clades, W features of covariates, C outputs.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from aam.arrays import F64
from aam.contract.errors import DataError
from aam.data.sequences import decode
from aam.evaluation.calibration import calibrate
from aam.evaluation.ensemble import Combined
from aam.evaluation.folds import Folds
from aam.members.member import CrossValidated, ExplainedSamples, FittedModel, reader
from aam.members.model_file import TrainedModel
from aam.members.relations import AsvRelations
from aam.members.samples import Samples

FIRST = 20  # features of a sample that have a row of their own

FEATURES = ("ASV", "taxon", "metadata")
"""Kinds of the rows of a table of explanations that are features."""

WORST, TYPICAL = 10, 3  # held-out samples that `aam train` explains
_AT_ONCE = 256  # samples whose effects of all ASVs are in memory


def explain(
    model: TrainedModel,
    samples: Samples,
    predictions_NC: F64,
    members: Mapping[str, F64],
    means_NC: F64,
    ids_U: Sequence[str],
    taxa: Mapping[str, str] | None = None,
    first: int = FIRST,
) -> pd.DataFrame:
    """Return the largest effects on the predictions of N samples, which add up to each prediction.

    `members` are the predictions of each member, `means_NC` the mean label of the training samples.
    The rows have sample, feature, kind, effect, unit: the mean label (kind `mean`), the features
    with the largest effects (`ASV`, `taxon` or `metadata`), the sum of all others (`others`), and
    what the model does not divide (`remainder`).
    """
    ensemble, outputs, relations = model.facts.ensemble, model.facts.outputs, model.relations
    rows = np.arange(len(predictions_NC))
    class_N = predictions_NC.argmax(axis=1)
    predictions_N, means_N = predictions_NC[rows, class_N], means_NC[rows, class_N]
    explained = ExplainedSamples.of(samples, relations, class_N, means_NC)
    slopes_N1 = np.ones((len(rows), 1))
    if outputs.classes and ensemble.temperature != 1:
        before_N = ensemble.combine(members, False)[rows, class_N]
        slopes_N1[:, 0] = _slopes_of_temperature(ensemble.temperature, means_N, before_N)
    asvs_NV, metadata = _weighted_effects(model, explained, slopes_N1)
    features, taxa_used = _features(relations, explained, ids_U, taxa)
    # Features in the order in which they first occur.
    column_of = {feature: number for number, feature in enumerate(dict.fromkeys(features))}
    columns = np.array([column_of[name] for name in features], dtype=np.int64)
    ones = np.ones(len(columns)), (np.arange(len(columns)), columns)
    effects_NX = asvs_NV @ sparse.csr_array(ones, shape=(len(columns), len(column_of)))
    values_NX = np.column_stack([effects_NX, *metadata.values()])
    names = [*column_of, *metadata]
    kinds = ["taxon" if name in taxa_used else "ASV" for name in column_of]
    kinds += ["metadata"] * len(metadata)
    units = [f"probability of {name}" for name in outputs.classes] or [f"units of {outputs.column}"]
    table: list[tuple[str, str, str, float, str]] = []
    for sample, values_X, prediction, mean, code in zip(
        samples.sample_ids, values_NX, predictions_N, means_N, class_N.tolist(), strict=True
    ):
        order, unit = np.argsort(-np.abs(values_X), kind="stable"), units[code]
        largest = [k for k in order[:first].tolist() if values_X[k] != 0]
        table.append((sample, "mean of the training labels", "mean", float(mean), unit))
        table += [(sample, names[k], kinds[k], float(values_X[k]), unit) for k in largest]
        number = int(np.count_nonzero(values_X)) - len(largest)
        remaining = float(values_X.sum() - values_X[largest].sum())
        if number:
            table.append((sample, f"{number} others", "others", remaining, unit))
        remainder = float(prediction - mean - values_X.sum())
        table.append((sample, "not divisible among ASVs", "remainder", remainder, unit))
    return pd.DataFrame(table, columns=["sample", "feature", "kind", "effect", "unit"])


def _slopes_of_temperature(temperature: float, means_N: F64, before_N: F64) -> F64:
    """Return the change of calibrated probabilities per change of uncalibrated ones."""
    pairs = (np.stack([1 - p_N, p_N], axis=1) for p_N in (means_N, before_N))
    start_N, end_N = (calibrate(pair_N2, temperature)[:, 1] for pair_N2 in pairs)
    change_N = before_N - means_N
    same = np.abs(change_N) < 1e-12
    return np.where(same, 1, (end_N - start_N) / np.where(same, 1, change_N))


def _weighted_effects(
    trained: TrainedModel, explained: ExplainedSamples, slopes_N1: F64
) -> tuple[F64, dict[str, F64]]:
    """Return the effects of V ASVs and of metadata columns, weighted over the members."""
    models, relations = trained.models, trained.relations
    rows = np.arange(len(slopes_N1))
    asvs_NV = np.zeros((len(rows), len(explained.joint.tokens_FL)))
    metadata: dict[str, F64] = {}
    explains = False
    for name, model in models.items():
        # The ensemble is linear in its members: a weight is the prediction for an indicator.
        indicator = {member: np.full((1, 1), float(member == name)) for member in models}
        factor_N1 = slopes_N1 * trained.facts.ensemble.combine(indicator, False)
        for start in range(0, len(rows), _AT_ONCE):
            block = rows[start : start + _AT_ONCE]
            samples = explained.take(block)
            inputs = reader(name).read(samples.joint, relations)
            effects = model.explain(inputs, samples, relations, trained.facts.outputs)
            if effects is None:
                continue
            explains = True
            asvs_NV[block] += factor_N1[block] * effects.asvs_NV
            for column, effects_n in effects.metadata.items():
                of_column_N = metadata.setdefault(column, np.zeros(len(rows)))
                of_column_N[block] += factor_N1[block, 0] * effects_n
    if not explains:
        evidence = f"none of its members {', '.join(models)} divides its predictions among ASVs"
        remedy = "train with the member kernel, forest or transformer"
        raise DataError("The predictions of this model cannot be explained", evidence, remedy)
    return asvs_NV, metadata


def _features(
    relations: AsvRelations,
    explained: ExplainedSamples,
    ids_U: Sequence[str],
    taxa: Mapping[str, str] | None,
) -> tuple[list[str], set[str]]:
    """Return the taxon of each of V ASVs, or its id or sequence, and which of them are taxa."""
    asvs = dict(enumerate(decode(relations.tokens_FL)))
    asvs |= dict(zip(explained.columns_U.tolist(), ids_U, strict=True))
    names, features = [name for _, name in sorted(asvs.items())], []
    if taxa is None:
        return names, set()
    for name in names:
        md5 = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
        features.append(taxa.get(name) or taxa.get(md5) or name)
    return features, {*features} - {*names}


def explain_held_out(
    model: TrainedModel,
    results: Mapping[str, CrossValidated],
    combined: Combined,
    folds: Folds,
    samples: Samples,
    feature_ids: Sequence[str],
    taxa: Mapping[str, str] | None,
) -> pd.DataFrame:
    """Explain the worst and some typical held-out samples by models not trained on them."""
    values_M, columns = folds.held_out.values, folds.labels.outputs_NC.shape[1]
    # The rank of ordered categories, the first column, is explained.
    predictions_MC = combined.predictions_MC[:, :columns]
    baseline_MC = folds.baseline_MC[:, :columns]
    if folds.labels.classes:
        wrong_M = 1 - predictions_MC[np.arange(len(values_M)), values_M.astype(np.int64)]
    else:
        wrong_M = np.abs(predictions_MC[:, 0] - values_M)
    # Each sample once, by the models of the first partition: only these are stored.
    first = np.flatnonzero(folds.repeat_M == 1)
    order = first[np.argsort(-wrong_M[first], kind="stable")]
    near = np.argsort(np.abs(wrong_M[order[WORST:]] - np.median(wrong_M)), kind="stable")
    groups = {"worst": order[:WORST], "typical": order[WORST:][near[:TYPICAL]]}
    tables = [pd.DataFrame(columns=["sample", "feature", "kind", "effect", "unit", "group"])]
    for group, chosen in groups.items():
        for fold in np.unique(folds.fold_M[chosen]).tolist():
            places = chosen[folds.fold_M[chosen] == fold]
            models = dict[str, FittedModel[Any]]()
            for name, result in results.items():
                if result.fold_models:
                    models[name] = result.fold_models[fold - 1]
                elif result.model is not None:  # the mean of the networks of all folds
                    models[name] = result.model.of_fold(fold - 1)
            weights = dict(combined.fold_weights[fold - 1])
            facts = dataclasses.replace(model.facts, weights=weights)
            table = explain(
                dataclasses.replace(model, facts=facts, models=models),
                samples.take(folds.rows_M[places]), predictions_MC[places],
                {name: member_MC[places] for name, member_MC in combined.members.items()},
                baseline_MC[places], feature_ids, taxa, 5,
            )  # fmt: skip
            tables.append(table.assign(group=group))
    return pd.concat(tables[1:] or tables, ignore_index=True)
