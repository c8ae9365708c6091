"""Workloads: child processes that train with some settings and log their steps.

The log has one line of JSON per step; `aam.network.training.observers` defines its fields and the
variables that request it. If a workload hangs, crashes or runs out of memory, this process goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd

from aam.contract.errors import Unavailable
from aam.contract.options import specs, values_of
from aam.contract.options.command_line import arguments
from aam.contract.options.commands import wrapped_options
from aam.contract.options.commands.train import Pretrain, Train
from aam.contract.options.groups import TRANSFORMER
from aam.contract.records import Count

Settings = Mapping[str, Any]  # flag of an option, or {name} in a command line -> value

Workload = Callable[[Settings, Path], list[str]]
"""Makes the command line of a program with some settings and a folder for its output."""

_SUMMED = ["samples", "asvs", "seconds", "cpu_seconds", "wait"]
WEIGHT_NOISE = 1e-7
"""Relative change of the initial weights in runs that measure the effect of rounding."""
BLOCK = 5  # steps over which a rate is measured
_POLL = 0.05  # seconds between two readings of the log's size
_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|can't allocate memory|does not fit in memory", re.IGNORECASE
)


Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]


@dataclass(frozen=True)
class LoggedStep:
    """Training step as `aam.network.training.observers` logs it; absent fields are 0."""

    loss: float
    seconds: Annotated[float, msgspec.Meta(gt=0.0, le=1e15)]
    samples: Annotated[int, msgspec.Meta(ge=1)]
    wait: Amount = 0.0
    cpu_seconds: Amount = 0.0
    asvs: Count = 0
    rss: Count = 0
    allocated: Count = 0
    reserved: Count = 0


@dataclass(frozen=True)
class RunResult:
    """Steps of a run, and the reason of its failure; "" without a failure."""

    steps: tuple[LoggedStep, ...]
    failure: str = ""

    @property
    def losses(self) -> list[float]:
        """Loss of each step."""
        return [step.loss for step in self.steps]


@dataclass(frozen=True)
class Rates:
    """Speed and memory of a setting over all blocks of its runs."""

    samples: float  # per second, median over the blocks
    spread: float  # half the interquartile range of `samples`
    asvs: float  # per second, median
    cpu_seconds: float  # per sample, median
    wait: float  # fraction of the time in which the network waits for a batch
    rss: int  # peak in bytes
    allocated: int  # peak of a GPU
    reserved: int


def aam_workload(measured: Pretrain | Train, wrapper: str) -> Workload:
    """Make the workload of a command that a wrapper such as `tune` measures."""
    command = "train" if isinstance(measured, Train) else "pretrain"
    values = values_of(measured)
    chosen = {
        spec.flag: values[spec.flag]
        for spec in wrapped_options(wrapper, command)
        if values[spec.flag] != spec.default
    }
    if command == "train":
        # Other members have no training steps: fitting them in every run would be a waste.
        chosen["--members"] = (TRANSFORMER,)

    def argv(settings: Settings, folder: Path) -> list[str]:
        values = {**chosen, **settings, "--output-dir": folder / "run"}
        return [sys.executable, "-m", "aam", command, *arguments(specs(type(measured)), values)]

    return argv


@contextlib.contextmanager
def child_process(
    argv: Sequence[str], grace: float = 0.0, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program and yield it; its process group is killed at the end of the block.

    SIGTERM and Ctrl-C to this process also end the program. It has `grace` seconds between SIGTERM
    and SIGKILL to end its own children.
    """
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        # The whole session is killed, with data loaders and ranks.
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, start_new_session=True, **options
        )
        try:
            yield process
        finally:
            if grace and process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(grace)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # SIGKILL does not end a process in an uninterruptible call of a driver.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
    finally:
        signal.signal(signal.SIGTERM, handler)


def call_in_child(function: Callable[..., Any], *arguments: object, timeout: float) -> Any:
    """Compute a function of a module in a child process; return its JSON result.

    This process then holds no GPU: its context would take memory from its children.
    """
    # Not `multiprocessing`: its child prints to the terminal, but the last line names the cause of
    # a crash. sys.path is set first, so that no module of the current folder is imported.
    boot = f"""
import json, sys; sys.path[:] = {sys.path!r}
from aam.contract.errors import AamError
from {function.__module__} import {function.__qualname__} as function
try: answer = {{"result": function(*{arguments!r})}}
except AamError as error: answer = {{"error": [error.cause, error.evidence, error.remedy]}}
print(json.dumps(answer))"""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with child_process([sys.executable, "-c", boot], **pipes) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            evidence = f"no result for {timeout:g} s"
            raise Unavailable("The device does not respond", evidence, "use another") from None
    try:
        # Only the last line: libraries print warnings above it.
        answer = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        lines = errors.decode(errors="replace").strip().splitlines()
        last = (lines or [f"status {process.returncode}"])[-1]
        raise Unavailable("The device cannot be used", last[:300], "see `aam check`") from None
    if "error" in answer:
        raise Unavailable(*answer["error"])
    return answer["result"]


def run_workload(
    argv: Sequence[str],
    steps: int,
    folder: Path,
    timeout: float,
    noise_seed: int | None = None,
    variables: Mapping[str, str] = {},
) -> RunResult:
    """Run a program in a child process and return its steps.

    The folder is emptied first. A program without a step for `timeout` seconds counts as hanging.
    `noise_seed` is the seed of noise on the initial weights; None for no noise.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    log, output = folder / "steps.jsonl", folder / "output.txt"
    environment = {
        **os.environ,
        **variables,
        "AAM_STEP_LOG": str(log),
        "AAM_STEPS": str(steps),
        "AAM_WEIGHT_NOISE": str(0.0 if noise_seed is None else WEIGHT_NOISE),
        "AAM_WEIGHT_NOISE_SEED": str(noise_seed or 0),
    }
    # Each step is a line of the log: a log that does not grow means no progress.
    size, reached, hangs = 0, time.monotonic(), False
    try:
        pipes: dict[str, Any] = {"stderr": subprocess.STDOUT, "env": environment}
        with output.open("wb") as stream, child_process(argv, stdout=stream, **pipes) as process:
            while process.poll() is None and not hangs:
                with contextlib.suppress(OSError):
                    if log.stat().st_size != size:
                        size, reached = log.stat().st_size, time.monotonic()
                hangs = time.monotonic() - reached > timeout
                time.sleep(_POLL)
    except (OSError, ValueError) as error:
        return RunResult((), f"it cannot be started: {getattr(error, 'strerror', error)}")
    logged, failure = read_steps(log)
    with output.open("rb") as printed:
        # A program may print gigabytes of warnings; the last lines name the cause.
        printed.seek(max(0, output.stat().st_size - 100_000))
        text = printed.read().decode(errors="replace")
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    status = process.returncode
    progress = f"after step {len(logged)} of {steps}"
    if failure or (status == 0 and len(logged) >= steps and not hangs):
        return RunResult(logged, failure)
    if hangs:
        failure = f"no step for {timeout:g} s {progress}"
    elif status == -signal.SIGKILL:
        failure = f"killed (SIGKILL) {progress}, as the kernel does when memory is short"
    elif any(map(_OUT_OF_MEMORY.search, lines)):
        failure = f"out of memory {progress}"
    elif status == 0 and not logged:
        failure = "it wrote no step to the file that AAM_STEP_LOG names"
    elif status == 0:
        failure = f"it ended {progress}: give fewer --steps, or let it train longer"
    else:
        end = signal.Signals(-status).name if status < 0 else f"status {status}"
        failure = f"it ended with {end} {progress}: {next(reversed(lines), '')[:300]}"
    return RunResult(logged, failure)


def read_steps(log: Path) -> tuple[tuple[LoggedStep, ...], str]:
    """Read the step log of a run; return the valid steps, and the error of the next line or ""."""
    try:
        text = log.read_bytes().decode(errors="replace")
    except OSError:
        return (), ""
    steps: list[LoggedStep] = []
    # The text after the last newline is an unfinished line or empty.
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            # json, not msgspec: Python writes a loss that is not a number as NaN.
            steps.append(msgspec.convert(json.loads(line), LoggedStep, strict=False))
        except (ValueError, RecursionError):
            start = line if len(line) <= 60 else f"{line[:57]}..."
            fault = f"line {number} of its step log is not a step with loss, seconds and samples"
            return tuple(steps), f"{fault}: {start!r}"
    return tuple(steps), ""


def block_totals(run: RunResult, warmup: int) -> pd.DataFrame:
    """Sum the steps after the warm-up by blocks; the last block takes the remainder."""
    steps = pd.DataFrame(list(run.steps[min(warmup, len(run.steps) - 1) :]))
    last = max(len(steps) // BLOCK - 1, 0)
    return steps[_SUMMED].groupby(np.minimum(steps.index // BLOCK, last)).sum()


def rates(runs: Sequence[RunResult], warmup: int) -> Rates:
    """Compute the rates of the runs of a setting, without the first `warmup` steps of each."""
    totals = pd.concat([block_totals(run, warmup) for run in runs])
    samples = totals["samples"] / totals["seconds"]
    steps = [step for run in runs for step in run.steps]
    return Rates(
        samples=float(samples.median()),
        spread=float(samples.quantile(0.75) - samples.quantile(0.25)) / 2,
        asvs=float((totals["asvs"] / totals["seconds"]).median()),
        cpu_seconds=float((totals["cpu_seconds"] / totals["samples"]).median()),
        wait=float(totals["wait"].sum() / totals["seconds"].sum()),
        rss=max(step.rss for step in steps),
        allocated=max(step.allocated for step in steps),
        reserved=max(step.reserved for step in steps),
    )
