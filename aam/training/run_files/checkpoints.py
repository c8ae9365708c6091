"""Checkpoint files: find, write, read with validation, and load weights.

A checkpoint is a file of `aam.serialization.tensor_file`. It holds a `ModelConfig`, the weights,
the summary of the training samples, and the state from which the training loop resumes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from aam.contract import schema
from aam.contract.errors import DataError, MissingInput
from aam.contract.files import atomic_write
from aam.contract.options.device import DeviceOptions
from aam.contract.schema import Mismatch
from aam.inference import training_summary
from aam.inference.model_config import ModelConfig, from_plain, to_plain
from aam.inference.prediction import LoadedModel, build_models
from aam.inference.training_summary import TrainingSummary
from aam.numerics.backend_selection import TORCH_POLICY, BackendPolicy
from aam.serialization import tensor_file
from aam.training.run_files import checkpoint_paths, resume
from aam.training.run_files.checkpoint_schema import check_weights
from aam.training.run_files.resume import ResumeState

_KEY, _WEIGHTS = "aam", "state_dict"
"""Keys of the model configuration and of the weights in a checkpoint."""

TRAINING = "training"
"""Key of the training summary; `read` puts a `TrainingSummary` or None there."""

RESUME = "resume"
"""Key of the resume state; `read` puts a `ResumeState` or None there."""

_CONTENT = {
    _KEY: dict[str, Any],
    _WEIGHTS: dict[str, torch.Tensor],
    TRAINING: dict[str, Any] | None,
    RESUME: dict[str, Any] | None,
}


def write(
    path: Path, config: ModelConfig, weights: Mapping[str, torch.Tensor], state: ResumeState
) -> None:
    """Write a checkpoint atomically: a process that is killed leaves the one before.

    Args:
        weights: of the training module, by name.
    """
    content = {_KEY: to_plain(config), _WEIGHTS: weights, TRAINING: None, RESUME: state.plain()}
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
        config = from_plain(content[_KEY], path)
        content = schema.parse(_CONTENT, content, "the checkpoint")
        check_weights(config, content[_WEIGHTS])
        summary, state = content[TRAINING], content[RESUME]
        content[TRAINING] = training_summary.parse(summary, config.shape.embedding_dim)
        content[RESUME] = None if state is None else resume.parse(state)
    except Mismatch as error:
        raise DataError(
            "The checkpoint has invalid content", f"'{path}', {error}", "choose another one"
        ) from error
    return config, content


def plain(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a validated checkpoint without its resume state, to be written."""
    summary: TrainingSummary | None = content[TRAINING]
    return content | {TRAINING: None if summary is None else vars(summary), RESUME: None}


def encoder_weights(config: ModelConfig, content: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the weights of the encoder in a checkpoint of `aam pretrain` or `aam train`."""
    prefix = "network." if config.target is None else "network.encoder."
    weights = content["state_dict"]
    return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}


def add_training_summary(path: Path, summary: TrainingSummary) -> None:
    """Add the summary of the training samples to a checkpoint, which is replaced atomically."""
    tensor_file.write(path, tensor_file.read(path) | {TRAINING: vars(summary)})


def load_models(
    path: Path, device: DeviceOptions, policy: BackendPolicy = TORCH_POLICY
) -> list[LoadedModel]:
    """Load the model of a checkpoint or run folder; of a cross-validated run, one per fold.

    `policy` selects the attention backends.

    Raises:
        MissingInput: there is no checkpoint.
        DataError: it cannot be read, is of another program or a newer version, or the folds differ.
    """
    if not path.exists():
        raise MissingInput(
            "No model", f"'{path}' does not exist", "name a checkpoint or run folder"
        )
    files = checkpoint_files(path)
    return build_models([read(file) for file in files], files, device, policy)


def checkpoint_files(path: Path) -> list[Path]:
    """Return the chosen checkpoint of a run folder, or of each fold of it, or the file itself.

    Raises:
        MissingInput: there is no checkpoint.
    """
    folds = (
        sorted(path.glob("fold-*"), key=lambda p: (len(p.name), p.name)) if path.is_dir() else []
    )
    files = []
    for folder in folds or [path]:
        best = (folder / "checkpoints" / "best.ckpt").exists()
        files.append(checkpoint_paths.find(folder, "best.ckpt" if best else "last.ckpt"))
    return files
