"""A part of the acceptance: measured as a process of its own, then compared with expected values.

To add a part, write its two functions and an entry in `aam.acceptance.parts.PARTS`, and add its
name to `PartName` of `aam.contract.options.commands.acceptance`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aam.acceptance.result import Outcome, PartResult, Values
from aam.console import duration
from aam.contract import schema
from aam.contract.errors import AamError, printable
from aam.contract.gpus import GPU
from aam.contract.stop_file import VARIABLE as STOP_FILE
from aam.performance.measurement.workload import last_lines

GRACE = 10.0
"""Seconds from SIGTERM, with which a measurement ends its runs, to SIGKILL."""
KEPT_OUTPUT = 1 << 20
"""Bytes of a file of a failed part up to which it is kept."""
TOLERANCE = 0.15
"""Relative difference of a speed from the reference that counts: clocks and neighbours vary."""


NONE: Mapping[str, str] = {}


class NotPossible(Exception):
    """A part that this host or image cannot measure, with the reason."""


class PartFailure(Exception):
    """A command of a part that failed, with the last line of its output."""


@dataclass(frozen=True)
class Context:
    """Place of a measurement.

    Attributes:
        folder: folder of the part; empty at the start, and kept for other parts.
        shared: folder of all runs: simulated studies, golden folders.
        run: name of the run in a path.
        device: "cpu" or "cuda".
        gpus: GPUs that this process sees.
        small: a study and settings that a CPU of two cores computes in a minute.
        started: unix time at which `aam acceptance` started.
    """

    folder: Path
    shared: Path
    run: str
    device: str
    gpus: int
    small: bool
    started: float

    @property
    def gpu(self) -> bool:
        """Whether a GPU is measured."""
        return self.device == GPU

    def of(self, part: str) -> Path:
        """Return the folder of another part of this run."""
        return self.folder.parent / part


@dataclass(frozen=True)
class Measurement:
    """What a part measured, and what was expected, both as JSON."""

    measured: Values
    expected: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """Comparison of measured with expected values: the outcome, and one sentence."""

    outcome: Outcome
    summary: str


@dataclass(frozen=True)
class AcceptancePart:
    """A part of the acceptance.

    Attributes:
        title: name of the measurement, on the terminal and the page.
        limit: seconds after which it is ended.
        measure: function of a module, called in a process of its own.
        evaluate: compares measured with expected values; pure.
        shape: schema of the measured values (`aam.contract.schema`).
    """

    title: str
    limit: float
    measure: Callable[[Context], Measurement]
    evaluate: Callable[[Values, Values], Evaluation]
    shape: Mapping[Any, Any] = field(default_factory=dict)


def run_part(part: AcceptancePart, context: Context, limit: float, reference: Values) -> PartResult:
    """Measure a part in a child process and compare the result; every failure is one sentence.

    Args:
        part: entry of the registry `PARTS`.
        context: place of the measurement; its folder is emptied first.
        limit: seconds after which the process and all that it started are ended.
        reference: speeds of the part in another file, by name; may be empty.

    Returns:
        Outcome, sentence, seconds, and the measured and expected values.
    """
    began = time.monotonic()
    try:
        found = _measure(part, context, limit)
        measured, expected = found.get("measured", {}), found.get("expected", {})
        if "failed" in found:
            verdict = Evaluation("failed", found["failed"])
        elif "impossible" in found:
            verdict = Evaluation("not possible here", found["impossible"])
        else:
            schema.parse(dict(part.shape), measured, "the measured values")
            verdict = compared(
                part.evaluate(measured, expected), measured.get("rates", {}), reference
            )
    except (OSError, ValueError) as error:
        verdict, measured, expected = Evaluation("failed", _reason(error)), {}, {}
    if verdict.outcome == "failed":
        _clear(context.folder)
    seconds = round(time.monotonic() - began, 1)
    return PartResult(verdict.outcome, verdict.summary, seconds, measured, expected)


def compared(verdict: Evaluation, rates: Values, reference: Values) -> Evaluation:
    """Compare speeds with those of a reference, unless the part is wrong already.

    Args:
        verdict: evaluation of the part by itself.
        rates: measured speeds by name; higher is faster.
        reference: speeds of the same names, of another host or image; others are ignored.

    Returns:
        "slower" or "faster" where a speed differs by more than `TOLERANCE`, with a sentence about
        the speed that differs most.

    >>> compared(Evaluation("as predicted", "Fine."), {"fp32": 40.0}, {"fp32": 80.0}).summary
    'Fine. fp32 is 0.50 times the reference.'
    """
    if verdict.outcome not in ("as predicted", "faster", "slower"):
        return verdict
    ratios = {name: rates[name] / reference[name] for name in rates if reference.get(name)}
    if not ratios:
        return verdict
    lowest, highest = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    outcome: Outcome = verdict.outcome
    name = lowest
    if ratios[lowest] < 1 - TOLERANCE:
        outcome = "slower"
    elif outcome != "slower" and ratios[highest] > 1 + TOLERANCE:
        outcome, name = "faster", highest
    return Evaluation(
        outcome, f"{verdict.summary} {name} is {ratios[name]:.2f} times the reference."
    )


def _measure(part: AcceptancePart, context: Context, limit: float) -> dict[str, Any]:
    shutil.rmtree(context.folder, ignore_errors=True)
    context.folder.mkdir(parents=True)
    # The path comes first, so that no module of the current folder is imported.
    boot = f"import sys; sys.path[:] = {sys.path!r}; from aam.acceptance.part import work; work()"
    function = f"{part.measure.__module__}:{part.measure.__qualname__}"
    request = json.dumps({"measure": function, "context": asdict(context)}, default=str)
    # The stop request of a job is for this command; its children would end with it.
    variables = {name: value for name, value in os.environ.items() if name != STOP_FILE}
    output = context.folder / "output.txt"
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", boot],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            env=variables,
            # Its process group is not that of this command, and can be ended as a whole.
            start_new_session=True,
        )
        try:
            answer, _ = process.communicate(request.encode(), timeout=limit)
        except subprocess.TimeoutExpired:
            return {"failed": f"No result after {duration(limit)}; it was ended."}
        finally:
            end_tree(process)
    if process.returncode == 0:
        found: dict[str, Any] = json.loads(answer)
        return found
    return {"failed": f"{_status(process.returncode)}: {last_line(output)}"}


def work() -> None:
    """Run the child: read the measurement from standard input, write its result to the output."""
    # Whatever else is printed, by libraries and other programs too, goes to standard error.
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        request = json.loads(sys.stdin.read())
        module, _, name = request["measure"].partition(":")
        given = request["context"]
        folders = {key: Path(given[key]) for key in ("folder", "shared")}
        try:
            found = getattr(importlib.import_module(module), name)(Context(**given | folders))
            content: dict[str, Any] = {
                "measured": dict(found.measured),
                "expected": dict(found.expected),
            }
        except NotPossible as reason:
            content = {"impossible": str(reason)}
        except (AamError, PartFailure, OSError) as error:
            content = {"failed": _reason(error)}
        json.dump(content, answer)


def aam(
    context: Context,
    *arguments: object,
    accept: tuple[int, ...] = (0,),
    variables: Mapping[str, str] = NONE,
) -> str:
    """Run a command of `aam` and return its standard output.

    Args:
        context: place of the measurement; the command runs in its folder.
        arguments: name of the command and its arguments, which become text.
        accept: exit statuses that are no failure.
        variables: environment variables that are added.

    Raises:
        PartFailure: it ended with a status that is not among `accept`.
    """
    argv = [sys.executable, "-m", "aam", *map(str, arguments)]
    environment = {**os.environ, **variables}
    done = subprocess.run(
        argv, capture_output=True, text=True, env=environment, cwd=context.folder,
        stdin=subprocess.DEVNULL, errors="replace",
    )  # fmt: skip
    print(done.stderr, file=sys.stderr)
    if done.returncode not in accept:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        how = _status(done.returncode)
        raise PartFailure(f"`aam {arguments[0]}` {how}: {(lines or ['no output'])[-1][:300]}")
    return done.stdout


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it started, also in sessions of their own."""
    if process.poll() is None:
        # Stopped, it starts nothing between the list of its descendants and its end.
        process.send_signal(signal.SIGSTOP)
    started = descendants(process.pid)
    if process.poll() is None:
        process.terminate()
        process.send_signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # A process that did not end in time may have started more since.
    started += descendants(process.pid)
    for pid in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    # They are no children of this process, and hold their files and GPU until they are gone.
    limit = time.monotonic() + GRACE
    while any(map(_runs, started)) and time.monotonic() < limit:
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """Return the processes that a process started, and those started by them."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name of a process, in brackets before these fields, may contain blanks and
            # brackets.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, left = [], [pid]
    while left:
        new = children.get(left.pop(), [])
        found += new
        left += new
    return found


def last_line(output: Path) -> str:
    """Return the last line of a file that is not empty."""
    return printable(next(reversed(last_lines(output)), "no output"), 300)


def _clear(folder: Path) -> None:
    """Remove the large files of a part that failed, which may fill the disk; outputs are small."""
    for path in folder.glob("*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.lstat().st_size > KEPT_OUTPUT:
            path.unlink(missing_ok=True)


def _reason(error: BaseException) -> str:
    text = str(error) if not isinstance(error, OSError) else f"{error.strerror or error}"
    return printable(text, 500) or type(error).__name__


def _status(status: int) -> str:
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
