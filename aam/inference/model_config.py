"""Model configuration stored in a checkpoint: network shape, batch plan, target and options."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Literal

import numpy as np
import torch

from aam import __version__
from aam.contract import schema
from aam.contract.errors import DataError
from aam.contract.options.field import ABOVE_ZERO, ONE_OR_MORE
from aam.contract.options.study import CovariateOptions, Metric
from aam.contract.schema import Mismatch
from aam.data.batches import BatchPlan
from aam.data.covariates import CovariateEncoder, Covariates
from aam.data.sequences import VOCABULARY as LETTERS
from aam.inference.target import Target
from aam.model.attention import AUTO, Backends
from aam.model.covariates import CovariateInputs
from aam.model.network import Encoder, Predictor
from aam.model.shape import VOCABULARY, CovariateShape, NetworkShape

FORMAT = 3
"""Version of the checkpoint format; another one is refused."""


@dataclass(frozen=True)
class DiversityScale:
    """Mean and standard deviation of Faith PD in the training samples."""

    mean: float = 0.0
    spread: Annotated[float, ABOVE_ZERO] = 1.0


@dataclass(frozen=True)
class ModelConfig:
    """Configuration from which a network and its batches are built.

    Attributes:
        command: "pretrain" or "train".
        metric: phylogenetic metric of the embeddings.
        target: target of the predictor; None after pretraining.
        covariates: encoder of the metadata columns that the target reads; None without any.
    """

    command: str
    shape: NetworkShape
    metric: Metric
    plan: BatchPlan
    standard: DiversityScale
    target: Target | None
    options: dict[str, Any]
    covariates: CovariateEncoder | None = None

    def inputs(self, covariates: Covariates | None) -> CovariateInputs | None:
        """Encode the covariates of samples; None without any."""
        if self.covariates is None or covariates is None:
            return None
        numbers_NJ = self.covariates.numbers_NJ(covariates).astype(np.float32)
        codes_NK = self.covariates.codes_NK(covariates)
        return CovariateInputs(torch.from_numpy(codes_NK.copy()), torch.from_numpy(numbers_NJ))

    def network(self, backends: Backends = AUTO, recompute: bool = False) -> Encoder | Predictor:
        """Build the network with fresh weights."""
        network_class = Encoder if self.target is None else Predictor
        return network_class(self.shape, self.metric, backends, recompute)


def to_plain(config: ModelConfig) -> dict[str, Any]:
    """Convert a configuration to dictionaries, lists, strings and numbers."""
    return {
        "format": FORMAT,
        "version": __version__,
        "torch": str(torch.__version__),
        "vocabulary": "".join(LETTERS),
        **asdict(config),
    }


_VERSION = {"format": Annotated[int, ONE_OR_MORE], "version": str, "vocabulary": str}
_Value = bool | int | float | str | None
_STORED = {
    "command": Literal["pretrain", "train"],
    "shape": NetworkShape,
    "metric": Metric,
    "plan": BatchPlan,
    "standard": DiversityScale,
    "target": Target | None,
    "options": dict[str, _Value | list[_Value] | dict[str, _Value | list[_Value]]],
    "covariates?": CovariateEncoder | None,
}


def from_plain(stored: Any, source: str) -> ModelConfig:
    """Build a configuration from the output of `to_plain`; `source` is named in errors.

    Raises:
        DataError: the format is another, or the vocabulary differs.
        Mismatch: an entry is missing, of another type or out of range.
    """
    version = schema.parse(_VERSION, stored, "aam")
    place = f"{source}, aam {version['version']}"
    schema.check_format("checkpoint", version["format"], FORMAT, place)
    if version["vocabulary"] != "".join(LETTERS):
        raise DataError(
            "The checkpoint has a different vocabulary",
            f"{source}, '{version['vocabulary']}' instead of '{''.join(LETTERS)}'",
            "train it again",
        )
    assert len(LETTERS) == VOCABULARY
    values = schema.parse(_STORED, stored, "aam")
    known = {field.name for field in fields(ModelConfig)} & values.keys()
    config = ModelConfig(**{name: values[name] for name in known})
    target = config.target
    if (target is None) != (config.command == "pretrain"):
        raise Mismatch(f"aam.target does not belong to `aam {config.command}`")
    if target is not None:
        _check_target(target, config.shape.outputs)
    _check_covariates(config)
    return config


def covariate_shape(
    encoder: CovariateEncoder | None, options: CovariateOptions
) -> CovariateShape | None:
    """Return the sizes of the covariates of an encoder; None without one."""
    if encoder is None:
        return None
    return CovariateShape(
        tuple(len(names) + 1 for names in encoder.categories.values()),
        2 * len(encoder.numbers),
        options.categorical_embed_dim,
        options.categorical_fusion,
    )


def _check_covariates(config: ModelConfig) -> None:
    """Refuse covariates whose encoder and network contradict each other."""
    encoder, shape = config.covariates, config.shape.covariates
    sizes = None
    if encoder is not None:
        sizes = [len(names) + 1 for names in encoder.categories.values()], 2 * len(encoder.numbers)
    if sizes != (None if shape is None else (list(shape.categories), shape.numbers)):
        raise Mismatch("aam.covariates and aam.shape differ")


def _check_target(target: Target, outputs: int) -> None:
    """Refuse a target whose parts contradict each other."""
    if bool(target.classes) == (target.transform is not None):
        raise Mismatch("aam.target has both classes and a transform, or neither")
    if target.class_weights and len(target.class_weights) != len(target.classes):
        raise Mismatch("aam.target has other numbers of classes and of class weights")
    if target.classes and target.levels:
        raise Mismatch("aam.target has both classes and ordered levels")
    if target.outputs != outputs:
        raise Mismatch(f"aam.target has {target.outputs} outputs, aam.shape has {outputs}")
