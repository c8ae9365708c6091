"""Progress of a fit: step, rate and time left, in the log and in `progress.json` of the run folder.

`progress.json` is one object, replaced as a whole by the first rank after the first optimizer step
of a process, then at most every 15 s, and at the end:

    step, steps             optimizer steps done and in total, of the current fold
    epoch, epochs           the epoch that runs, counted from 1, and their number
    fold, folds             the fold that trains, counted from 1, and their number
    samples_per_second      training samples, validation excluded; null before the first step
    seconds_left            of the whole run, validation and further folds included; null likewise
    updated                 when the last step ended, ISO 8601 in UTC
    device                  as in the first line of the run, "CPU, 8 threads"

Without a terminal a line with the same figures appears 20 s after the start and every minute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from aam.console import LINE_EVERY, console, duration, info
from aam.contract import run_record
from aam.number_format import significant
from aam.training.callbacks.observer import Observer
from aam.training.run_files.resume import Position, Row
from aam.training.training_module import TrainingModule

FIRST_LINE = 20.0
"""Seconds after the start of a fit at which the first line appears."""
WRITE_EVERY = 15.0
"""Seconds between two writes of progress.json, at least."""


@dataclass(frozen=True)
class RunLength:
    """Total work of a run.

    Attributes:
        steps: optimizer steps of one fold.
        epochs: epochs of one fold.
        samples: training samples of one epoch.
        fold, folds: number of this fold, from 1, and of all folds.
    """

    steps: int
    epochs: int
    samples: int
    fold: int = 1
    folds: int = 1


@dataclass(frozen=True)
class Pace:
    """Position in a fold and speed of this process.

    Attributes:
        step: optimizer steps done in the fold, before and after a resumption.
        epoch: epochs done, likewise.
        step_seconds: mean duration of a step; None before the first one of this process.
        validation_seconds: duration of the last validation; 0 before the first one.
    """

    step: int
    epoch: int
    step_seconds: float | None = None
    validation_seconds: float = 0.0


def seconds_left(length: RunLength, pace: Pace) -> float | None:
    """Predict the seconds to the end of the last fold; None before the first step."""
    if pace.step_seconds is None:
        return None
    folds_left = length.folds - length.fold
    steps = length.steps - pace.step + folds_left * length.steps
    epochs = length.epochs - pace.epoch + folds_left * length.epochs
    return max(0.0, steps * pace.step_seconds + epochs * pace.validation_seconds)


class Progress(Observer):
    """Observer that measures the speed of a fit, writes `progress.json` and prints progress lines.

    Only the first rank has one.

    Args:
        first_line, line_every: seconds from the start to the first line, and between lines.
    """

    def __init__(
        self,
        path: Path,
        length: RunLength,
        device: str,
        first_line: float = FIRST_LINE,
        line_every: float = LINE_EVERY,
    ) -> None:
        self.path, self.length, self.device = path, length, device
        self.first_line, self.line_every = first_line, line_every
        self.pace = Pace(0, 0)
        self._start, self._step, self._validation = 0.0, 0, 0.0
        self._updated = self._written = 0.0
        self._done = threading.Event()
        self._lines: threading.Thread | None = None

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end of the run; None before the first step of this process."""
        return seconds_left(self.length, self.pace)

    def begin(self, task: TrainingModule, position: Position) -> None:
        """Start the clock at the step where this process begins."""
        self.pace = Pace(position.step, position.epoch)
        self._start, self._step = time.monotonic(), position.step
        self._updated = time.time()
        if not console.is_terminal:
            self._lines = threading.Thread(target=self._print, name="progress", daemon=True)
            self._lines.start()

    def step_ends(self, position: Position) -> None:
        """Measure after each optimizer step; validations are not part of `_start` to now."""
        step, now = position.step, time.monotonic()
        first = self.pace.step_seconds is None
        seconds = (now - self._start) / (step - self._step)
        self.pace = replace(self.pace, step=step, step_seconds=seconds)
        self._updated = time.time()
        if first:  # the first step also compiles and allocates, so it is not measured
            self._start, self._step = now, step
        if first or now - self._written >= WRITE_EVERY:
            self._write()

    def validation_begins(self) -> None:
        """Start the clock of the validation."""
        self._validation = time.monotonic()

    def validation_ends(self) -> None:
        """Subtract the validation from the clock of the steps."""
        seconds = time.monotonic() - self._validation
        self._start += seconds
        self.pace = replace(self.pace, validation_seconds=seconds)

    def epoch_ends(self, rows: Sequence[Row]) -> None:
        """Count the epoch."""
        self.pace = replace(self.pace, epoch=self.pace.epoch + 1)

    def end(self, complete: bool) -> None:
        """Stop the lines and write the last state."""
        self._done.set()
        if self._lines is not None:
            self._lines.join()
        self._write()

    def content(self) -> dict[str, Any]:
        """Return the content of progress.json."""
        length, pace, left = self.length, self.pace, self.seconds_left
        samples = length.samples * length.epochs / length.steps
        return {
            "step": pace.step,
            "steps": length.steps,
            "epoch": min(pace.epoch + 1, length.epochs),
            "epochs": length.epochs,
            "fold": length.fold,
            "folds": length.folds,
            "samples_per_second": pace.step_seconds and round(samples / pace.step_seconds, 2),
            "seconds_left": None if left is None else round(left, 1),
            "updated": datetime.fromtimestamp(self._updated, timezone.utc).isoformat(
                timespec="seconds"
            ),
            "device": self.device,
        }

    def line(self) -> str:
        """Return the line for a log."""
        content = self.content()
        fold = f"fold {content['fold']}/{content['folds']}, " if content["folds"] > 1 else ""
        place = f"{fold}epoch {content['epoch']}/{content['epochs']}, "
        place += f"step {content['step']}/{content['steps']}"
        if self.seconds_left is None:
            elapsed = duration(time.time() - self._updated)
            return f"{place}, the first step is running for {elapsed}"
        rate, left = content["samples_per_second"], duration(self.seconds_left)
        return f"{place}, {significant(rate)} samples/s, {left} left"

    def _print(self) -> None:
        wait = self.first_line
        while not self._done.wait(wait):
            info(self.line())
            wait = self.line_every

    def _write(self) -> None:
        self._written = time.monotonic()
        run_record.write(self.path, self.content())


class RunProgressBar(Observer):
    """Progress bar of the optimizer steps of a fit, on a terminal."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._latest = ""

    def begin(self, task: TrainingModule, position: Position) -> None:
        """Show the bar."""
        self._task = task
        steps = self.progress.length.steps
        self._bar = self._bars.add_task("", total=steps, completed=position.step, figures="")
        self._bars.start()

    def step_ends(self, position: Position) -> None:
        """Advance the bar, and show the loss of the epoch and the time left."""
        content = self.progress.content()
        fold = f"fold {content['fold']}/{content['folds']}, " if content["folds"] > 1 else ""
        left = self.progress.seconds_left
        loss = float(self._task.train_sums["loss"].mean)
        self._bars.update(
            self._bar,
            completed=position.step,
            description=f"{fold}epoch {content['epoch']}/{content['epochs']}, step",
            figures=f"train_loss {loss:.4g}{self._latest}, {duration(left or 0)} left",
        )

    def epoch_ends(self, rows: Sequence[Row]) -> None:
        """Show the loss of the validation during the next epoch."""
        if "val_loss" in rows[-1]:
            self._latest = f", val_loss {rows[-1]['val_loss']:.4g}"

    def end(self, complete: bool) -> None:
        """Remove the bar."""
        self._bars.stop()
