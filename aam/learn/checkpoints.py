"""Checkpoint files: self-sufficient, and read without running code from them.

Beside the weights and the state of the loop a checkpoint holds a `Recipe`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from aam.errors import DataError, MissingInput
from aam.learn.recipe import Recipe, from_plain, to_plain
from aam.model.network import Encoder, Predictor

_KEY = "aam"
"""Where the recipe lies in a checkpoint."""


def find(path: Path, name: str) -> Path:
    """Return the checkpoint file meant by `path`: itself, or `name` of a run folder.

    Raises:
        MissingInput: there is no such file.
    """
    file = path / "checkpoints" / name if path.is_dir() else path
    if not file.is_file():
        raise MissingInput(
            "No checkpoint", f"'{file}' does not exist", "name a file or a run folder"
        )
    return file


def read(path: Path) -> tuple[Recipe, dict[str, Any]]:
    """Read the recipe and the whole content of a checkpoint file, on the CPU.

    Raises:
        DataError: the file is damaged, of another program, or newer than this program.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader raises what it stumbles over in a foreign file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            "The checkpoint cannot be read", f"'{path}', {reason}", "choose another"
        ) from error
    if not isinstance(content, dict) or _KEY not in content:
        raise DataError(
            "Not a checkpoint of this program", f"'{path}'", "name one that `aam` wrote"
        )
    return from_plain(content[_KEY], path), content


def load_weights(network: Encoder | Predictor, content: dict[str, Any]) -> None:
    """Give `network` the weights of a checkpoint's content."""
    prefix = "network."
    network.load_state_dict(
        {
            name.removeprefix(prefix): value
            for name, value in content["state_dict"].items()
            if name.startswith(prefix)
        }
    )


def encoder_weights(recipe: Recipe, content: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the weights of the encoder in a checkpoint of either kind."""
    prefix = "network." if recipe.target is None else "network.encoder."
    weights = content["state_dict"]
    return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}


def attach(content: dict[str, Any], recipe: Recipe) -> None:
    """Put the recipe into the content of a checkpoint that is about to be written."""
    content[_KEY] = to_plain(recipe)
