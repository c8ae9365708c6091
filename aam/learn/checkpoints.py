"""Checkpoint files: self-sufficient, and read without running code from them.

Beside the weights and the state of the loop a checkpoint holds a `Recipe`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from aam.errors import AamError, DataError, MissingInput
from aam.learn.recipe import Recipe, from_plain, to_plain
from aam.model.network import Encoder, Predictor
from aam.options.groups import RunOptions
from aam.ranks import portable, sharded

_KEY = "aam"
"""Where the recipe lies in a checkpoint."""


def find(path: Path, name: str) -> Path:
    """Return the checkpoint file meant by `path`: itself, or `name` of a run folder.

    Raises:
        MissingInput: there is no such file.
    """
    folder = path.is_dir() and not sharded.is_sharded(path)
    file = path / "checkpoints" / name if folder else path
    if not file.is_file() and not sharded.is_sharded(file):
        raise MissingInput(
            "No checkpoint", f"'{file}' does not exist", "name a file or a run folder"
        )
    return file


def to_resume(run: RunOptions) -> Path | None:
    """Return the checkpoint that a run goes on from; None if it begins.

    Raises:
        MissingInput: the one that was named is not there.
    """
    if run.resume_from is None:
        return None
    if run.resume_from == "auto":
        file = run.output_dir / "checkpoints" / "last.ckpt"
        return file if file.exists() else None
    return find(run.resume_from, "last.ckpt")


def read(path: Path) -> tuple[Recipe, dict[str, Any]]:
    """Read the recipe and the whole content of a checkpoint, on the CPU.

    It may be one file or the shards of several ranks.

    Raises:
        DataError: the file is damaged, of another program, or newer than this program.
    """
    try:
        if sharded.is_sharded(path):
            content = sharded.read(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except AamError:
        raise
    except Exception as error:  # torch's reader raises what it stumbles over in a foreign file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            "The checkpoint cannot be read", f"'{path}', {reason}", "choose another"
        ) from error
    if not isinstance(content, dict) or _KEY not in content:
        raise DataError(
            "Not a checkpoint of this program", f"'{path}'", "name one that `aam` wrote"
        )
    recipe = from_plain(content[_KEY], path)
    if content[_KEY]["format"] < 2:
        _from_first_format(content["state_dict"])
    return recipe, content


def load_weights(network: Encoder | Predictor, content: dict[str, Any]) -> None:
    """Give `network` the weights of a checkpoint's content.

    Raises:
        DataError: they are of another network.
    """
    prefix = "network."
    weights = {
        name.removeprefix(prefix): value
        for name, value in content["state_dict"].items()
        if name.startswith(prefix)
    }
    portable.load_model(network, weights)


def encoder_weights(recipe: Recipe, content: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the weights of the encoder in a checkpoint of either kind."""
    prefix = "network." if recipe.target is None else "network.encoder."
    weights = content["state_dict"]
    return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}


def _from_first_format(weights: dict[str, torch.Tensor]) -> None:
    """Bring the weights of format 1 up to date: the scale of distances was a number there."""
    for name, value in weights.items():
        if name.endswith("distance.scale"):
            weights[name] = value.reshape(1)


def attach(content: dict[str, Any], recipe: Recipe) -> None:
    """Put the recipe into the content of a checkpoint that is about to be written."""
    content[_KEY] = to_plain(recipe)
