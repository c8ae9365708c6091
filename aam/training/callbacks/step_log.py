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
from typing import Any, TextIO

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from aam.data.batch_shards import BatchShard
from aam.data.batches import Batch
from aam.numerics.device import is_gpu


class StepLog(Callback):
    """Callback that writes the log, moves the initial weights, and ends the process."""

    def __init__(self, path: Path, steps: int | None, noise: float = 0.0, seed: int = 0) -> None:
        self.path, self.steps, self.noise, self.seed = path, steps, noise, seed
        self._file: TextIO | None = None
        self._step = 0
        self._start = self._ready = self._cpu = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the file, and add noise to the weights."""
        if trainer.is_global_zero:
            self._file = self.path.open("w", buffering=1)
        if self.noise:
            add_noise(pl_module, self.noise, self.seed)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock; the validation is no part of a step."""
        self._start, self._cpu = time.perf_counter(), cpu_seconds()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Store when the batch is there."""
        self._ready = time.perf_counter()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        idx: int,
    ) -> None:
        """Write the line of the step."""
        loss = float(outputs["loss"])  # waits for the GPU
        now, cpu = time.perf_counter(), cpu_seconds()
        line = {
            "step": self._step,
            "loss": loss,
            "seconds": now - self._start,
            "wait": self._ready - self._start,
            "cpu_seconds": cpu - self._cpu,
            "samples": batch.samples if isinstance(batch, BatchShard) else len(batch.rows_B),
            "asvs": len(batch.asvs_U),
            "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        if is_gpu(pl_module.device):
            line["allocated"] = torch.cuda.max_memory_allocated(pl_module.device)
            line["reserved"] = torch.cuda.max_memory_reserved(pl_module.device)
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
        self._step += 1
        if self._step == self.steps:
            sys.exit(0)
        self._start, self._cpu = time.perf_counter(), cpu_seconds()


class StepTrace(Callback):
    """Callback that records the steps from `first` until `end` with torch.profiler."""

    def __init__(self, path: Path, first: int, end: int) -> None:
        self.path, self.first, self.end = path, first, end
        self._profiler = torch.profiler.profile()
        self._step = 0

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Start the profiler at its first step."""
        if self._step == self.first and trainer.is_global_zero:
            self._profiler.start()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        idx: int,
    ) -> None:
        """Stop the profiler after the last step, and write the trace."""
        self._step += 1
        if self._step == self.end and trainer.is_global_zero:
            if is_gpu(pl_module.device):
                torch.cuda.synchronize(pl_module.device)
            self._profiler.stop()
            self._profiler.export_chrome_trace(str(self.path))


def add_noise(module: torch.nn.Module, noise: float, seed: int) -> None:
    """Multiply every weight by 1 + noise * N(0, 1), without a draw from the global generator."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            drawn = torch.randn(weight.shape, generator=generator)
            weight.mul_(1 + noise * drawn.to(weight.device))


def requested_log(variables: Mapping[str, str]) -> list[Callback]:
    """Return the callback that the environment requests, none without AAM_STEP_LOG."""
    path = variables.get("AAM_STEP_LOG")
    if not path:
        return []
    steps = int(variables.get("AAM_STEPS", "0")) or None
    noise = float(variables.get("AAM_WEIGHT_NOISE", "0"))
    log = StepLog(Path(path), steps, noise, int(variables.get("AAM_WEIGHT_NOISE_SEED", "0")))
    trace = variables.get("AAM_TRACE")
    if not trace or steps is None:
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
        ticks += sum(map(int, stat.rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")
