"""Checkpoint sync: a run folder on the node's own disk is copied to the folder that the user named.

At any moment every file of the copy is complete, and what was written before a checkpoint
(metrics.csv) is copied before it.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from aam.contract.errors import AamError, CannotCreate, MissingInput
from aam.contract.json_files import read_json
from launcher.slurm import log

RESTORED = ".restored"
"""File of the local run folder that lists what was there when the job started."""
_HELD = ".held"


class Mirror:
    """Copies what has changed in one run folder to another.

    Args:
        source: the run folder on the node.
        target: the run folder that the user named.
        job: number of the job, which the names of unfinished copies carry.
    """

    def __init__(self, source: Path, target: Path, job: str) -> None:
        self.source, self.target, self.job = source, target, job
        self._copied: dict[Path, tuple[int, int, int]] = {}

    def update(self) -> None:
        """Copy every file that has changed.

        Raises:
            OSError: at least one file could not be copied; the others were.
        """
        # Checkpoints last, and the description of a model after its arrays.
        names = sorted(
            files(self.source),
            key=lambda name: (name.suffix == ".ckpt" or name.name == "model.json", str(name)),
        )
        if not names:
            return
        self.target.mkdir(parents=True, exist_ok=True)
        held = self.source / _HELD
        shutil.rmtree(held, ignore_errors=True)
        error: OSError | None = None
        try:
            # Hard links keep checkpoints of the same moment as the files that are copied first.
            sources = {name: _hold(self.source / name, held / name) for name in names}
            for name, source in sources.items():
                try:
                    self._copy(source, self.target / name)
                except FileNotFoundError as gone:
                    # A file that `aam` replaced since it was listed is in the next update.
                    if source.exists():
                        error = error or gone
                except OSError as failure:
                    error = error or failure
        finally:
            shutil.rmtree(held, ignore_errors=True)
        if error is not None:
            raise error
        # After all copies, so that the target never lacks what it had.
        self._remove_replaced()

    def _copy(self, source: Path, target: Path) -> None:
        facts = source.stat()
        state = (facts.st_size, facts.st_ino, facts.st_mtime_ns)
        if self._copied.get(target) == state:
            return
        # By content: a start after a requeue has no record of what the one before copied.
        if not (target.exists() and filecmp.cmp(source, target, shallow=False)):
            target.parent.mkdir(parents=True, exist_ok=True)
            # A hidden name is not restored, if the job is killed here.
            part = target.with_name(f".{target.name}.{self.job}.part")
            try:
                shutil.copy2(source, part)
                with part.open("rb") as stream:
                    os.fsync(stream.fileno())
                part.replace(target)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        self._copied[target] = state

    def _remove_replaced(self) -> None:
        """Remove what `aam` removed of the run as it was before: that of a run it replaces."""
        listed = self.source / RESTORED
        if listed.exists() and (self.source / "run.json").exists():
            for name in read_json(listed, list[str], "list of files"):
                if not (self.source / name).exists():
                    (self.target / name).unlink(missing_ok=True)


def restore(source: Path, target: Path) -> None:
    """Copy a run as it was left to the node.

    Raises:
        CannotCreate: the node's disk is full.
    """
    names = [str(name) for name in files(source)]
    try:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)
        (target / RESTORED).write_text(json.dumps(names))
    except OSError as error:
        evidence = f"'{source}' to '{target}' on {os.uname().nodename}, {error.strerror}"
        remedy = "ask Slurm for a node with more disk"
        raise CannotCreate("The run cannot be copied to the node", evidence, remedy) from error


def update_patiently(mirror: Mirror, patience: float) -> None:
    """Copy for the last time; a full disk is given `patience` seconds in which a user can free it.

    Args:
        mirror: what to copy.
        patience: seconds.

    Raises:
        CannotCreate: the disk is still full.
    """
    end = time.monotonic() + patience
    waiting = False
    while True:
        try:
            return mirror.update()
        except OSError as error:
            if time.monotonic() >= end:
                evidence = f"'{mirror.target}', {error.strerror}"
                rest = f"'{mirror.source}' on {os.uname().nodename}"
                remedy = f"what was copied before is complete, and the rest is at {rest}"
                raise CannotCreate("The run could not be copied", evidence, remedy) from error
            if not waiting:
                log(f"The run cannot be copied to '{mirror.target}': {error.strerror}. "
                    f"Waiting {patience:g} s for space.")  # fmt: skip
            waiting = True
        time.sleep(min(5, max(0.1, patience)))


def files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder by their relative names; hidden ones are being written."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield (Path(place) / name).relative_to(folder)


def _hold(file: Path, link: Path) -> Path:
    if file.suffix != ".ckpt":
        return file
    link.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):  # it was replaced at this moment; the next update has it
        os.link(file, link)
    return link


def main(source: Path, target: Path) -> int:
    """Make `target` a copy of the run folder `source`; return the exit status."""
    try:
        if not source.is_dir():
            raise MissingInput("No run folder", f"'{source}' does not exist", "check the path")
        update_patiently(Mirror(source, target, str(os.getpid())), 0)
    except AamError as error:
        log(str(error))
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
