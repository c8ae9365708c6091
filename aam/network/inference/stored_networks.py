"""Stored networks: configuration and weights of a network, validated; the state of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from aam.contract.errors import DataError
from aam.contract.options.groups import TRANSFORMER, LossType, Metric
from aam.contract.records import (
    AboveZero,
    InsideOne,
    Mismatch,
    NonNegative,
    PlainOptions,
    Positive,
    convert,
)
from aam.contract.version import __version__
from aam.data.covariates import CovariateEncoder, Covariates
from aam.data.targets import UNLIMITED, OutputRange, TargetTransform
from aam.network.batches import BatchPlan
from aam.network.model.attention import AUTO, Backends
from aam.network.model.covariate_embedding import CovariateInputs
from aam.network.model.network import Encoder, Predictor
from aam.network.model.shape import NetworkShape
from aam.nucleotide_codes import VOCABULARY as LETTERS
from aam.serialization import model_folder
from aam.serialization.model_folder import State, check_format


@dataclass(frozen=True)
class Target:
    """Target of a network: the metadata column to predict, and how to encode and decode it."""

    column: str  # name of the metadata column
    classes: tuple[str, ...] = ()  # names of the classes; empty for a number
    # weight of each class in the loss; empty for equal weights
    class_weights: tuple[NonNegative, ...] = ()
    transform: TargetTransform | None = None  # transform of a number; None for classes
    loss_type: LossType = "huber"  # loss of a number, on the transformed scale
    # quantiles that the quantile loss predicts, ascending; empty for other losses
    quantiles: tuple[InsideOne, ...] = ()
    # weights of predictions above and below the label in the asymmetric loss
    over_penalty: NonNegative = 1.0
    under_penalty: NonNegative = 1.0
    range: OutputRange = UNLIMITED  # range of the predictions of a number, in its units
    # ordered categories, the lowest first, if the number is their rank; else empty
    levels: tuple[str, ...] = ()

    @property
    def outputs(self) -> int:
        """Number of network outputs per sample."""
        return len(self.classes) or len(self.quantiles) or 1

    @property
    def middle(self) -> int:
        """Index of the output that predicts a number: the quantile nearest to 0.5."""
        levels = self.quantiles
        return min(range(len(levels)), key=lambda k: abs(levels[k] - 0.5), default=0)

    def encode(self, values: npt.NDArray[np.float64]) -> Tensor:
        """Encode labels for the loss: transformed numbers as float32, or class codes as int64."""
        if self.classes:
            return torch.from_numpy(values.astype(np.int64))
        assert self.transform is not None
        return torch.from_numpy(self.transform.apply(values).astype(np.float32))

    def initial_outputs(self, values: npt.NDArray[np.float64]) -> Tensor:
        """Return the best constant outputs [C]: mean, quantiles or log class frequencies."""
        encoded = self.encode(values)
        if self.classes:
            frequencies = torch.bincount(encoded, minlength=len(self.classes)) / len(encoded)
            return frequencies.log()
        if self.quantiles:
            return encoded.quantile(torch.tensor(self.quantiles))
        return encoded.mean()[None]

    def decode(self, outputs_BC: Tensor) -> npt.NDArray[np.float64]:
        """Return predictions: class probabilities, or numbers in the units of the target.

        >>> target = Target("diet", ("carnivore", "herbivore"))
        >>> target.decode(torch.zeros(1, 2)).tolist()
        [[0.5, 0.5]]
        """
        outputs_BC = outputs_BC.detach().cpu().double()
        if self.classes:
            probabilities_BC: npt.NDArray[np.float64] = outputs_BC.softmax(dim=-1).numpy()
            return probabilities_BC
        assert self.transform is not None
        if self.quantiles:
            # Sorted, so that quantiles do not cross. Sorting never increases the pinball loss
            # (Chernozhukov, Fernández-Val and Galichon 2010).
            outputs_BC = outputs_BC.sort(dim=-1).values
        numbers_BC: npt.NDArray[np.float64] = outputs_BC.numpy()
        return self.range.clip(self.transform.undo(numbers_BC))

    def point_predictions(self, predictions_BC: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return one value per sample: most probable class code, number, or middle quantile."""
        if self.classes:
            codes_B: npt.NDArray[np.float64] = predictions_BC.argmax(axis=-1).astype(np.float64)
            return codes_B
        return predictions_BC[:, self.middle]

    def quantile_columns(
        self, predictions_BC: npt.NDArray[np.float64]
    ) -> dict[str, npt.NDArray[np.float64]]:
        """Return the columns q_<quantile>; none without the quantile loss."""
        return {f"q_{q:g}": predictions_BC[:, i] for i, q in enumerate(self.quantiles)}


FORMAT = 3  # version of the checkpoint format; other versions are refused


@dataclass(frozen=True)
class DiversityScale:
    """Mean and standard deviation of Faith PD in the training samples."""

    mean: float = 0.0
    spread: AboveZero = 1.0


@dataclass(frozen=True)
class ModelConfig:
    """Configuration of a stored network: everything needed to build it and its batches."""

    command: model_folder.Command  # "pretrain" or "train"
    shape: NetworkShape
    metric: Metric  # phylogenetic metric of the embeddings
    plan: BatchPlan
    standard: DiversityScale
    target: Target | None  # target of the predictor; None after pretraining
    options: PlainOptions
    # encoder of the covariates; None without covariates
    covariates: CovariateEncoder | None = None

    @classmethod
    def from_plain(cls, stored: Any, source: str) -> ModelConfig:
        """Decode the output of `to_plain`; `source` is named in errors."""
        version = convert(stored, _StoredVersion, "aam")
        check_format("checkpoint", version.format, FORMAT, f"{source}, aam {version.version}")
        if version.vocabulary != "".join(LETTERS):
            raise DataError(
                "The checkpoint has a different vocabulary",
                f"{source}, '{version.vocabulary}' instead of '{''.join(LETTERS)}'",
                "train it again",
            )
        return convert(stored, cls, "aam")

    def to_plain(self) -> dict[str, Any]:
        """Convert the configuration to dictionaries, lists, strings and numbers."""
        return {
            "format": FORMAT,
            "version": __version__,
            "torch": str(torch.__version__),
            "vocabulary": "".join(LETTERS),
            **asdict(self),
        }

    def inputs(self, covariates: Covariates | None) -> CovariateInputs | None:
        """Encode the covariates of samples; None without covariates."""
        if self.covariates is None or covariates is None:
            return None
        numbers_NJ = self.covariates.numbers_NJ(covariates).astype(np.float32)
        codes_NK = self.covariates.codes_NK(covariates)
        return CovariateInputs(torch.from_numpy(codes_NK.copy()), torch.from_numpy(numbers_NJ))

    def network(self, backends: Backends = AUTO, recompute: bool = False) -> Encoder | Predictor:
        """Build the network with fresh weights."""
        network_class = Encoder if self.target is None else Predictor
        return network_class(self.shape, self.metric, backends, recompute)


class _StoredVersion(msgspec.Struct):
    """Entries of a configuration of any version."""

    format: Positive
    version: str
    vocabulary: str


class _ShapesOnly(TorchFunctionMode):
    """Mode that skips arithmetic on the meta device: its kernels import 800 modules, a second."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("normal_", "div", "__truediv__", "mul", "__mul__"):
            return args[0] if args else keywords["tensor"]
        return (torch.empty if name in ("rand", "randn") else func)(*args, **keywords)


@dataclass(frozen=True)
class StoredNetwork:
    """Configuration and weights of a network."""

    config: ModelConfig  # configuration from which the network is built
    weights: Mapping[str, Tensor]  # arrays by parameter name, on the CPU

    def check(self) -> None:
        """Compare names, shapes and types of the weights with the network of the configuration."""
        shape, weights = self.config.shape, self.weights
        if shape.embedding_dim % shape.attention_heads:
            raise Mismatch(f"the heads ({shape.attention_heads}) do not divide the width")
        if shape.attention_layers > len(weights):  # a million layers take hours to build
            raise Mismatch(f"{shape.attention_layers} layers have {len(weights)} weights")
        try:
            # Only shapes: a damaged configuration must not allocate memory.
            with torch.device("meta"), _ShapesOnly():
                expected = self.config.network().state_dict()
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            raise Mismatch("no network has the sizes of the config") from error

        def kind(weight: Tensor | None) -> tuple[torch.Size, bool] | None:
            return None if weight is None else (weight.shape, weight.is_floating_point())

        names = sorted(expected.keys() | weights.keys())
        unlike = [name for name in names if kind(expected.get(name)) != kind(weights.get(name))]
        if unlike:
            more = f" and {len(unlike) - 1} more do" if len(unlike) > 1 else " does"
            raise Mismatch(f"'{unlike[0]}'{more} not fit the config")
        if broken := [name for name in names if not torch.isfinite(weights[name]).all()]:
            raise Mismatch(f"'{broken[0]}' has values that are not finite")

    def build(self, backends: Backends = AUTO) -> Encoder | Predictor:
        """Build the network with these weights."""
        network = self.config.network(backends)
        network.load_state_dict(self.weights)
        return network

    @property
    def encoder_weights(self) -> dict[str, Tensor]:
        """Weights of the encoder alone."""
        prefix = "" if self.config.target is None else "encoder."
        names = self.weights.items()
        return {name.removeprefix(prefix): w for name, w in names if name.startswith(prefix)}


def network_state(networks: Sequence[StoredNetwork]) -> State:
    """Return the state that a model stores for its networks, one for each fold."""
    arrays = {
        f"{fold}/{name}": weight.detach().cpu().numpy()
        for fold, network in enumerate(networks, start=1)
        for name, weight in network.weights.items()
    }
    return State({"networks": [network.config.to_plain() for network in networks]}, arrays)


def restore_networks(state: State) -> list[StoredNetwork]:
    """Decode the networks of a stored model, and validate their weights."""
    entries = convert(state.settings, dict[str, list[Any]], TRANSFORMER).get("networks", [])
    networks = []
    for fold, entry in enumerate(entries, start=1):
        config = ModelConfig.from_plain(entry, f"network {fold} of the model")
        prefix = f"{fold}/"
        weights = {
            name.removeprefix(prefix): torch.from_numpy(array)
            for name, array in state.arrays.items()
            if name.startswith(prefix)
        }
        networks.append(StoredNetwork(config, weights))
        networks[-1].check()
    if not networks:
        raise Mismatch("the transformer has no network")
    return networks


def read_networks(path: Path) -> list[StoredNetwork]:
    """Read the networks of a model folder, without its other members."""
    folder = model_folder.read(path)
    if TRANSFORMER not in folder.members:
        raise DataError(
            "The model has no network",
            f"'{path}' has {', '.join(folder.members)}",
            "train with the member transformer, or give an encoder of `aam pretrain`",
        )
    state = folder.state(TRANSFORMER)
    try:
        return restore_networks(state)
    except Mismatch as error:
        raise model_folder.damaged(f"'{folder.path}', {error}") from error
