"""Samples as the kernel estimator reads them: a sum of kernels as inner products of features.

M landmarks, B branches of the dendrogram; further shape suffixes: see `base`.
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
        encoder: of the covariates; None without any.
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
        places: of the ASVs of the samples' study in the dendrogram.
        dendrogram: of the ASVs of the training study; None for samples of another study.
        covariates: metadata columns; None without any.
        clades_NB: float64, scaled features of the clades, see `with_features`; else None.
        features_NP: float64, scaled features of the covariates; else None.
    """

    weights: sparse.csr_array
    smoothed_NF: F32
    norms_N: F64
    places: Places
    dendrogram: Dendrogram | None = None
    covariates: Covariates | None = None
    clades_NB: sparse.csr_array | None = None
    features_NP: F64 | None = None

    def take(self, rows: Rows) -> KernelInputs:
        """Return the samples at `rows`."""
        return dataclasses.replace(
            self,
            weights=self.weights[rows],
            smoothed_NF=self.smoothed_NF[rows],
            norms_N=self.norms_N[rows],
            covariates=self.covariates and self.covariates.take(rows),
            clades_NB=None if self.clades_NB is None else self.clades_NB[rows],
            features_NP=None if self.features_NP is None else self.features_NP[rows],
        )

    def with_features(self, summands: Summands) -> KernelInputs:
        """Add the products of the scaled features of two samples to their kernel."""
        norms_N, clades_NB, features_NP = self.norms_N, None, None
        if summands.clades is not None:
            features_NB = summands.clades.features(self.weights, self.places)
            clades_NB = sparse.csr_array(summands.clade_scale * features_NB)
            norms_N = norms_N + squared_norms(clades_NB)
        if summands.encoder is not None and summands.scale:
            assert self.covariates is not None
            features_NP = summands.scale * summands.encoder.features_NP(self.covariates)
            norms_N = norms_N + np.square(features_NP).sum(axis=1)
        return dataclasses.replace(
            self, norms_N=norms_N, clades_NB=clades_NB, features_NP=features_NP
        )


@dataclass(frozen=True)
class Landmarks:
    """Training samples with which others are compared.

    Attributes:
        weights: float32 [M, F], log abundance.
        norms_M: float64, kernel of each landmark with itself.
        clades_MB: float64, scaled features of the clades; None without any.
        features_MP: float64, scaled features of the covariates; None without any.
    """

    weights: sparse.csr_array
    norms_M: F64
    clades_MB: sparse.csr_array | None = None
    features_MP: F64 | None = None

    @classmethod
    def of(cls, inputs: KernelInputs, rows: Rows) -> Landmarks:
        """Take the samples at `rows`, of the training study."""
        chosen = inputs.take(rows)
        return cls(chosen.weights, chosen.norms_N, chosen.clades_NB, chosen.features_NP)

    def kernel(self, inputs: KernelInputs) -> F64:
        """Return the linear kernel of samples and landmarks, [N, M]."""
        kernel_NM = np.asarray((self.weights @ inputs.smoothed_NF.T).T, dtype=np.float64)
        if self.clades_MB is not None and inputs.clades_NB is not None:
            kernel_NM += products(inputs.clades_NB, self.clades_MB)
        if self.features_MP is not None and inputs.features_NP is not None:
            kernel_NM += inputs.features_NP @ self.features_MP.T
        return kernel_NM

    def squared_distances(self, inputs: KernelInputs, kernel_NM: F64) -> F64:
        """Return the squared distances k(x, x) - 2 k(x, y) + k(y, y), [N, M]."""
        squared_NM: F64 = inputs.norms_N[:, None] + self.norms_M - 2 * kernel_NM
        return squared_NM.clip(min=0)

    def arrays(self) -> Arrays:
        """Return the state, see `FittedModel`; it holds the clades by the weights."""
        arrays = {
            "weights": self.weights.data,
            "asvs": self.weights.indices.astype(np.int64),
            "starts": self.weights.indptr.astype(np.int64),
            "norms": self.norms_M,
        }
        return arrays if self.features_MP is None else arrays | {"features": self.features_MP}

    @classmethod
    def restore(cls, arrays: Arrays, asvs: int, summands: Summands = SEQUENCES_ALONE) -> Landmarks:
        """Build landmarks from their state, for a study of `asvs` ASVs; raises Mismatch."""
        data, norms_M = numbers(arrays, "weights", None), numbers(arrays, "norms", None)
        columns = indices(arrays, "asvs", asvs, len(data))
        starts = indices(arrays, "starts", len(data) + 1, len(norms_M) + 1)
        if starts[0] != 0 or starts[-1] != len(data) or (np.diff(starts) < 0).any():
            raise Mismatch("the array 'starts' is not ascending")
        shape = len(norms_M), asvs
        weights = sparse.csr_array((data.astype(np.float32), columns, starts), shape=shape)
        clades_MB, features_MP = None, None
        if summands.clades is not None:
            features_MB = summands.clades.features(weights, Places.of_training(asvs))
            clades_MB = sparse.csr_array(summands.clade_scale * features_MB)
        if summands.encoder is not None and summands.scale:
            features_MP = numbers(arrays, "features", len(norms_M), summands.encoder.width)
        return cls(weights, norms_M, clades_MB, features_MP)


def squared_norms(features: sparse.csr_array) -> F64:
    """Return the squared length of each row."""
    norms_N: F64 = np.asarray(features.power(2).sum(axis=1), dtype=np.float64).ravel()
    return norms_N


def products(one_NB: sparse.csr_array, two_MB: sparse.csr_array) -> F64:
    """Return the inner products of all rows, [N, M]; a row is the same bits with any others."""
    products_NM = np.empty((one_NB.shape[0], two_MB.shape[0]))
    for chunk in chunks(len(products_NM)):
        products_NM[chunk] = (two_MB @ one_NB[chunk].toarray().T).T
    return products_NM
