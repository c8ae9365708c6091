"""Workload: a program that logs its training steps, run as a child process with some settings.

The log is a file of one line of JSON for each step; `aam.training.observers` has its
fields and the variables that request it. A program that hangs, crashes or runs out of memory ends
itself alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aam.contract.errors import UsageError
from aam.contract.options import arguments, specs

Settings = Mapping[str, Any]
"""Flag of an option, or name of a value in a command line -> value."""

POLL = 0.05
"""Seconds between two looks at the log of a run."""

NONE: Mapping[str, str] = {}

_KILL_TIMEOUT = 10

_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|can't allocate memory|does not fit in memory", re.IGNORECASE
)


class Workload(Protocol):
    """A program with settings."""

    def argv(self, settings: Settings, folder: Path) -> tuple[str, ...]:
        """Return its command line with `settings`; it may write to `folder`."""


@dataclass(frozen=True)
class AamCommand:
    """`aam pretrain` or `aam train`, with the options that the user gives."""

    command: str
    options: type
    given: Settings

    def argv(self, settings: Settings, folder: Path) -> tuple[str, ...]:
        """Return the command line; the run folder is in `folder`."""
        given = {**self.given, **settings, "--output-dir": folder / "run"}
        return (sys.executable, "-m", "aam", self.command, *arguments(specs(self.options), given))


@dataclass(frozen=True)
class Program:
    """Any program: its words, with `{name}` in place of each value.

    Args:
        values: name -> default.
    """

    words: tuple[str, ...]
    values: Mapping[str, str]

    def argv(self, settings: Settings, folder: Path) -> tuple[str, ...]:
        """Return the command line.

        Raises:
            UsageError: a name without values, or braces that do not match.
        """
        try:
            return tuple(word.format_map({**self.values, **settings}) for word in self.words)
        except (ValueError, IndexError, KeyError, AttributeError) as error:
            raise UsageError(
                "The command line of the program cannot be made",
                f"{shlex.join(self.words)}, {type(error).__name__}: {error}",
                "give --values NAME=VALUE,VALUE for each {NAME}, and write {{ and }} for braces",
            ) from error


@dataclass(frozen=True)
class Step:
    """Training step, as `aam.training.observers` logs it; 0 where a field is absent."""

    loss: float
    seconds: float
    samples: int
    wait: float = 0.0
    cpu_seconds: float = 0.0
    asvs: int = 0
    rss: int = 0
    allocated: int = 0
    reserved: int = 0


@dataclass(frozen=True)
class RunResult:
    """Steps of a run, and why it failed; "" if it did not."""

    steps: tuple[Step, ...]
    failure: str = ""

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return [step.loss for step in self.steps]


@dataclass(frozen=True)
class RunPlan:
    """Description of one run: settings, steps and seed.

    Attributes:
        settings: settings that differ from the default.
        steps: number of training steps, at least 1.
        repeat: number that distinguishes runs of the same settings.
        noise, seed: relative standard deviation of noise on the initial weights, and its seed.
    """

    settings: Settings
    steps: int
    repeat: str
    noise: float = 0.0
    seed: int = 0


def run_workload(
    workload: Workload,
    plan: RunPlan,
    folder: Path,
    timeout: float,
    variables: Mapping[str, str] = NONE,
) -> RunResult:
    """Run a workload in a child process and return its steps.

    Args:
        workload: program to run.
        plan: settings, number of steps and seed of the run.
        folder: folder of the run's files; an existing one is replaced.
        timeout: seconds without a step after which it counts as hanging.
        variables: further environment variables.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    log, output = folder / "steps.jsonl", folder / "output.txt"
    argv = workload.argv(plan.settings, folder)
    environment = {
        **os.environ,
        **variables,
        "AAM_STEP_LOG": str(log),
        "AAM_STEPS": str(plan.steps),
        "AAM_WEIGHT_NOISE": str(plan.noise),
        "AAM_WEIGHT_NOISE_SEED": str(plan.seed),
    }
    with output.open("wb") as stream:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # `_end` kills the group, with data loaders and ranks.
            )
        except (OSError, ValueError) as error:
            return RunResult((), f"it cannot be started: {getattr(error, 'strerror', error)}")
        try:
            hangs = _wait(process, log, timeout)
        finally:
            _end(process)
    steps, invalid_line = read_steps(log)
    if invalid_line:
        return RunResult(steps, invalid_line)
    if hangs:
        return RunResult(
            steps, f"no step for {timeout:g} s after step {len(steps)} of {plan.steps}"
        )
    return RunResult(steps, _failure(process.returncode, output, len(steps), plan.steps))


def read_steps(log: Path) -> tuple[tuple[Step, ...], str]:
    """Read the log of a run; return its steps, and what is wrong with the next line or "".

    A line that is still being written is left out.
    """
    try:
        text = log.read_bytes().decode(errors="replace")
    except OSError:
        return (), ""
    found: list[Step] = []
    # After the last newline stands an unfinished line, or nothing.
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            found.append(step_of(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            shown = line if len(line) <= 60 else f"{line[:57]}..."
            return tuple(found), (
                f"line {number} of its step log is not a step with loss, seconds and samples: "
                f"{shown!r}"
            )
    return tuple(found), ""


def step_of(line: dict[str, Any]) -> Step:
    """Return a step from its values by name.

    Raises:
        ValueError, KeyError, TypeError: a value is absent, no number or out of range.
    """
    values = {
        name: float(line[name] if name in ("loss", "seconds", "samples") else line.get(name, 0))
        for name in Step.__dataclass_fields__
    }
    times = (values["seconds"], values["wait"], values["cpu_seconds"])
    if not all(map(math.isfinite, times)) or values["seconds"] <= 0 or values["samples"] < 1:
        raise ValueError
    whole = ("samples", "asvs", "rss", "allocated", "reserved")
    return Step(**{n: int(v) if n in whole else v for n, v in values.items()})  # type: ignore[arg-type]


def _wait(process: subprocess.Popen[bytes], log: Path, timeout: float) -> bool:
    """Wait for the end of a process; return whether it hangs."""
    # A step is a line of the log, so a log that does not grow is a run without progress.
    size, reached = 0, time.monotonic()
    while process.poll() is None:
        now = time.monotonic()
        with contextlib.suppress(OSError):
            if log.stat().st_size != size:
                size, reached = log.stat().st_size, now
        if now - reached > timeout:
            return True
        time.sleep(POLL)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all that it started, such as data loaders."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_TIMEOUT)


def last_lines(output: Path) -> list[str]:
    """Return the last lines of what a program printed, without empty ones; they name the cause."""
    with output.open("rb") as stream:
        # A run in a loop of warnings may print gigabytes.
        stream.seek(max(0, output.stat().st_size - 100_000))
        lines = stream.read().decode(errors="replace").splitlines()
    return [line for line in map(str.strip, lines) if line]


def _failure(status: int, output: Path, steps: int, planned: int) -> str:
    """Return why a run that ended by itself failed; "" if it did not."""
    if status == 0 and steps >= planned:
        return ""
    lines = last_lines(output)
    message = next(reversed(lines), "")
    place = f"after step {steps} of {planned}"
    if status == -signal.SIGKILL:
        return f"killed (SIGKILL) {place}, as the kernel does when memory is short"
    if any(map(_OUT_OF_MEMORY.search, lines)):
        return f"out of memory {place}"
    if status == 0 and steps == 0:
        return "it wrote no step to the file that AAM_STEP_LOG names"
    if status == 0:
        return f"it ended {place}: give fewer --steps, or let it train longer"
    how = f"{signal.Signals(-status).name}" if status < 0 else f"status {status}"
    return f"it ended with {how} {place}: {message[:300]}"


def changed(defaults: Settings, settings: Sequence[Settings]) -> dict[str, Any]:
    """Merge settings, later ones first, without those that equal the default.

    >>> changed({"--lr": 1, "--workers": 0}, [{"--workers": 2}, {"--workers": 4, "--lr": 1}])
    {'--workers': 4}
    """
    merged: dict[str, Any] = {}
    for one in settings:
        merged.update(one)
    return {name: value for name, value in merged.items() if defaults.get(name) != value}
