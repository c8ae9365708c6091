"""Checkpoint files: find, copy, read with validation, and load weights.

A checkpoint holds the weights, the state of the training loop and a `ModelConfig`. Reading one runs
no code from it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from aam.contract.errors import DataError, MissingInput, UsageError
from aam.contract.files import atomic_write
from aam.contract.options.training import RunOptions
from aam.contract.preflight import target_folders
from aam.contract.schema import Mismatch
from aam.distributed import sharded_checkpoint
from aam.model.attention import AUTO, Backends
from aam.model.network import Encoder, Predictor
from aam.serialization import archive
from aam.training.inference import training_summary
from aam.training.inference.training_summary import TrainingSummary
from aam.training.model_config import ModelConfig, from_plain, to_plain
from aam.training.run_files.checkpoint_schema import check_content, check_weights

_KEY = "aam"
"""Key of the model configuration in a checkpoint."""

TRAINING = "training"
"""Key of the training summary; `read` puts a `TrainingSummary` or None there."""


def find(path: Path, name: str) -> Path:
    """Return the checkpoint at `path`: the file itself, or the file `name` of a run folder.

    Raises:
        MissingInput: there is no such file.
    """
    file = path / "checkpoints" / name if _is_run(path) else path
    if file.exists() and (file.is_file() or sharded_checkpoint.is_sharded(file)):
        return file
    if file == path:
        raise MissingInput("No checkpoint", f"'{file}' does not exist", "name a file or run folder")
    if targets := target_folders(path):
        raise MissingInput(
            "A run of several targets",
            f"'{path}' has {', '.join(folder.name for folder in targets)}",
            "name the folder of one target",
        )
    absent = f"the folder '{path}' has no checkpoints/{name}"
    if others := sorted(other.name for other in file.parent.glob("*.ckpt")):
        raise MissingInput(
            "No checkpoint of a network",
            f"{absent}, but {', '.join(others)}",
            "name the run folder of `aam pretrain`, or of `aam train --members transformer`",
        )
    raise MissingInput("No checkpoint", absent, "name the --output-dir of a run")


def _resumed_source(run: RunOptions) -> Path | None:
    """Return the run folder or checkpoint of --resume-from; None without the option."""
    return run.output_dir if run.resume_from == "auto" else run.resume_from


def checkpoint_to_resume(run: RunOptions, folder: Path) -> Path | None:
    """Return the checkpoint that the fit of `folder` resumes from; None if it begins.

    `folder` is the run folder or that of a fold in it.
    """
    source = _resumed_source(run)
    if source is None or (source.exists() and not _is_run(source)):
        return source
    file = source / folder.relative_to(run.output_dir) / "checkpoints" / "last.ckpt"
    return file if file.exists() else None


def resumed_checkpoint(run: RunOptions) -> Path | None:
    """Return a checkpoint of the run that is resumed, of any of its folds; None if a run begins.

    Raises:
        MissingInput: the run of --resume-from has none.
    """
    source = _resumed_source(run)
    if source is None:
        return None
    last = Path("checkpoints") / "last.ckpt"
    folders = (source, *sorted(source.glob("fold-*"))) if _is_run(source) else ()
    found = next((folder / last for folder in folders if (folder / last).exists()), None)
    return found if found or run.resume_from == "auto" else find(source, "last.ckpt")


def check_folds(run: RunOptions) -> None:
    """Refuse to resume several folds from one checkpoint.

    Raises:
        UsageError: --resume-from names a checkpoint.
    """
    if isinstance(run.resume_from, Path) and not _is_run(run.resume_from):
        raise UsageError(
            "A cross-validation resumes from its run folder",
            f"--resume-from '{run.resume_from}' is one checkpoint",
            "name the run folder that contains the folds",
        )


def run_folder_of(checkpoint: Path) -> Path:
    """Return the run folder of a checkpoint."""
    folder = checkpoint.parent.parent
    of_fold = folder.name.startswith("fold-") and (folder.parent / "run.json").exists()
    return folder.parent if of_fold else folder


def _is_run(path: Path) -> bool:
    return path.is_dir() and not sharded_checkpoint.is_sharded(path)


def copy(checkpoint: Path, folder: Path) -> None:
    """Copy a checkpoint, one file or shards, into a folder of checkpoints, as a whole."""
    with atomic_write(folder / checkpoint.name) as temporary:
        if sharded_checkpoint.is_sharded(checkpoint):
            shards = checkpoint.resolve()
            shutil.copytree(shards, folder / shards.name, dirs_exist_ok=True)
            temporary.symlink_to(shards.name)
        else:
            shutil.copyfile(checkpoint, temporary)


def read(path: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Read the model configuration and the content of a checkpoint, on the CPU.

    The checkpoint may be one file or the shards of several ranks. All entries are validated against
    their schema before any of them is used.

    Raises:
        MissingInput: the file may not be read.
        DataError: it is damaged, of another program, or of another version's format.
    """
    sharded = sharded_checkpoint.is_sharded(path)
    return validate(sharded_checkpoint.read(path) if sharded else archive.read(path), path)


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
        check_content(content)
        check_weights(config, content["state_dict"])
        content[TRAINING] = training_summary.parse(
            content.get(TRAINING), config.shape.embedding_dim
        )
    except Mismatch as error:
        raise DataError(
            "The checkpoint has invalid content", f"'{path}', {error}", "choose another one"
        ) from error
    return config, content


def plain(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a validated checkpoint as it is written to a file."""
    summary: TrainingSummary | None = content[TRAINING]
    return content | {TRAINING: None if summary is None else vars(summary)}


def load_network(
    config: ModelConfig, content: dict[str, Any], backends: Backends = AUTO
) -> Encoder | Predictor:
    """Build the network of a checkpoint with its weights.

    Raises:
        DataError: they are of another network.
    """
    # Its packages of PyTorch take 0.8 CPU-seconds to import, which models without a network save.
    from aam.distributed import state_dict

    network = config.network(backends)
    weights = content["state_dict"]
    state_dict.load_model(network, {k.removeprefix("network."): v for k, v in weights.items()})
    return network


def encoder_weights(config: ModelConfig, content: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the weights of the encoder in a checkpoint of `aam pretrain` or `aam train`."""
    prefix = "network." if config.target is None else "network.encoder."
    weights = content["state_dict"]
    return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}


def add_training_summary(path: Path, summary: TrainingSummary) -> None:
    """Add the summary of the training samples to a checkpoint, which is replaced atomically."""
    file = sharded_checkpoint.rest(path) if sharded_checkpoint.is_sharded(path) else path
    content = archive.read(file) | {TRAINING: vars(summary)}
    with atomic_write(file) as temporary:
        torch.save(content, temporary)


def add_config(content: dict[str, Any], config: ModelConfig) -> None:
    """Add the model configuration to the content of a checkpoint before it is written."""
    content[_KEY] = to_plain(config)
