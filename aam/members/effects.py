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

    Args:
        model: fitted kernel.
        inputs: samples over which the derivatives are averaged, as the kernel reads them.
        tokens_UL: sequences of the ASVs of `inputs`.
        relations: relations of the ASVs of the training study.
        outputs: classes of the target, or its scale.
    """
    dual_RC, slopes_N = model.dual_RC, np.ones(len(inputs.norms_N))
    if outputs.classes:
        dual_RC = dual_RC @ model.logits[:-1] @ contrasts(len(outputs.classes))
    else:
        slopes_N = TRANSFORMS[outputs.scale.transform].slope(model.predict(inputs)[:, 0])
    gradients_UC = mean_gradients(model, dual_RC, slopes_N, inputs, tokens_UL, relations)
    effects_UC: F64 = gradients_UC * moments(inputs.weights)[1][:, None]
    return effects_UC


def mean_gradients(
    model: KernelModel,
    dual_RC: F64,
    slopes_N: F64,
    inputs: KernelInputs,
    tokens_UL: Tokens,
    relations: AsvRelations,
) -> F64:
    """Return derivatives of kernel @ dual_RC by each feature, [U, C].

    The derivative of a sample is multiplied by its slope; that of an ASV is the mean over the
    samples that have it. The linear kernel has the derivative of all samples in common.

    Args:
        model: fitted kernel.
        dual_RC: coefficients of the landmarks for each output, float64.
        slopes_N: derivative of what is explained by the output of the kernel, for each sample;
            1 where they are the same.
        inputs, tokens_UL, relations: see `kernel_effects`.
    """
    weights = sparse.csc_array(inputs.weights)
    having_U = np.diff(weights.indptr)
    share = sparse.csc_array(
        (1 / np.repeat(having_U, having_U), weights.indices, weights.indptr), shape=weights.shape
    )
    kernel_NR = model.kernel(inputs) * slopes_N[:, None]
    outputs_NC = kernel_NR @ dual_RC
    # `relations` keeps the mismatches of the training study; a new object computes them again.
    own = relations if tokens_UL is relations.tokens_FL else AsvRelations(tokens_UL)
    to_landmarks_RU = own.smooth(model.landmarks.weights, relations.tokens_FL)
    if model.gamma == 0:
        gradients_UC: F64 = (to_landmarks_RU.T @ dual_RC) * (share.T @ slopes_N)[:, None]
    else:
        # The squared distance from a landmark changes by 2 (similarity to the sample - to it).
        toward_UC = ((share.T @ kernel_NR) * to_landmarks_RU.T) @ dual_RC
        to_samples_NU = own.smooth(inputs.weights, tokens_UL)
        away_UC = share.multiply(to_samples_NU).T @ outputs_NC
        gradients_UC = 2 * model.gamma * (toward_UC - away_UC)
    if (clades := model.summands.clades) is None:
        return gradients_UC
    # A feature x of an ASV adds 10**x to the abundance below each of its branches.
    grown = share.copy()
    grown.data = share.data * 10.0**weights.data
    member_UG = clades.membership(inputs.places)
    # Derivatives by branch are dense: a block of samples bounds their memory.
    for rows in chunks(len(slopes_N)):
        some, grown_nU = inputs.take(np.arange(len(slopes_N))[rows]), grown[rows]
        slopes = slopes_N[rows], kernel_NR[rows], outputs_NC[rows]
        for output, by_branch_nB in enumerate(_branch_gradients(model, dual_RC, some, *slopes)):
            by_asv_nU = (member_UG @ by_branch_nB.T).T
            gradients_UC[:, output] += grown_nU.multiply(by_asv_nU).sum(axis=0)
    return gradients_UC


def _branch_gradients(
    model: KernelModel,
    dual_RC: F64,
    inputs: KernelInputs,
    slopes_N: F64,
    kernel_NR: F64,
    outputs_NC: F64,
) -> Iterator[F64]:
    """Yield the derivatives of each output by the abundance below each branch, [N, G].

    The abundance is FINEST times the relative one. The factor 1 / ln 10 is left out; it cancels
    with the derivative of 10**x.
    """
    summands, landmarks_RG = model.summands, model.landmarks.clades_RG
    assert summands.clades is not None and landmarks_RG is not None
    features_NG = inputs.with_features(summands).clades_NG
    assert features_NG is not None
    abundances_NG = summands.clades.abundances(inputs.weights, inputs.places).toarray()
    factors_NG = summands.clade_scale * np.sqrt(summands.clades.lengths_G) / (1 + abundances_NG)
    for dual_R, outputs_N in zip(dual_RC.T, outputs_NC.T, strict=True):
        if model.gamma == 0:
            by_feature_NG = np.outer(slopes_N, landmarks_RG.T @ dual_R)
        else:
            toward_NG = (landmarks_RG.T @ (kernel_NR * dual_R).T).T
            away_NG = features_NG.toarray() * outputs_N[:, None]
            by_feature_NG = 2 * model.gamma * (toward_NG - away_NG)
        yield by_feature_NG * factors_NG
