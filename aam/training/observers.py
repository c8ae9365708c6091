"""Log of training steps: one line of JSON for each batch, in the file that AAM_STEP_LOG names.

`aam tune` reads it. Any program may write it; these are the fields of a line:

    step              number of the step, from 0
    loss              of the step, at full precision
    seconds           from the end of the last step to the end of this one
    samples           in the batch
    wait              seconds of it until the batch was there; optional, like all below
    cpu_seconds       of this process and of those that load data
    asvs              distinct ASVs of the batch
    rss               the most resident memory of this process so far, in bytes
    allocated, reserved  the most memory of the GPU so far, in bytes

After AAM_STEPS steps the program ends with status 0. AAM_WEIGHT_NOISE is the relative standard
deviation of noise on the initial weights, drawn with the seed AAM_WEIGHT_NOISE_SEED: the losses
then differ as much as rounding alone makes them differ. With AAM_TRACE torch.profiler records the
steps from AAM_TRACE_FROM on and writes a Chrome trace there.
"""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import os
import resource
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from torch import Tensor

from aam.console import LINE_EVERY, console, duration, info
from aam.contract import run_record
from aam.contract.files import write_text
from aam.data.batch_shards import BatchShard
from aam.data.batches import Batch
from aam.number_format import significant
from aam.numerics.device import is_gpu
from aam.training.checkpoints import Position, Row
from aam.training.module import TrainingModule

if TYPE_CHECKING:
    from torch import Tensor

    from aam.data.batches import Batch
    from aam.training.checkpoints import Position, Row
    from aam.training.module import TrainingModule


class Observer:
    """Events of the training loop; each does nothing unless a class that inherits defines it."""

    def begin(self, task: TrainingModule, position: Position) -> None:
        """Training begins, or goes on at a position."""

    def epoch_begins(self) -> None:
        """An epoch begins, or the rest of one."""

    def batch_begins(self, batch: Batch) -> None:
        """A batch is on the device."""

    def batch_ends(self, batch: Batch, loss: Tensor) -> None:
        """A batch is done, and after the last one of a step the optimizer step too."""

    def gradients_ready(self) -> None:
        """The gradients of an optimizer step are complete and finite, and not yet clipped."""

    def step_ends(self, position: Position) -> None:
        """An optimizer step is done."""

    def validation_begins(self) -> None:
        """The validation of an epoch begins."""

    def validation_ends(self) -> None:
        """The validation of an epoch ends."""

    def epoch_ends(self, rows: Sequence[Row]) -> None:
        """An epoch and its validation are complete; the last row of the epochs is its own."""

    def end(self, complete: bool) -> None:
        """Training ends; it is not complete after an error or a stop request."""


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


class EpochTable(Observer):
    """Writer of `metrics.csv`, one row per epoch; prints each row where no progress bar is shown.

    Only the first rank has one.
    """

    FIRST = ("epoch", "step", "seconds", "lr")

    def __init__(self, path: Path, progress: Progress) -> None:
        self.path, self.progress = path, progress

    def epoch_ends(self, rows: Sequence[Row]) -> None:
        """Write the file with the row of the epoch."""
        names = [*self.FIRST, *sorted({n for row in rows for n in row} - set(self.FIRST))]
        text = io.StringIO()
        writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.path, text.getvalue())
        if not console.is_terminal:
            info(self._line(rows[-1]))

    def _line(self, row: Row) -> str:
        columns = ("train_loss", "val_loss", "val_r2", "val_mae", "val_accuracy")
        figures = "  ".join(f"{name} {row[name]:.4g}" for name in columns if name in row)
        left = self.progress.seconds_left
        times = duration(row["seconds"]) + (f", {duration(left)} left" if left is not None else "")
        return f"epoch {int(row['epoch']) + 1}/{self.progress.length.epochs}  {figures}  ({times})"


class StepLog(Observer):
    """Observer that writes the log, moves the initial weights, and ends the process.

    Args:
        path: path of the log; None on ranks other than the first, which move the weights too.
        steps: number of steps after which the process ends; None for the end of the run.
        noise: relative standard deviation of the noise on the initial weights; 0 adds none.
        seed: seed of the noise.
    """

    def __init__(
        self, path: Path | None, steps: int | None, noise: float = 0.0, seed: int = 0
    ) -> None:
        self.path, self.steps, self.noise, self.seed = path, steps, noise, seed
        self._file: TextIO | None = None
        self._step = 0
        self._start = self._ready = self._cpu = 0.0

    def begin(self, task: TrainingModule, position: Position) -> None:
        """Open the file, and add noise to the weights."""
        self._device = task.device
        if self.path is not None:
            self._file = self.path.open("w", buffering=1)
        if self.noise:
            add_noise(task, self.noise, self.seed)

    def epoch_begins(self) -> None:
        """Start the clock; the validation is no part of a step."""
        self._start, self._cpu = time.perf_counter(), cpu_seconds()

    def batch_begins(self, batch: Batch) -> None:
        """Store when the batch is there."""
        self._ready = time.perf_counter()

    def batch_ends(self, batch: Batch, loss: Tensor) -> None:
        """Write the line of the step."""
        value = float(loss)  # waits for the GPU
        now, cpu = time.perf_counter(), cpu_seconds()
        line = {
            "step": self._step,
            "loss": value,
            "seconds": now - self._start,
            "wait": self._ready - self._start,
            "cpu_seconds": cpu - self._cpu,
            "samples": batch.samples if isinstance(batch, BatchShard) else len(batch.rows_B),
            "asvs": len(batch.asvs_U),
            "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        if is_gpu(self._device):
            line["allocated"] = torch.cuda.max_memory_allocated(self._device)
            line["reserved"] = torch.cuda.max_memory_reserved(self._device)
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
        self._step += 1
        if self._step == self.steps:
            sys.exit(0)
        self._start, self._cpu = time.perf_counter(), cpu_seconds()


class StepTrace(Observer):
    """Observer that records the steps from `first` until `end` with torch.profiler."""

    def __init__(self, path: Path, first: int, end: int) -> None:
        self.path, self.first, self.stop = path, first, end
        self._profiler = torch.profiler.profile()
        self._step = 0

    def begin(self, task: TrainingModule, position: Position) -> None:
        """Store the device."""
        self._device = task.device

    def batch_begins(self, batch: Batch) -> None:
        """Start the profiler at its first step."""
        if self._step == self.first:
            self._profiler.start()

    def batch_ends(self, batch: Batch, loss: Tensor) -> None:
        """Stop the profiler after the last step, and write the trace."""
        self._step += 1
        if self._step == self.stop:
            if is_gpu(self._device):
                torch.cuda.synchronize(self._device)
            self._profiler.stop()
            self._profiler.export_chrome_trace(str(self.path))


def add_noise(module: torch.nn.Module, noise: float, seed: int) -> None:
    """Multiply every weight by 1 + noise * N(0, 1), without a draw from the global generator."""
    # On the CPU: the same seed gives the same noise on every device.
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            drawn = torch.randn(weight.shape, generator=generator)
            weight.mul_(1 + noise * drawn.to(weight.device))


def requested_log(variables: Mapping[str, str], is_main: bool) -> list[Observer]:
    """Return the observers that the environment requests of a rank, none without AAM_STEP_LOG."""
    path = variables.get("AAM_STEP_LOG")
    if not path:
        return []
    steps = int(variables.get("AAM_STEPS", "0")) or None
    noise = float(variables.get("AAM_WEIGHT_NOISE", "0"))
    seed = int(variables.get("AAM_WEIGHT_NOISE_SEED", "0"))
    log = StepLog(Path(path) if is_main else None, steps, noise, seed)
    trace = variables.get("AAM_TRACE")
    if not trace or steps is None or not is_main:
        return [log]
    # Before the log, which ends the process after the last step.
    return [StepTrace(Path(trace), int(variables.get("AAM_TRACE_FROM", "0")), steps), log]


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its data loaders, in seconds."""
    ticks = 0
    for child in multiprocessing.active_children():
        try:
            stat = Path(f"/proc/{child.pid}/stat").read_text()
        except OSError:  # it has ended
            continue
        # After the last bracket: the name of the program may have spaces and brackets (proc(5)).
        # Fields 14 and 15 are the user and the system time.
        ticks += sum(map(int, stat.rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")
