"""Run folder: checks before a run begins or resumes, its lock, its checkpoints, `run.json`.

One run at a time writes to a folder: an advisory lock of fcntl(2) on the file `.lock`, held by the
first rank. The kernel releases it when the process ends, however it ends, and child processes do
not inherit it. On NFS the server releases it when the lease of a failed node expires (about 90 s)
or when the node is back; Lustre needs the mount option `flock`. On a file system without locks the
run continues with a warning. A job that Slurm requeues does not wait for the lease of its failed
node: the file names the job that holds the lock.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from aam import run_record, wings
from aam.console import info, warn
from aam.contract import run_files
from aam.contract.errors import AamError, CannotCreate, DataError, MissingInput, UsageError
from aam.contract.files import try_lock, write_json
from aam.contract.options import from_plain, specs, values_of
from aam.contract.options.groups import RunOptions, uses_network
from aam.contract.preflight import check_run_folder
from aam.environment import ONE_PROCESS, RankGroup
from aam.pipeline import loggers
from aam.pipeline.run_crate import write_crate

LAST, BEST = "checkpoints/last.ckpt", "checkpoints/best.ckpt"
"""Checkpoints of a fit, below the run folder or the folder of the fold."""

RecordFact = Callable[[str, Any], None]  # function that adds a named fact to the run record


def no_record(name: str, fact: Any) -> None:
    """Ignore a fact: the default `RecordFact` of a run without a run record."""


@dataclass(frozen=True)
class PreparedFolder:
    """A checked run folder."""

    folder: Path
    content: dict[str, Any]  # of `run.json`
    splits: Path | None  # splits.tsv of the run that is resumed, if it has one
    overwrite: bool  # a run that the folder holds is replaced
    resumes: bool  # a run that the folder holds goes on


def prepare(
    command: str, options: Any, group: RankGroup = ONE_PROCESS, gpus: Sequence[str] = ()
) -> PreparedFolder:
    """Check that a run may begin or resume in its folder; `begin` changes the folder."""
    loggers.require(options.run.logger, uses_network(options))
    folder, resume_from = options.run.output_dir, options.run.resume_from
    resumes = resume_from is not None
    check_run_folder(folder, options.run.overwrite, resumes)
    if group.ranks.is_main and (folder / ".lock").exists():
        # A check of a folder must not create it: the command may still be refused.
        with _open(folder) as stream:
            _acquire(stream, folder)
    content = run_record.describe(command, options)
    content["host"]["devices"] = list(gpus)
    content["host"]["processes"] = group.ranks.world_size
    # Rank 0 decides: a network file system may show other ranks an earlier state of the folder.
    latest = resumed_checkpoint(folder, resume_from) if group.ranks.is_main else None
    resumed = None if latest is None else run_folder_of(latest)
    splits = resumed / "splits.tsv" if resumed else None
    has_splits = splits is not None and splits.exists()
    checkpoint, splits = group.broadcast((latest, splits if has_splits else None))
    if checkpoint is None:
        if resume_from == "auto":
            info("Nothing to resume from; starting.")
        return PreparedFolder(folder, content, None, options.run.overwrite, resumes)
    config = wings.network().checkpoint_config(checkpoint)
    if config.command != command:
        evidence = f"'{checkpoint}', written by `aam {config.command}`"
        remedy = f"resume it with that command, or start `aam {command}` without --resume-from"
        raise DataError("Another command wrote the checkpoint", evidence, remedy)
    previous = from_plain(type(options), config.options)
    was, now = values_of(previous), values_of(options)
    checked = [s.flag for s in specs(type(options)) if not s.resumable and s.role == "value"]
    if changed := [f"{f} {now[f]} (was {was[f]})" for f in checked if was[f] != now[f]]:
        remedy = "give the same options, or start a new run without --resume-from"
        raise UsageError("The resumed run has different options", ", ".join(changed), remedy)
    resumed, inputs = run_folder_of(checkpoint), content["inputs"]
    # Paths of inputs may differ, contents may not.
    try:
        recorded = run_record.read(resumed / run_files.RECORD)["inputs"]
    except (AamError, KeyError):
        warn(f"'{resumed}' has no record of its input files; they are not compared.")
        recorded = inputs
    if changed := [
        f"{flag} {_describe_file(inputs.get(flag))} (was {_describe_file(recorded.get(flag))})"
        for flag in sorted((inputs.keys() | recorded.keys()) - {"--resume-from"})
        if inputs.get(flag, {}).get("sha256") != recorded.get(flag, {}).get("sha256")
    ]:
        raise DataError(
            "The resumed run has different input files",
            ", ".join(changed),
            "give the same files, or start a new run from its weights with --pretrained-encoder",
        )
    info(f"Resuming from '{resume_from if resume_from != 'auto' else resumed}'.")
    return PreparedFolder(folder, content, splits, overwrite=False, resumes=True)


@dataclass
class RunRecord:
    """Content of `run.json`; the first rank writes it at the start, and with results at the end."""

    folder: Path
    content: dict[str, Any]
    began: float
    first: bool = True

    def record_fact(self, name: str, fact: Any) -> None:
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
            write_json(self.folder / "run.json", self.content)


@contextmanager
def begin(
    prepared: PreparedFolder,
    group: RankGroup = ONE_PROCESS,
    files: Sequence[str] | None = None,
    **facts: Any,
) -> Iterator[RunRecord]:
    """Lock the run folder while the block runs, and write the run record with further `facts`.

    A run to replace is removed here, after the input of the new run is checked. All ranks call it:
    the folder changes once each of them has checked it. `files` are those that the run may write;
    by default the files of one fold.
    """
    folder, is_main = prepared.folder, group.ranks.is_main
    # The first rank clears the folder below; a slower rank would look at it afterwards and find a
    # run.
    group.barrier()
    with locked(folder) if is_main else nullcontext(False) as is_locked:
        names = [*(run_files.planned() if files is None else files), run_files.CRATE]
        if is_main:
            # Another run may have begun, and even ended, since `prepare`.
            check_run_folder(folder, prepared.overwrite, prepared.resumes)
            if prepared.overwrite:
                run_files.remove(folder)
            else:
                names = [*run_files.files_of(folder), *names]
        if is_locked:
            # Only with the lock: another run may be writing such a file.
            for name in (run_files.RECORD, *names):
                _remove_temporaries(folder / name)
        content = prepared.content | facts | {"files": [*dict.fromkeys(names)]}
        record = RunRecord(folder, content, time.monotonic(), is_main)
        record.write()
        yield record
        if is_main:
            write_crate(folder)
            record.record_fact("files", run_files.files_of(folder))


def _remove_temporaries(path: Path) -> None:
    """Remove the temporary files of `atomic_write` of a file, or in a folder, of any host."""
    of_file = path.parent.glob(f".{glob.escape(path.stem)}.*{glob.escape(path.suffix)}")
    for temporary in (*of_file, *path.glob(".*")):
        # Host and process stand before the suffix.
        if re.fullmatch(r"\..*-\d+(\.\w+)?", temporary.name) and temporary.is_file():
            temporary.unlink(missing_ok=True)


def _describe_file(file: dict[str, Any] | None) -> str:
    return f"'{file['path']}', SHA-256 {file['sha256'][:12]}" if file else "not given"


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder while the block runs; yield whether the lock is held."""
    with _open(folder) as stream:
        is_locked = _acquire(stream, folder)
        stream.truncate(0)
        holder = {
            "host": platform.node(),
            "process": os.getpid(),
            "job": os.environ.get("SLURM_JOB_ID"),
            "restarts": os.environ.get("SLURM_RESTART_COUNT", "0"),
        }
        json.dump(holder, stream)
        stream.flush()
        yield is_locked


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
        stream.seek(0)
        try:
            holder = json.loads(stream.read(4096) or "{}")
        except ValueError:
            holder = None
        holder = holder if isinstance(holder, dict) else {}
        # Slurm ends a job before it requeues it, or its node has failed: an earlier start of this
        # job does not hold the lock any more.
        job, restarts = (os.environ.get(f"SLURM_{name}") for name in ("JOB_ID", "RESTART_COUNT"))
        previous, now = str(holder.get("restarts")), restarts or "0"
        same = job and holder.get("job") == job and (previous + now).isdecimal()
        if not (same and int(previous) < int(now)):
            evidence = f"'{folder}', process {holder.get('process')} on {holder.get('host')}"
            remedy = "wait until it ends, or choose another --output-dir"
            raise CannotCreate("Another process writes to the run folder", evidence, remedy)
        warn(f"This job locked '{folder}' before its requeue; the lock is ignored.")
    return state == "held"


def checkpoint_to_resume(run: RunOptions, folder: Path) -> Path | None:
    """Return the checkpoint that the fit of a folder, of a run or a fold, resumes from, if any."""
    source = run.output_dir if run.resume_from == "auto" else run.resume_from
    if source is None or (source.exists() and not source.is_dir()):
        return source
    file = source / folder.relative_to(run.output_dir) / LAST
    return file if file.exists() else None


def resumed_checkpoint(folder: Path, resume_from: Literal["auto"] | Path | None) -> Path | None:
    """Return a checkpoint of the run that is resumed, of any of its folds; None if a run begins."""
    source = folder if resume_from == "auto" else resume_from
    if source is None or source.is_file():
        return source
    for checkpoints in (source, *run_files.fold_folders(source)):
        if (checkpoints / LAST).is_file():
            return checkpoints / LAST
    if resume_from == "auto":
        return None
    if not source.is_dir():
        raise MissingInput(
            "No checkpoint", f"'{source}' does not exist", "name a file or run folder"
        )
    if targets := run_files.target_folders(source):
        evidence = f"'{source}' has {', '.join(target.name for target in targets)}"
        raise MissingInput("A run of several targets", evidence, "name the folder of one target")
    absent = f"the folder '{source}' has no {LAST}"
    raise MissingInput("No checkpoint", absent, "name the --output-dir of a run")


def run_folder_of(checkpoint: Path) -> Path:
    """Return the run folder of a checkpoint."""
    folder = checkpoint.parent.parent
    of_fold = folder in run_files.fold_folders(folder.parent)
    return folder.parent if of_fold and (folder.parent / run_files.RECORD).exists() else folder
