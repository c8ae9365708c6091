"""Members of `aam train`: their Protocol, fitted models, cross-validation, and the registry.

Members are imported when they are used: a kernel needs no PyTorch. Shape suffixes: U ASVs of
samples; see `samples` and `scores`.
"""

from __future__ import annotations

import dataclasses
import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam import wings
from aam.arrays import F64, Rows, Tokens
from aam.console import track
from aam.contract.options.groups import MEMBERS, DeviceOptions
from aam.data.covariates import CovariateEncoder
from aam.data.study import Study
from aam.data.targets import TRANSFORMS, TargetScale
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.permutation import EXACT_KERNEL
from aam.members.output_tables import InferenceSettings
from aam.members.relations import MAX_LINKED, AsvRelations
from aam.members.samples import Samples
from aam.serialization.model_folder import State


class Inputs(Protocol):
    """Samples in the form that an estimator computes from them."""

    def take(self: T, rows: Rows) -> T:
        """Return the samples at `rows`."""
        ...


T = TypeVar("T", bound=Inputs)
Reads = TypeVar("Reads", bound=Inputs, contravariant=True)

FEW_GROUPS = 4  # groups up to which each is left out in turn, see `Estimator.predict_parts`


@dataclass(frozen=True)
class Importance:
    """Importance of U ASVs for one member."""

    columns: dict[str, F64]  # columns of the table of importance, by name, each [U]
    size_U: F64  # measure by which the ASVs are ranked; the larger, the more important
    # `size_U` of the model of each fold; empty if the member has one model
    folds: tuple[F64, ...] = ()


@dataclass(frozen=True)
class SampleAttention:
    """Attention to the S ASVs of a sample."""

    asvs_S: npt.NDArray[np.int64]  # int64, columns of the study
    abundance_S: F64  # relative abundances of the reads that the network reads, of sum 1
    pooling_S: F64  # weight of each ASV in the mean that predicts the target; the sum is 1
    # weight of each ASV (column) for each ASV (row) in the layer before, the mean of its heads; the
    # sum of a row is 1
    mixing_SS: F64


@dataclass(frozen=True)
class MemberPrediction:
    """Predictions of N samples."""

    values_NC: F64  # numbers in the units of the target, or probabilities
    columns: Mapping[str, F64] = field(default_factory=dict)  # further columns of predictions.tsv

    def take(self, rows: Rows) -> MemberPrediction:
        """Return the predictions of the samples at `rows`."""
        columns = {name: column_N[rows] for name, column_N in self.columns.items()}
        return MemberPrediction(self.values_NC[rows], columns)


@dataclass(frozen=True)
class Outputs:
    """What a model predicts."""

    column: str  # metadata column that is predicted
    classes: tuple[str, ...]  # names; empty for a number and for ranks
    scale: TargetScale  # on which estimators predict a number


def quadrature(nodes: int) -> tuple[F64, F64]:
    """Return nodes and weights of the Gauss-Legendre quadrature from 0 to 1."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    return (points + 1) / 2, weights / 2


@dataclass(frozen=True)
class ExplainedSamples:
    """N samples whose predictions are explained."""

    samples: Samples  # as `aam predict` reads them, with U ASVs
    joint: Samples  # the same with V ASVs: first of the training study, then others of the table
    columns_U: Rows  # column of each ASV in `joint`
    class_N: Rows  # class whose probability is explained; 0 for a number
    means_NC: F64  # mean label of the training samples, see `ModelFacts`

    @classmethod
    def of(
        cls, samples: Samples, relations: AsvRelations, class_N: Rows, means_NC: F64
    ) -> ExplainedSamples:
        """Append the new ASVs of samples to the ASVs of the training study."""
        tokens_FL, tokens_UL = relations.tokens_FL, samples.tokens_FL
        if tokens_UL is tokens_FL:
            return cls(samples, samples, np.arange(len(tokens_FL)), class_N, means_NC)
        rows, trained_columns = relations.known(tokens_UL)
        new = np.setdiff1d(np.arange(len(tokens_UL)), rows)
        columns_U = np.empty(len(tokens_UL), dtype=np.int64)
        columns_U[rows], columns_U[new] = trained_columns, len(tokens_FL) + np.arange(len(new))
        length = max(tokens_FL.shape[1], tokens_UL.shape[1])
        padded = (
            np.pad(t, ((0, 0), (0, length - t.shape[1]))) for t in (tokens_FL, tokens_UL[new])
        )
        tokens_VL = np.concatenate(list(padded))
        counts = samples.counts
        arrays = counts.data, columns_U[counts.indices], counts.indptr
        joint = sparse.csr_array(arrays, shape=(counts.shape[0], len(tokens_VL)))
        joint.sort_indices()
        joint = Samples(joint, tokens_VL, samples.covariates, samples.sample_ids)
        return cls(samples, joint, columns_U, class_N, means_NC)

    def take(self, rows: Rows) -> ExplainedSamples:
        """Return the samples at `rows`."""
        samples, joint = self.samples.take(rows), self.joint.take(rows)
        classes, means = self.class_N[rows], self.means_NC[rows]
        return ExplainedSamples(samples, joint, self.columns_U, classes, means)

    def slopes(self, outputs: Outputs, ends_NC: F64) -> F64:
        """Return the mean slope of the explained output from the mean label to each prediction.

        `ends_NC` are predictions on the scale on which a member is additive: transformed numbers,
        or logits of the classes. Slopes [N, C] times the change of the scale from the mean label
        are the change of the number in its units, or of the probability of the class.
        """
        if outputs.classes:
            starts_NC = np.log(self.means_NC.clip(min=1e-9))
        else:
            starts_NC = outputs.scale.forward(self.means_NC)
        slopes_NC = np.zeros_like(ends_NC)
        for t, weight in zip(*quadrature(64), strict=True):
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
    """Effects on the predictions of N samples, in their units."""

    asvs_NV: F64  # effect of each ASV, also of one that a sample lacks
    metadata: Mapping[str, F64]  # effect of each metadata column, [N]


class FittedModel(Protocol[Reads]):
    """A fitted member. A class that inherits from it has the defaults of the optional parts."""

    @property
    def settings(self) -> str:
        """Hyper-parameters for a methods paragraph, such as "200 trees"; "" for none."""
        return ""

    @property
    def encoder(self) -> CovariateEncoder | None:
        """Encoder of the covariates; None if the model reads the counts alone."""
        ...

    def predict(self, inputs: Reads) -> F64:
        """Return predictions [N, C]: numbers on the scale of the fit, or probabilities."""
        ...

    def importance(
        self, inputs: Reads, tokens_UL: Tokens, relations: AsvRelations, outputs: Outputs
    ) -> Importance:
        """Compute how much the predictions depend on each of U ASVs."""
        ...

    def explain(
        self, inputs: Reads, explained: ExplainedSamples, relations: AsvRelations, outputs: Outputs
    ) -> SampleEffects | None:
        """Divide predictions among ASVs and metadata columns; None for a model that cannot."""
        return None

    def of_fold(self, fold: int) -> FittedModel[Reads]:
        """Return the model of one fold, counted from 0, if this model averages folds."""
        return self

    def state(self) -> State:
        """Return the state of the model, from which its member restores it."""
        ...

    def apply(
        self, inputs: Reads, scale: TargetScale, settings: InferenceSettings
    ) -> MemberPrediction:
        """Return predictions in the units of the target, and further columns of their table."""
        return MemberPrediction(scale.inverse(self.predict(inputs)))

    def prepared(self, samples: Samples) -> tuple[FittedModel[Reads], Samples]:
        """Prepare many predictions of samples that have the ASVs of these."""
        return self, samples

    @property
    def max_bp(self) -> int:
        """Nucleotides of each sequence that the model can read; 0 for the training length."""
        return 0

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts about the model for the run record."""
        return {}

    def attention(self, sample: Samples) -> Sequence[SampleAttention]:
        """Return the attention of each network to the ASVs of one sample; none without networks."""
        return ()

    def embed(self, study: Study, settings: InferenceSettings) -> npt.NDArray[np.float32] | None:
        """Return the embedding of every sample, [N, D]; None for a model without embedding."""
        return None

    def asv_encoders(self) -> Sequence[Any]:
        """Return the encoder of ASVs of each network, a module of PyTorch; none without."""
        return ()


def of_effects(name: str, effects_UC: F64, classes: tuple[str, ...]) -> Importance:
    """Name the columns of effects; an ASV has the size of its largest effect."""
    named_classes = classes[1:] if len(classes) == 2 else classes
    names = [f"{name}_{column}" for column in named_classes] or [name]
    columns: dict[str, F64] = dict(zip(names, effects_UC.T, strict=True))
    return Importance(columns, np.abs(effects_UC).max(axis=1))


def moments(features: sparse.csr_array) -> tuple[F64, F64]:
    """Return mean and standard deviation of each feature, [U]."""
    # The variance is a difference of two means: float64 keeps its digits, and rounding may still
    # make the variance of a constant feature negative.
    mean_U = features.mean(axis=0, dtype=np.float64)
    variance_U = features.power(2).mean(axis=0, dtype=np.float64) - mean_U**2
    return mean_U, np.sqrt(variance_U.clip(min=0))


@dataclass(frozen=True, eq=False)
class TrainingSamples:
    """Samples of a training study, and what estimators compute from them.

    The inputs of an estimator do not depend on labels and folds: all folds of a run, and all trials
    of a search, share them.
    """

    samples: Samples  # counts, sequences and covariates of the N samples
    relations: AsvRelations  # relations of the ASVs of the samples
    _inputs: dict[Estimator[Any], Any] = field(default_factory=dict)

    def inputs(self, estimator: Estimator[T]) -> T:
        """Return the samples in the form that an estimator reads."""
        if estimator not in self._inputs:
            self._inputs[estimator] = estimator.read_training(self.samples, self.relations)
        return self._inputs[estimator]

    @property
    def is_large(self) -> bool:
        """Whether the models of the folds are not kept, and what needs them is left out.

        Each has the clades of hundreds of landmarks, and is explained by all pairs of ASVs.
        """
        samples, asvs = self.samples.counts.shape
        return bool(samples > EXACT_KERNEL and asvs > MAX_LINKED)

    @property
    def metadata_alone(self) -> TrainingSamples:
        """The same samples without ASVs."""
        counts, tokens_FL = self.samples.counts[:, :0], self.samples.tokens_FL[:0]
        without = dataclasses.replace(self.samples, counts=counts, tokens_FL=tokens_FL)
        return TrainingSamples(without, AsvRelations(tokens_FL))

    @property
    def counts_alone(self) -> TrainingSamples:
        """The same samples without metadata."""
        return TrainingSamples(dataclasses.replace(self.samples, covariates=None), self.relations)


@dataclass(frozen=True)
class CrossValidated:
    """Predictions of the held-out samples by a member, and its models."""

    # float64, numbers in the units of the target, class probabilities, or ranks followed by the
    # probability of each level (`Folds.with_levels`)
    predictions_MC: F64
    cpu_seconds: float  # CPU time of this process
    fold_models: tuple[FittedModel[Any], ...] = ()  # of the first partition
    # fitted to all samples of the splits; None if it was not requested, or if the models of the
    # folds are averaged for new samples
    model: FittedModel[Any] | None = None
    inputs: Any = None  # the samples as the models read them
    columns: Mapping[str, F64] = field(default_factory=dict)  # further columns of predictions.tsv
    facts: Mapping[str, Any] = field(default_factory=dict)  # facts for the run record
    # predictions [N, C] of the samples of each of `Folds.fitted_rows`, see `Estimator.left_out`:
    # NaN for a sample without one, None for a member without any, empty if not requested
    left_out: tuple[F64 | None, ...] = ()


class Member(Protocol):
    """Model that `aam train` trains, alone or with others. `MEMBERS` lists them."""

    def cross_validate(
        self, samples: TrainingSamples, folds: Folds, final: bool = True
    ) -> CrossValidated | None:
        """Fit a model for each split and predict its held-out samples."""
        ...


class Reader(ABC, Generic[T]):
    """Reader of samples for the fitted models of a member; it restores models from their state."""

    @abstractmethod
    def read(self, samples: Samples, relations: AsvRelations) -> T:
        """Compute the inputs of samples; nothing is learnt here."""

    @abstractmethod
    def restore(
        self, state: State, asvs: int, outputs: int, device: DeviceOptions
    ) -> FittedModel[T]:
        """Build a model from its state."""


class Estimator(Reader[T]):
    """Member that is fitted in memory, in one process.

    Its model for new samples is fitted once more, to all samples of the splits.
    """

    def read_training(self, samples: Samples, relations: AsvRelations) -> T:
        """Compute the inputs of all samples of the training study, for models of some of them."""
        return self.read(samples, relations)

    @abstractmethod
    def fit(self, inputs: T, labels: Labels, seed: int) -> FittedModel[T]:
        """Fit a model to labelled samples; hyper-parameters are chosen by leaving out groups."""

    def left_out(self, model: FittedModel[T], inputs: T, labels: Labels, seed: int) -> F64 | None:
        """Return leave-one-group-out predictions of the training samples, [N, C].

        Each is moved from the mean label of its fit to the mean label of all training samples, so
        that predictions of different fits can be pooled. They decide the weights of the ensemble
        within a training set, and the levels of an ordered target are fitted to them. A member
        without them, the default, gets no weight beside members that have them, and its ranks are
        rounded to the nearest level.
        """
        return None

    def predict_parts(self, inputs: T, labels: Labels, seed: int) -> F64:
        """Predict each half of the groups by a fit to the other half, [N, C].

        Few groups, such as studies, are each left out in turn: half of them are too few to fit to.
        """
        groups, group_N = np.unique(labels.groups, return_inverse=True)
        number = len(groups) if len(groups) <= FEW_GROUPS else 2
        # Groups with similar labels are divided, so that both halves span the whole range.
        mean_I = np.bincount(group_N, labels.values) / np.bincount(group_N)
        random_I = np.random.default_rng(seed).random(len(groups))
        part_N = (np.argsort(np.lexsort((random_I, mean_I))) % number)[group_N]
        left_out_NC = np.empty_like(labels.outputs_NC)
        for half in range(number):
            predicted, other_labels = np.flatnonzero(part_N == half), labels.take(part_N != half)
            model = self.fit(inputs.take(np.flatnonzero(part_N != half)), other_labels, seed)
            move_C = labels.mean_C - other_labels.mean_C
            left_out_NC[predicted] = model.predict(inputs.take(predicted)) + move_C
        return left_out_NC

    def cross_validate(
        self,
        samples: TrainingSamples,
        folds: Folds,
        final: bool = True,
        inputs_of: str = "",
        weighed: bool = False,
    ) -> CrossValidated:
        """Fit a model for each split and predict its held-out samples."""
        began = time.process_time()
        inputs = samples.inputs(self)
        labels = dataclasses.replace(folds.labels, values=folds.scale.forward(folds.labels.values))
        held_out = [split.held_out[1] for split in folds.splits]
        jobs = list(zip(folds.fitted_rows, [*held_out, held_out[0][:0]], strict=True))
        jobs = jobs if final else jobs[:-1]
        models, predictions, left_out = [], [], []
        title = ", ".join(filter(None, (type(self).__name__, inputs_of)))
        for fitted, predicted in track(jobs, title, len(jobs), "models"):
            fit_arguments = inputs.take(fitted), labels.training(fitted), folds.seed
            model = self.fit(*fit_arguments)
            if not samples.is_large:
                models.append(model)
            if weighed or labels.levels:
                inner_NC = self.left_out(model, *fit_arguments)
                left_out.append(None if inner_NC is None else folds.scale.inverse(inner_NC))
            if len(predicted):
                predictions.append(model.predict(inputs.take(predicted)))
        return CrossValidated(
            folds.with_levels(folds.scale.inverse(np.concatenate(predictions)), left_out),
            time.process_time() - began,
            tuple(models[: len(folds.first.splits)]),
            model if final else None,
            inputs,
            left_out=tuple(left_out),
        )


def reader(name: str) -> Reader[Any]:
    """Return the reader of the member that `MEMBERS` lists under a name."""
    if MEMBERS[name].network:
        return wings.network().member()
    return estimator(name)


def estimator(name: str) -> Estimator[Any]:
    """Return the estimator that `MEMBERS` lists under a name."""
    return importlib.import_module(MEMBERS[name].module).MEMBER
