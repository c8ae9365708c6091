"""Samples as the kernel estimator reads them: a sum of kernels as inner products of features.

R landmarks, G branches of the dendrogram; further shape suffixes: see `base`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from aam.contract import schema
from aam.contract.schema import Mismatch
from aam.data.covariates import CovariateEncoder, Covariates
from aam.members.base import F64, Arrays, Rows
from aam.members.dendrogram import F32, Dendrogram, Places
from aam.members.relations import chunks
from aam.members.state import indices, numbers
from aam.serialization.model_folder import State

_SETTINGS = {
    "clade_scale": float | None,
    "covariates": CovariateEncoder | None,
    "scale": float,
}


@dataclass(frozen=True)
class Summands:
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

    @classmethod
    def restore(cls, state: State, asvs: int) -> Summands:
        """Build the kernels from their state, for a study of `asvs` ASVs; raises Mismatch."""
        settings = schema.parse(_SETTINGS, state.settings, "kernel")
        encoder, scale = settings["covariates"], settings["scale"]
        if settings["clade_scale"] is None:
            return cls(encoder=encoder, scale=scale)
        clades = Dendrogram.restore(state.arrays, asvs)
        return cls(clades, settings["clade_scale"], encoder, scale)


SEQUENCES_ALONE = Summands()
"""No kernel besides that of the sequences."""


@dataclass(frozen=True)
class KernelInputs:
    """Samples as sums over their ASVs.

    Attributes:
        weights: float32 [N, ASVs of the samples' study], log abundance.
        smoothed_NF: float32, summed similarity to each ASV of the training study.
        norms_N: float64, kernel of each sample with itself.
        places: places of the ASVs of the samples' study in the dendrogram.
        dendrogram: dendrogram of the ASVs of the training study; None for samples of another study.
        covariates: metadata columns; None without any.
        clades_NG: float64, scaled features of the clades, see `with_features`; else None.
        features_NW: float64, scaled features of the covariates; else None.
    """

    weights: sparse.csr_array
    smoothed_NF: F32
    norms_N: F64
    places: Places
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

    def with_features(self, summands: Summands) -> KernelInputs:
        """Add the products of the scaled features of two samples to their kernel."""
        norms_N, clades_NG, features_NW = self.norms_N, None, None
        if summands.clades is not None:
            features_NG = summands.clades.features(self.weights, self.places)
            clades_NG = sparse.csr_array(summands.clade_scale * features_NG)
            norms_N = norms_N + squared_norms(clades_NG)
        if summands.encoder is not None and summands.scale:
            assert self.covariates is not None
            features_NW = summands.scale * summands.encoder.features_NW(self.covariates)
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
    def restore(cls, arrays: Arrays, asvs: int, summands: Summands = SEQUENCES_ALONE) -> Landmarks:
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
        if summands.clades is not None:
            features_RG = summands.clades.features(weights, Places.of_training(asvs))
            clades_RG = sparse.csr_array(summands.clade_scale * features_RG)
        if summands.encoder is not None and summands.scale:
            features_RW = numbers(arrays, "features", len(norms_R), summands.encoder.width)
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
