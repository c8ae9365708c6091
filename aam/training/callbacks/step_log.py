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

import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor

from aam.data.batch_shards import BatchShard
from aam.data.batches import Batch
from aam.numerics.device import is_gpu
from aam.training.callbacks.observer import Observer
from aam.training.run_files.resume import Position
from aam.training.training_module import TrainingModule


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
