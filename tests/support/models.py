"""Model folders with other content, and networks in memory, for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from aam.network.inference.outputs import LoadedNetwork
from aam.network.inference.stored_networks import ModelConfig, StoredNetwork
from aam.network.model.network import Encoder, Predictor
from aam.serialization import model_folder
from aam.serialization.model_folder import State


@dataclass
class Editable:
    """Content of a model folder, to be changed."""

    facts: dict[str, Any]
    settings: dict[str, dict[str, Any]]
    arrays: dict[str, dict[str, npt.NDArray[Any]]]


def rewrite(source: Path, target: Path, change: Callable[[Editable], object]) -> Path:
    """Write a changed copy of a model, whose sizes and checksums are right; return its path."""
    folder = model_folder.read(source)
    arrays = {name: folder.arrays(name) for name in folder.files}
    content = Editable(dict(folder.facts), dict(folder.members), arrays)
    change(content)
    members = {
        name: State(settings, content.arrays.pop(name, {}))
        for name, settings in content.settings.items()
    }
    model_folder.write(target, folder.command, members, content.facts, content.arrays)
    return target


def loaded(config: ModelConfig, network: Encoder | Predictor) -> LoadedNetwork:
    """Return a network in memory as one that is read."""
    stored = StoredNetwork(config, network.state_dict())
    return LoadedNetwork(stored, network, torch.device("cpu"), {})
