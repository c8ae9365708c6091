"""Checkpoint files: find, write, read with validation, and load weights.

A checkpoint is a file of `aam.serialization.tensor_file`. It holds a `ModelConfig`, the weights
and the state from which the training loop resumes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from aam.contract import schema
from aam.contract.errors import DataError
from aam.contract.files import atomic_write
from aam.contract.schema import Mismatch
from aam.inference.model_config import ModelConfig, from_plain, to_plain
from aam.inference.stored_networks import StoredNetwork, check_weights
from aam.serialization import tensor_file
from aam.training.run_files import resume
from aam.training.run_files.resume import ResumeState

_KEY, _WEIGHTS = "aam", "state_dict"
"""Keys of the model configuration and of the weights in a checkpoint."""

RESUME = "resume"
"""Key of the resume state; `read` puts a `ResumeState` or None there."""

_CONTENT = {
    _KEY: dict[str, Any],
    _WEIGHTS: dict[str, torch.Tensor],
    RESUME: dict[str, Any] | None,
}


def write(
    path: Path, config: ModelConfig, weights: Mapping[str, torch.Tensor], state: ResumeState
) -> None:
    """Write a checkpoint atomically: a process that is killed leaves the one before.

    Args:
        path: file to write; an existing one is replaced when the new one is complete.
        config: configuration of the model.
        weights: whole weights of the training module, by name.
        state: state from which a run resumes.
    """
    content = {_KEY: to_plain(config), _WEIGHTS: weights, RESUME: state.plain()}
    tensor_file.write(path, content)


def copy(checkpoint: Path, target: Path) -> None:
    """Copy a checkpoint atomically."""
    with atomic_write(target) as temporary:
        shutil.copyfile(checkpoint, temporary)


def read(path: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Read the model configuration and the content of a checkpoint, on the CPU.

    All entries are validated against their schema before any of them is used.

    Raises:
        MissingInput: the file may not be read.
        DataError: it is damaged, of another program, or of another version's format.
    """
    return validate(tensor_file.read(path), path)


def read_resume_state(path: Path) -> tuple[dict[str, torch.Tensor], ResumeState]:
    """Read the weights and the resume state of a checkpoint.

    Raises:
        MissingInput, DataError: see `read`.
        DataError: it has no resume state.
    """
    _, content = read(path)
    if content[RESUME] is None:
        raise unusable(path, "it has no resume state")
    return content[_WEIGHTS], content[RESUME]


def unusable(path: Path, reason: object) -> DataError:
    """Return the error of a checkpoint whose resume state does not fit a run."""
    return DataError(
        "The checkpoint holds no training state that fits this run",
        f"'{path}', {reason}",
        "resume from another one, or start a new run without --resume-from",
    )


def validate(content: Any, path: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Return the model configuration and the content of a checkpoint, validated.

    Raises:
        DataError: it is of another program, invalid, or of another version's format; `path` is
            named.
    """
    if not isinstance(content, dict) or _KEY not in content:
        raise DataError(
            "Not a checkpoint of this program", f"'{path}'", "name one that `aam` wrote"
        )
    try:
        config = from_plain(content[_KEY], f"'{path}'")
        content = schema.parse(_CONTENT, content, "the checkpoint")
        # Before a network is built from the configuration, whose sizes may be those of a damaged
        # file.
        check_weights(config, network_weights(content[_WEIGHTS]))
        state = content[RESUME]
        content[RESUME] = None if state is None else resume.parse(state)
    except Mismatch as error:
        raise DataError(
            "The checkpoint has invalid content", f"'{path}', {error}", "choose another one"
        ) from error
    return config, content


def read_network(path: Path) -> StoredNetwork:
    """Read the network of a checkpoint, without its resume state; raises as `read`."""
    config, content = read(path)
    return StoredNetwork(config, network_weights(content[_WEIGHTS]))


def network_weights(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights of the network in those of a training module."""
    return {name.removeprefix("network."): weight for name, weight in weights.items()}
