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
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from aam.console import info
from aam.contract.errors import DataError
from aam.data.covariates import CovariateEncoder
from aam.data.sequences import decode
from aam.data.targets import TRANSFORMS
from aam.data.taxonomy import named_ranks
from aam.members.base import F64, Rows, Samples
from aam.members.ensemble import Combined, Ensemble
from aam.members.member import CrossValidated, FittedModel, Outputs, TrainingSamples, reader
from aam.members.relations import AsvRelations, chunks
from aam.members.scores import Folds
from aam.members.uncertainty import calibrate
from aam.number_format import significant

if TYPE_CHECKING:
    from aam.members.forest import ForestInputs, ForestModel
    from aam.members.kernel import KernelModel
    from aam.members.kernel_features import KernelInputs

FIRST = 20
"""Features of a sample that have a row of their own."""

FEATURES = ("ASV", "taxon", "metadata")
"""Kinds of the rows of a table of explanations that are features."""

WORST, TYPICAL = 10, 3
"""Held-out samples that `aam train` explains."""

_AT_ONCE = 256
"""Samples whose effects of all ASVs are in memory."""


def _quadrature(nodes: int) -> tuple[F64, F64]:
    """Return nodes and weights of the Gauss-Legendre quadrature from 0 to 1."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    return (points + 1) / 2, weights / 2


@dataclass(frozen=True)
class ExplainedSamples:
    """N samples whose predictions are explained.

    Attributes:
        samples: as `aam predict` reads them, with U ASVs.
        joint: the same with V ASVs: those of the training study, then others of the table.
        columns_U: column of each ASV in `joint`.
        class_N: class whose probability is explained; 0 for a number.
        means_NC: mean label of the training samples, see `ModelFacts`.
    """

    samples: Samples
    joint: Samples
    columns_U: Rows
    class_N: Rows
    means_NC: F64

    @classmethod
    def of(
        cls, samples: Samples, relations: AsvRelations, class_N: Rows, means_NC: F64
    ) -> ExplainedSamples:
        """Place the ASVs of samples beside those of the training study."""
        tokens_FL, tokens_UL = relations.tokens_FL, samples.tokens_FL
        if tokens_UL is tokens_FL:
            return cls(samples, samples, np.arange(len(tokens_FL)), class_N, means_NC)
        rows, known = relations.known(tokens_UL)
        new = np.setdiff1d(np.arange(len(tokens_UL)), rows)
        columns_U = np.empty(len(tokens_UL), dtype=np.int64)
        columns_U[rows], columns_U[new] = known, len(tokens_FL) + np.arange(len(new))
        length = max(tokens_FL.shape[1], tokens_UL.shape[1])
        padded = (
            np.pad(t, ((0, 0), (0, length - t.shape[1]))) for t in (tokens_FL, tokens_UL[new])
        )
        tokens_VL = np.concatenate(list(padded))
        counts = samples.counts
        parts = counts.data, columns_U[counts.indices], counts.indptr
        joint = sparse.csr_array(parts, shape=(counts.shape[0], len(tokens_VL)))
        joint.sort_indices()
        joint = Samples(joint, tokens_VL, samples.covariates, samples.sample_ids)
        return cls(samples, joint, columns_U, class_N, means_NC)

    def take(self, rows: Rows) -> ExplainedSamples:
        """Return the samples at `rows`."""
        return ExplainedSamples(
            self.samples.take(rows),
            self.joint.take(rows),
            self.columns_U,
            self.class_N[rows],
            self.means_NC[rows],
        )

    def slopes(self, outputs: Outputs, ends_NC: F64) -> F64:
        """Return the mean slopes of what is explained between the mean label and a prediction.

        Args:
            outputs: what is predicted.
            ends_NC: transformed numbers, or logits of the classes: the scale on which a member is
                additive.

        Returns:
            float64 [N, C]. Slopes times the change of the scale from the mean label are the change
            of the number in its units, or of the probability of the class.
        """
        if outputs.classes:
            starts_NC = np.log(self.means_NC.clip(min=1e-9))
        else:
            starts_NC = outputs.scale.forward(self.means_NC)
        slopes_NC = np.zeros_like(ends_NC)
        for t, weight in zip(*_quadrature(64), strict=True):
            point_NC = starts_NC + t * (ends_NC - starts_NC)
            if not outputs.classes:
                slopes_NC += weight * TRANSFORMS[outputs.scale.transform].slope(point_NC)
                continue
            p_NC = np.exp(point_NC - point_NC.max(axis=1, keepdims=True))
            p_NC /= p_NC.sum(axis=1, keepdims=True)
            chosen_N1 = p_NC[np.arange(len(p_NC)), self.class_N][:, None]
            slopes_NC += weight * chosen_N1 * (np.eye(p_NC.shape[1])[self.class_N] - p_NC)
        return slopes_NC


@dataclass(frozen=True)
class SampleEffects:
    """Effects on the predictions of N samples, in their units.

    Attributes:
        asvs_NV: effect of each ASV, also of one that a sample lacks.
        metadata: effect of each metadata column, [N].
    """

    asvs_NV: F64
    metadata: Mapping[str, F64]


@dataclass(frozen=True)
class Explanation:
    """Effects on the ensemble's predictions of N samples.

    Attributes:
        effects: effects of the ASVs and of the metadata columns.
        predictions_N: prediction of a number, or probability of the explained class.
        means_N: mean label of the training samples, or frequency of the class.
        units_N: unit of the effects of each sample.
        columns_U: column of each ASV of the samples' table among the V ASVs.
    """

    effects: SampleEffects
    predictions_N: F64
    means_N: F64
    units_N: tuple[str, ...]
    columns_U: Rows


def explain(
    models: Mapping[str, FittedModel[Any]],
    ensemble: Ensemble,
    outputs: Outputs,
    relations: AsvRelations,
    samples: Samples,
    predictions_NC: F64,
    members: Mapping[str, F64],
    means_NC: F64,
) -> Explanation:
    """Explain the predictions of N samples.

    Args:
        models: members that predict the samples.
        ensemble: how their predictions are combined.
        outputs: what they predict.
        relations: relations of the ASVs of the training study.
        samples: N samples as the members read them.
        predictions_NC: predictions of the ensemble.
        members: predictions of each member, [N, C].
        means_NC: mean label of the training samples, see `ModelFacts`.

    Raises:
        DataError: no member explains its predictions.
    """
    rows = np.arange(len(predictions_NC))
    class_N = predictions_NC.argmax(axis=1)
    predictions_N, means_N = predictions_NC[rows, class_N], means_NC[rows, class_N]
    explained = ExplainedSamples.of(samples, relations, class_N, means_NC)
    slopes_N1 = np.ones((len(rows), 1))
    if outputs.classes and ensemble.temperature != 1:
        before_N = ensemble.combine(members, False)[rows, class_N]
        pairs = (np.stack([1 - p_N, p_N], axis=1) for p_N in (means_N, before_N))
        start_N, end_N = (calibrate(pair_N2, ensemble.temperature)[:, 1] for pair_N2 in pairs)
        change_N = before_N - means_N
        same = np.abs(change_N) < 1e-12
        slopes_N1[:, 0] = np.where(same, 1, (end_N - start_N) / np.where(same, 1, change_N))
    asvs_NV = np.zeros((len(rows), len(explained.joint.tokens_FL)))
    metadata: dict[str, F64] = {}
    explains = False
    for name, model in models.items():
        # The ensemble is linear in its members: its weight is its prediction of an indicator.
        indicator = {other: np.full((1, 1), float(other == name)) for other in models}
        factor_N1 = slopes_N1 * ensemble.combine(indicator, False)
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            part = explained.take(some)
            inputs = reader(name).read(part.joint, relations)
            if (found := model.explain(inputs, part, relations, outputs)) is None:
                continue
            explains = True
            asvs_NV[some] += factor_N1[some] * found.asvs_NV
            for column, effects_n in found.metadata.items():
                of_column_N = metadata.setdefault(column, np.zeros(len(rows)))
                of_column_N[some] += factor_N1[some, 0] * effects_n
    if not explains:
        raise DataError(
            "The model cannot be explained",
            f"none of its members {', '.join(models)} divides its predictions among ASVs",
            "train with the member kernel, forest or transformer",
        )
    units = [f"probability of {name}" for name in outputs.classes] or [f"units of {outputs.column}"]
    unit_N = tuple(units[code] for code in class_N.tolist())
    effects = SampleEffects(asvs_NV, metadata)
    return Explanation(effects, predictions_N, means_N, unit_N, explained.columns_U)


def explanation_table(
    found: Explanation,
    sample_ids: Sequence[str],
    ids_U: Sequence[str],
    relations: AsvRelations,
    taxa: Mapping[str, str] | None = None,
    first: int = FIRST,
) -> pd.DataFrame:
    """Return the largest effects on each prediction; the effects of a sample add up to it.

    Args:
        found: effects of N samples and V ASVs.
        sample_ids: N names.
        ids_U: ids of the ASVs of their table; an ASV that it lacks is named by its sequence.
        relations: relations of the ASVs of the training study.
        taxa: taxon of an ASV by its id or by the MD5 of its sequence, which QIIME 2 gives as id;
            ASVs of the same taxon are summed.
        first: features of a sample with a row of their own.

    Returns:
        Rows with sample, feature, kind, effect, unit: the mean label of the training samples (kind
        `mean`), the features with the largest effects (`ASV`, `taxon` or `metadata`), the sum of
        all others (`others`), and what the model does not divide (`remainder`).
    """
    asvs = dict(enumerate(decode(relations.tokens_FL)))
    asvs |= dict(zip(found.columns_U.tolist(), ids_U, strict=True))
    features, named = [], set[str]()
    for column in range(len(asvs)):
        name, taxon = asvs[column], ""
        if taxa is not None:
            md5 = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
            taxon = taxa.get(name) or taxa.get(md5) or ""
        features.append(taxon or name)
        named |= {taxon} - {""}
    # Features in the order in which they first occur.
    place = {name: number for number, name in enumerate(dict.fromkeys(features))}
    columns = np.array([place[name] for name in features], dtype=np.int64)
    ones = np.ones(len(columns)), (np.arange(len(columns)), columns)
    effects_NX = found.effects.asvs_NV @ sparse.csr_array(ones, shape=(len(columns), len(place)))
    metadata = found.effects.metadata
    names = [*place, *metadata]
    values_NX = np.column_stack([effects_NX, *metadata.values()])
    kinds = ["taxon" if name in named else "ASV" for name in place] + ["metadata"] * len(metadata)
    rows: list[tuple[str, str, str, float, str]] = []
    for sample, values_X, prediction, mean, unit in zip(
        sample_ids, values_NX, found.predictions_N, found.means_N, found.units_N, strict=True
    ):
        order = np.argsort(-np.abs(values_X), kind="stable")
        shown = [k for k in order[:first].tolist() if values_X[k] != 0]
        rows.append((sample, "mean of the training labels", "mean", float(mean), unit))
        rows += [(sample, names[k], kinds[k], float(values_X[k]), unit) for k in shown]
        number = int(np.count_nonzero(values_X)) - len(shown)
        others = float(values_X.sum() - values_X[shown].sum())
        if number:
            rows.append((sample, f"{number} others", "others", others, unit))
        rest = float(prediction - mean - values_X.sum())
        rows.append((sample, "not divisible among ASVs", "remainder", rest, unit))
    return pd.DataFrame(rows, columns=["sample", "feature", "kind", "effect", "unit"])


def _by_column(encoder: CovariateEncoder, effects_NW: F64) -> dict[str, F64]:
    """Sum effects of the features of covariates over those of each column."""
    names = [name for name, known in encoder.categories.items() for _ in known]
    names += 2 * list(encoder.numbers)  # each number, and whether it is missing
    return {
        column: effects_NW[:, [name == column for name in names]].sum(axis=1)
        for column in encoder.columns
    }


def kernel_sample_effects(
    model: KernelModel,
    inputs: KernelInputs,
    explained: ExplainedSamples,
    relations: AsvRelations,
    outputs: Outputs,
) -> SampleEffects:
    """Integrate the gradients of the kernel on the line from the mean landmark to each sample.

    The line is straight in the space of the features, where a linear kernel is additive: its
    effects are exact. With a Gaussian kernel the gradient at a point of the line is a weighted sum
    of the landmarks less the point itself, so that the integral is a kernel regression with
    coefficients of its own for each sample.
    """
    landmarks, terms, dual_RC = model.landmarks, model.terms, model.dual_RC
    inputs, tokens_VL = inputs.with_features(terms), explained.joint.tokens_FL
    own = relations if tokens_VL is relations.tokens_FL else AsvRelations(tokens_VL)
    smoothed_RV = own.smooth(landmarks.weights, relations.tokens_FL)
    kernel_NR = landmarks.kernel(inputs)
    # Kernel of the mean landmark with each landmark, with itself, and with each sample.
    mean_F = smoothed_RV[:, : landmarks.weights.shape[1]].mean(axis=0, dtype=np.float64)
    mean_R = landmarks.weights @ mean_F
    if landmarks.clades_RG is not None:
        mean_R = mean_R + landmarks.clades_RG @ landmarks.clades_RG.mean(axis=0)
    if landmarks.features_RW is not None:
        mean_R = mean_R + landmarks.features_RW @ landmarks.features_RW.mean(axis=0)
    mean_norm, mean_N = mean_R.mean(), kernel_NR.mean(axis=1)

    full_NR = kernel_NR
    if model.gamma:
        full_NR = np.exp(-model.gamma * landmarks.squared_distances(inputs, kernel_NR))
    ends_NC = full_NR @ dual_RC + model.offset_C
    if outputs.classes:
        to_logits, intercepts = model.logits[:-1], model.logits[-1]
        slopes_NC = explained.slopes(outputs, ends_NC @ to_logits + intercepts) @ to_logits.T
    else:
        slopes_NC = explained.slopes(outputs, ends_NC)
    dual_NR = slopes_NC @ dual_RC.T
    from_mean_N, from_own_N = np.zeros(len(kernel_NR)), np.zeros(len(kernel_NR))
    to_landmarks_NR = dual_NR
    if model.gamma:
        to_landmarks_NR = np.zeros_like(kernel_NR)
        for t, weight in zip(*_quadrature(16), strict=True):
            norm_N = (1 - t) ** 2 * mean_norm + 2 * t * (1 - t) * mean_N + t**2 * inputs.norms_N
            line_NR = (1 - t) * mean_R + t * kernel_NR
            squared_NR = norm_N[:, None] + landmarks.norms_R - 2 * line_NR
            gauss_NR = np.exp(-model.gamma * squared_NR.clip(min=0))
            part_NR = 2 * weight * model.gamma * dual_NR * gauss_NR
            to_landmarks_NR += part_NR
            from_mean_N += (1 - t) * part_NR.sum(axis=1)
            from_own_N += t * part_NR.sum(axis=1)
        to_landmarks_NR -= from_mean_N[:, None] / len(mean_R)

    gradients_NV = np.empty((len(kernel_NR), len(tokens_VL)))
    for chunk in chunks(len(tokens_VL)):  # blocks bound the memory of the copy in float64
        gradients_NV[:, chunk] = to_landmarks_NR @ smoothed_RV[:, chunk].astype(np.float64)
    if model.gamma:
        gradients_NV -= from_own_N[:, None] * own.smooth(inputs.weights, tokens_VL)
    weights_NV = inputs.weights.toarray().astype(np.float64)
    of_mean_V = np.zeros(len(tokens_VL))
    of_mean_V[: landmarks.weights.shape[1]] = landmarks.weights.mean(axis=0, dtype=np.float64)
    effects_NV = (weights_NV - of_mean_V) * gradients_NV
    if terms.clades is not None and inputs.clades_NG is not None:
        assert landmarks.clades_RG is not None
        member_VG = terms.clades.membership(inputs.nearest)
        along_NG = (landmarks.clades_RG.T @ to_landmarks_NR.T).T
        along_NG -= from_own_N[:, None] * inputs.clades_NG.toarray()
        # The feature of a branch is divided among its ASVs by their abundance: the integrated
        # gradients of log(1 + their sum) on the line from the sample without reads.
        abundances = landmarks.weights.copy()
        abundances.data = 10.0 ** landmarks.weights.data.astype(np.float64) - 1
        of_mean_V[: abundances.shape[1]] = abundances.mean(axis=0)
        features_NG = inputs.clades_NG.toarray(), landmarks.clades_RG.mean(axis=0)[None]
        reads_NV = 10.0**weights_NV - 1, of_mean_V[None]
        for sign, of_branches, of_asvs in zip((1, -1), features_NG, reads_NV, strict=True):
            below = (member_VG.T @ of_asvs.T).T
            share = np.divide(of_branches, below, out=np.zeros_like(below), where=below > 0)
            effects_NV += sign * of_asvs * (member_VG @ (along_NG * share).T).T
    metadata: dict[str, F64] = {}
    if terms.encoder is not None and landmarks.features_RW is not None:
        assert inputs.features_NW is not None
        along_NW = to_landmarks_NR @ landmarks.features_RW
        along_NW -= from_own_N[:, None] * inputs.features_NW
        change_NW = inputs.features_NW - landmarks.features_RW.mean(axis=0)
        metadata = _by_column(terms.encoder, change_NW * along_NW)
    return SampleEffects(effects_NV, metadata)


def forest_sample_effects(
    model: ForestModel,
    inputs: ForestInputs,
    member_FG: sparse.csr_array,
    explained: ExplainedSamples,
    outputs: Outputs,
) -> SampleEffects:
    """Sum the changes of the mean label along the decision paths by the column that decides.

    `member_FG` has the ASVs of each clade; the part of a clade is divided among them by the reads
    of the sample.
    """
    columns = inputs.columns(model.clades_VF, model.encoder)
    (samples, asvs), width, trees = inputs.abundances.shape, columns.shape[1], len(model.roots)
    sums_NM = np.zeros((samples, width))
    start = 0
    for levels in model.descents(inputs):
        places, changes, last = [], [], 0
        for node, after in pairwise(levels):
            last = len(node)
            rows = np.arange(last)[:, None]
            codes = explained.class_N[start : start + last][:, None]
            moved = after != node
            places.append((rows * width + model.asvs[node])[moved])
            changes.append((model.values[after, codes] - model.values[node, codes])[moved])
        if places:
            flat, size = np.concatenate(places), last * width
            block = np.bincount(flat, np.concatenate(changes), minlength=size)
            sums_NM[start : start + last] = block.reshape(last, width) / trees
        start += last
    if not outputs.classes:
        root = model.values[model.roots, 0].mean()
        sums_NM *= explained.slopes(outputs, root + sums_NM.sum(axis=1, keepdims=True))
    after_clades = asvs + member_FG.shape[1]
    # Of a clade without reads all ASVs have the same part.
    reads_NF = inputs.abundances.toarray().astype(np.float64) + 1e-9
    share_NG = sums_NM[:, asvs:after_clades] / (member_FG.T @ reads_NF.T).T
    effects_NV = np.zeros((samples, len(explained.joint.tokens_FL)))
    effects_NV[:, :asvs] = sums_NM[:, :asvs] + reads_NF * (member_FG @ share_NG.T).T
    encoder = model.encoder
    metadata = {} if encoder is None else _by_column(encoder, sums_NM[:, after_clades:])
    return SampleEffects(effects_NV, metadata)


def explain_held_out(
    results: Mapping[str, CrossValidated],
    combined: Combined,
    folds: Folds,
    samples: TrainingSamples,
    outputs: Outputs,
    feature_ids: Sequence[str],
    taxa: Mapping[str, str] | None,
) -> pd.DataFrame:
    """Explain the worst and some typical held-out samples by the models that did not train on them.

    Returns:
        The columns of `explanation_table`, and `group`: `worst`, or `typical` with an error near
        the median.
    """
    values_M, columns = folds.held_out.values, folds.labels.outputs_NC.shape[1]
    # Of ordered categories the rank is explained, the first column.
    predictions_MC, dummy_MC = combined.predictions_MC[:, :columns], folds.dummy_MC[:, :columns]
    if folds.labels.classes:
        wrong_M = 1 - predictions_MC[np.arange(len(values_M)), values_M.astype(np.int64)]
    else:
        wrong_M = np.abs(predictions_MC[:, 0] - values_M)
    order = np.argsort(-wrong_M, kind="stable")
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
            found = explain(
                models, of_fold, outputs, samples.relations, part,
                predictions_MC[places], {n: p[places] for n, p in combined.members.items()},
                dummy_MC[places],
            )  # fmt: skip
            ids = part.sample_ids
            table = explanation_table(found, ids, feature_ids, samples.relations, taxa, 5)
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
