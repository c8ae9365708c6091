"""Effects of ASVs: how much the prediction of each member depends on the feature of an ASV.

The feature of an ASV in a sample is its log abundance log10(1 + 1e4 relative abundance), the input
of the kernel. `docs/importance.md` defines the effects. U ASVs of a table; further shape suffixes:
see `base` and `kernel`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from aam.contract.options.training import TransformName
from aam.data.target_transforms import TRANSFORMS
from aam.inference.integrated_gradients import Contributions, contrasts
from aam.members.base import F64, Model, Rows, Tokens
from aam.members.forest import ForestModel
from aam.members.kernel import KernelModel
from aam.members.kernel_inputs import KernelInputs
from aam.members.relations import AsvRelations, chunks


@dataclass(frozen=True)
class Importance:
    """Importance of U ASVs for one member.

    Attributes:
        columns: of the table, by name, each [U].
        size_U: by which the ASVs are ranked; the larger, the more important.
    """

    columns: dict[str, F64]
    size_U: F64


def estimator_importance(
    model: Model[Any],
    inputs: Any,
    tokens_UL: Tokens,
    relations: AsvRelations,
    classes: tuple[str, ...],
    transform: TransformName,
) -> Importance:
    """Compute the importance of U ASVs for a kernel or a forest.

    Args:
        model: fitted.
        inputs: samples, as the estimator reads them.
        tokens_UL: ASVs of the samples.
        relations: of the ASVs of the training study.
        classes, transform: of the target.
    """
    if isinstance(model, KernelModel):
        effects_UC = kernel_effects(model, inputs, tokens_UL, relations, classes, transform)
        return of_effects("effect", effects_UC, classes)
    assert isinstance(model, ForestModel)
    importance_U = np.zeros(len(tokens_UL))
    rows, known = relations.known(tokens_UL)
    importance_U[rows] = model.impurity_decrease(inputs)[known]
    return Importance({"forest": importance_U}, importance_U)


def of_effects(name: str, effects_UC: F64, classes: tuple[str, ...]) -> Importance:
    """Name the columns of effects; an ASV has the size of its largest effect."""
    shown = classes[1:] if len(classes) == 2 else classes
    names = [f"{name}_{one}" for one in shown] or [name]
    columns: dict[str, F64] = dict(zip(names, effects_UC.T, strict=True))
    return Importance(columns, np.abs(effects_UC).max(axis=1))


def kernel_effects(
    model: KernelModel,
    inputs: KernelInputs,
    tokens_UL: Tokens,
    relations: AsvRelations,
    classes: tuple[str, ...],
    transform: TransformName,
) -> F64:
    """Return the effect of one standard deviation of each ASV's feature, [U, outputs].

    A number has one output, in its units; two classes have the log odds of the second; more classes
    have the log probability of each minus the mean of all.
    """
    dual_MC, slopes_N = model.dual_MC, np.ones(len(inputs.norms_N))
    if classes:
        dual_MC = dual_MC @ model.logits[:-1] @ contrasts(len(classes))
    else:
        slopes_N = TRANSFORMS[transform].slope(model.predict(inputs)[:, 0])
    gradients_UC = mean_gradients(model, dual_MC, slopes_N, inputs, tokens_UL, relations)
    effects_UC: F64 = gradients_UC * _moments(inputs.weights)[1][:, None]
    return effects_UC


def mean_gradients(
    model: KernelModel,
    dual_MC: F64,
    slopes_N: F64,
    inputs: KernelInputs,
    tokens_UL: Tokens,
    relations: AsvRelations,
) -> F64:
    """Return derivatives of kernel @ dual_MC by each feature, [U, C].

    The derivative of a sample is multiplied by its slope; that of an ASV is the mean over the
    samples that have it. The linear kernel has the derivative of all samples in common.
    """
    weights = sparse.csc_array(inputs.weights)
    having_U = np.diff(weights.indptr)
    share = sparse.csc_array(
        (1 / np.repeat(having_U, having_U), weights.indices, weights.indptr), shape=weights.shape
    )
    kernel_NM = model.kernel(inputs) * slopes_N[:, None]
    outputs_NC = kernel_NM @ dual_MC
    own = relations if tokens_UL is relations.tokens_FL else AsvRelations(tokens_UL)
    to_landmarks_MU = own.smooth(model.landmarks.weights, relations.tokens_FL)
    if model.gamma == 0:
        gradients_UC: F64 = (to_landmarks_MU.T @ dual_MC) * (share.T @ slopes_N)[:, None]
    else:
        # The squared distance from a landmark changes by 2 (similarity to the sample - to it).
        toward_UC = ((share.T @ kernel_NM) * to_landmarks_MU.T) @ dual_MC
        to_samples_NU = own.smooth(inputs.weights, tokens_UL)
        away_UC = share.multiply(to_samples_NU).T @ outputs_NC
        gradients_UC = 2 * model.gamma * (toward_UC - away_UC)
    if (clades := model.summands.clades) is None:
        return gradients_UC
    # A feature x of an ASV adds 10**x to the abundance below each of its branches.
    grown = share.copy()
    grown.data = share.data * 10.0**weights.data
    member_UB = clades.membership(inputs.places)
    for rows in chunks(len(slopes_N)):
        some, grown_nU = inputs.take(np.arange(len(slopes_N))[rows]), grown[rows]
        slopes = slopes_N[rows], kernel_NM[rows], outputs_NC[rows]
        for output, by_branch_nB in enumerate(_branch_gradients(model, dual_MC, some, *slopes)):
            by_asv_nU = (member_UB @ by_branch_nB.T).T
            gradients_UC[:, output] += grown_nU.multiply(by_asv_nU).sum(axis=0)
    return gradients_UC


def _branch_gradients(
    model: KernelModel,
    dual_MC: F64,
    inputs: KernelInputs,
    slopes_N: F64,
    kernel_NM: F64,
    outputs_NC: F64,
) -> Iterator[F64]:
    """Yield the derivatives of each output by the abundance below each branch, [N, B].

    The abundance is FINEST times the relative one. The factor 1 / ln 10 is left out; it cancels
    with the derivative of 10**x.
    """
    summands, landmarks_MB = model.summands, model.landmarks.clades_MB
    assert summands.clades is not None and landmarks_MB is not None
    features_NB = inputs.with_features(summands).clades_NB
    assert features_NB is not None
    abundances_NB = summands.clades.abundances(inputs.weights, inputs.places).toarray()
    factors_NB = summands.clade_scale * np.sqrt(summands.clades.lengths_B) / (1 + abundances_NB)
    for dual_M, outputs_N in zip(dual_MC.T, outputs_NC.T, strict=True):
        if model.gamma == 0:
            by_feature_NB = np.outer(slopes_N, landmarks_MB.T @ dual_M)
        else:
            toward_NB = (landmarks_MB.T @ (kernel_NM * dual_M).T).T
            away_NB = features_NB.toarray() * outputs_N[:, None]
            by_feature_NB = 2 * model.gamma * (toward_NB - away_NB)
        yield by_feature_NB * factors_NB


def contributed_effects(
    contributions: Contributions, seen: Rows, features: sparse.csr_array
) -> F64:
    """Return the effect of one standard deviation of each ASV's feature, [U, C].

    It is the slope of the regression of the contributions of an ASV on its feature, times the
    standard deviation of the feature. For a linear model of the features it is the exact effect.

    Args:
        contributions: of all ASVs of the study.
        seen: columns of the U ASVs.
        features: float [N, U].
    """
    mean_U, spread_U = _moments(features)
    effects = []
    for values in contributions.values:
        values_NU = values[:, seen]
        covariance_U = values_NU.multiply(features).mean(axis=0) - values_NU.mean(axis=0) * mean_U
        effects.append(np.divide(covariance_U, spread_U, where=spread_U > 0, out=0 * mean_U))
    return np.stack(effects, axis=1)


def _moments(features: sparse.csr_array) -> tuple[F64, F64]:
    """Return mean and standard deviation of each feature, [U]."""
    mean_U = features.mean(axis=0, dtype=np.float64)
    variance_U = features.power(2).mean(axis=0, dtype=np.float64) - mean_U**2
    return mean_U, np.sqrt(variance_U.clip(min=0))
