"""Samples as the kernel estimator reads them, and effects of ASVs in a fitted kernel.

Kernels are sums of inner products of features. The effects are derivatives of predictions by the
feature of each ASV in a sample, its log abundance log10(1 + 1e4 relative abundance);
`docs/importance.md` defines them. R landmarks, G branches of the dendrogram, U ASVs of a table;
further shape suffixes: see `base`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from aam.contract.records import Mismatch
from aam.data.covariates import CovariateEncoder, Covariates
from aam.data.targets import TRANSFORMS, contrasts
from aam.members.base import F64, Arrays, Rows, Tokens, indices, numbers
from aam.members.member import Outputs, moments
from aam.members.relations import F32, AsvRelations, Dendrogram, NearestAsvs, chunks

if TYPE_CHECKING:
    from aam.members.kernel import KernelModel


@dataclass(frozen=True)
class KernelTerms:
    """Kernels that are added to that of the sequences, with their weights.

    Attributes:
        clades: dendrogram of the ASVs; None without the kernel of the clades.
        clade_scale: factor of the features of the clades.
        encoder: encoder of the covariates; None without any.
        scale: factor of the features of the covariates; 0 leaves them out.
    """

    clades: Dendrogram | None = None
    clade_scale: float = 0.0
    encoder: CovariateEncoder | None = None
    scale: float = 0.0

    def arrays(self) -> Arrays:
        """Return the arrays of the state, see `FittedModel`."""
        return {} if self.clades is None else self.clades.arrays()

    def settings(self) -> dict[str, Any]:
        """Return the plain part of the state; the scale of the clades is None without them."""
        return {
            "clade_scale": None if self.clades is None else self.clade_scale,
            "covariates": self.encoder and dataclasses.asdict(self.encoder),
            "scale": self.scale,
        }


SEQUENCES_ALONE = KernelTerms()
"""No kernel besides that of the sequences."""


@dataclass(frozen=True)
class KernelInputs:
    """Samples as sums over their ASVs.

    Attributes:
        weights: float32 [N, ASVs of the samples' study], log abundance.
        smoothed_NF: float32, summed similarity to each ASV of the training study.
        norms_N: float64, kernel of each sample with itself.
        nearest: most similar ASV of the training study of each ASV of the samples.
        dendrogram: dendrogram of the ASVs of the training study; None for samples of another study.
        covariates: metadata columns; None without any.
        clades_NG: float64, scaled features of the clades, see `with_features`; else None.
        features_NW: float64, scaled features of the covariates; else None.
    """

    weights: sparse.csr_array
    smoothed_NF: F32
    norms_N: F64
    nearest: NearestAsvs
    dendrogram: Dendrogram | None = None
    covariates: Covariates | None = None
    clades_NG: sparse.csr_array | None = None
    features_NW: F64 | None = None

    def take(self, rows: Rows) -> KernelInputs:
        """Return the samples at `rows`."""
        return dataclasses.replace(
            self,
            weights=self.weights[rows],
            smoothed_NF=self.smoothed_NF[rows],
            norms_N=self.norms_N[rows],
            covariates=self.covariates and self.covariates.take(rows),
            clades_NG=None if self.clades_NG is None else self.clades_NG[rows],
            features_NW=None if self.features_NW is None else self.features_NW[rows],
        )

    def with_features(self, terms: KernelTerms) -> KernelInputs:
        """Add the products of the scaled features of two samples to their kernel."""
        norms_N, clades_NG, features_NW = self.norms_N, None, None
        if terms.clades is not None:
            features_NG = terms.clades.features(self.weights, self.nearest)
            clades_NG = sparse.csr_array(terms.clade_scale * features_NG)
            norms_N = norms_N + squared_norms(clades_NG)
        if terms.encoder is not None and terms.scale:
            assert self.covariates is not None
            features_NW = terms.scale * terms.encoder.features_NW(self.covariates)
            norms_N = norms_N + np.square(features_NW).sum(axis=1)
        return dataclasses.replace(
            self, norms_N=norms_N, clades_NG=clades_NG, features_NW=features_NW
        )


@dataclass(frozen=True)
class Landmarks:
    """Training samples with which others are compared.

    Attributes:
        weights: float32 [R, F], log abundance.
        norms_R: float64, kernel of each landmark with itself.
        clades_RG: float64, scaled features of the clades; None without any.
        features_RW: float64, scaled features of the covariates; None without any.
    """

    weights: sparse.csr_array
    norms_R: F64
    clades_RG: sparse.csr_array | None = None
    features_RW: F64 | None = None

    @classmethod
    def of(cls, inputs: KernelInputs, rows: Rows) -> Landmarks:
        """Take the samples at `rows`, of the training study."""
        chosen = inputs.take(rows)
        return cls(chosen.weights, chosen.norms_N, chosen.clades_NG, chosen.features_NW)

    def kernel(self, inputs: KernelInputs) -> F64:
        """Return the linear kernel of samples and landmarks, [N, R]."""
        kernel_NR = np.asarray((self.weights @ inputs.smoothed_NF.T).T, dtype=np.float64)
        if self.clades_RG is not None and inputs.clades_NG is not None:
            kernel_NR += products(inputs.clades_NG, self.clades_RG)
        if self.features_RW is not None and inputs.features_NW is not None:
            kernel_NR += inputs.features_NW @ self.features_RW.T
        return kernel_NR

    def squared_distances(self, inputs: KernelInputs, kernel_NR: F64) -> F64:
        """Return the squared distances k(x, x) - 2 k(x, y) + k(y, y), [N, R]."""
        squared_NR: F64 = inputs.norms_N[:, None] + self.norms_R - 2 * kernel_NR
        # Rounding of the float32 similarities makes some squared distances negative.
        return squared_NR.clip(min=0)

    def arrays(self) -> Arrays:
        """Return the state, see `FittedModel`."""
        # The features of the clades are computed again from the weights and the dendrogram.
        arrays = {
            "weights": self.weights.data,
            "asvs": self.weights.indices.astype(np.int64),
            "starts": self.weights.indptr.astype(np.int64),
            "norms": self.norms_R,
        }
        return arrays if self.features_RW is None else arrays | {"features": self.features_RW}

    @classmethod
    def restore(cls, arrays: Arrays, asvs: int, terms: KernelTerms = SEQUENCES_ALONE) -> Landmarks:
        """Build landmarks from their state, for a study of `asvs` ASVs; raises Mismatch."""
        data, norms_R = numbers(arrays, "weights", None), numbers(arrays, "norms", None)
        columns = indices(arrays, "asvs", asvs, len(data))
        starts = indices(arrays, "starts", len(data) + 1, len(norms_R) + 1)
        # SciPy's compiled loops check no bounds: indices of a damaged file would read other memory.
        if starts[0] != 0 or starts[-1] != len(data) or (np.diff(starts) < 0).any():
            raise Mismatch("the array 'starts' is not ascending")
        shape = len(norms_R), asvs
        weights = sparse.csr_array((data.astype(np.float32), columns, starts), shape=shape)
        clades_RG, features_RW = None, None
        if terms.clades is not None:
            features_RG = terms.clades.features(weights, NearestAsvs.of_training(asvs))
            clades_RG = sparse.csr_array(terms.clade_scale * features_RG)
        if terms.encoder is not None and terms.scale:
            features_RW = numbers(arrays, "features", len(norms_R), terms.encoder.width)
        return cls(weights, norms_R, clades_RG, features_RW)


def squared_norms(features: sparse.csr_array) -> F64:
    """Return the squared length of each row."""
    norms_N: F64 = np.asarray(features.power(2).sum(axis=1), dtype=np.float64).ravel()
    return norms_N


def products(one_NG: sparse.csr_array, two_RG: sparse.csr_array) -> F64:
    """Return the inner products of all rows, [N, R]; a row is the same bits with any others."""
    # A product with a sparse matrix on the left sums each row in the order of its entries. BLAS
    # chooses the order of a dense product by the number of rows.
    products_NR = np.empty((one_NG.shape[0], two_RG.shape[0]))
    for chunk in chunks(len(products_NR)):
        products_NR[chunk] = (two_RG @ one_NG[chunk].toarray().T).T
    return products_NR


def kernel_effects(
    model: KernelModel,
    inputs: KernelInputs,
    tokens_UL: Tokens,
    relations: AsvRelations,
    outputs: Outputs,
) -> F64:
    """Return the effect of one standard deviation of each ASV's feature, [U, outputs].

    A number has one output, in its units; two classes have the log odds of the second; more classes
    have the log probability of each minus the mean of all. The derivative of a sample by a feature
    is multiplied by the slope of its prediction; that of an ASV is the mean over the samples that
    have it.
    """
    dual_RC, slopes_N = model.dual_RC, np.ones(len(inputs.norms_N))
    if outputs.classes:
        dual_RC = dual_RC @ model.logits[:-1] @ contrasts(len(outputs.classes))
    else:
        slopes_N = TRANSFORMS[outputs.scale.transform].slope(model.predict(inputs)[:, 0])
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
        # The linear kernel has the derivative of all samples in common.
        gradients_UC: F64 = (to_landmarks_RU.T @ dual_RC) * (share.T @ slopes_N)[:, None]
    else:
        # The squared distance from a landmark changes by 2 (similarity to the sample - to it).
        toward_UC = ((share.T @ kernel_NR) * to_landmarks_RU.T) @ dual_RC
        to_samples_NU = own.smooth(inputs.weights, tokens_UL)
        away_UC = share.multiply(to_samples_NU).T @ outputs_NC
        gradients_UC = 2 * model.gamma * (toward_UC - away_UC)
    terms, landmarks_RG = model.terms, model.landmarks.clades_RG
    if terms.clades is not None:
        assert landmarks_RG is not None
        # A feature x of an ASV adds 10**x to the abundance below each of its branches. The factors
        # ln 10 of its derivative and 1 / ln 10 of that by the abundance cancel.
        grown = share.copy()
        grown.data = share.data * 10.0**weights.data
        member_UG = terms.clades.membership(inputs.nearest)
        # Derivatives by branch are dense: a block of samples bounds their memory.
        for rows in chunks(len(slopes_N)):
            some, grown_nU = inputs.take(np.arange(len(slopes_N))[rows]), grown[rows]
            features_nG = some.with_features(terms).clades_NG
            assert features_nG is not None
            abundances_nG = terms.clades.abundances(some.weights, some.nearest).toarray()
            factors_nG = terms.clade_scale * np.sqrt(terms.clades.lengths_G) / (1 + abundances_nG)
            for output, (dual_R, outputs_n) in enumerate(
                zip(dual_RC.T, outputs_NC[rows].T, strict=True)
            ):
                if model.gamma == 0:
                    by_feature_nG = np.outer(slopes_N[rows], landmarks_RG.T @ dual_R)
                else:
                    toward_nG = (landmarks_RG.T @ (kernel_NR[rows] * dual_R).T).T
                    away_nG = features_nG.toarray() * outputs_n[:, None]
                    by_feature_nG = 2 * model.gamma * (toward_nG - away_nG)
                by_asv_nU = (member_UG @ (by_feature_nG * factors_nG).T).T
                gradients_UC[:, output] += grown_nU.multiply(by_asv_nU).sum(axis=0)
    effects_UC: F64 = gradients_UC * moments(inputs.weights)[1][:, None]
    return effects_UC
