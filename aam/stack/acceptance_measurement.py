"""Measurement of a part of the acceptance: its place, the commands that it runs, its outcome."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from aam.contract.gpus import GPU
from aam.contract.stop_file import VARIABLE as STOP_FILE
from aam.stack.workload import NONE, child_process, read_steps

GRACE = 10.0  # seconds from SIGTERM, with which a command ends its own runs, to SIGKILL

Outcome = Literal["as predicted", "faster", "slower", "wrong", "not possible here", "failed"]
Verdict = tuple[Outcome, str]  # outcome of a comparison, and one sentence


class NotPossible(Exception):
    """A part that this host or image cannot measure, with the reason."""


class PartFailure(Exception):
    """A command of a part that failed or hangs, with the last line of its output."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Values that a part measured; `rates` are speeds by name, compared with a reference."""

    rates: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """Place of a measurement."""

    folder: Path  # of this image's run: what commands print, reports, trained networks
    shared: Path  # of all runs: the simulated study, golden folders
    device: str  # "cpu" or "cuda"
    gpus: int  # that this process sees
    small: bool  # a study and settings that a CPU of two cores computes in a minute
    started: float  # unix time at which `aam acceptance` started
    until: float  # time of the monotonic clock at which a command is ended
    overwrite: bool = False  # whether results of commands from before that are computed again
    rank: int = 0  # of this process among those that measure together

    @property
    def gpu(self) -> bool:
        """Whether a GPU is measured."""
        return self.device == GPU

    @property
    def left(self) -> float:
        """Seconds until a command is ended."""
        return max(0.0, self.until - time.monotonic())

    def aam(
        self,
        *arguments: object,
        accept: Collection[int] = (0,),  # exit statuses that are no failure; all if it is empty
        variables: Mapping[str, str] = NONE,
        without: Collection[str] = (),
        steps: Path | None = None,
        after: int = 0,
        act: Callable[[subprocess.Popen[bytes]], None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of `aam`; return its exit status and output.

        `act` is called with the process `after` so many steps, which it logs in the file `steps`.
        """
        command = arguments[0]
        log = self.folder / f"{command}{f'-{self.rank}' if self.rank else ''}.txt"
        # The stop request of a job is for this process; its commands would end with it.
        removed = {STOP_FILE, *without}
        kept = {name: value for name, value in os.environ.items() if name not in removed}
        if steps is not None:
            steps.unlink(missing_ok=True)
            kept["AAM_STEP_LOG"] = str(steps)
        argv = [sys.executable, "-m", "aam", *map(str, arguments)]
        place = {"cwd": self.folder, "env": {**kept, **variables}}
        with (
            tempfile.TemporaryFile() as output,
            log.open("a+b") as errors,
            child_process(argv, GRACE, stdout=output, stderr=errors, **place) as child,
        ):
            begin = errors.tell()
            while act and steps and len(read_steps(steps)[0]) < after:
                if child.poll() is not None or not self.left:
                    raise PartFailure(f"`aam {command}` made less than {after} steps")
                time.sleep(0.02)
            if act:
                act(child)
            try:
                status = child.wait(self.left)
            except subprocess.TimeoutExpired:
                raise PartFailure(f"`aam {command}` had no result in time") from None
            output.seek(0)
            errors.seek(begin)
            printed, message = (f.read().decode(errors="replace") for f in (output, errors))
        if accept and status not in accept:
            end = f"ended by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            line = (message.strip() or "no output").splitlines()[-1]
            raise PartFailure(f"`aam {command}` {end}: {line.strip()[:300]}")
        return subprocess.CompletedProcess(argv, status, printed, message)

    def known(self, file: Path) -> bool:
        """Whether a file has the result of a command, which several parts share."""
        return file.is_file() and not (self.overwrite and file.stat().st_mtime < self.started)

    def pretraining(self) -> list[object]:
        """Return `pretrain` and its options on the simulated study, which is made once."""
        study = self.shared / ("study-small" if self.small else "study")
        while self.rank and self.left and not (study / "tree.nwk").is_file():
            time.sleep(0.2)  # the first rank makes it
        if not (study / "tree.nwk").is_file():
            size = "--samples 1100 --asvs 2000 --richness 185 --depth 10000 --subjects 40"
            if self.small:
                size = "--samples 64 --asvs 300 --length 100 --richness 40 --depth 2000"
            made = study.with_name(f"{study.name}-new")
            self.aam("example", "--output-dir", made, *size.split(), "--overwrite")
            made.rename(study)
        files = ("--table", study / "table.biom", "--tree", study / "tree.nwk")
        batch = 8 if self.small else 64
        return ["pretrain", *files, "--device", self.device, "--batch-size", batch]
