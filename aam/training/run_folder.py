"""The run folder: whether a run may begin or resume in it, and its record `run.json`."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aam.console import say, warn
from aam.contract import run_record
from aam.contract.errors import CannotCreate, DataError, UsageError
from aam.contract.options import from_plain, specs
from aam.distributed.environment import ALONE, Ranks
from aam.training import checkpoints, run_lock

_OURS = ("run.json", "checkpoints", "metrics.csv", "progress.json", "tensorboard", "splits.tsv",
         "predictions.tsv", "embeddings.tsv", "report.html")  # fmt: skip
_WRITTEN = ("run.json", "checkpoints/last.ckpt", "checkpoints/best.ckpt", "metrics.csv",
            "progress.json", "splits.tsv", "predictions.tsv", "embeddings.tsv")  # fmt: skip


@dataclass(frozen=True)
class PreparedFolder:
    """A run folder that a run may use, and what the run's record begins with.

    Attributes:
        folder: the run folder.
        content: of `run.json`: versions, host, command line, options, inputs' SHA-256.
        resumed: folder of the run that is resumed; None if a run begins.
        overwrite: whether a run that is in the folder is to be replaced.
        usable: whether the folder may hold a run.
    """

    folder: Path
    content: dict[str, Any]
    resumed: Path | None
    overwrite: bool
    usable: bool

    @property
    def splits(self) -> Path | None:
        """The splits of the run that is resumed, if it has left them."""
        path = self.resumed and self.resumed / "splits.tsv"
        return path if path and path.exists() else None


def prepare(command: str, options: Any, ranks: Ranks = ALONE) -> PreparedFolder:
    """Refuse a run folder that a run may not use, or a run that may not be resumed.

    Nothing is made or removed yet (see `begin`).

    Raises:
        CannotCreate: the folder holds a run and neither --overwrite nor --resume-from was given,
            another training writes to it, or it cannot be made or written to.
        MissingInput: nothing to resume from.
        DataError: what is to be resumed cannot be read, is of another command or of other input.
        UsageError: options that a resumed run may not change differ.
    """
    folder, resume_from = options.run.output_dir, options.run.resume_from
    usable = options.run.overwrite or resume_from is not None
    _check_folder(folder, usable)
    if ranks.first:
        run_lock.check(folder)
    content = run_record.describe(command, options)
    content["host"]["devices"] = _devices()
    content["host"]["processes"] = ranks.size
    checkpoint = checkpoints.resumed_checkpoint(options.run)
    if checkpoint is None:
        if resume_from == "auto":
            say("Nothing to resume from; starting.")
        return PreparedFolder(folder, content, None, options.run.overwrite, usable)
    _check_options(command, options, checkpoint)
    resumed = checkpoints.run_folder_of(checkpoint)
    _check_inputs(content["inputs"], resumed)
    say(f"Resuming from '{resume_from if resume_from != 'auto' else resumed}'.")
    return PreparedFolder(folder, content, resumed, overwrite=False, usable=True)


def _check_folder(folder: Path, usable: bool) -> None:
    """Refuse a folder that cannot be written to, or that holds a run unless that is `usable`."""
    try:
        held = _held(folder)
    except OSError as error:
        reason = f"'{folder}', {error.strerror}"
        raise CannotCreate(
            "The run folder cannot be looked at", reason, "choose another --output-dir"
        ) from error
    if held and not usable:
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


def _remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that killed processes, of any host, left in a locked folder."""
    for place in (folder, *folder.glob("fold-*")):
        for name in _WRITTEN:
            file = place / name
            for left in file.parent.glob(f".{file.stem}.*{file.suffix}"):
                left.unlink(missing_ok=True)


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
        self.content["finished"] = run_record.now()
        self.content["seconds"] = round(time.monotonic() - self.began, 1)
        self.write()

    def write(self) -> None:
        """Write the file whole."""
        if self.first:
            run_record.write(self.folder / "run.json", self.content)


@contextmanager
def begin(prepared: PreparedFolder, ranks: Ranks = ALONE, **facts: Any) -> Iterator[RunRecord]:
    """Lock the run folder while the block runs, and start the record of the run in it.

    `facts` are added to the record as they are. Here a run that is to be replaced is removed: its
    files stay until the new input is known to serve.

    Raises:
        CannotCreate: another training has begun in the folder.
    """
    folder = prepared.folder
    with run_lock.locked(folder) if ranks.first else nullcontext(False) as held:
        if ranks.first:
            # Another training may have begun, and even ended, since `prepare`.
            _check_folder(folder, prepared.usable)
            if prepared.overwrite:
                _clear(folder)
        if held:
            _remove_leftovers(folder)
        run = RunRecord(folder, prepared.content | facts, time.monotonic(), ranks.first)
        run.write()
        yield run


def _check_options(command: str, options: Any, path: Path) -> None:
    """Refuse to continue a run as if it were another."""
    config, _ = checkpoints.read(path)
    if config.command != command:
        raise DataError(
            "The checkpoint is of another command",
            f"'{path}' is of `aam {config.command}`",
            f"resume it with that, or start `aam {command}` anew",
        )
    before = from_plain(type(options), config.options)
    changed = []
    for spec in specs(type(options)):
        was, now = (run_record.value_of(of, spec.field) for of in (before, options))
        if not spec.resumable and spec.role == "value" and was != now:
            changed.append(f"{spec.flag} {now} (was {was})")
    if changed:
        raise UsageError(
            "The run that is resumed had other options",
            ", ".join(changed),
            "give the same, or start anew without --resume-from",
        )


def _check_inputs(inputs: dict[str, dict[str, Any]], resumed: Path) -> None:
    """Refuse to continue a run on other input files; paths may differ, contents may not."""
    try:
        before = json.loads((resumed / "run.json").read_text())["inputs"]
    except (OSError, ValueError, KeyError):
        warn(f"'{resumed}' has no record of its input files; they are not compared.")
        return
    changed = [
        f"{flag} {_named(inputs.get(flag))} (was {_named(before.get(flag))})"
        for flag in sorted((inputs.keys() | before.keys()) - {"--resume-from"})
        if inputs.get(flag, {}).get("sha256") != before.get(flag, {}).get("sha256")
    ]
    if changed:
        raise DataError(
            "The run that is resumed had other input files",
            ", ".join(changed),
            "give the same, or start a new run from its weights with --pretrained-encoder",
        )


def _named(file: dict[str, Any] | None) -> str:
    return f"'{file['path']}', SHA-256 {file['sha256'][:12]}" if file else "not given"


def _devices() -> list[str]:
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
