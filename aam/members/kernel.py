"""Kernel estimator: ridge regression on a sum of kernels of samples.

The first is the exact kernel of the sequences. Two ASVs are as similar as exp(-mismatches / WIDTH),
two samples as the sum of these similarities over their ASVs, weighted by log10(1 + 1e4 relative
abundance): the kernel whose random features are the community profile (`aam.model.profile`). The
second is that of the clades: the sum, over the branches of a dendrogram of the ASVs, of the
product of the two samples' log abundances below the branch, times its length
(`aam.members.relations`). Metadata columns add a third.

The estimator compares several weights of the kernels and many penalties, by leaving out one group
at a time (`aam.members.kernel_ridge`), and then the best sum with Gaussian kernels (RBF) of the
distance that it defines (docs/experiments/kernel.md). The best of these is fitted to numbers once
more, with weights by which labels far from their left-out predictions count less; that fit is used
unless its left-out error is larger.

Of more than `Kernel.largest` samples, a random part are the landmarks of a
Nyström approximation. R landmarks; further shape suffixes: see `base`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import msgspec
import numpy as np

from aam.console import info
from aam.contract.options.device import DeviceOptions
from aam.contract.records import NonNegative, convert
from aam.data.covariates import CovariateEncoder, fit_encoder
from aam.members.base import F64, Labels, Rows, Samples, Tokens, numbers
from aam.members.explanations import ExplainedSamples, SampleEffects, kernel_sample_effects
from aam.members.kernel_features import (
    KernelInputs,
    KernelTerms,
    Landmarks,
    kernel_effects,
    products,
    squared_norms,
)
from aam.members.kernel_ridge import (
    fit_logistic,
    fit_ridge,
    huber_weights,
    probabilities,
    product,
)
from aam.members.member import Estimator, FittedModel, Importance, Outputs, of_effects
from aam.members.relations import F32, AsvRelations, Dendrogram, NearestAsvs, similarity
from aam.memory import shown_size
from aam.serialization.model_folder import State

SPREADS = (0.5, 2.0)
"""Squared widths of the Gaussian kernels, relative to the median squared distance."""

CLADE_SHARES = (0.0, 0.3, 0.7)
"""Parts of the clades in the variance of the linear kernel of the counts; one is chosen."""

SHARES = (0.0, 0.1, 0.3, 0.7)
"""Parts of the covariates in the variance of the linear kernel, of which one is chosen."""

_BYTES = 80
"""Memory of a pair of a sample and a landmark, measured: ten numbers."""


class _KernelSettings(msgspec.Struct):
    """Plain part of the state; the scale of the clades is None without their kernel."""

    gamma: NonNegative
    clade_scale: float | None
    covariates: CovariateEncoder | None
    scale: float


@dataclass(frozen=True)
class KernelModel(FittedModel[KernelInputs]):
    """Coefficients of the landmarks.

    Attributes:
        landmarks: all or some of the training samples.
        gamma: factor of the Gaussian kernel exp(-gamma distance²); 0 for the linear kernel.
        dual_RC: float64, coefficients.
        offset_C: float64, intercepts.
        logits: float64 [C + 1, C], slopes and, last, intercepts of the logistic regression; empty
            for a number.
        terms: kernels besides that of the sequences.
        limits: float64 [2], lowest and highest training label: a linear kernel extrapolates to
            any number for samples unlike those of the training. Empty for classes.
        left_out_NC: predictions of the training samples without their group; not stored.
    """

    landmarks: Landmarks
    gamma: float
    dual_RC: F64
    offset_C: F64
    logits: F64
    terms: KernelTerms
    limits: F64
    left_out_NC: F64 | None = None

    @property
    def encoder(self) -> CovariateEncoder | None:
        return self.terms.encoder

    def predict(self, inputs: KernelInputs) -> F64:
        outputs_NC = product(self.kernel(inputs), self.dual_RC) + self.offset_C
        if len(self.limits):
            outputs_NC = outputs_NC.clip(*self.limits)
        return probabilities(outputs_NC, self.logits)

    def kernel(self, inputs: KernelInputs) -> F64:
        """Return the kernel of each sample with each landmark, [N, R]."""
        inputs = inputs.with_features(self.terms)
        linear_NR = self.landmarks.kernel(inputs)
        if self.gamma == 0:
            return linear_NR
        squared_NR = self.landmarks.squared_distances(inputs, linear_NR)
        kernel_NR: F64 = np.exp(-self.gamma * squared_NR)
        return kernel_NR

    def importance(
        self, inputs: KernelInputs, tokens_UL: Tokens, relations: AsvRelations, outputs: Outputs
    ) -> Importance:
        effects_UC = kernel_effects(self, inputs, tokens_UL, relations, outputs)
        return of_effects("effect", effects_UC, outputs.classes)

    def explain(
        self,
        inputs: KernelInputs,
        explained: ExplainedSamples,
        relations: AsvRelations,
        outputs: Outputs,
    ) -> SampleEffects:
        return kernel_sample_effects(self, inputs, explained, relations, outputs)

    def state(self) -> State:
        arrays = {
            **self.landmarks.arrays(),
            "dual": self.dual_RC,
            "offset": self.offset_C,
            "logits": self.logits,
            "limits": self.limits,
            **self.terms.arrays(),
        }
        return State({"gamma": self.gamma, **self.terms.settings()}, arrays)


@dataclass(frozen=True)
class _Gram:
    """Linear kernel of the samples.

    Attributes:
        kernel_NR: float64, of the samples and the landmarks.
        norms_N: float64, of each sample with itself.
    """

    kernel_NR: F64
    norms_N: F64

    @property
    def variance(self) -> float:
        """Mean squared distance from the mean of the landmarks in the feature space, nearly."""
        return float(self.norms_N.mean() - self.kernel_NR.mean())

    def plus(self, other: _Gram | None, scale: float) -> _Gram:
        """Add a kernel whose features have the factor `scale`."""
        if other is None:
            return self
        return _Gram(
            self.kernel_NR + scale**2 * other.kernel_NR, self.norms_N + scale**2 * other.norms_N
        )

    def scales(self, other: _Gram | None, shares: tuple[float, ...]) -> tuple[float, ...]:
        """Return the factors with which the other kernel has the `shares` of the variance."""
        if other is None:
            return (0.0,)
        if self.variance <= 0 or other.variance <= 0:  # metadata alone, or no known category
            return (1.0,)
        ratio = self.variance / other.variance
        return tuple(math.sqrt(share / (1 - share) * ratio) for share in shares)


@dataclass(frozen=True)
class Kernel(Estimator[KernelInputs]):
    """Ridge regression on a kernel of sequences, clades and covariates, see `member.Estimator`.

    Attributes:
        largest: samples up to which the kernel is exact; the number of landmarks beyond.
        clades: whether to add the kernel of the clades.

    >>> from scipy import sparse
    >>> counts = sparse.csr_array(np.array([[9, 1], [7, 3], [3, 7], [1, 9]]))
    >>> samples = Samples(counts, np.array([[1, 2], [3, 4]], dtype=np.uint8))
    >>> kernel = Kernel()
    >>> inputs = kernel.read(samples, AsvRelations(samples.tokens_FL))
    >>> labels = Labels.of(np.array([1.0, 2.0, 3.0, 4.0]), (), None)
    >>> kernel.fit(inputs, labels, seed=0).predict(inputs).round().ravel().tolist()
    [1.0, 2.0, 3.0, 4.0]
    """

    largest: int = 4000
    clades: bool = True

    def read(self, samples: Samples, relations: AsvRelations) -> KernelInputs:
        """Compute the similarity of each sample to each ASV of the training study."""
        weights, tokens_UL = samples.log_abundances, samples.tokens_FL
        smoothed_NF = np.empty((weights.shape[0], len(relations.tokens_FL)), dtype=np.float32)
        nearest_U = np.zeros(len(tokens_UL), dtype=np.int64)
        mismatches_U = np.full(len(tokens_UL), np.inf, dtype=np.float32)
        for chunk, mismatches_UK in relations.mismatches(tokens_UL):
            smoothed_NF[:, chunk] = weights @ similarity(mismatches_UK)
            fewest_U = mismatches_UK.min(axis=1)
            # Strictly fewer: of equally similar ASVs the first one stays, whatever the size of a
            # block.
            fewer_U = fewest_U < mismatches_U
            nearest_U[fewer_U] = chunk.start + mismatches_UK[fewer_U].argmin(axis=1)
            mismatches_U[fewer_U] = fewest_U[fewer_U]
        of_training = tokens_UL is relations.tokens_FL
        own = smoothed_NF if of_training else AsvRelations(tokens_UL).smooth(weights, tokens_UL)
        norms_N = weights.multiply(own).sum(axis=1, dtype=np.float64)
        nearest = NearestAsvs(nearest_U, mismatches_U)
        dendrogram = relations.dendrogram if self.clades and of_training else None
        return KernelInputs(weights, smoothed_NF, norms_N, nearest, dendrogram, samples.covariates)

    def fit(self, inputs: KernelInputs, labels: Labels, seed: int) -> KernelModel:
        """Fit every sum of kernels, width and penalty; keep the least left-out error."""
        samples = len(inputs.norms_N)
        rows = np.arange(samples)
        if samples > self.largest:
            info(approximation(samples, self.largest))
            chosen = np.random.default_rng(seed).choice(samples, self.largest, replace=False)
            rows = np.sort(chosen)
        encoder = fit_encoder(inputs.covariates)
        sequences = _Gram(Landmarks.of(inputs, rows).kernel(inputs), inputs.norms_N)
        clades = _clade_gram(inputs, rows)
        covariates = _covariate_gram(inputs, encoder, rows)
        fits = []
        for clade_scale in sequences.scales(clades, CLADE_SHARES):
            counts = sequences.plus(clades, clade_scale)
            for scale in counts.scales(covariates, SHARES):
                kernel_NR = counts.plus(covariates, scale).kernel_NR
                fits.append((fit_ridge(kernel_NR, rows, labels), clade_scale, scale, 0.0))
        ridge, clade_scale, scale, gamma = min(fits, key=lambda fit: fit[0].error)
        # Widths are tried for the best linear sum alone: five fits instead of nine, with scores
        # that differ within noise (docs/experiments/kernel.md).
        gram = sequences.plus(clades, clade_scale).plus(covariates, scale)
        squared_NR = gram.norms_N[:, None] + gram.norms_N[rows] - 2 * gram.kernel_NR
        # Similarities are float32: rounding makes some squared distances negative.
        squared_NR = squared_NR.clip(min=0)
        # Median heuristic; without the zeros of each sample with itself and of equal samples.
        median = float(np.median(squared_NR[squared_NR > 0])) if squared_NR.any() else 1.0
        for width in (1 / (spread * median) for spread in SPREADS):
            gaussian = fit_ridge(np.exp(-width * squared_NR), rows, labels)
            if gaussian.error < ridge.error:
                ridge, gamma = gaussian, width
        # Each takes 8 bytes a pair, and the fit with weights needs as much again.
        del sequences, clades, covariates, counts, gram, kernel_NR, squared_NR, gaussian
        logits = fit_logistic(ridge.left_out_NC, labels) if labels.classes else np.empty((0, 0))
        dendrogram = inputs.dendrogram if clade_scale else None
        terms = KernelTerms(dendrogram, clade_scale, encoder, scale)
        landmarks = Landmarks.of(inputs.with_features(terms), rows)
        limits = (
            np.empty(0) if labels.classes else np.array([labels.values.min(), labels.values.max()])
        )
        model = KernelModel(
            landmarks, gamma, ridge.dual_RC, ridge.offset_C, logits, terms, limits,
            probabilities(ridge.left_out_NC, logits),
        )  # fmt: skip
        if labels.classes:
            return model
        weights_N = huber_weights((labels.outputs_NC - ridge.left_out_NC)[:, 0])
        # Of a skewed target the weights pull predictions from the mean to the median: R² 0.597
        # instead of 0.613 for exp(2 z) of a simulated pH. So the left-out error decides.
        robust = fit_ridge(model.kernel(inputs), rows, labels, weights_N)
        if np.square(robust.left_out_NC - labels.outputs_NC).mean() <= ridge.error:
            ridge = robust
        return dataclasses.replace(
            model,
            dual_RC=ridge.dual_RC,
            offset_C=ridge.offset_C,
            left_out_NC=ridge.left_out_NC.clip(*limits),
        )

    def left_out(
        self, model: FittedModel[KernelInputs], inputs: KernelInputs, labels: Labels, seed: int
    ) -> F64 | None:
        # By these predictions the penalty was chosen.
        assert isinstance(model, KernelModel)
        return model.left_out_NC

    def restore(self, state: State, asvs: int, outputs: int, device: DeviceOptions) -> KernelModel:
        arrays, settings = state.arrays, convert(state.settings, _KernelSettings, "kernel")
        has_clades = settings.clade_scale is not None
        terms = KernelTerms(
            Dendrogram.restore(arrays, asvs) if has_clades else None,
            settings.clade_scale or 0.0,
            settings.covariates,
            settings.scale,
        )
        landmarks = Landmarks.restore(arrays, asvs, terms)
        classes = 0 if outputs == 1 else outputs
        return KernelModel(
            landmarks,
            settings.gamma,
            numbers(arrays, "dual", len(landmarks.norms_R), outputs),
            numbers(arrays, "offset", outputs),
            numbers(arrays, "logits", classes + bool(classes), classes),
            terms,
            numbers(arrays, "limits", 0 if classes else 2),
        )


MEMBER = Kernel()


def approximation(samples: int, landmarks: int) -> str:
    """Return the sentence about a kernel of more samples than it has landmarks."""
    return (
        f"The exact kernel of {samples} samples needs {shown_size(_BYTES * samples**2)}; it is "
        f"approximated from {landmarks} of them (Nyström), which needs "
        f"{shown_size(_BYTES * samples * landmarks)}."
    )


def label_free_kernels(inputs: KernelInputs) -> list[F32]:
    """Return a linear kernel of all samples, and the Gaussian one of its distance, [N, N].

    Clades and covariates have 0.3 of the variance each, no label decides. `permutation_test`
    chooses between them for each shuffling of the labels.
    """
    rows = np.arange(len(inputs.norms_N))
    gram = _Gram(Landmarks.of(inputs, rows).kernel(inputs), inputs.norms_N)
    encoder = fit_encoder(inputs.covariates)
    for other in (_clade_gram(inputs, rows), _covariate_gram(inputs, encoder, rows)):
        gram = gram.plus(other, *gram.scales(other, (0.3,)))
    squared_NN = (gram.norms_N[:, None] + gram.norms_N - 2 * gram.kernel_NR).clip(min=0)
    median = float(np.median(squared_NN[squared_NN > 0])) if squared_NN.any() else 1.0
    return [gram.kernel_NR.astype(np.float32), np.exp(-squared_NN / median).astype(np.float32)]


def _clade_gram(inputs: KernelInputs, rows: Rows) -> _Gram | None:
    if inputs.dendrogram is None:
        return None
    features = inputs.dendrogram.features(inputs.weights, inputs.nearest)
    return _Gram(products(features, features[rows]), squared_norms(features))


def _covariate_gram(
    inputs: KernelInputs, encoder: CovariateEncoder | None, rows: Rows
) -> _Gram | None:
    if encoder is None:
        return None
    assert inputs.covariates is not None
    features_NW = encoder.features_NW(inputs.covariates)
    return _Gram(features_NW @ features_NW[rows].T, np.square(features_NW).sum(axis=1))
