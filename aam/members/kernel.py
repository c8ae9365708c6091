"""Kernel estimator: ridge regression on a sum of kernels of samples.

The first is the exact kernel of the sequences. The similarity of two ASVs is exp(-mismatches /
WIDTH); the kernel of two samples is the sum of these similarities over their ASVs, weighted by
log10(1 + 1e4 relative abundance). The community profile (`network.model.community_profile`) is made
of random features of this kernel. The second kernel compares clades: it sums, over the branches of
a dendrogram of the ASVs, the product of the two samples' log abundances below the branch, times the
length of the branch (`aam.members.relations`). Metadata columns add a third. All are sums of inner
products of features.

The estimator compares several weights of the kernels and many penalties by leaving out one group
at a time (`aam.members.kernel_ridge`). It then compares the best sum with Gaussian kernels (RBF) of
the distance that the sum defines (docs/experiments/members.md). For a number, the best kernel is
fitted once more with lower weights for labels far from their left-out predictions; that fit is used
unless its left-out error is larger.

With more than `Kernel.largest` samples, a random subset are the landmarks of a Nyström
approximation. R landmarks, G branches of the dendrogram, U ASVs of a table, V ASVs of the
training study and of a table; further shape suffixes: see `samples`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import msgspec
import numpy as np
from scipy import sparse

from aam.arrays import F32, F64, Arrays, Rows, Tokens
from aam.console import info
from aam.contract.errors import DataError
from aam.contract.options.groups import DeviceOptions
from aam.contract.records import Mismatch, NonNegative, convert
from aam.data.covariates import CovariateEncoder, Covariates
from aam.data.targets import TRANSFORMS, contrasts
from aam.evaluation.labels import Labels
from aam.evaluation.permutation import EXACT_KERNEL
from aam.members.kernel_ridge import (
    PENALTIES,
    fit_logistic,
    fit_ridge,
    huber_weights,
    probabilities,
    product,
)
from aam.members.member import (
    Estimator,
    ExplainedSamples,
    FittedModel,
    Importance,
    Outputs,
    SampleEffects,
    moments,
    of_effects,
    quadrature,
)
from aam.members.relations import AsvRelations, Dendrogram, NearestAsvs, chunks, similarity
from aam.members.samples import Samples
from aam.serialization.model_folder import State, indices, numbers

SPREADS = (0.5, 2.0)
"""Squared widths of the Gaussian kernels, relative to the median squared distance."""

CLADE_SHARES = (0.0, 0.3, 0.7)
"""Fractions of clades in the variance of the linear kernel of the counts; one is chosen."""

LANDMARKS, COMPARED = 1000, 500
"""Landmarks of a study with more than `EXACT_KERNEL` samples, and those of them with which forms of
its kernel are compared (docs/experiments/members.md)."""

SHARES = (0.0, 0.1, 0.3, 0.7)
"""Fractions of covariates in the variance of the linear kernel; one is chosen."""


@dataclass(frozen=True)
class KernelTerms:
    """Kernels that are added to the kernel of the sequences, with the factors of their features.

    The dendrogram or the encoder is None without the kernel; the factor 0 leaves covariates out.
    """

    clades: Dendrogram | None = None
    clade_scale: float = 0.0
    encoder: CovariateEncoder | None = None
    scale: float = 0.0

    def clade_features(
        self, weights: sparse.csr_array, nearest: NearestAsvs
    ) -> sparse.csr_array | None:
        """Return the scaled features of the clades, float64 [N, G]; None without their kernel."""
        if self.clades is None:
            return None
        return sparse.csr_array(self.clade_scale * self.clades.features(weights, nearest))


@dataclass(frozen=True, eq=False)
class SampleProducts:
    """Kernels between samples and landmarks of the training study, computed once for all fits."""

    sequences_ML: F32  # kernel of the sequences of the M samples and L landmarks of the study
    clades: _Gram | None  # the same of the clades
    landmarks_L: Rows  # int64, the landmarks among the M samples: all of them, or a random subset
    rows_N: Rows  # int64, these samples among the M

    def take(self, rows: Rows) -> SampleProducts:
        return dataclasses.replace(self, rows_N=self.rows_N[rows])

    @property
    def landmark_rows(self) -> Rows:
        """Which of these samples are landmarks."""
        return np.flatnonzero(np.isin(self.rows_N, self.landmarks_L))

    def cells(self, landmarks: SampleProducts) -> tuple[Rows, ...]:
        """Return the rows and columns of these samples and of landmarks of the same study."""
        assert self.sequences_ML is landmarks.sequences_ML
        return np.ix_(self.rows_N, np.searchsorted(self.landmarks_L, landmarks.rows_N))


@dataclass(frozen=True)
class KernelInputs:
    """Samples as sums over their ASVs."""

    weights: sparse.csr_array  # float32 [N, ASVs of the samples' study], log abundance
    smoothed_NF: F32 | None  # similarity to each ASV of the training study; None with `products`
    norms_N: F64  # kernel of each sample with itself
    nearest: NearestAsvs  # most similar ASV of the training study of each ASV of the samples
    dendrogram: Dendrogram | None = None  # of the training study; None for samples of another
    covariates: Covariates | None = None  # metadata columns; None without any
    clades_NG: sparse.csr_array | None = None  # scaled features of the clades, of `with_features`
    features_NW: F64 | None = None  # scaled features of the covariates; else None
    products: SampleProducts | None = None  # of a training study with more ASVs than samples

    def take(self, rows: Rows) -> KernelInputs:
        return dataclasses.replace(
            self,
            weights=self.weights[rows],
            smoothed_NF=None if self.smoothed_NF is None else self.smoothed_NF[rows],
            norms_N=self.norms_N[rows],
            covariates=self.covariates and self.covariates.take(rows),
            clades_NG=None if self.clades_NG is None else self.clades_NG[rows],
            features_NW=None if self.features_NW is None else self.features_NW[rows],
            products=self.products and self.products.take(rows),
        )

    def with_features(self, terms: KernelTerms) -> KernelInputs:
        """Add the products of the scaled features of two samples to their kernel."""
        norms_N, features_NW = self.norms_N, None
        if (clades_NG := terms.clade_features(self.weights, self.nearest)) is not None:
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
    """Training samples with which others are compared."""

    weights: sparse.csr_array  # float32 [R, F], log abundance
    norms_R: F64  # kernel of each landmark with itself
    clades_RG: sparse.csr_array | None = None  # scaled features of the clades; None without any
    features_RW: F64 | None = None  # scaled features of the covariates; None without any
    # of samples of the study that fitted them; None for a restored model
    products: SampleProducts | None = None

    @classmethod
    def of(cls, inputs: KernelInputs, rows: Rows) -> Landmarks:
        """Take the samples at `rows`, of the training study."""
        chosen = inputs.take(rows)
        return cls(
            chosen.weights, chosen.norms_N, chosen.clades_NG, chosen.features_NW, chosen.products
        )

    def kernel(self, inputs: KernelInputs) -> F64:
        """Return the linear kernel of samples and landmarks, [N, R]."""
        if inputs.smoothed_NF is None:
            assert inputs.products is not None
            assert self.products is not None
            cells = inputs.products.cells(self.products)
            kernel_NR = inputs.products.sequences_ML[cells].astype(np.float64)
        else:
            kernel_NR = np.asarray((self.weights @ inputs.smoothed_NF.T).T, dtype=np.float64)
        if self.clades_RG is not None and inputs.clades_NG is not None:
            kernel_NR += products(inputs.clades_NG, self.clades_RG)
        if self.features_RW is not None and inputs.features_NW is not None:
            kernel_NR += inputs.features_NW @ self.features_RW.T
        return kernel_NR

    def squared_distances(self, inputs: KernelInputs, kernel_NR: F64) -> F64:
        """Return the squared distances k(x, x) - 2 k(x, y) + k(y, y), [N, R]."""
        return _squared_distances(inputs.norms_N, self.norms_R, kernel_NR)

    def arrays(self) -> Arrays:
        """Return the state."""
        # The features of the clades are computed again from the weights and the dendrogram.
        arrays = {
            "weights": self.weights.data,
            "asvs": self.weights.indices.astype(np.int64),
            "starts": self.weights.indptr.astype(np.int64),
            "norms": self.norms_R,
        }
        return arrays if self.features_RW is None else arrays | {"features": self.features_RW}

    @classmethod
    def restore(cls, arrays: Arrays, asvs: int, terms: KernelTerms | None = None) -> Landmarks:
        """Build landmarks from their state, for a study of `asvs` ASVs; raises Mismatch."""
        data, norms_R = numbers(arrays, "weights", None), numbers(arrays, "norms", None)
        columns = indices(arrays, "asvs", asvs, len(data))
        starts = indices(arrays, "starts", len(data) + 1, len(norms_R) + 1)
        if starts[0] != 0 or starts[-1] != len(data) or (np.diff(starts) < 0).any():
            raise Mismatch("the array 'starts' is not ascending")
        shape = len(norms_R), asvs
        weights = sparse.csr_array((data.astype(np.float32), columns, starts), shape=shape)
        if terms is None:
            return cls(weights, norms_R)
        features_RW = None
        if terms.encoder is not None and terms.scale:
            features_RW = numbers(arrays, "features", len(norms_R), terms.encoder.width)
        clades_RG = terms.clade_features(weights, NearestAsvs.of_training(asvs))
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
    for chunk in chunks(*one_NG.shape):
        products_NR[chunk] = (two_RG @ one_NG[chunk].toarray().T).T
    return products_NR


def _squared_distances(norms_N: F64, norms_R: F64, kernel_NR: F64) -> F64:
    squared_NR: F64 = norms_N[:, None] + norms_R - 2 * kernel_NR
    # Similarities are float32: rounding makes some squared distances negative.
    return squared_NR.clip(min=0)


class _KernelSettings(msgspec.Struct):
    """Plain part of the state; the scale of the clades is None without their kernel."""

    gamma: NonNegative
    clade_scale: float | None
    covariates: CovariateEncoder | None
    scale: float
    approximated: bool = False


@dataclass(frozen=True)
class KernelModel(FittedModel[KernelInputs]):
    """Coefficients of the landmarks."""

    landmarks: Landmarks  # all or some of the training samples
    gamma: float  # factor of the Gaussian kernel exp(-gamma distance²); 0 for the linear kernel
    dual_RC: F64  # coefficients
    offset_C: F64  # intercepts
    # [C + 1, C], slopes and, last, intercepts of the logistic regression; empty for a number
    logits: F64
    terms: KernelTerms  # kernels besides the kernel of the sequences
    # float64 [2], lowest and highest training label: for samples unlike the training samples a
    # linear kernel extrapolates to any number. Empty for classes.
    limits: F64
    left_out_NC: F64 | None = None  # predictions without the group of a sample; not stored
    approximated: bool = False  # whether some of the training samples are landmarks (Nyström)

    @property
    def settings(self) -> str:
        low, *_, high = PENALTIES
        landmarks = f" of {len(self.dual_RC)} landmarks (Nyström)" if self.approximated else ""
        return (
            f"{'Gaussian' if self.gamma else 'linear'} kernel{landmarks}, {len(PENALTIES)} "
            f"penalties from {low:g} to {high:g} compared on left-out groups"
        )

    @property
    def encoder(self) -> CovariateEncoder | None:
        return self.terms.encoder

    def predict(self, inputs: KernelInputs) -> F64:
        return self._predictions(self.kernel(inputs))

    def _predictions(self, kernel_NR: F64) -> F64:
        outputs_NC = product(kernel_NR, self.dual_RC) + self.offset_C
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
        # The effect of one standard deviation of each ASV's feature, its log abundance
        # (docs/importance.md). A number has one output, in its units; two classes have the log odds
        # of the second; more classes have the log probability of each minus the mean of all. The
        # derivative of a sample by a feature is multiplied by the slope of its prediction, and
        # averaged over the samples with the ASV.
        dual_RC, kernel_NR = self.dual_RC, self.kernel(inputs)
        slopes_N = np.ones(len(kernel_NR))
        if outputs.classes:
            dual_RC = dual_RC @ self.logits[:-1] @ contrasts(len(outputs.classes))
        else:
            slopes_N = TRANSFORMS[outputs.scale.transform].slope(self._predictions(kernel_NR)[:, 0])
        weights = sparse.csc_array(inputs.weights)
        having_U = np.diff(weights.indptr)
        part_of_mean = 1 / np.repeat(having_U, having_U)
        share = sparse.csc_array((part_of_mean, weights.indices, weights.indptr), weights.shape)
        kernel_NR = kernel_NR * slopes_N[:, None]
        outputs_NC = kernel_NR @ dual_RC
        new_relations = relations.of_table(tokens_UL)
        gradients_UC = np.empty((len(tokens_UL), dual_RC.shape[1]))
        # A block of ASVs bounds the memory of what is dense.
        to_landmarks = new_relations.smoothed(self.landmarks.weights, relations.tokens_FL)
        if self.gamma == 0:
            # The linear kernel has the derivative of all samples in common.
            for block, to_landmarks_RK in to_landmarks:
                of_block_K1 = (share[:, block].T @ slopes_N)[:, None]
                gradients_UC[block] = (to_landmarks_RK.T @ dual_RC) * of_block_K1
        else:
            # The squared distance from a landmark changes by 2 (similarity to the sample - to it).
            to_samples = new_relations.smoothed(inputs.weights, tokens_UL)
            if (smoothed_NF := inputs.smoothed_NF) is not None and new_relations is relations:
                to_samples = ((k, smoothed_NF[:, k]) for k in chunks(len(tokens_UL)))
            for (block, to_landmarks_RK), (_, to_samples_NK) in zip(
                to_landmarks, to_samples, strict=True
            ):
                share_NK = share[:, block]
                toward_KC = ((share_NK.T @ kernel_NR) * to_landmarks_RK.T) @ dual_RC
                away_KC = share_NK.multiply(to_samples_NK).T @ outputs_NC
                gradients_UC[block] = 2 * self.gamma * (toward_KC - away_KC)
        terms, landmarks_RG = self.terms, self.landmarks.clades_RG
        if terms.clades is not None:
            assert landmarks_RG is not None
            # A feature x of an ASV adds 10**x to the abundance below each of its branches. The
            # factors ln 10 of its derivative and 1 / ln 10 of that by the abundance cancel.
            grown = share.copy()
            grown.data = share.data * 10.0**weights.data
            member_UG = terms.clades.membership(inputs.nearest)
            # Derivatives by branch are dense: a block of samples bounds their memory.
            for rows in chunks(len(slopes_N), member_UG.shape[1]):
                samples, grown_nU = inputs.take(np.arange(len(slopes_N))[rows]), grown[rows]
                features_nG = samples.with_features(terms).clades_NG
                assert features_nG is not None
                abundances_nG = terms.clades.abundances(samples.weights, samples.nearest).toarray()
                scales_G = terms.clade_scale * np.sqrt(terms.clades.lengths_G)
                factors_nG = scales_G / (1 + abundances_nG)
                for output, (dual_R, outputs_n) in enumerate(
                    zip(dual_RC.T, outputs_NC[rows].T, strict=True)
                ):
                    if self.gamma == 0:
                        by_feature_nG = np.outer(slopes_N[rows], landmarks_RG.T @ dual_R)
                    else:
                        toward_nG = (landmarks_RG.T @ (kernel_NR[rows] * dual_R).T).T
                        away_nG = features_nG.toarray() * outputs_n[:, None]
                        by_feature_nG = 2 * self.gamma * (toward_nG - away_nG)
                    by_asv_nU = (member_UG @ (by_feature_nG * factors_nG).T).T
                    gradients_UC[:, output] += grown_nU.multiply(by_asv_nU).sum(axis=0)
        effects_UC: F64 = gradients_UC * moments(inputs.weights)[1][:, None]
        return of_effects("effect", effects_UC, outputs.classes)

    def explain(
        self,
        inputs: KernelInputs,
        explained: ExplainedSamples,
        relations: AsvRelations,
        outputs: Outputs,
    ) -> SampleEffects:
        # The gradients of the kernel are integrated on the line from the mean landmark to each
        # sample. The line is straight in the space of the features. A linear kernel is additive in
        # this space, so its effects are exact. The gradient of a Gaussian kernel at a point of the
        # line is a weighted sum of the landmarks minus the point, so the integral is a kernel
        # regression with coefficients of its own for each sample.
        landmarks, terms, dual_RC = self.landmarks, self.terms, self.dual_RC
        inputs, tokens_VL = inputs.with_features(terms), explained.joint.tokens_FL
        new_relations = relations.of_table(tokens_VL)
        smoothed_RV = new_relations.smooth(landmarks.weights, relations.tokens_FL)
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
        if self.gamma:
            full_NR = np.exp(-self.gamma * landmarks.squared_distances(inputs, kernel_NR))
        ends_NC = full_NR @ dual_RC + self.offset_C
        if outputs.classes:
            to_logits, intercepts = self.logits[:-1], self.logits[-1]
            slopes_NC = explained.slopes(outputs, ends_NC @ to_logits + intercepts) @ to_logits.T
        else:
            slopes_NC = explained.slopes(outputs, ends_NC)
        dual_NR = slopes_NC @ dual_RC.T
        from_mean_N, from_own_N = np.zeros(len(kernel_NR)), np.zeros(len(kernel_NR))
        to_landmarks_NR = dual_NR
        if self.gamma:
            to_landmarks_NR = np.zeros_like(kernel_NR)
            for t, weight in zip(*quadrature(16), strict=True):
                norm_N = (1 - t) ** 2 * mean_norm + 2 * t * (1 - t) * mean_N + t**2 * inputs.norms_N
                line_NR = (1 - t) * mean_R + t * kernel_NR
                squared_NR = norm_N[:, None] + landmarks.norms_R - 2 * line_NR
                gauss_NR = np.exp(-self.gamma * squared_NR.clip(min=0))
                part_NR = 2 * weight * self.gamma * dual_NR * gauss_NR
                to_landmarks_NR += part_NR
                from_mean_N += (1 - t) * part_NR.sum(axis=1)
                from_own_N += t * part_NR.sum(axis=1)
            to_landmarks_NR -= from_mean_N[:, None] / len(mean_R)

        gradients_NV = np.empty((len(kernel_NR), len(tokens_VL)))
        for chunk in chunks(len(tokens_VL)):  # blocks bound the memory of the copy in float64
            gradients_NV[:, chunk] = to_landmarks_NR @ smoothed_RV[:, chunk].astype(np.float64)
        if self.gamma:
            gradients_NV -= from_own_N[:, None] * new_relations.smooth(inputs.weights, tokens_VL)
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
            metadata = terms.encoder.by_column(change_NW * along_NW)
        return SampleEffects(effects_NV, metadata)

    def state(self) -> State:
        arrays = {
            **self.landmarks.arrays(),
            "dual": self.dual_RC,
            "offset": self.offset_C,
            "logits": self.logits,
            "limits": self.limits,
        }
        terms = self.terms
        if terms.clades is not None:
            arrays |= {"parents": terms.clades.parents_G, "heights": terms.clades.heights_G}
        settings = {
            "gamma": self.gamma,
            "clade_scale": None if terms.clades is None else terms.clade_scale,
            "covariates": terms.encoder and dataclasses.asdict(terms.encoder),
            "scale": terms.scale,
        }
        settings |= {"approximated": True} if self.approximated else {}
        return State(settings, arrays)


@dataclass(frozen=True)
class _Gram:
    kernel_NR: F64  # of the samples and the landmarks
    norms_N: F64  # of each sample with itself

    @property
    def variance(self) -> float:
        """Mean squared distance from the mean of the landmarks in the feature space, nearly."""
        return float(self.norms_N.mean() - self.kernel_NR.mean())

    def plus(self, term: _Gram | None, scale: float) -> _Gram:
        """Add a kernel whose features have the factor `scale`."""
        if term is None:
            return self
        return _Gram(
            self.kernel_NR + scale**2 * term.kernel_NR, self.norms_N + scale**2 * term.norms_N
        )

    def scales(self, term: _Gram | None, shares: tuple[float, ...]) -> tuple[float, ...]:
        """Return the factors with which `term` has the `shares` of the variance."""
        if term is None:
            return (0.0,)
        if self.variance <= 0 or term.variance <= 0:  # metadata alone, or no known category
            return (1.0,)
        ratio = self.variance / term.variance
        return tuple(math.sqrt(share / (1 - share) * ratio) for share in shares)

    def distances(self, rows: Rows) -> tuple[F64, float]:
        """Return the squared distances from the landmarks at `rows`, and their median."""
        squared_NR = _squared_distances(self.norms_N, self.norms_N[rows], self.kernel_NR)
        # Median heuristic; without the zeros of each sample with itself and of equal samples.
        positive = squared_NR[squared_NR > 0]
        return squared_NR, float(np.median(positive)) if len(positive) else 1.0


@dataclass(frozen=True)
class Kernel(Estimator[KernelInputs]):
    """Ridge regression on a kernel of sequences, clades and covariates."""

    largest: int = EXACT_KERNEL  # samples of a study up to which the kernel is exact
    landmarks: int = LANDMARKS  # of a larger study
    compared: int = COMPARED  # landmarks with which forms of its kernel are compared
    clades: bool = True  # whether to add the kernel of the clades

    def read(self, samples: Samples, relations: AsvRelations) -> KernelInputs:
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
        smoothed = (
            smoothed_NF if of_training else AsvRelations(tokens_UL).smooth(weights, tokens_UL)
        )
        norms_N = weights.multiply(smoothed).sum(axis=1, dtype=np.float64)
        nearest = NearestAsvs(nearest_U, mismatches_U)
        dendrogram = relations.dendrogram if self.clades and of_training else None
        return KernelInputs(weights, smoothed_NF, norms_N, nearest, dendrogram, samples.covariates)

    def read_training(self, samples: Samples, relations: AsvRelations) -> KernelInputs:
        # Products of pairs of samples if these are fewer than similarities to ASVs.
        weights, asvs = samples.log_abundances, len(relations.tokens_FL)
        number = weights.shape[0]
        landmarks, every = np.arange(number), np.arange(number)
        if number > self.largest:
            info(
                f"Kernel: {self.landmarks} of the {number} samples are landmarks (Nyström "
                "approximation); it is fitted to all samples."
            )
            drawn = np.random.default_rng(0).choice(number, self.landmarks, replace=False)
            landmarks = np.sort(drawn)
            products_ML = relations.landmark_products(weights, landmarks)
            norms_N = relations.self_products(weights)
        elif number > asvs:
            return self.read(samples, relations)
        else:
            products_ML = relations.sample_products(weights)
            norms_N = products_ML.diagonal().astype(np.float64)
        nearest, clades = NearestAsvs.of_training(asvs), None
        dendrogram = relations.dendrogram if self.clades else None
        if dendrogram is not None:
            clades = _clade_gram(dendrogram, weights, nearest, landmarks)
        return KernelInputs(
            weights,
            None,
            norms_N,
            nearest,
            dendrogram,
            samples.covariates,
            products=SampleProducts(products_ML, clades, landmarks, every),
        )

    def fit(self, inputs: KernelInputs, labels: Labels, seed: int) -> KernelModel:
        """Fit every sum of kernels, width and penalty; keep the least left-out error."""
        stored = inputs.products
        rows = np.arange(len(inputs.norms_N)) if stored is None else stored.landmark_rows
        approximated = len(rows) < len(labels.values)
        if not len(rows):  # a training set that is a small part of a large study
            raise DataError(
                "No training sample is a landmark of the kernel",
                f"{len(labels.values)} training samples in a study of more than {self.largest}",
                "put the training samples into a table of their own",
            )
        # The form of an approximated kernel is chosen with fewer landmarks: this takes most fits.
        few = rows[:: -(-len(rows) // self.compared)] if approximated else rows
        encoder = CovariateEncoder.fit(inputs.covariates)
        sequences, clades, covariates = _grams(inputs, few, encoder)
        fits = []
        for clade_scale in sequences.scales(clades, CLADE_SHARES):
            counts = sequences.plus(clades, clade_scale)
            for scale in counts.scales(covariates, SHARES):
                kernel_NR = counts.plus(covariates, scale).kernel_NR
                fits.append((fit_ridge(kernel_NR, few, labels), clade_scale, scale, 0.0))
        ridge, clade_scale, scale, gamma = min(fits, key=lambda fit: fit[0].error)
        # Widths are tried for the best linear sum alone: five fits instead of nine, without a
        # significant difference of the scores (docs/experiments/members.md).
        gram = sequences.plus(clades, clade_scale).plus(covariates, scale)
        # Each takes 8 bytes a pair, and every further fit needs two more.
        del sequences, clades, covariates, counts, kernel_NR
        squared_NR, median = gram.distances(few)
        del gram
        for width in (1 / (spread * median) for spread in SPREADS):
            gaussian = fit_ridge(np.exp(-width * squared_NR), few, labels)
            if gaussian.error < ridge.error:
                ridge, gamma = gaussian, width
        del squared_NR, gaussian
        if approximated:
            sequences, clades, covariates = _grams(inputs, rows, encoder)
            gram = sequences.plus(clades, clade_scale).plus(covariates, scale)
            del sequences, clades, covariates
            kernel_NR = np.exp(-gamma * gram.distances(rows)[0]) if gamma else gram.kernel_NR
            ridge = fit_ridge(kernel_NR, rows, labels)
        logits = fit_logistic(ridge.aligned_NC, labels) if labels.classes else np.empty((0, 0))
        dendrogram = inputs.dendrogram if clade_scale else None
        terms = KernelTerms(dendrogram, clade_scale, encoder, scale)
        landmarks = Landmarks.of(inputs.take(rows).with_features(terms), np.arange(len(rows)))
        limits = (
            np.empty(0) if labels.classes else np.array([labels.values.min(), labels.values.max()])
        )
        model = KernelModel(
            landmarks, gamma, ridge.dual_RC, ridge.offset_C, logits, terms, limits,
            probabilities(ridge.aligned_NC, logits), approximated,
        )  # fmt: skip
        if labels.classes:
            return model
        weights_N = huber_weights((labels.outputs_NC - ridge.left_out_NC)[:, 0])
        # With a skewed target the weights pull predictions from the mean to the median: R² 0.597
        # instead of 0.613 for exp(2 z) of a simulated pH. So the left-out error decides.
        kernel_NR = kernel_NR if approximated else model.kernel(inputs)
        robust = fit_ridge(kernel_NR, rows, labels, weights_N)
        squares_NC = np.square(robust.left_out_NC - labels.outputs_NC)
        if (labels.weights_N[:, None] * squares_NC).mean() <= ridge.error:
            ridge = robust
        return dataclasses.replace(
            model,
            dual_RC=ridge.dual_RC,
            offset_C=ridge.offset_C,
            left_out_NC=ridge.aligned_NC.clip(*limits),
        )

    def left_out(
        self, model: FittedModel[KernelInputs], inputs: KernelInputs, labels: Labels, seed: int
    ) -> F64 | None:
        assert isinstance(model, KernelModel)
        grouped = len(np.unique(labels.groups)) < len(labels.groups)
        if labels.classes and grouped and labels.several_groups:
            # As the forest predicts them: both members are then compared on fits to half the data.
            return self.predict_parts(inputs, labels, seed)
        # The penalty was chosen by these predictions.
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
            approximated=settings.approximated,
        )


MEMBER = Kernel()


def label_free_kernel(inputs: KernelInputs) -> F32:
    """Return the linear kernel of all samples, [N, N], that no label chooses."""
    rows = np.arange(len(inputs.norms_N))
    gram, *terms = _grams(inputs, rows, CovariateEncoder.fit(inputs.covariates))
    for term in terms:
        gram = gram.plus(term, *gram.scales(term, (0.3,)))
    return gram.kernel_NR.astype(np.float32)


def _clade_gram(
    dendrogram: Dendrogram, weights: sparse.csr_array, nearest: NearestAsvs, rows: Rows
) -> _Gram:
    features = dendrogram.features(weights, nearest)
    return _Gram(products(features, features[rows]), squared_norms(features))


def _grams(
    inputs: KernelInputs, rows: Rows, encoder: CovariateEncoder | None
) -> tuple[_Gram, _Gram | None, _Gram | None]:
    sequences = _Gram(Landmarks.of(inputs, rows).kernel(inputs), inputs.norms_N)
    clades, covariates = None, None
    if inputs.dendrogram is not None:
        if (stored := inputs.products) is not None and stored.clades is not None:
            cells = stored.cells(stored.take(rows))
            clades = _Gram(stored.clades.kernel_NR[cells], stored.clades.norms_N[stored.rows_N])
        else:
            clades = _clade_gram(inputs.dendrogram, inputs.weights, inputs.nearest, rows)
    if encoder is not None:
        assert inputs.covariates is not None
        features_NW = encoder.features_NW(inputs.covariates)
        covariates = _Gram(features_NW @ features_NW[rows].T, np.square(features_NW).sum(axis=1))
    return sequences, clades, covariates
