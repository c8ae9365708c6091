"""Members of `aam train`: their Protocol, and cross-validation of those that are fitted in memory.

Shape suffixes: see `base` and `folds`.
"""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

import numpy as np

from aam.console import track
from aam.contract.options.device import DeviceOptions
from aam.contract.options.members import MEMBERS
from aam.members.base import F64, Labels, Samples, T
from aam.members.folds import Folds, training_rows
from aam.members.model import FittedModel
from aam.members.relations import AsvRelations
from aam.serialization.model_folder import State


@dataclass(frozen=True, eq=False)
class TrainingSamples:
    """Samples of a training study, and what estimators compute from them.

    The inputs of an estimator do not depend on labels and folds: all folds of a run, and all trials
    of a search, share them.

    Attributes:
        samples: counts, sequences and covariates of the N samples.
        relations: relations of the ASVs of the samples.
    """

    samples: Samples
    relations: AsvRelations
    _inputs: dict[Estimator[Any], Any] = field(default_factory=dict)

    def inputs(self, estimator: Estimator[T]) -> T:
        """Return the samples in the form that an estimator reads."""
        if estimator not in self._inputs:
            self._inputs[estimator] = estimator.read(self.samples, self.relations)
        inputs: T = self._inputs[estimator]
        return inputs

    @property
    def metadata_alone(self) -> TrainingSamples:
        """The same samples without ASVs."""
        without = self.samples.metadata_alone
        return TrainingSamples(without, AsvRelations(without.tokens_FL))

    @property
    def counts_alone(self) -> TrainingSamples:
        """The same samples without metadata."""
        return TrainingSamples(self.samples.counts_alone, self.relations)


@dataclass(frozen=True)
class CrossValidated:
    """A member's predictions of the held-out samples.

    Attributes:
        predictions_MC: float64, numbers in the units of the target, or class probabilities.
        cpu_seconds: CPU time of this process.
        fold_models: models of the splits, where they explain its stability over the folds.
        model: fitted to all samples of the splits; None if it was not requested, or if the models
            of the folds are averaged for new samples.
        inputs: the samples as the models read them.
        columns: further columns of predictions.tsv by name, [M].
        facts: facts for the run record.
    """

    predictions_MC: F64
    cpu_seconds: float
    fold_models: tuple[FittedModel[Any], ...] = ()
    model: FittedModel[Any] | None = None
    inputs: Any = None
    columns: Mapping[str, F64] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class Member(Protocol):
    """Model that `aam train` trains, alone or with others. `MEMBERS` lists them."""

    def cross_validate(
        self, samples: TrainingSamples, folds: Folds, final: bool = True
    ) -> CrossValidated | None:
        """Fit a model for each split and predict its held-out samples.

        Args:
            samples: N samples.
            folds: their labels and splits.
            final: also make the model for new samples.

        Returns:
            None on ranks other than the first, of a member that several ranks train.
        """
        ...


class Reader(ABC, Generic[T]):
    """Reader of samples for the fitted models of a member, which it restores from their state."""

    @abstractmethod
    def read(self, samples: Samples, relations: AsvRelations) -> T:
        """Compute the inputs of samples; nothing is learnt here.

        Args:
            samples: samples of the training study, with the sequences of `relations`, or of
                another study.
            relations: relations of the ASVs of the training study; the model refers to an ASV by
                its row.
        """

    @abstractmethod
    def restore(
        self, state: State, asvs: int, outputs: int, device: DeviceOptions
    ) -> FittedModel[T]:
        """Build a model from its state.

        Args:
            state: result of `FittedModel.state`.
            asvs: number of ASVs of the training study.
            outputs: number of outputs, C.
            device: device of a network.

        Raises:
            Mismatch: the state has other settings or arrays, or values out of range.
        """


class Estimator(Reader[T]):
    """Member that is fitted in memory, in one process.

    Its model for new samples is fitted once more, to all samples of the splits.
    """

    @abstractmethod
    def fit(self, inputs: T, labels: Labels, seed: int) -> FittedModel[T]:
        """Fit a model to labelled samples; hyper-parameters are chosen by leaving out groups."""

    def cross_validate(
        self, samples: TrainingSamples, folds: Folds, final: bool = True, inputs_of: str = ""
    ) -> CrossValidated:
        """Fit a model for each split and predict its held-out samples, see `Member`.

        `inputs_of` names the samples in the progress bar where they are not whole.
        """
        began = time.process_time()
        inputs = samples.inputs(self)
        labels = dataclasses.replace(folds.labels, values=folds.scale.forward(folds.labels.values))
        parts = [(training_rows(split), split.held_out[1]) for split in folds.splits]
        everything = np.unique(np.concatenate([rows for part in parts for rows in part]))
        jobs = [*parts, *([(everything, everything[:0])] if final else [])]
        models, predictions = [], []
        title = ", ".join(filter(None, (type(self).__name__, inputs_of)))
        for fitted, predicted in track(jobs, title, len(jobs), "models"):
            models.append(self.fit(inputs.take(fitted), labels.take(fitted), folds.seed))
            if len(predicted):
                predictions.append(models[-1].predict(inputs.take(predicted)))
        return CrossValidated(
            folds.scale.inverse(np.concatenate(predictions)),
            time.process_time() - began,
            tuple(models[: len(parts)]),
            models[-1] if final else None,
            inputs,
        )


def predictions_of(results: Mapping[str, CrossValidated]) -> dict[str, F64]:
    """Return the held-out predictions [M, C] of members by name."""
    return {name: result.predictions_MC for name, result in results.items()}


def estimators() -> tuple[str, ...]:
    """Return the names of the members that are fitted in memory."""
    return tuple(name for name, entry in MEMBERS.items() if not entry.network)
