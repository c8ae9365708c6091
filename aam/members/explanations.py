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
from aam.console import info
from aam.contract.errors import DataError
from aam.data.covariates import CovariateEncoder
from aam.data.sequences import decode
from aam.data.taxonomy import named_ranks
from aam.evaluation.calibration import calibrate
from aam.evaluation.ensemble import Combined, Ensemble
from aam.evaluation.folds import Folds
from aam.members.member import (
    CrossValidated,
    ExplainedSamples,
    FittedModel,
    Outputs,
    TrainingSamples,
    reader,
)
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from aam.number_format import significant

FIRST = 20  # features of a sample that have a row of their own

FEATURES = ("ASV", "taxon", "metadata")
"""Kinds of the rows of a table of explanations that are features."""

WORST, TYPICAL = 10, 3  # held-out samples that `aam train` explains
_AT_ONCE = 256  # samples whose effects of all ASVs are in memory


def explain(
    models: Mapping[str, FittedModel[Any]],
    ensemble: Ensemble,
    outputs: Outputs,
    relations: AsvRelations,
    samples: Samples,
    predictions_NC: F64,
    members: Mapping[str, F64],
    means_NC: F64,
    ids_U: Sequence[str],
    taxa: Mapping[str, str] | None = None,
    first: int = FIRST,
) -> pd.DataFrame:
    """Return the largest effects on the predictions of N samples; those of a sample add up to it.

    Returns:
        Rows with sample, feature, kind, effect, unit: the mean label of the training samples (kind
        `mean`), the features with the largest effects (`ASV`, `taxon` or `metadata`), the sum of
        all others (`others`), and what the model does not divide (`remainder`).
    """
    rows = np.arange(len(predictions_NC))
    class_N = predictions_NC.argmax(axis=1)
    predictions_N, means_N = predictions_NC[rows, class_N], means_NC[rows, class_N]
    explained = ExplainedSamples.of(samples, relations, class_N, means_NC)
    slopes_N1 = np.ones((len(rows), 1))
    if outputs.classes and ensemble.temperature != 1:
        before_N = ensemble.combine(members, False)[rows, class_N]
        slopes_N1[:, 0] = _slopes_of_temperature(ensemble.temperature, means_N, before_N)
    asvs_NV, metadata = _weighted_effects(
        models, ensemble, outputs, relations, explained, slopes_N1
    )
    features, named = _features(relations, explained, ids_U, taxa)
    # Features in the order in which they first occur.
    place = {feature: number for number, feature in enumerate(dict.fromkeys(features))}
    columns = np.array([place[name] for name in features], dtype=np.int64)
    ones = np.ones(len(columns)), (np.arange(len(columns)), columns)
    effects_NX = asvs_NV @ sparse.csr_array(ones, shape=(len(columns), len(place)))
    values_NX = np.column_stack([effects_NX, *metadata.values()])
    names = [*place, *metadata]
    kinds = ["taxon" if name in named else "ASV" for name in place] + ["metadata"] * len(metadata)
    units = [f"probability of {name}" for name in outputs.classes] or [f"units of {outputs.column}"]
    table: list[tuple[str, str, str, float, str]] = []
    for sample, values_X, prediction, mean, code in zip(
        samples.sample_ids, values_NX, predictions_N, means_N, class_N.tolist(), strict=True
    ):
        order, unit = np.argsort(-np.abs(values_X), kind="stable"), units[code]
        shown = [k for k in order[:first].tolist() if values_X[k] != 0]
        table.append((sample, "mean of the training labels", "mean", float(mean), unit))
        table += [(sample, names[k], kinds[k], float(values_X[k]), unit) for k in shown]
        number = int(np.count_nonzero(values_X)) - len(shown)
        remaining = float(values_X.sum() - values_X[shown].sum())
        if number:
            table.append((sample, f"{number} others", "others", remaining, unit))
        rest = float(prediction - mean - values_X.sum())
        table.append((sample, "not divisible among ASVs", "remainder", rest, unit))
    return pd.DataFrame(table, columns=["sample", "feature", "kind", "effect", "unit"])


def _slopes_of_temperature(temperature: float, means_N: F64, before_N: F64) -> F64:
    """Return the change of calibrated probabilities relative to that before, from the mean on."""
    pairs = (np.stack([1 - p_N, p_N], axis=1) for p_N in (means_N, before_N))
    start_N, end_N = (calibrate(pair_N2, temperature)[:, 1] for pair_N2 in pairs)
    change_N = before_N - means_N
    same = np.abs(change_N) < 1e-12
    slopes_N: F64 = np.where(same, 1, (end_N - start_N) / np.where(same, 1, change_N))
    return slopes_N


def _weighted_effects(
    models: Mapping[str, FittedModel[Any]],
    ensemble: Ensemble,
    outputs: Outputs,
    relations: AsvRelations,
    explained: ExplainedSamples,
    slopes_N1: F64,
) -> tuple[F64, dict[str, F64]]:
    """Return the effects of V ASVs and of metadata columns, weighted over the members."""
    rows = np.arange(len(slopes_N1))
    asvs_NV = np.zeros((len(rows), len(explained.joint.tokens_FL)))
    metadata: dict[str, F64] = {}
    explains = False
    for name, model in models.items():
        # The ensemble is linear in its members: its weight is its prediction of an indicator.
        indicator = {member: np.full((1, 1), float(member == name)) for member in models}
        factor_N1 = slopes_N1 * ensemble.combine(indicator, False)
        for start in range(0, len(rows), _AT_ONCE):
            block = rows[start : start + _AT_ONCE]
            part = explained.take(block)
            inputs = reader(name).read(part.joint, relations)
            if (effects := model.explain(inputs, part, relations, outputs)) is None:
                continue
            explains = True
            asvs_NV[block] += factor_N1[block] * effects.asvs_NV
            for column, effects_n in effects.metadata.items():
                of_column_N = metadata.setdefault(column, np.zeros(len(rows)))
                of_column_N[block] += factor_N1[block, 0] * effects_n
    if not explains:
        raise DataError(
            "The model cannot be explained",
            f"none of its members {', '.join(models)} divides its predictions among ASVs",
            "train with the member kernel, forest or transformer",
        )
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
    features, named = [], set[str]()
    for _, name in sorted(asvs.items()):
        taxon = ""
        if taxa is not None:
            md5 = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
            taxon = taxa.get(name) or taxa.get(md5) or ""
        features.append(taxon or name)
        named |= {taxon} - {""}
    return features, named


def by_column(encoder: CovariateEncoder, effects_NW: F64) -> dict[str, F64]:
    """Sum effects of the features of covariates over those of each column."""
    names = [name for name, known in encoder.categories.items() for _ in known]
    names += 2 * list(encoder.numbers)  # each number, and whether it is missing
    return {
        column: effects_NW[:, [name == column for name in names]].sum(axis=1)
        for column in encoder.columns
    }


def explain_held_out(
    results: Mapping[str, CrossValidated],
    combined: Combined,
    folds: Folds,
    samples: TrainingSamples,
    outputs: Outputs,
    feature_ids: Sequence[str],
    taxa: Mapping[str, str] | None,
) -> pd.DataFrame:
    """Explain the worst and some typical held-out samples by models not trained on them."""
    values_M, columns = folds.held_out.values, folds.labels.outputs_NC.shape[1]
    # Of ordered categories the rank is explained, the first column.
    predictions_MC, baseline_MC = (
        combined.predictions_MC[:, :columns],
        folds.baseline_MC[:, :columns],
    )
    if folds.labels.classes:
        wrong_M = 1 - predictions_MC[np.arange(len(values_M)), values_M.astype(np.int64)]
    else:
        wrong_M = np.abs(predictions_MC[:, 0] - values_M)
    # Each sample once: those of the first partition, whose models are kept.
    first = np.flatnonzero(folds.repeat_M == 1)
    order = first[np.argsort(-wrong_M[first], kind="stable")]
    near = np.argsort(np.abs(wrong_M[order[WORST:]] - np.median(wrong_M)), kind="stable")
    groups = {"worst": order[:WORST], "typical": order[WORST:][near[:TYPICAL]]}
    tables = [pd.DataFrame(columns=["sample", "feature", "kind", "effect", "unit", "group"])]
    for group, chosen in groups.items():
        for fold in np.unique(folds.fold_M[chosen]).tolist():
            places = chosen[folds.fold_M[chosen] == fold]
            models = {}
            for name, result in results.items():
                if result.fold_models:
                    models[name] = result.fold_models[fold - 1]
                elif result.model is not None:  # the mean of the networks of all folds
                    models[name] = result.model.of_fold(fold - 1)
            part = samples.samples.take(folds.rows_M[places])
            of_fold = dataclasses.replace(
                combined.ensemble, weights=combined.fold_weights[fold - 1]
            )
            table = explain(
                models, of_fold, outputs, samples.relations, part,
                predictions_MC[places], {n: p[places] for n, p in combined.members.items()},
                baseline_MC[places], feature_ids, taxa, 5,
            )  # fmt: skip
            tables.append(table.assign(group=group))
    return pd.concat(tables[1:] or tables, ignore_index=True)


def show_explanations(table: pd.DataFrame, samples: int = 3, features: int = 3) -> None:
    """Print the largest effects on the first predictions of a table of explanations."""
    for (sample, target), rows in list(table.groupby(["sample", "target"], sort=False))[:samples]:
        mean = float(rows["effect"].iloc[0])
        named = rows[rows["kind"].isin(FEATURES)][:features]
        parts = []
        for name, effect in zip(map(str, named["feature"]), named["effect"], strict=True):
            # The last two ranks of a taxon, or the first letters of a long id.
            ranks = named_ranks(name) if ";" in name else []
            short = "; ".join(ranks[-2:]) or (name if len(name) <= 16 else f"{name[:16]}…")
            parts.append(f"{short} {significant(effect, signed=True)}")
        rest = significant(float(rows["effect"].sum() - mean - named["effect"].sum()), signed=True)
        unit = str(rows["unit"].iloc[0])
        what = unit if unit.startswith("probability") else target
        total = significant(float(rows["effect"].sum()))
        info(
            f"{sample}, {what}: {total} = {significant(mean)} (mean) "
            f"{', '.join([*parts, f'all others {rest}'])}"
        )
