"""Fitted members: their Protocol, and what they return.

Shape suffixes: U ASVs of samples; see `base`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.data.covariates import CovariateEncoder
from aam.data.study import Study
from aam.data.target_transforms import TargetScale
from aam.inference.tables import InferenceSettings
from aam.members.base import F64, Inputs, Samples, Tokens
from aam.members.relations import AsvRelations
from aam.serialization.model_folder import State

if TYPE_CHECKING:  # both import PyTorch
    from aam.inference.attributions import SampleAttention
    from aam.model.nucleotides import NucleotideEncoder

Reads = TypeVar("Reads", bound=Inputs, contravariant=True)


@dataclass(frozen=True)
class Importance:
    """Importance of U ASVs for one member.

    Attributes:
        columns: columns of the table of importance, by name, each [U].
        size_U: measure by which the ASVs are ranked; the larger, the more important.
        folds: the same of the model of each fold; empty where the member has one model.
    """

    columns: dict[str, F64]
    size_U: F64
    folds: tuple[F64, ...] = ()


@dataclass(frozen=True)
class Applied:
    """Predictions of N samples.

    Attributes:
        values_NC: numbers in the units of the target, or probabilities.
        columns: further columns of the table of predictions, each [N].
    """

    values_NC: F64
    columns: Mapping[str, F64] = field(default_factory=dict)


@dataclass(frozen=True)
class Outputs:
    """What a model predicts.

    Attributes:
        column: metadata column that is predicted.
        classes: names; empty for a number and for ranks.
        scale: on which estimators predict a number.
    """

    column: str
    classes: tuple[str, ...]
    scale: TargetScale


class FittedModel(Protocol[Reads]):
    """A fitted member. A class that inherits from it has the defaults of the optional parts."""

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
        """Compute how much the predictions depend on each of U ASVs.

        Args:
            inputs: samples.
            tokens_UL: ASVs of the samples.
            relations: relations of the ASVs of the training study.
            outputs: what the model predicts.
        """
        ...

    def state(self) -> State:
        """Return the state of the model, from which its member restores it."""
        ...

    def apply(self, inputs: Reads, scale: TargetScale, settings: InferenceSettings) -> Applied:
        """Return predictions in the units of the target, and further columns of their table."""
        return Applied(scale.inverse(self.predict(inputs)))

    def prepared(self, samples: Samples) -> tuple[FittedModel[Reads], Samples]:
        """Prepare many predictions of samples that have the ASVs of these.

        Returns:
            A model that does not repeat what all of them have in common, and the samples with the
            reads that it draws.
        """
        return self, samples

    @property
    def max_bp(self) -> int:
        """Nucleotides of each sequence that the model can read; 0 for those of the training."""
        return 0

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts about the model for the run record."""
        return {}

    def attention(self, sample: Samples) -> Sequence[SampleAttention]:
        """Return the attention of each network to the ASVs of one sample; none without networks."""
        return ()

    def embed(self, study: Study, settings: InferenceSettings) -> npt.NDArray[np.float32] | None:
        """Return the embedding of every sample, [N, D]; None of a model without embedding."""
        return None

    def asv_encoders(self) -> Sequence[NucleotideEncoder]:
        """Return the encoder of ASVs of each network; none without networks."""
        return ()


def of_effects(name: str, effects_UC: F64, classes: tuple[str, ...]) -> Importance:
    """Name the columns of effects; an ASV has the size of its largest effect."""
    shown = classes[1:] if len(classes) == 2 else classes
    names = [f"{name}_{one}" for one in shown] or [name]
    columns: dict[str, F64] = dict(zip(names, effects_UC.T, strict=True))
    return Importance(columns, np.abs(effects_UC).max(axis=1))


def moments(features: sparse.csr_array) -> tuple[F64, F64]:
    """Return mean and standard deviation of each feature, [U]."""
    # The variance is a difference of two means: float64 keeps its digits, and rounding may still
    # make that of a constant feature negative.
    mean_U = features.mean(axis=0, dtype=np.float64)
    variance_U = features.power(2).mean(axis=0, dtype=np.float64) - mean_U**2
    return mean_U, np.sqrt(variance_U.clip(min=0))
