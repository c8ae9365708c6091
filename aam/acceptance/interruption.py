"""Part `interruption`: a stopped run continues bit for bit, and a killed rank is named."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aam.acceptance.part import Context, Evaluation, Measurement, PartFailure, descendants, end_tree
from aam.acceptance.result import Values
from aam.acceptance.workloads import pretraining
from aam.contract.errors import Interrupted
from aam.contract.files import sha256
from aam.contract.options import arguments, specs
from aam.performance.measurement.parity import early_difference
from aam.performance.measurement.workload import read_steps

INTERRUPTION = {
    "stop_status": int,
    "resume_status": int,
    "equal": bool,
    "difference": float,
    "rank_status": int,
    "rank_named": bool,
    "rank_seconds": float,
}
"""Schema of the measured values of the part `interruption`.

`equal`: the resumed run has the weights of an uninterrupted one; `difference` is the largest
relative difference of their losses; `rank_seconds` pass from SIGKILL of a rank to the end.
"""

KILLED = 128 + signal.SIGKILL
"""Exit status of a run with a killed rank."""
RANK_TIMEOUT = 10
PATIENCE = 240.0
"""Seconds in which a run makes its first steps, or ends."""

ROUNDING = 1e-5
"""Difference of losses that sums in another order make, as atomic additions of a GPU have it."""

_WEIGHTS = "model/transformer.safetensors"


def measure_interruption(context: Context) -> Measurement:
    """Stop a run by SIGTERM and resume it, and kill a rank of another run."""
    epochs = {"--epochs": 2}
    whole, stopped = context.folder / "whole", context.folder / "stopped"
    _finish(context, whole, epochs)
    with _running(context, stopped, epochs) as process:
        _after_steps(stopped, process, 3)
        process.send_signal(signal.SIGTERM)
        stop_status = process.wait(PATIENCE)
    resume = _finish(context, stopped, {**epochs, "--resume-from": "auto"}, check=False)
    equal = resume == 0 and sha256(whole / _WEIGHTS) == sha256(stopped / _WEIGHTS)
    measured = {
        "stop_status": stop_status,
        "resume_status": resume,
        "equal": equal,
        "difference": _difference(whole, stopped),
        **_kill_rank(context),
    }
    return Measurement(measured, {"stop_status": Interrupted.status, "rank_status": KILLED})


def _difference(whole: Path, stopped: Path) -> float:
    """Return the largest relative difference of the losses after the stop."""
    one, two = (
        [step.loss for step in read_steps(folder.with_suffix(".jsonl"))[0]]
        for folder in (whole, stopped)
    )
    return early_difference(two, one[-len(two) :])


def _kill_rank(context: Context) -> dict[str, Any]:
    folder = context.folder / "ranks"
    ranks = {"--processes": 2, "--distributed": True, "--rank-timeout": RANK_TIMEOUT}
    # NCCL refuses two ranks on one GPU.
    device = context.device if context.gpus >= 2 else "cpu"
    with _running(context, folder, {**ranks, "--device": device}) as process:
        _after_steps(folder, process, 2)
        # The variable RANK in its environment identifies the process of a rank.
        found = [pid for pid in descendants(process.pid) if _rank(pid) == "1"]
        if not found:
            raise PartFailure("no process of rank 1")
        os.kill(found[0], signal.SIGKILL)
        killed = time.monotonic()
        status = process.wait(PATIENCE)
    output = (folder.with_suffix(".txt")).read_text(errors="replace")
    named = "rank 1 was killed by SIGKILL" in output
    seconds = time.monotonic() - killed
    return {"rank_status": status, "rank_named": named, "rank_seconds": seconds}


def _rank(pid: int) -> str:
    with contextlib.suppress(OSError):
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(b"RANK="):
                return variable[5:].decode()
    return ""


def _argv(context: Context, folder: Path, settings: dict[str, Any]) -> list[str]:
    workload = pretraining(context)
    given = {**workload.given, **settings, "--output-dir": folder}
    return [sys.executable, "-m", "aam", "pretrain", *arguments(specs(workload.options), given)]


def _finish(context: Context, folder: Path, settings: dict[str, Any], check: bool = True) -> int:
    """Run a training to its end; return its status, or raise an error if it failed."""
    with _running(context, folder, settings) as process:
        status = process.wait(2 * PATIENCE)
    if status and check:
        raise PartFailure(f"`aam pretrain` ended with status {status}")
    return status


@contextlib.contextmanager
def _running(
    context: Context, folder: Path, settings: dict[str, Any]
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a run that logs its steps to FOLDER.jsonl and prints to FOLDER.txt."""
    argv = _argv(context, folder, settings)
    variables = {**os.environ, "AAM_STEP_LOG": str(folder.with_suffix(".jsonl"))}
    with folder.with_suffix(".txt").open("wb") as stream:
        process = subprocess.Popen(
            argv, env=variables, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
        )
        try:
            yield process
        except subprocess.TimeoutExpired as error:
            raise PartFailure(f"no end of `aam pretrain` after {error.timeout:g} s") from error
        finally:
            end_tree(process)


def _after_steps(folder: Path, process: subprocess.Popen[bytes], number: int) -> None:
    """Wait until a run has made some steps.

    Raises:
        PartFailure: it ended, or is too slow.
    """
    until = time.monotonic() + PATIENCE
    while len(read_steps(folder.with_suffix(".jsonl"))[0]) < number:
        if process.poll() is not None or time.monotonic() > until:
            raise PartFailure(f"`aam pretrain` made less than {number} steps")
        time.sleep(0.02)


def evaluate_interruption(measured: Values, expected: Values) -> Evaluation:
    """Compare exit statuses and weights with what the documents promise.

    Args:
        measured: values of the schema `INTERRUPTION`.
        expected: exit statuses of a stopped run and of one with a killed rank.
    """
    stopped, resumed, killed = (measured[f"{name}_status"] for name in ("stop", "resume", "rank"))
    holds = [
        (stopped == expected["stop_status"], f"a stopped run ended with status {stopped}"),
        (resumed == 0, f"the resumed run ended with status {resumed}"),
        (
            measured["equal"] or measured["difference"] <= ROUNDING,
            f"losses of the resumed run differ by up to {measured['difference']:.1e}",
        ),
        (killed == expected["rank_status"], f"a run with a killed rank ended with status {killed}"),
        (measured["rank_named"], "the killed rank was not named"),
    ]
    wrong = [sentence for right, sentence in holds if not right]
    if wrong:
        sentence = "; ".join(wrong)
        return Evaluation("wrong", f"{sentence[0].upper()}{sentence[1:]}.")
    seconds = f"a run with a killed rank names it and ends in {measured['rank_seconds']:.0f} s"
    if not measured["equal"]:
        sentence = f"Equal up to rounding ({measured['difference']:.0e}), as its sums have no order"
        return Evaluation("not possible here", f"{sentence}; {seconds}.")
    return Evaluation("as predicted", f"Stopped and resumed bit for bit; {seconds}.")
