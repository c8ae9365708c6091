"""Stored networks: weights with the configuration of their network, validated against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from aam.contract import schema
from aam.contract.errors import DataError
from aam.contract.schema import Mismatch
from aam.inference.model_config import ModelConfig, from_plain, to_plain
from aam.model.attention import AUTO, Backends
from aam.model.network import Encoder, Predictor
from aam.serialization import model_folder
from aam.serialization.model_folder import State

TRANSFORMER = "transformer"
"""Name of the member that the networks are."""


class _ShapesOnly(TorchFunctionMode):
    """Torch function mode that skips random numbers and arithmetic on the meta device.

    The meta kernels for them are written in Python and import 800 modules, which takes a second.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("normal_", "div", "__truediv__", "mul", "__mul__"):
            return args[0] if args else given["tensor"]
        return (torch.empty if name in ("rand", "randn") else func)(*args, **given)


def check_weights(config: ModelConfig, weights: dict[str, Tensor]) -> None:
    """Validate names, shapes and types of weights against the network of a configuration.

    Raises:
        Mismatch: a name, a shape or a type differs, or a weight is not finite.
    """
    shape = config.shape
    if shape.embedding_dim % shape.attention_heads:
        raise Mismatch(f"the heads ({shape.attention_heads}) do not divide the width")
    if shape.attention_layers > len(weights):  # building a million layers takes hours
        raise Mismatch(f"{shape.attention_layers} layers have {len(weights)} weights")
    try:
        with torch.device("meta"), _ShapesOnly():  # shapes alone, without memory
            network = config.network()
    except (RuntimeError, TypeError, OverflowError) as error:
        raise Mismatch("the network of the config is larger than any memory") from error
    # The weights are untrusted: they are compared with the shapes before memory is allocated.
    expected = network.state_dict()
    other = sorted(expected.keys() ^ weights.keys())
    if other:
        more = f" and {len(other) - 1} more are" if len(other) > 1 else " is"
        raise Mismatch(f"'{other[0]}'{more} of another network")
    for name, value in weights.items():
        new = expected[name]
        if value.shape != new.shape or value.is_floating_point() != new.is_floating_point():
            raise Mismatch(f"'{name}' is {tuple(value.shape)}, the network has {tuple(new.shape)}")
        if not bool(torch.isfinite(value).all()):
            raise Mismatch(f"'{name}' has values that are not finite")


@dataclass(frozen=True)
class StoredNetwork:
    """Configuration and weights of a network.

    Attributes:
        config: configuration from which the network is built.
        weights: arrays by parameter name, on the CPU.
    """

    config: ModelConfig
    weights: Mapping[str, Tensor]

    def build(self, backends: Backends = AUTO) -> Encoder | Predictor:
        """Build the network."""
        network = self.config.network(backends)
        network.load_state_dict(self.weights)
        return network

    @property
    def encoder_weights(self) -> dict[str, Tensor]:
        """Weights of its encoder."""
        prefix = "" if self.config.target is None else "encoder."
        names = self.weights.items()
        return {name.removeprefix(prefix): w for name, w in names if name.startswith(prefix)}


def network_state(networks: Sequence[StoredNetwork]) -> State:
    """Return the state of networks, one for each fold."""
    arrays = {
        f"{fold}/{name}": weight.detach().cpu().numpy()
        for fold, network in enumerate(networks, start=1)
        for name, weight in network.weights.items()
    }
    return State({"networks": [to_plain(network.config) for network in networks]}, arrays)


def restore_networks(state: State) -> list[StoredNetwork]:
    """Build networks from their state, and validate their weights.

    Raises:
        Mismatch: the state is not one of `network_state`.
    """
    entries = schema.parse({"networks": list[Any]}, state.settings, "transformer")["networks"]
    found = []
    for fold, entry in enumerate(entries, start=1):
        config, prefix = from_plain(entry, f"network {fold} of the model"), f"{fold}/"
        weights = {
            name.removeprefix(prefix): torch.from_numpy(array)
            for name, array in state.arrays.items()
            if name.startswith(prefix)
        }
        check_weights(config, weights)
        found.append(StoredNetwork(config, weights))
    if not found:
        raise Mismatch("the transformer has no network")
    return found


def read_networks(path: Path) -> list[StoredNetwork]:
    """Read the networks of a model, and no other member.

    Args:
        path: path of a run folder or a model folder.

    Raises:
        MissingInput, DataError: see `model_folder.read`; DataError: the model has no network.
    """
    folder = model_folder.read(path)
    if TRANSFORMER not in folder.members:
        raise DataError(
            "The model has no network",
            f"'{path}' has {', '.join(folder.members)}",
            "train with the member transformer, or use an encoder of `aam pretrain`",
        )
    state = folder.state(TRANSFORMER)
    try:
        return restore_networks(state)
    except Mismatch as error:
        raise model_folder.damaged(f"'{folder.path}', {error}") from error
