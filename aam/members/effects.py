"""Effects of ASVs in a kernel model: derivatives of its predictions by the feature of each ASV.

The feature of an ASV in a sample is its log abundance log10(1 + 1e4 relative abundance).
`docs/importance.md` defines the effects. U ASVs of a table; further shape suffixes: see `base` and
`kernel`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from aam.data.target_transforms import TRANSFORMS, contrasts
from aam.members.base import F64, Tokens
from aam.members.kernel_inputs import KernelInputs
from aam.members.model import Outputs, moments
from aam.members.relations import AsvRelations, chunks

if TYPE_CHECKING:  # its method `importance` calls these functions
    from aam.members.kernel import KernelModel


def kernel_effects(
    model: KernelModel,
    inputs: KernelInputs,
    tokens_UL: Tokens,
    relations: AsvRelations,
    outputs: Outputs,
) -> F64:
    """Return the effect of one standard deviation of each ASV's feature, [U, outputs].

    A number has one output, in its units; two classes have the log odds of the second; more classes
    have the log probability of each minus the mean of all.
    """
    dual_MC, slopes_N = model.dual_MC, np.ones(len(inputs.norms_N))
    if outputs.classes:
        dual_MC = dual_MC @ model.logits[:-1] @ contrasts(len(outputs.classes))
    else:
        slopes_N = TRANSFORMS[outputs.scale.transform].slope(model.predict(inputs)[:, 0])
    gradients_UC = mean_gradients(model, dual_MC, slopes_N, inputs, tokens_UL, relations)
    effects_UC: F64 = gradients_UC * moments(inputs.weights)[1][:, None]
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
