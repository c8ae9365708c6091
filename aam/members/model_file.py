"""Model file: the members of `aam train` with their combination, or a pretrained encoder.

A model is a folder (`aam.serialization.model_folder`) whose `model.json` has the fields of
`ModelFacts`. Besides the arrays of each member it has the arrays `training`: `tokens` (sequences of
the ASVs, uint8 [F, L]), the arrays of `TrainingSummary`, `importance/MEMBER` (importance of the
ASVs in each fold, float64 [K, F]) and `q_values/COLUMN` (float64 [F]).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aam.arrays import F64, Tokens
from aam.console import info, warn
from aam.contract.errors import DataError, UsageError
from aam.contract.options import flat
from aam.contract.options.groups import MEMBERS, DeviceOptions, TableOptions, TransformName
from aam.contract.records import AboveZero, Mismatch, NonNegative, PlainOptions, convert
from aam.data.covariates import CovariateEncoder, Covariates
from aam.data.metadata import read_metadata
from aam.data.study import Study, load_study
from aam.data.targets import OutputRange, TargetScale
from aam.evaluation.association import ADJUSTED, ASSOCIATED, CONDITIONAL, EQUAL_DEPTH
from aam.evaluation.calibration import ProportionalOdds
from aam.evaluation.ensemble import Ensemble
from aam.evaluation.labels import LabelSummary
from aam.evaluation.scores import UNTESTED, Performance
from aam.members.member import FittedModel, Outputs, reader
from aam.members.new_samples import SummaryNumbers, TrainingSummary
from aam.members.relations import AsvRelations
from aam.nucleotide_codes import MASK
from aam.serialization import model_folder
from aam.serialization.model_folder import indices, numbers

_TRAINING, _IMPORTANCE, _Q_VALUES = "training", "importance/", "q_values/"


@dataclass(frozen=True)
class ModelFacts:
    """Plain values of a trained model, stored in its model.json."""

    column: str  # metadata column that is predicted
    classes: tuple[str, ...]  # names; empty for a number and for ranks
    levels: tuple[str, ...]  # ordered categories, the lowest first, whose ranks are the number
    transform: TransformName  # transform of a number; the estimators read its forward values
    range: OutputRange  # range of the predictions of a number
    weights: dict[str, NonNegative]  # weight of each member in the ensemble
    half_width: NonNegative | None  # half width of the prediction intervals; None without intervals
    temperature: AboveZero  # temperature of class probabilities
    odds: ProportionalOdds | None  # from a rank to the probabilities of the levels
    options: PlainOptions  # options of `aam train`
    training: SummaryNumbers  # numbers of the training summary
    # mean of what estimators are fitted to (with a logarithm the geometric mean), or the frequency
    # of each class
    means: tuple[float, ...]
    labels: LabelSummary  # labels of the training samples
    performance: Performance | None = None  # None if the model was fitted without an evaluation
    threshold: NonNegative | None = None  # see `Ensemble`; None if an earlier version stored it

    @property
    def ensemble(self) -> Ensemble:
        """Combination of the members and its uncertainty."""
        half_width = math.inf if self.half_width is None else self.half_width
        return Ensemble(self.weights, half_width, self.temperature, self.odds, self.threshold)

    @property
    def outputs(self) -> Outputs:
        """What the members predict."""
        return Outputs(self.column, self.classes, TargetScale(self.transform, self.range))


@dataclass(frozen=True)
class TrainedModel:
    """Model that predicts a target."""

    facts: ModelFacts  # plain values
    models: Mapping[str, FittedModel[Any]]  # fitted members
    relations: AsvRelations  # relations of the ASVs of the training study, with their sequences
    training: TrainingSummary  # data about the training samples, with which new ones are compared
    # estimator -> float64 [K, F], `Importance.size_U` of the models of K folds in the training
    # study; empty with one split
    fold_importance: Mapping[str, F64] = field(default_factory=dict)
    q_values: Mapping[str, F64] = field(default_factory=dict)  # by column of importance.tsv

    @property
    def tokens_FL(self) -> Tokens:
        """Sequences of the ASVs of the training study."""
        return self.relations.tokens_FL

    @property
    def settings(self) -> dict[str, str]:
        """Hyper-parameters of the members, for the run record."""
        return {name: model.settings for name, model in self.models.items() if model.settings}

    @property
    def column(self) -> str:
        """The metadata column that the model predicts."""
        return self.facts.column

    @property
    def performance(self) -> Performance:
        """Held-out performance of the model, if it was evaluated."""
        text = f"{UNTESTED}: '{self.column}' was fitted without an evaluation."
        return self.facts.performance or Performance(text, True)

    @property
    def max_bp(self) -> int:
        """Nucleotides of the longest sequence that the models read."""
        return max(model.max_bp for model in self.models.values()) or self.tokens_FL.shape[1]

    @property
    def encoder(self) -> CovariateEncoder | None:
        """Encoder of the metadata that the model reads; None if it reads the counts alone."""
        return next(iter(self.models.values())).encoder

    def read_study(self, input: TableOptions, metadata: Path | None) -> Study:
        """Read new samples, and apply the --where of the training if there is metadata."""
        study, options = load_study(input, max_bp=self.max_bp), flat(self.facts.options)
        if options.get("drop_missing_asvs"):
            info("ASVs that are not in the tree were left out of the training; here all are read.")
        condition = options.get("where")
        if condition is None:
            return study
        if metadata is None:
            warn(
                f"The model was trained on samples with {condition} (--where) and predicts all "
                "samples of this table; add --metadata to predict such samples only."
            )
            return study
        rows = read_metadata(metadata).rows_where(condition, study.table.sample_ids)
        return study.take_samples(rows)

    def read_covariates(self, path: Path | None, sample_ids: Sequence[str]) -> Covariates | None:
        """Read the metadata columns of the model for new samples; None for counts alone."""
        if self.encoder is None:
            return None
        if path is None:
            evidence = f"the columns {', '.join(self.encoder.columns)}"
            remedy = "add --metadata with these columns"
            raise UsageError("The model reads metadata besides the table", evidence, remedy)
        return self.encoder.read(read_metadata(path), sample_ids)

    def save(self, path: Path) -> None:
        """Write the model folder atomically."""
        folds = {f"{_IMPORTANCE}{name}": sizes for name, sizes in self.fold_importance.items()}
        rates = {f"{_Q_VALUES}{name}": q_F for name, q_F in self.q_values.items()}
        training = {"tokens": self.tokens_FL, **self.training.arrays(), **folds, **rates}
        members = {name: model.state() for name, model in self.models.items()}
        facts = dataclasses.asdict(self.facts)
        model_folder.write(path, "train", members, facts, {_TRAINING: training})


@dataclass(frozen=True)
class PretrainedModel:
    """Pretrained encoder of `aam pretrain`; it predicts no target."""

    models: Mapping[str, FittedModel[Any]]
    column: None = None

    @property
    def max_bp(self) -> int:
        """Nucleotides of the longest sequence that the encoder reads."""
        return max(model.max_bp for model in self.models.values())


def read(path: Path, device: DeviceOptions) -> TrainedModel | PretrainedModel:
    """Read and validate a model, and restore its members on a device."""
    folder = model_folder.read(path)
    try:
        # Before the states are parsed: a file with a member of a later version is not damaged.
        if unknown := sorted(folder.members.keys() - MEMBERS.keys()):
            available = ", ".join(MEMBERS)
            evidence = f"'{folder.path}' has '{unknown[0]}', known are {available}"
            remedy = "use the version that trained it, or train again"
            raise DataError("The model has an unknown member", evidence, remedy)
        if not folder.members:
            raise Mismatch("it has no members")

        def restored(asvs: int, outputs: int) -> dict[str, FittedModel[Any]]:
            return {
                name: reader(name).restore(folder.state(name), asvs, outputs, device)
                for name in folder.members
            }

        if folder.command == "pretrain":
            return PretrainedModel(restored(0, 0))
        facts = convert(folder.facts, ModelFacts, model_folder.HEADER)
        if len(facts.levels) != (facts.odds is not None and len(facts.odds.cutpoints) + 1):
            raise Mismatch("levels and cutpoints differ")
        # Without one of its members the ensemble would be another model.
        if absent := sorted(folder.files.keys() - folder.members.keys() - {_TRAINING}):
            raise Mismatch(f"the member '{absent[0]}' has arrays and no settings")
        arrays = folder.arrays(_TRAINING)
        tokens_FL = arrays.get("tokens", np.empty(0))
        if tokens_FL.dtype != np.uint8 or tokens_FL.ndim != 2:
            raise Mismatch("tokens are not sequences")
        indices({"tokens": tokens_FL.astype(np.int64)}, "tokens", MASK, None, None)
        asvs = len(tokens_FL)
        models = restored(asvs, len(facts.classes) or 1)
        if facts.weights.keys() != models.keys():
            raise Mismatch("the weights belong to other members")
        return TrainedModel(
            facts,
            models,
            AsvRelations(tokens_FL),
            TrainingSummary.restore(facts.training, arrays, tokens_FL),
            {
                name.removeprefix(_IMPORTANCE): numbers(arrays, name, None, asvs)
                for name in sorted(arrays)
                if name.startswith(_IMPORTANCE)
            },
            {
                name: numbers(arrays, f"{_Q_VALUES}{name}", asvs)
                for name in (ASSOCIATED, ADJUSTED, EQUAL_DEPTH, CONDITIONAL)
                if f"{_Q_VALUES}{name}" in arrays
            },
        )
    except Mismatch as error:
        raise model_folder.damaged(f"'{folder.path}', {error}") from error


def trained(model: TrainedModel | PretrainedModel, path: Path) -> TrainedModel:
    """Return a model that predicts a target."""
    if isinstance(model, TrainedModel):
        return model
    evidence = f"'{path}' was only pretrained"
    raise DataError("The model has no target", evidence, "use `aam train` first")


def read_trained(path: Path, device: DeviceOptions) -> TrainedModel:
    """Read a model that predicts a target."""
    return trained(read(path, device), path)
