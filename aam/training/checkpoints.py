"""Checkpoint files: find, write, read with validation, and load weights.

A checkpoint is a file of `aam.serialization.tensor_file`. It holds a `ModelConfig`, the weights
and the state from which the training loop resumes.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from aam.contract import schema
from aam.contract.errors import DataError
from aam.contract.files import atomic_write
from aam.contract.options.field import ZERO_OR_MORE
from aam.contract.schema import Mismatch
from aam.inference.stored_networks import (
    ModelConfig,
    StoredNetwork,
    check_weights,
    from_plain,
    to_plain,
)
from aam.serialization import tensor_file
from aam.training import checkpoints

Count = Annotated[int, ZERO_OR_MORE]
Row = dict[str, float]
"""Row of metrics.csv, by column."""


@dataclass(frozen=True)
class Position:
    """Position of a training loop.

    Attributes:
        epoch: number of complete epochs, validation included.
        batch: batches of the current epoch whose optimizer step is done.
        step: optimizer steps since the start of the run.
    """

    epoch: Count
    batch: Count
    step: Count


_PLAIN = {
    "position": Position,
    "sums": dict[str, tuple[Real, Real]],  # not finite where fp16 overflowed
    "best": Real | None,
    "waited": Count,
    "rows": list[dict[str, Real]],
    "seconds": float,
    "optimizer": {
        "state": dict[str, dict[str, Tensor]],
        "param_groups": [{"params": list[str]}],
    },
    "schedule": dict[str, Any],
    "scaler": dict[str, Real],
}
"""Entries of a resume state. The optimizer, its schedule and the loss scaler are compared with new
ones when a run is resumed."""


@dataclass(frozen=True)
class ResumeState:
    """State of a training loop, beside the weights.

    Attributes:
        position: epochs, batches and optimizer steps done.
        sums: total and number of each training metric in the current epoch.
        best: best value of the metric that chooses the epoch; None before the first validation.
        waited: number of epochs since the metric improved.
        rows: rows of metrics.csv.
        seconds: duration of the run until now.
        optimizer: state by parameter name, whole tensors.
        schedule: state of the learning-rate schedule.
        scaler: state of the loss scaler of fp16; empty in other precisions.
    """

    position: Position
    sums: Mapping[str, tuple[float, float]]
    best: float | None
    waited: int
    rows: list[Row]
    seconds: float
    optimizer: dict[str, Any]
    schedule: dict[str, Any]
    scaler: dict[str, Any]

    def plain(self) -> dict[str, Any]:
        """Return the state as dictionaries, lists, numbers and tensors."""
        return vars(self) | {"position": dataclasses.asdict(self.position)}


def parse(stored: Any) -> ResumeState:
    """Validate the resume state of a checkpoint.

    Raises:
        Mismatch: an entry is missing, of another type or out of range.
    """
    found = schema.parse(_PLAIN, stored, "resume")
    if any(not {"epoch", "step", "seconds", "lr"} <= row.keys() for row in found["rows"]):
        raise Mismatch("resume.rows has a row without epoch, step, seconds or lr")
    return ResumeState(**{name: found[name] for name in _PLAIN})


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
        content[RESUME] = None if state is None else checkpoints.parse(state)
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
