"""Checkpoint of an ensemble: plain values and arrays, read without running code from it.

The file holds `ensemble` (`StoredEnsemble`), `tokens` (the sequences of the ASVs, uint8 [F, L]),
`members`: the arrays of each estimator, and of the transformer the checkpoints of its folds;
`training` (`TrainingData`), and `fold_importance`: the importance of the ASVs in each fold, by
estimator.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from aam import __version__
from aam.contract import schema
from aam.contract.errors import DataError
from aam.contract.options.device import DeviceOptions
from aam.contract.options.field import ABOVE_ZERO, ONE_OR_MORE, ZERO_OR_MORE
from aam.contract.options.training import TransformName
from aam.contract.schema import Mismatch
from aam.data.covariates import CovariateEncoder
from aam.data.sequences import MASK
from aam.data.target_transforms import OutputRange, TargetScale
from aam.inference.model_config import ModelConfig
from aam.inference.prediction import LoadedModel, build_models
from aam.members import training_data
from aam.members.base import F64, Labels, Model, Tokens
from aam.members.ensemble import Ensemble
from aam.members.estimators import ESTIMATORS
from aam.members.option_checks import TRANSFORMER
from aam.members.relations import AsvRelations
from aam.members.state import indices, numbers
from aam.members.training_data import TrainingData
from aam.members.uncertainty import ProportionalOdds
from aam.serialization import tensor_file
from aam.serialization.arrays import to_arrays, to_tensors
from aam.training.run_files import checkpoints

FORMAT = 3

NAME = "ensemble.ckpt"
_KEY, _TRAINING, _FOLDS = "ensemble", "training", "fold_importance"

_CONTENT = dict.fromkeys((_KEY, "tokens", "members", _TRAINING, _FOLDS), Any)

_Value = bool | int | float | str | None


@dataclass(frozen=True)
class StoredEnsemble:
    """Plain values of an ensemble.

    Attributes:
        format: version of the file; others are refused.
        version: of the program that wrote it.
        column: that is predicted.
        classes: names; empty for a number and for ranks.
        transform: of a number; the estimators read its forward values.
        weights: of each member.
        half_width: of the prediction intervals; None without.
        temperature: of class probabilities.
        options: of `aam train`.
        range: of the predictions of a number.
        levels: ordered categories, the lowest first, whose ranks are the number; else empty.
        odds: from a rank to the probabilities of the levels; None without levels.
    """

    format: Annotated[int, ONE_OR_MORE]
    version: str
    column: str
    classes: tuple[str, ...]
    transform: TransformName
    weights: dict[str, Annotated[float, ZERO_OR_MORE]]
    half_width: Annotated[float, ZERO_OR_MORE] | None
    temperature: Annotated[float, ABOVE_ZERO]
    options: dict[str, _Value | list[_Value] | dict[str, _Value | list[_Value]]]
    range: OutputRange
    levels: tuple[str, ...] = ()
    odds: ProportionalOdds | None = None

    @classmethod
    def of(
        cls,
        column: str,
        labels: Labels,
        scale: TargetScale,
        ensemble: Ensemble,
        options: dict[str, Any],
    ) -> StoredEnsemble:
        """Gather the plain values of an ensemble that this version writes."""
        return cls(
            FORMAT,
            __version__,
            column,
            labels.classes,
            scale.transform,
            dict(ensemble.weights),
            ensemble.half_width if math.isfinite(ensemble.half_width) else None,
            ensemble.temperature,
            options,
            scale.range,
            labels.levels,
            ensemble.odds,
        )

    @property
    def ensemble(self) -> Ensemble:
        """Weights and uncertainty of the combination."""
        half_width = math.inf if self.half_width is None else self.half_width
        return Ensemble(self.weights, half_width, self.temperature, self.odds)

    @property
    def scale(self) -> TargetScale:
        """Scale on which the estimators predict."""
        return TargetScale(self.transform, self.range)


@dataclass(frozen=True)
class EnsembleCheckpoint:
    """Content of a checkpoint.

    Attributes:
        stored: plain values.
        tokens_FL: sequences of the ASVs of the training study.
        models: fitted estimators.
        training: to compare new samples with; None with a network alone, whose checkpoint has it.
        networks: configuration and content of the checkpoints of the transformer's folds, see
            `checkpoints.read`; empty without it.
        fold_importance: of estimators, float64 [K, F], see `effects.Importance.size_U`, of the
            models of K folds in the training study; empty with one split.
    """

    stored: StoredEnsemble
    tokens_FL: Tokens
    models: dict[str, Model[Any]]
    training: TrainingData | None
    networks: list[tuple[ModelConfig, dict[str, Any]]]
    fold_importance: Mapping[str, F64] = field(default_factory=dict)

    @cached_property
    def relations(self) -> AsvRelations:
        """Relations of the ASVs of the training study."""
        return AsvRelations(self.tokens_FL)

    @property
    def max_bp(self) -> int:
        """Nucleotides of the longest sequence that the models read."""
        return self.networks[0][0].shape.max_bp if self.networks else self.tokens_FL.shape[1]

    def build_networks(self, device: DeviceOptions) -> list[LoadedModel]:
        """Build the networks of the transformer's folds; none without it."""
        if not self.networks:
            return []
        return build_models(self.networks, [Path(TRANSFORMER)] * len(self.networks), device)

    @property
    def encoder(self) -> CovariateEncoder | None:
        """Encoder of the metadata that the model reads; None if it reads the counts alone."""
        if self.models:
            return next(iter(self.models.values())).encoder
        return self.networks[0][0].covariates


def find(path: Path) -> Path | None:
    """Return the ensemble of a run folder, or the file itself if that is its name; else None."""
    file = path / "checkpoints" / NAME if path.is_dir() else path
    return file if file.name == NAME and file.is_file() else None


def save(path: Path, ensemble: EnsembleCheckpoint) -> None:
    """Write a checkpoint atomically."""
    members: dict[str, Any] = {
        name: to_tensors(model.arrays()) for name, model in ensemble.models.items()
    }
    if ensemble.networks:
        members[TRANSFORMER] = [checkpoints.plain(content) for _, content in ensemble.networks]
    content = {
        _KEY: dataclasses.asdict(ensemble.stored),
        "tokens": torch.from_numpy(np.ascontiguousarray(ensemble.tokens_FL)),
        "members": members,
        _TRAINING: None if ensemble.training is None else ensemble.training.stored(),
        _FOLDS: to_tensors(ensemble.fold_importance),
    }
    tensor_file.write(path, content)


def read(path: Path) -> EnsembleCheckpoint:
    """Read and validate a checkpoint.

    Raises:
        MissingInput: the file may not be read.
        DataError: it is damaged, invalid, of another program, or of another version's format.
    """
    content = tensor_file.read(path)
    if _KEY not in content:
        raise DataError("Not an ensemble of this program", f"'{path}'", "name one that `aam` wrote")
    try:
        return _parse(content, path)
    except Mismatch as error:
        raise DataError(
            "The checkpoint has invalid content", f"'{path}', {error}", "choose another one"
        ) from error


def _parse(content: dict[str, Any], path: Path) -> EnsembleCheckpoint:
    version = schema.parse({"format": int, "version": str}, content[_KEY], _KEY)
    schema.check_format(version["format"], FORMAT, f"'{path}', aam {version['version']}")
    schema.parse(_CONTENT, content, "the checkpoint")
    stored: StoredEnsemble = schema.parse(StoredEnsemble, content[_KEY], _KEY)
    if len(stored.levels) != (stored.odds is not None and len(stored.odds.cutpoints) + 1):
        raise Mismatch("levels and cutpoints differ")
    members = schema.parse(dict[str, Any], content["members"], "members")
    if members.keys() != stored.weights.keys() or not sum(stored.weights.values()):
        raise Mismatch("members and weights differ")
    if unknown := sorted(members.keys() - {*ESTIMATORS, TRANSFORMER}):
        raise Mismatch(f"the member '{unknown[0]}' is unknown")
    tokens = schema.parse(Tensor, content["tokens"], "tokens")
    if tokens.dtype != torch.uint8 or tokens.ndim != 2:
        raise Mismatch("tokens are not sequences")
    tokens_FL = tokens.numpy()
    indices({"tokens": tokens_FL.astype(np.int64)}, "tokens", MASK, None, None)
    outputs = len(stored.classes) or 1
    models = {
        name: ESTIMATORS[name].restore(to_arrays(arrays, name), len(tokens_FL), outputs)
        for name, arrays in members.items()
        if name != TRANSFORMER
    }
    folds = schema.parse(list[Any], members.get(TRANSFORMER, []), TRANSFORMER)
    networks = [checkpoints.validate(fold, path) for fold in folds]
    for config, _ in networks:
        target = config.target
        if target is None or (target.classes, target.levels) != (stored.classes, stored.levels):
            raise Mismatch("the transformer predicts other classes")
    training = training_data.parse(content[_TRAINING], len(tokens_FL))
    folded = to_arrays(content[_FOLDS], _FOLDS)
    fold_importance = {name: numbers(folded, name, None, len(tokens_FL)) for name in folded}
    return EnsembleCheckpoint(stored, tokens_FL, models, training, networks, fold_importance)
