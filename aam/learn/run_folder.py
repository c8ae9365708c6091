"""The run folder: what may be in it before a run, and `run.json`, which says who ran what."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aam import record
from aam.console import say
from aam.errors import CannotCreate, DataError, UsageError
from aam.learn import checkpoints
from aam.ranks.processes import ALONE, Ranks

_OURS = ("run.json", "checkpoints", "metrics.csv", "progress.json", "tensorboard", "splits.tsv",
         "predictions.tsv", "embeddings.tsv", "report.html")  # fmt: skip
_DECISIVE = ("embedding_dim", "attention_heads", "attention_layers", "nucleotide_patch",
             "metadata_column", "classifier", "target_transform", "loss_type", "quantiles",
             "freeze_base", "profile_features", "unifrac_metric", "rarefy_depth", "token_limit",
             "nuc_mask_ratio", "nuc_mask_strategy", "test_size", "batch_size",
             "gradient_accumulation_steps", "even_batches", "optimizer", "scheduler", "lr",
             "warmup_fraction", "weight_decay", "seed")  # fmt: skip


def prepare(folder: Path, overwrite: bool, resuming: bool) -> None:
    """Refuse a run folder that a run may not use; nothing is made or removed yet (see `begin`).

    Raises:
        CannotCreate: it holds a run and neither --overwrite nor --resume-from was given, or it
            cannot be made or written to.
    """
    try:
        held = _held(folder)
    except OSError as error:
        reason = f"'{folder}', {error.strerror}"
        raise CannotCreate(
            "The run folder cannot be looked at", reason, "choose another --output-dir"
        ) from error
    if held and not (overwrite or resuming):
        raise CannotCreate(
            "The folder already holds a run",
            f"'{folder}' has {', '.join(held)}",
            "continue it with --resume-from, replace it with --overwrite, or choose another",
        )
    place = folder.absolute()
    there = next(above for above in (place, *place.parents) if os.path.lexists(above))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        reason = "may not be written to" if there.is_dir() else "is no folder"
        raise CannotCreate(
            "The run folder cannot be made or written to",
            f"'{folder}', '{there}' {reason}",
            "choose another --output-dir",
        )


def _held(folder: Path) -> list[str]:
    """Name what a run left in the folder."""
    if not folder.is_dir():
        return []
    held = [name for name in _OURS if (folder / name).exists()]
    return held + sorted(path.name for path in folder.glob("fold-*"))


def _clear(folder: Path) -> None:
    """Remove what a run left in the folder, and nothing else."""
    for name in _held(folder):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@dataclass
class RunRecord:
    """What `run.json` says; written at the start, and again at the end with the results.

    Only the first of several processes writes it.
    """

    folder: Path
    content: dict[str, Any]
    began: float
    first: bool = True

    def note(self, name: str, fact: Any) -> None:
        """Add a fact of a run that goes on, and write the file."""
        self.content[name] = fact
        self.write()

    def finish(self, **results: Any) -> None:
        """Add results and the time taken, and write the file."""
        self.content |= results
        self.content["finished"] = record.now()
        self.content["seconds"] = round(time.monotonic() - self.began, 1)
        self.write()

    def write(self) -> None:
        """Write the file whole."""
        if self.first:
            record.write(self.folder / "run.json", self.content)


def begin(
    command: str, options: Any, folder: Path, ranks: Ranks = ALONE, **facts: Any
) -> RunRecord:
    """Start the record of a run: versions, host, command line, options and inputs' SHA-256.

    `facts` are added as they are.

    Here a run that is to be replaced is removed: its files stay until the new input is known to
    serve.

    Raises:
        MissingInput: nothing to resume from.
        DataError: what is to be resumed cannot be read, or is of another command.
        UsageError: options that decide the numbers differ from those of the run that is resumed.
    """
    content = {**record.describe(command, options), **facts}
    content["host"]["devices"] = _devices()
    content["host"]["processes"] = ranks.size
    resumed = checkpoints.to_resume(options.run)
    if resumed is not None:
        _check_resumed(command, content["options"], resumed)
    elif options.run.overwrite and ranks.first:
        _clear(folder)
    if options.run.resume_from == "auto":
        say(f"Resuming from '{resumed}'." if resumed else "Nothing to resume from; starting.")
    run = RunRecord(folder, content, time.monotonic(), ranks.first)
    run.write()
    return run


def _check_resumed(command: str, options: dict[str, Any], path: Path) -> None:
    """Refuse to continue a run as if it were another."""
    recipe, _ = checkpoints.read(path)
    if recipe.command != command:
        raise DataError(
            "The checkpoint is of another command",
            f"'{path}' is of `aam {recipe.command}`",
            f"resume it with that, or start `aam {command}` anew",
        )
    before, now = _decisive(recipe.options), _decisive(options)
    other = [name for name in before if name in now and before[name] != now[name]]
    if other:
        changed = [f"--{n.replace('_', '-')} {now[n]} (was {before[n]})" for n in other]
        raise UsageError(
            "The run that is resumed had other options",
            ", ".join(changed),
            "give the same, or start anew without --resume-from",
        )


def _decisive(options: dict[str, Any]) -> dict[str, Any]:
    """Options that a resumed run must share with its first part, by field."""
    flat = {name: value for name, value in options.items() if name in _DECISIVE}
    for group in options.values():
        if isinstance(group, dict):
            flat |= _decisive(group)
    return flat


def _devices() -> list[str]:
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
