"""Run folder: checks before a run begins or resumes, and the run record `run.json`."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol

from aam.console import info, warn
from aam.contract import run_record
from aam.contract.errors import AamError, CannotCreate, DataError, MissingInput, UsageError
from aam.contract.files import try_lock
from aam.contract.options import from_plain, specs
from aam.contract.options.study import SplitOptions
from aam.contract.options.training import RunOptions
from aam.contract.preflight import (
    COUNTS_ALONE,
    check_run_folder,
    existing_run_files,
    is_usable,
    target_folders,
)
from aam.distributed.environment import SINGLE_RANK, Ranks
from aam.training import loggers, run_folder


def check(folder: Path) -> None:
    """Refuse a folder that another run writes to; creates no file.

    Raises:
        CannotCreate: the folder is locked.
    """
    # A check of a folder must not create it: the command may still be refused.
    if (folder / ".lock").exists():
        with _open(folder) as stream:
            _acquire(stream, folder)


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder while the block runs; yield whether the lock is held.

    Raises:
        CannotCreate: another run holds it.
    """
    with _open(folder) as stream:
        held = _acquire(stream, folder)
        stream.truncate(0)
        json.dump(_this_process(), stream)
        stream.flush()
        yield held


def _open(folder: Path) -> IO[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Appending: until the lock is held, the content names the process that holds it.
        return (folder / ".lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise CannotCreate(
            "The run folder cannot be made or written to",
            f"'{error.filename}', {error.strerror}",
            "choose another --output-dir",
        ) from error


def _acquire(stream: IO[str], folder: Path) -> bool:
    """Acquire the lock without waiting; return whether it is held."""
    state = try_lock(stream, fcntl.lockf)
    if state == "unsupported":
        warn(f"The file system of '{folder}' has no locks; start no second run there.")
    elif state == "taken":
        holder = _read(stream)
        if not before_requeue(holder, os.environ):
            raise CannotCreate(
                "Another process writes to the run folder",
                f"'{folder}', process {holder.get('process')} on {holder.get('host')}",
                "wait until it ends, or choose another --output-dir",
            )
        warn(f"The lock of '{folder}' is of this job before its requeue, and is ignored.")
    return state == "held"


def before_requeue(holder: Mapping[str, Any], variables: Mapping[str, str]) -> bool:
    """Return whether an earlier start of this process's Slurm job holds the lock.

    Slurm ends a job before it requeues it, or its node has failed.
    """
    job, restarts = variables.get("SLURM_JOB_ID"), variables.get("SLURM_RESTART_COUNT", "0")
    earlier = str(holder.get("restarts"))
    if not job or holder.get("job") != job or not (earlier + restarts).isdecimal():
        return False
    return int(earlier) < int(restarts)


def _this_process() -> dict[str, Any]:
    return {
        "host": platform.node(),
        "process": os.getpid(),
        "job": os.environ.get("SLURM_JOB_ID"),
        "restarts": os.environ.get("SLURM_RESTART_COUNT", "0"),
    }


def _read(stream: IO[str]) -> dict[str, Any]:
    stream.seek(0)
    try:
        holder = json.loads(stream.read(4096) or "{}")
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def find(path: Path, name: str) -> Path:
    """Return the checkpoint at `path`: the file itself, or the file `name` of a run folder.

    Raises:
        MissingInput: there is no such file.
    """
    file = path / "checkpoints" / name if path.is_dir() else path
    if file.is_file():
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
    raise MissingInput("No checkpoint", absent, "name the --output-dir of a run")


def _resumed_source(run: RunOptions) -> Path | None:
    """Return the run folder or checkpoint of --resume-from; None without the option."""
    return run.output_dir if run.resume_from == "auto" else run.resume_from


def checkpoint_to_resume(run: RunOptions, folder: Path) -> Path | None:
    """Return the checkpoint that the fit of `folder` resumes from; None if it begins.

    `folder` is the run folder or that of a fold in it.
    """
    source = _resumed_source(run)
    if source is None or (source.exists() and not source.is_dir()):
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
    folders = (source, *sorted(source.glob("fold-*"))) if source.is_dir() else ()
    found = next((folder / last for folder in folders if (folder / last).exists()), None)
    return found if found or run.resume_from == "auto" else find(source, "last.ckpt")


def check_folds(run: RunOptions) -> None:
    """Refuse to resume several folds from one checkpoint.

    Raises:
        UsageError: --resume-from names a checkpoint.
    """
    if isinstance(run.resume_from, Path) and not run.resume_from.is_dir():
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


_ATOMIC_FILES = ("run.json", "checkpoints/last.ckpt", "checkpoints/best.ckpt",
                 "metrics.csv", "progress.json", "splits.tsv", "predictions.tsv",
                 "scores.json", "embeddings.tsv")  # fmt: skip


Note = Callable[[str, Any], None]
"""Function that adds a named fact to the run record."""


def unrecorded(name: str, fact: Any) -> None:
    """Ignore a fact: the default `Note` of a run without a run record."""


class RankGroup(Protocol):
    """The ranks of a run, see `aam.distributed.collectives.Communicator`."""

    @property
    def ranks(self) -> Ranks:
        """Rank of this process, and the number of all."""
        ...

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        ...


class _OneProcess:
    """Group of a run in one process."""

    ranks = SINGLE_RANK

    def barrier(self) -> None:
        """There is nothing to wait for."""


ONE_PROCESS = _OneProcess()


@dataclass(frozen=True)
class PreparedFolder:
    """A checked run folder, and the first content of the run record.

    Attributes:
        content: content of `run.json`: versions, host, command line, options, inputs' SHA-256.
        resumed: folder of the run that is resumed; None if a run begins.
        usable: whether the folder may hold a run.
    """

    folder: Path
    content: dict[str, Any]
    resumed: Path | None
    overwrite: bool
    usable: bool

    def split_options(self, options: SplitOptions) -> SplitOptions:
        """Return the options of the split, with the splits.tsv of the resumed run if it has one."""
        path = self.resumed and self.resumed / "splits.tsv"
        return replace(options, splits=path) if path and path.exists() else options


def prepare(
    command: str, options: Any, group: RankGroup = ONE_PROCESS, gpus: Sequence[str] = ()
) -> PreparedFolder:
    """Check that a run may begin or resume in its folder; `begin` changes the folder.

    Args:
        command, options: name of the command, and its options.
        group: ranks of the run.
        gpus: names of the GPUs that it can use, for the run record.

    Raises:
        CannotCreate: the folder holds a run and neither --overwrite nor --resume-from was given,
            another training writes to it, or it cannot be made or written to.
        MissingInput: nothing to resume from.
        DataError: the checkpoint to resume cannot be read, or is of another command or other input.
        UsageError: an option differs that a resumed run may not change.
        Unavailable: a logger is not installed.
    """
    loggers.require(options)
    folder, resume_from = options.run.output_dir, options.run.resume_from
    usable = is_usable(options.run)
    check_run_folder(folder, usable)
    if group.ranks.is_main:
        run_folder.check(folder)
    content = run_record.describe(command, options)
    content["host"]["devices"] = list(gpus)
    content["host"]["processes"] = group.ranks.world_size
    checkpoint = run_folder.resumed_checkpoint(options.run)
    if checkpoint is None:
        if resume_from == "auto":
            info("Nothing to resume from; starting.")
        return PreparedFolder(folder, content, None, options.run.overwrite, usable)
    _check_options(command, options, checkpoint)
    resumed = run_folder.run_folder_of(checkpoint)
    _check_inputs(content["inputs"], resumed)
    info(f"Resuming from '{resume_from if resume_from != 'auto' else resumed}'.")
    return PreparedFolder(folder, content, resumed, overwrite=False, usable=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed processes, of any host, from a locked folder."""
    alone = folder / COUNTS_ALONE
    for run in (folder, *folder.glob("fold-*"), alone, *alone.glob("fold-*")):
        for name in _ATOMIC_FILES:
            file = run / name
            for temporary in file.parent.glob(f".{file.stem}.*{file.suffix}"):
                temporary.unlink(missing_ok=True)


def _clear(folder: Path) -> None:
    """Remove the files of a run from the folder, and no others."""
    for name in existing_run_files(folder):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@dataclass
class RunRecord:
    """Content of `run.json`, written at the start and, with the results, at the end.

    Only the first rank writes the file.
    """

    folder: Path
    content: dict[str, Any]
    began: float
    first: bool = True

    def note(self, name: str, fact: Any) -> None:
        """Add a fact during the run, and write the file."""
        self.content[name] = fact
        self.write()

    def finish(self, **results: Any) -> None:
        """Add results and the time taken, and write the file."""
        self.content |= results
        self.content["finished"] = run_record.now()
        self.content["seconds"] = round(time.monotonic() - self.began, 1)
        self.write()

    def write(self) -> None:
        """Write the file atomically."""
        if self.first:
            run_record.write(self.folder / "run.json", self.content)


@contextmanager
def begin(
    prepared: PreparedFolder, group: RankGroup = ONE_PROCESS, **facts: Any
) -> Iterator[RunRecord]:
    """Lock the run folder while the block runs, and write the run record with further `facts`.

    A run to replace is removed here, after the input of the new run is checked. All ranks call it:
    the folder changes once each of them has checked it.

    Raises:
        CannotCreate: another training has begun in the folder.
    """
    folder, is_main = prepared.folder, group.ranks.is_main
    # The first rank clears the folder below; a slower rank would look at it afterwards and find a
    # run.
    group.barrier()
    with run_folder.locked(folder) if is_main else nullcontext(False) as locked:
        if is_main:
            # Another run may have begun, and even ended, since `prepare`.
            check_run_folder(folder, prepared.usable)
            if prepared.overwrite:
                _clear(folder)
        if locked:
            # Only with the lock: a temporary file may be that of a run that is writing.
            _remove_leftovers(folder)
        run = RunRecord(folder, prepared.content | facts, time.monotonic(), is_main)
        run.write()
        yield run


def _check_options(command: str, options: Any, path: Path) -> None:
    """Refuse to resume a run with another command or other options."""
    # PyTorch takes a CPU-second to import, which a run that begins without a network saves.
    from aam.training import checkpoints

    config, _ = checkpoints.read(path)
    if config.command != command:
        raise DataError(
            "The checkpoint is of another command",
            f"'{path}' is of `aam {config.command}`",
            f"resume it with that command, or start `aam {command}` without --resume-from",
        )
    before = from_plain(type(options), config.options)
    changed = []
    for spec in specs(type(options)):
        was, now = (run_record.value_of(of, spec.field) for of in (before, options))
        if not spec.resumable and spec.role == "value" and was != now:
            changed.append(f"{spec.flag} {now} (was {was})")
    if changed:
        raise UsageError(
            "The resumed run has different options",
            ", ".join(changed),
            "give the same options, or start a new run without --resume-from",
        )


def _check_inputs(inputs: dict[str, dict[str, Any]], resumed: Path) -> None:
    """Refuse to resume a run with other input files; paths may differ, contents may not."""
    try:
        before = run_record.read(resumed / "run.json")["inputs"]
    except (AamError, KeyError):
        warn(f"'{resumed}' has no record of its input files; they are not compared.")
        return
    changed = [
        f"{flag} {_describe_file(inputs.get(flag))} (was {_describe_file(before.get(flag))})"
        for flag in sorted((inputs.keys() | before.keys()) - {"--resume-from"})
        if inputs.get(flag, {}).get("sha256") != before.get(flag, {}).get("sha256")
    ]
    if changed:
        raise DataError(
            "The resumed run has different input files",
            ", ".join(changed),
            "give the same files, or start a new run from its weights with --pretrained-encoder",
        )


def _describe_file(file: dict[str, Any] | None) -> str:
    return f"'{file['path']}', SHA-256 {file['sha256'][:12]}" if file else "not given"
