"""Observers of the training loop: progress, metrics.csv, trackers, fp32 report, log of steps.

An observer writes files or prints; it does not influence the training. `progress.json` of the run
folder is one JSON object. The first rank replaces it after the first optimizer step of a process,
then at most every 15 s, and at the end:

    step, steps             optimizer steps of the current fold: done, and in total
    epoch, epochs           current epoch, counted from 1, and number of epochs
    fold, folds             current fold, counted from 1, and number of folds
    samples_per_second      training samples, without validation; null before the first step
    seconds_left            of the whole run, with validation and later folds; null likewise
    updated                 time at which the last step ended, ISO 8601 in UTC
    device                  as in the first line of the run, "CPU, 8 threads"

`aam tune` reads the log of steps: one line of JSON for each batch, in the file that AAM_STEP_LOG
names. Any program may write such a log; a line has these fields:

    step              number of the step, from 0
    loss              loss of the step, at full precision
    seconds           time from the end of the previous step to the end of this step
    samples           number of samples in the batch
    wait              seconds spent waiting for the batch; optional, like all fields below
    cpu_seconds       CPU time of this process and of its data loaders
    asvs              number of distinct ASVs in the batch
    rss               peak resident memory of this process so far, in bytes
    allocated, reserved  peak memory of the GPU so far, in bytes

After AAM_STEPS steps the program ends with status 0. AAM_WEIGHT_NOISE is the relative standard
deviation of noise that is added to the initial weights, drawn with the seed AAM_WEIGHT_NOISE_SEED:
the losses of two such runs differ about as much as by rounding. With AAM_TRACE, torch.profiler
records the steps from AAM_TRACE_FROM on and writes a Chrome trace to that file.
"""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch
from torch import Tensor, nn

from aam.console import FIRST_LINE, LINE_EVERY, Bar, Clock, console, duration, info, warn
from aam.contract.files import write_json, write_text
from aam.contract.options.groups import RunOptions
from aam.network.batches import Batch, BatchShard
from aam.network.numerics.device import HostCopy, Precision, is_gpu
from aam.network.training.checkpoints import FIRST_COLUMNS, Row, TrainingProgress
from aam.number_format import significant
from aam.pipeline.loggers import Logger, Status, open_loggers
from aam.pipeline.run_folder import RecordFact

if TYPE_CHECKING:
    from aam.network.training.module import TrainingModule

SHOW_EVERY = 0.5  # seconds between two updates of the progress bar
WRITE_EVERY = 15.0  # seconds between two writes of progress.json, at least


class Observer:
    """Observer: methods that the training loop calls at its events; by default they do nothing.

    The loop calls them in this order:

        begin
            epoch_begins
                batch_begins                    for each batch
                    step_ends                   only with the last batch of an optimizer step
                batch_ends
            validation_ends                     with validation samples
            epoch_ends
        end
    """

    def begin(self, task: TrainingModule, progress: TrainingProgress) -> None:
        """Training begins or resumes."""

    def epoch_begins(self) -> None:
        """An epoch begins or resumes."""

    def batch_begins(self, batch: Batch) -> None:
        """A batch is on the device."""

    def batch_ends(self, batch: Batch, loss: Tensor) -> None:
        """A batch is done; after the last batch of a step the optimizer step is done too."""

    def step_ends(self, progress: TrainingProgress) -> None:
        """An optimizer step is done; the clipped gradients still exist."""

    def validation_ends(self, seconds: float) -> None:
        """The validation of an epoch ends, after `seconds`."""

    def epoch_ends(self, history: Sequence[Row]) -> None:
        """An epoch and its validation are complete; `history` ends with their row."""

    def end(self, status: Status) -> None:
        """Training ends."""


class Progress(Observer):
    """Progress of a fit, on the first rank: progress.json, metrics.csv, lines or a progress bar."""

    def __init__(
        self,
        path: Path,
        table: Path,
        samples: int,
        device: str,
        fold: int = 1,
        folds: int = 1,
        first_line: float = FIRST_LINE,
        line_every: float = LINE_EVERY,
    ) -> None:
        self.path, self.table, self.device = path, table, device
        self.samples, self.fold, self.folds = samples, fold, folds
        self.first_line, self.line_every = first_line, line_every
        self.step = self.epoch = self.steps = self.epochs = 0
        self.step_seconds: float | None = None
        self.validation_seconds = 0.0
        self._start, self._first_step = 0.0, 0
        self._updated = self._written = self._shown = 0.0
        self._lines: Clock | None = None
        self._bar: Bar | None = None
        self._validated = ""
        self._loss: HostCopy | None = None

    @property
    def samples_per_second(self) -> float | None:
        """Training samples per second, without validation; None before the first step."""
        if self.step_seconds is None:
            return None
        return round(self.samples * self.epochs / self.steps / self.step_seconds, 2)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end of the last fold; None before the first step of this process."""
        if self.step_seconds is None:
            return None
        later = self.folds - self.fold
        steps = self.steps * (1 + later) - self.step
        epochs = self.epochs * (1 + later) - self.epoch
        return max(0.0, steps * self.step_seconds + epochs * self.validation_seconds)

    def begin(self, task: TrainingModule, progress: TrainingProgress) -> None:
        self._task = task
        self.step, self.epoch = progress.step, progress.epoch
        self.steps, self.epochs = task.steps, task.loop.epochs
        self._start, self._first_step = time.monotonic(), progress.step
        self._updated = time.time()
        if not console.is_terminal:
            self._lines = Clock(self._print, self.first_line, self.line_every)
        self._bar = Bar(f"{self._position()}, step", self.steps, self.step, transient=True)

    def step_ends(self, progress: TrainingProgress) -> None:
        self.step, now = progress.step, time.monotonic()
        first = self.step_seconds is None
        # Validations move `_start`, so they do not count.
        self.step_seconds = (now - self._start) / (self.step - self._first_step)
        self._updated = time.time()
        if first:  # not measured, because the first step also compiles and allocates
            self._start, self._first_step = now, self.step
        if first or now - self._written >= WRITE_EVERY:
            self._write()
        assert self._bar is not None  # of `begin`
        if self._bar.is_visible and (first or now - self._shown >= SHOW_EVERY):
            self._shown = now
            mean = HostCopy(self._task.train_sums["loss"].mean)
            # The loss of the previous update: reading the current loss would make the GPU wait.
            loss, self._loss = float((self._loss or mean).read()), mean
            remaining = duration(self.seconds_left or 0)
            figures = f"train_loss {loss:.4g}{self._validated}, {remaining} left"
            self._bar.update(f"{self._position()}, step", self.step, figures)

    def validation_ends(self, seconds: float) -> None:
        self.validation_seconds = seconds
        self._start += seconds

    def epoch_ends(self, history: Sequence[Row]) -> None:
        self.epoch += 1
        row, columns = history[-1], {name for row in history for name in row}
        names = [*FIRST_COLUMNS, *sorted(columns - set(FIRST_COLUMNS))]
        text = io.StringIO()
        writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(history)
        write_text(self.table, text.getvalue())
        if "val_loss" in row:  # shown in the bar during the next epoch
            self._validated = f", val_loss {row['val_loss']:.4g}"
        if not console.is_terminal:
            metrics = ("train_loss", "val_loss", "val_r2", "val_mae", "val_accuracy")
            figures = "  ".join(f"{name} {row[name]:.4g}" for name in metrics if name in row)
            remaining = self.seconds_left
            times = duration(row["seconds"])
            times += f", {duration(remaining)} left" if remaining is not None else ""
            info(f"epoch {int(row['epoch']) + 1}/{self.epochs}  {figures}  ({times})")

    def end(self, status: Status) -> None:
        if self._lines is not None:
            self._lines.stop()
        if self._bar is not None:
            self._bar.stop()
        self._write()

    def _position(self) -> str:
        fold = f"fold {self.fold}/{self.folds}, " if self.folds > 1 else ""
        return f"{fold}epoch {min(self.epoch + 1, self.epochs)}/{self.epochs}"

    def _print(self) -> None:
        rate, remaining = self.samples_per_second, self.seconds_left
        if rate is None or remaining is None:
            speed = f"the first step is running for {duration(time.time() - self._updated)}"
        else:
            speed = f"{significant(rate)} samples/s, {duration(remaining)} left"
        info(f"{self._position()}, step {self.step}/{self.steps}, {speed}")

    def _write(self) -> None:
        self._written, remaining = time.monotonic(), self.seconds_left
        updated = datetime.fromtimestamp(self._updated, timezone.utc)
        write_json(self.path, {
            "step": self.step, "steps": self.steps,
            "epoch": min(self.epoch + 1, self.epochs), "epochs": self.epochs,
            "fold": self.fold, "folds": self.folds,
            "samples_per_second": self.samples_per_second,
            "seconds_left": None if remaining is None else round(remaining, 1),
            "updated": updated.isoformat(timespec="seconds"),
            "device": self.device,
        })  # fmt: skip


class LoggedMetrics(Observer):
    """Loggers of a fit, on the first rank: options, and the metrics of each epoch."""

    def __init__(
        self, run: RunOptions, options: Mapping[str, Any], folder: Path, name: str
    ) -> None:
        self.run, self.options, self.folder, self.name = run, options, folder, name
        self._loggers: list[Logger] = []

    def begin(self, task: TrainingModule, progress: TrainingProgress) -> None:
        self._loggers = open_loggers(self.run, self.options, self.folder, self.name, progress.step)

    def epoch_ends(self, history: Sequence[Row]) -> None:
        metrics = {name: value for name, value in history[-1].items() if name != "step"}
        for logger in self._loggers:
            logger.log(metrics, int(history[-1]["step"]))

    def end(self, status: Status) -> None:
        for logger in self._loggers:
            logger.close(status)


class Fp32Report(Observer):
    """Report of modules that output fp32 in the first steps under mixed precision."""

    STEPS = 3

    def __init__(self, precision: Precision, record_fact: RecordFact) -> None:
        self.precision, self.record_fact = precision, record_fact
        self.done = False
        self._steps_left = self.STEPS
        self._class_names: dict[str, str] = {}
        self._fp32: set[str] = set()
        self._hooks: list[Any] = []

    def begin(self, task: TrainingModule, progress: TrainingProgress) -> None:
        if self.precision == "none":
            warn("--report-fp32-fallbacks: all runs in fp32 without --mixed-precision.")
            self.done = True
            return
        names = {module: name for name, module in task.network.named_modules()}

        def record(module: nn.Module, inputs: Any, output: Any) -> None:
            self._class_names[names[module]] = type(module).__name__
            if isinstance(output, Tensor) and output.dtype == torch.float32:
                self._fp32.add(names[module])

        for module in names:
            if not list(module.children()):
                self._hooks.append(module.register_forward_hook(record))

    def batch_ends(self, batch: Batch, loss: Tensor) -> None:
        self._steps_left -= 1
        if self._steps_left == 0 and not self.done:
            self._finish()

    def end(self, status: Status) -> None:
        if not self.done:  # a run with fewer steps
            self._finish()

    def _finish(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self.done = True
        by_class = defaultdict(list)
        for name in self._class_names:
            if name in self._fp32:
                by_class[self._class_names[name]].append(name)
        info(
            f"{len(self._fp32)} of {len(self._class_names)} modules ran in fp32 "
            f"under {self.precision}:"
        )
        for class_name, names in sorted(by_class.items()):
            info(f"  {class_name}: {', '.join(names)}")
        self.record_fact("fp32_fallbacks", dict(sorted(by_class.items())))


class StepLog(Observer):
    """Log of steps for `aam tune`; it also adds noise to initial weights and ends the process."""

    def __init__(self, variables: Mapping[str, str], is_main: bool) -> None:
        self.steps = int(variables.get("AAM_STEPS", "0"))
        self.noise = float(variables.get("AAM_WEIGHT_NOISE", "0"))
        self.seed = int(variables.get("AAM_WEIGHT_NOISE_SEED", "0"))
        self.first = int(variables.get("AAM_TRACE_FROM", "0"))
        self.path = Path(variables["AAM_STEP_LOG"]) if is_main else None
        self.trace = variables.get("AAM_TRACE", "") if self.steps and is_main else ""
        self._profiler = torch.profiler.profile() if self.trace else None
        self._file: TextIO | None = None
        self._step = 0
        # Line of the last step without its loss, and the loss. The loss is read one step later, so
        # that the log does not add to the idle time of the GPU that it measures.
        self._last: tuple[dict[str, Any], HostCopy] | None = None
        self._start = self._ready = self._cpu = 0.0

    def begin(self, task: TrainingModule, progress: TrainingProgress) -> None:
        self._device = task.device
        if self.path is not None:
            self._file = self.path.open("w", buffering=1)
        if self.noise:
            add_noise(task, self.noise, self.seed)

    def epoch_begins(self) -> None:
        # The validation does not belong to a step.
        self._start, self._cpu = time.perf_counter(), cpu_seconds()

    def batch_begins(self, batch: Batch) -> None:
        self._ready = time.perf_counter()
        if self._profiler is not None and self._step == self.first:
            self._profiler.start()

    def batch_ends(self, batch: Batch, loss: Tensor) -> None:
        now, cpu = time.perf_counter(), cpu_seconds()
        line: dict[str, Any] = {
            "step": self._step,
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
        self._write_last()
        self._last = line, HostCopy(loss)
        self._step += 1
        if self._step == self.steps:
            self._write_last()
            if self._profiler is not None:
                if is_gpu(self._device):
                    torch.cuda.synchronize(self._device)
                self._profiler.stop()
                self._profiler.export_chrome_trace(self.trace)
            sys.exit(0)
        self._start, self._cpu = time.perf_counter(), cpu_seconds()

    def end(self, status: Status) -> None:
        self._write_last()

    def _write_last(self) -> None:
        if self._last is not None and self._file is not None:
            line, loss = self._last
            self._file.write(json.dumps({**line, "loss": float(loss.read())}) + "\n")
        self._last = None


def add_noise(module: torch.nn.Module, noise: float, seed: int) -> None:
    """Multiply every weight by 1 + noise * N(0, 1), without using the global generator."""
    # Drawn on the CPU, so that a seed gives the same noise on every device.
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            normal = torch.randn(weight.shape, generator=generator)
            weight.mul_(1 + noise * normal.to(weight.device))


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its data loaders, in seconds."""
    ticks = 0
    for child in multiprocessing.active_children():
        try:
            stat = Path(f"/proc/{child.pid}/stat").read_text()
        except OSError:  # it has ended
            continue
        # Fields 14 and 15 are the user and the system time (proc(5)). They are counted from the
        # last bracket, since the name of the program may have spaces and brackets.
        ticks += sum(map(int, stat.rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")
