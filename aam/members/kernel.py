"""Kernel estimator: ridge regression on the exact kernel of the sequences of samples.

Two ASVs are as similar as exp(-mismatches / WIDTH), two samples as the sum of these similarities
over their ASVs, weighted by log10(1 + 1e4 relative abundance): the kernel whose random features
are the community profile (`aam.model.profile`). The estimator compares this linear kernel with
Gaussian kernels (RBF) of the distance that it defines, and many penalties, by leaving out one group
at a time (`aam.members.kernel_ridge`).

Of more than `Kernel.largest` samples, a random part are the landmarks of a
Nyström approximation. M landmarks; further shape suffixes: see `base`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.console import info
from aam.data.covariates import CovariateEncoder, Covariates, fit_encoder
from aam.members.base import F64, Arrays, Labels, Rows, Samples, Tokens
from aam.members.kernel_ridge import Ridge, fit_logistic, fit_ridge, probabilities, product
from aam.members.state import encoder_arrays, indices, numbers, restore_encoder
from aam.memory import shown_size
from aam.serialization.schema import Mismatch

F32 = npt.NDArray[np.float32]

WIDTH = 3.0
"""Mismatches at which the similarity of two ASVs is 1/e."""

FINEST = 1e4
"""A relative abundance of 1/FINEST weighs log10(2), ten times as much log10(11)."""

SPREADS = (0.5, 2.0)
"""Squared widths of the Gaussian kernels, relative to the median squared distance."""

SHARES = (0.0, 0.1, 0.3, 0.7)
"""Parts of the covariates in the variance of the linear kernel, of which one is chosen."""

_NUCLEOTIDES = range(1, 5)
_CHUNK = 1024


def log_abundances(samples: Samples) -> sparse.csr_array:
    """Return log10(1 + FINEST relative abundance), float32 [N, ASVs]."""
    relative = samples.relative
    weights = np.log10(1 + FINEST * relative.data)
    return sparse.csr_array((weights, relative.indices, relative.indptr), relative.shape)


def similarities(one_UL: Tokens, two_VL: Tokens) -> F32:
    """Return exp(-mismatches / WIDTH) of each pair of sequences, float32 [U, V]."""
    similar: F32 = np.exp(np.float32(-1 / WIDTH) * mismatches(one_UL, two_VL))
    return similar


def mismatches(one_UL: Tokens, two_VL: Tokens) -> F32:
    """Return the positions at which each pair of sequences differs, float32 [U, V].

    A position counts half where one of the two has no nucleotide (its end, or an ambiguous letter).
    """
    length = min(one_UL.shape[1], two_VL.shape[1])
    (one, one_U), (two, two_V) = _letters(one_UL, length), _letters(two_VL, length)
    found: F32 = (one_U[:, None] + two_V[None]) / 2 - one @ two.T
    return found


def _letters(tokens_UL: Tokens, length: int) -> tuple[F32, F32]:
    """Return the indicators of the first `length` letters, [U, 4 length], and all their numbers."""
    present = (tokens_UL >= _NUCLEOTIDES[0]) & (tokens_UL <= _NUCLEOTIDES[-1])
    codes = tokens_UL[:, :length, None] == np.array(_NUCLEOTIDES, dtype=np.uint8)
    return codes.reshape(len(tokens_UL), -1).astype(np.float32), present.sum(1, dtype=np.float32)


@dataclass(frozen=True)
class KernelInputs:
    """Samples as sums over their ASVs.

    Attributes:
        weights: float32 [N, ASVs of the samples' study], log abundance.
        smoothed_NF: float32, summed similarity to each ASV of the training study.
        norms_N: float64, kernel of each sample with itself.
        covariates: metadata columns; None without any.
        features_NP: float64, scaled features of the covariates, see `with_features`; else None.
    """

    weights: sparse.csr_array
    smoothed_NF: F32
    norms_N: F64
    covariates: Covariates | None = None
    features_NP: F64 | None = None

    def take(self, rows: Rows) -> KernelInputs:
        """Return the samples at `rows`."""
        return KernelInputs(
            self.weights[rows],
            self.smoothed_NF[rows],
            self.norms_N[rows],
            self.covariates and self.covariates.take(rows),
            None if self.features_NP is None else self.features_NP[rows],
        )

    def with_features(self, encoder: CovariateEncoder | None, scale: float) -> KernelInputs:
        """Add the product of the scaled features of two samples to their kernel."""
        if encoder is None or not scale:
            return self
        assert self.covariates is not None
        features_NP = scale * encoder.features_NP(self.covariates)
        norms_N = self.norms_N + np.square(features_NP).sum(axis=1)
        return dataclasses.replace(self, norms_N=norms_N, features_NP=features_NP)


@dataclass(frozen=True)
class Landmarks:
    """Training samples with which others are compared.

    Attributes:
        weights: float32 [M, F], log abundance.
        norms_M: float64, kernel of each landmark with itself.
        features_MP: float64, scaled features of the covariates; None without any.
    """

    weights: sparse.csr_array
    norms_M: F64
    features_MP: F64 | None = None

    @classmethod
    def of(cls, inputs: KernelInputs, rows: Rows) -> Landmarks:
        """Take the samples at `rows`, of the training study."""
        own = inputs.take(rows)
        return cls(own.weights, own.norms_N, own.features_NP)

    def kernel(self, inputs: KernelInputs) -> F64:
        """Return the linear kernel of samples and landmarks, [N, M]."""
        kernel_NM = np.asarray((self.weights @ inputs.smoothed_NF.T).T, dtype=np.float64)
        if self.features_MP is not None and inputs.features_NP is not None:
            kernel_NM += inputs.features_NP @ self.features_MP.T
        return kernel_NM

    def squared_distances(self, inputs: KernelInputs, kernel_NM: F64) -> F64:
        """Return the squared distances k(x, x) - 2 k(x, y) + k(y, y), [N, M]."""
        squared_NM: F64 = inputs.norms_N[:, None] + self.norms_M - 2 * kernel_NM
        return squared_NM.clip(min=0)

    def arrays(self) -> Arrays:
        """Return the state, see `base.Model`."""
        arrays = {
            "weights": self.weights.data,
            "asvs": self.weights.indices.astype(np.int64),
            "starts": self.weights.indptr.astype(np.int64),
            "norms": self.norms_M,
        }
        return arrays if self.features_MP is None else arrays | {"features": self.features_MP}

    @classmethod
    def restore(cls, arrays: Arrays, asvs: int, features: int | None = None) -> Landmarks:
        """Build landmarks from their state; raises Mismatch.

        Args:
            arrays: the state.
            asvs: of the training study.
            features: number of features of the covariates; None without any.
        """
        weights, norms_M = numbers(arrays, "weights", None), numbers(arrays, "norms", None)
        columns = indices(arrays, "asvs", asvs, len(weights))
        starts = indices(arrays, "starts", len(weights) + 1, len(norms_M) + 1)
        if starts[0] != 0 or starts[-1] != len(weights) or (np.diff(starts) < 0).any():
            raise Mismatch("the array 'starts' is not ascending")
        entries = (weights.astype(np.float32), columns, starts)
        features_MP = (
            None if features is None else numbers(arrays, "features", len(norms_M), features)
        )
        return cls(sparse.csr_array(entries, shape=(len(norms_M), asvs)), norms_M, features_MP)


@dataclass(frozen=True)
class KernelModel:
    """Coefficients of the landmarks.

    Attributes:
        landmarks: of the training samples, all or some.
        gamma: of the Gaussian kernel exp(-gamma distance²); 0 for the linear kernel.
        dual_MC: float64, coefficients.
        offset_C: float64, intercepts.
        logits: float64 [C + 1, C], slopes and, last, intercepts of the logistic regression; empty
            for a number.
        encoder: of the covariates; None without any.
        scale: factor of the features of the covariates; 0 leaves them out.
    """

    landmarks: Landmarks
    gamma: float
    dual_MC: F64
    offset_C: F64
    logits: F64
    encoder: CovariateEncoder | None = None
    scale: float = 0.0

    def predict(self, inputs: KernelInputs) -> F64:
        """Return predictions [N, C], see `base.Model`."""
        outputs_NC = product(self.kernel(inputs), self.dual_MC) + self.offset_C
        return probabilities(outputs_NC, self.logits)

    def kernel(self, inputs: KernelInputs) -> F64:
        """Return the kernel of each sample with each landmark, [N, M]."""
        inputs = inputs.with_features(self.encoder, self.scale)
        return _kernel(inputs, self.landmarks, self.landmarks.kernel(inputs), self.gamma)

    def arrays(self) -> Arrays:
        """Return the state, see `base.Model`."""
        return {
            **self.landmarks.arrays(),
            "gamma": np.array([self.gamma]),
            "dual": self.dual_MC,
            "offset": self.offset_C,
            "logits": self.logits,
            **({"scale": np.array([self.scale])} if self.encoder else {}),
            **encoder_arrays(self.encoder),
        }


@dataclass(frozen=True)
class _Fit:
    """Ridge regression with the kernel of one width `gamma` and `scale` of the covariates."""

    gamma: float
    scale: float
    ridge: Ridge


@dataclass(frozen=True)
class Kernel:
    """See `base.Estimator`.

    Attributes:
        largest: samples up to which the kernel is exact; the number of landmarks beyond.
    """

    largest: int = 4000

    def read(self, samples: Samples, reference_FL: Tokens) -> KernelInputs:
        """Compute the similarity of each sample to each ASV of the training study."""
        weights = log_abundances(samples)
        smoothed_NF = np.empty((weights.shape[0], len(reference_FL)), dtype=np.float32)
        for chunk in _chunks(len(reference_FL)):
            smoothed_NF[:, chunk] = weights @ similarities(samples.tokens_FL, reference_FL[chunk])
        norms_N = np.zeros(weights.shape[0])
        for chunk in _chunks(len(samples.tokens_FL)):
            own = samples.tokens_FL[chunk]
            smoothed = weights @ similarities(samples.tokens_FL, own)
            norms_N += weights[:, chunk].multiply(smoothed).sum(axis=1)
        return KernelInputs(weights, smoothed_NF, norms_N, samples.covariates)

    def fit(self, inputs: KernelInputs, labels: Labels, seed: int) -> KernelModel:
        """Fit every kernel, share of the covariates and penalty; keep the least left-out error."""
        samples = len(inputs.norms_N)
        rows = np.arange(samples)
        if samples > self.largest:
            info(approximation(samples, self.largest))
            chosen = np.random.default_rng(seed).choice(samples, self.largest, replace=False)
            rows = np.sort(chosen)
        encoder = fit_encoder(inputs.covariates)
        fits = (
            fit
            for scale in _scales(inputs, encoder, rows)
            for fit in _fits(inputs.with_features(encoder, scale), scale, rows, labels)
        )
        best = min(fits, key=lambda fit: fit.ridge.error)
        ridge = best.ridge
        logits = fit_logistic(ridge.left_out_NC, labels) if labels.classes else np.empty((0, 0))
        landmarks = Landmarks.of(inputs.with_features(encoder, best.scale), rows)
        return KernelModel(
            landmarks, best.gamma, ridge.dual_MC, ridge.offset_C, logits, encoder, best.scale
        )

    def restore(self, arrays: Arrays, asvs: int, outputs: int) -> KernelModel:
        """Build a model from its state, see `base.Estimator`."""
        encoder = restore_encoder(arrays)
        scale = float(numbers(arrays, "scale", 1)[0]) if encoder else 0.0
        landmarks = Landmarks.restore(arrays, asvs, encoder.width if encoder and scale else None)
        classes = 0 if outputs == 1 else outputs
        return KernelModel(
            landmarks,
            float(numbers(arrays, "gamma", 1)[0]),
            numbers(arrays, "dual", len(landmarks.norms_M), outputs),
            numbers(arrays, "offset", outputs),
            numbers(arrays, "logits", classes + bool(classes), classes),
            encoder,
            scale,
        )


def approximation(samples: int, landmarks: int) -> str:
    """Return the sentence about a kernel of more samples than it has landmarks."""
    return (
        f"The exact kernel of {samples} samples needs {shown_size(32 * samples**2)}; it is "
        f"approximated from {landmarks} of them (Nyström), which needs "
        f"{shown_size(32 * samples * landmarks)}."
    )


def _chunks(number: int) -> Iterator[slice]:
    return (slice(start, start + _CHUNK) for start in range(0, number, _CHUNK))


def _kernel(inputs: KernelInputs, landmarks: Landmarks, linear_NM: F64, gamma: float) -> F64:
    """Return the Gaussian kernel of the distances that a linear kernel defines; it for gamma 0."""
    if gamma == 0:
        return linear_NM
    kernel_NM: F64 = np.exp(-gamma * landmarks.squared_distances(inputs, linear_NM))
    return kernel_NM


def _scales(
    inputs: KernelInputs, encoder: CovariateEncoder | None, rows: Rows
) -> tuple[float, ...]:
    """Return the factors of the covariates' features that give them the parts `SHARES`."""
    if encoder is None:
        return (0.0,)
    landmarks = Landmarks.of(inputs, rows)
    counts = float(landmarks.norms_M.mean() - landmarks.kernel(inputs).mean())
    assert inputs.covariates is not None
    own = float(encoder.features_NP(inputs.covariates).var(axis=0).sum())
    if counts <= 0 or own <= 0:  # metadata alone, or no known category
        return (1.0,)
    return tuple(math.sqrt(share / (1 - share) * counts / own) for share in SHARES)


def _fits(inputs: KernelInputs, scale: float, rows: Rows, labels: Labels) -> Iterator[_Fit]:
    """Yield the fit of the linear kernel and of each Gaussian kernel."""
    landmarks = Landmarks.of(inputs, rows)
    linear_NM = landmarks.kernel(inputs)
    squared = landmarks.squared_distances(inputs, linear_NM)
    median = float(np.median(squared[squared > 0])) if (squared > 0).any() else 1.0
    for gamma in (0.0, *(1 / (spread * median) for spread in SPREADS)):
        kernel_NM = _kernel(inputs, landmarks, linear_NM, gamma)
        yield _Fit(gamma, scale, fit_ridge(kernel_NM, rows, labels))
