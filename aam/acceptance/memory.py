"""Parts `memory` and `unified`: predicted against measured peaks, and copies between memories."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from aam.acceptance.part import Context, Evaluation, Measurement, NotPossible, aam
from aam.acceptance.result import Values
from aam.acceptance.workloads import batch_size, pretraining, steps, training
from aam.contract.options import arguments, build, specs
from aam.memory import GIB, page_cache, shown_size
from aam.numerics.device import select_gpu
from aam.performance.measurement.workload import AamCommand
from aam.performance.memory.fit import ASSUMED, FRAGMENTATION
from aam.performance.memory.runs import StepSettings, TrainingRun, pretraining_run, training_run

MEMORY = {
    "runs": [
        {
            "command": str,
            "setting": str,
            "predicted": int,
            "allocated": (None, int),
            "reserved": (None, int),
            "rss": (None, int),
            "failure": str,
        }
    ],
    "largest_batch?": (None, int),
    "host?": {str: int},
}
"""Schema of the measured values of the part `memory`.

`predicted`, `allocated` and `reserved` are peaks in bytes, of the tensors and of the allocator,
`rss` is that of the process on the host. `largest_batch` is the choice of --batch-size auto, which
the study limits. `host` has the largest process and the page cache after the runs, which an APU
shares with its GPU.
"""

UNIFIED = {"apu": bool, "rates": {str: float}}
"""Schema of the measured values of the part `unified`; rates in GB/s."""

PEAK_TOLERANCE = 0.1
"""Relative difference of a measured from a predicted peak that counts as wrong."""

SEGMENTS = "expandable segments"
EXPANDABLE = ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
"""Variable of the allocator, which PyTorch's builds for ROCm read too, and its value."""


def measure_memory(context: Context) -> Measurement:
    """Predict the peak of each setting, and measure it where the device counts allocations."""
    runs = [_run(context, *case) for case in _cases(context)] + [_predict(context)]
    largest = None
    if context.gpu:
        found = steps(context, pretraining(context), {"--batch-size": "auto"})
        largest = max((step.samples for step in found.steps), default=None)
    host = {"process": max((run["rss"] for run in runs if run["rss"]), default=None)}
    host["page cache"] = page_cache()
    expected = {"tolerance": PEAK_TOLERANCE, "fragmentation": FRAGMENTATION, "assumed": ASSUMED}
    known = {name: size for name, size in host.items() if size is not None}
    return Measurement({"runs": runs, "largest_batch": largest, "host": known}, expected)


Case = tuple[AamCommand, dict[str, Any], dict[str, str], str]
"""Workload, its settings, variables, and the name of both."""


def _cases(context: Context) -> list[Case]:
    first, second = pretraining(context), training(context)
    usual = batch_size(context)
    sizes = (usual, 2 * usual) if context.small else (16, 64, 256)
    chunk = 64 if context.small else 256
    cases: list[Case] = [
        (first, {"--batch-size": size}, {}, f"batch {size}") for size in sizes
    ]  # fmt: skip
    cases += [
        (first, {"--gradient-checkpointing": True}, {}, f"batch {usual}, checkpointing"),
        (first, {"--asv-chunk": chunk}, {}, f"batch {usual}, chunks of {chunk}"),
        (second, {}, {}, f"batch {usual}"),
    ]
    if context.gpu:
        cases.append((first, {}, dict([EXPANDABLE]), f"batch {usual}, {SEGMENTS}"))
    return cases


def _run(
    context: Context,
    workload: AamCommand,
    settings: dict[str, Any],
    variables: dict[str, str],
    name: str,
) -> dict[str, Any]:
    predicted = _predicted(workload, settings)
    row = _row(workload.command, name, predicted)
    if not context.gpu:
        return row
    found = steps(context, workload, settings, variables)
    peaks = {
        key: max((getattr(step, key) for step in found.steps), default=None)
        for key in ("allocated", "reserved", "rss")
    }
    return row | peaks | {"failure": found.failure}


def _row(command: str, name: str, predicted: int) -> dict[str, Any]:
    none = dict.fromkeys(("allocated", "reserved", "rss"))
    return {"command": command, "setting": name, "predicted": predicted, **none, "failure": ""}


def prediction(workload: AamCommand, settings: dict[str, Any]) -> tuple[TrainingRun, StepSettings]:
    """Return the training run of a workload and the settings of its step, as `aam memory` does.

    Args:
        workload: command with its options.
        settings: further options by flag; they replace those of the workload.
    """
    given = {**workload.given, **settings, "--output-dir": Path("run")}  # nothing is written
    options: Any = build(workload.options, given)
    run = training_run(options) if workload.command == "train" else pretraining_run(options)
    return run, StepSettings(min(options.loop.batch_samples, run.batches.samples), options.speed)


def _predicted(workload: AamCommand, settings: dict[str, Any]) -> int:
    run, step = prediction(workload, settings)
    return run.memory(step).peak


_PEAK = """
import sys, torch
from aam.cli import main
status = main(sys.argv[1:])
print("peak", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
sys.exit(status)
"""


def _predict(context: Context) -> dict[str, Any]:
    """Return the row of `aam predict` with a network of one epoch."""
    workload, run = training(context), context.folder / "model"
    given = {**workload.given, "--output-dir": run, "--epochs": 1}
    aam(context, "train", *arguments(specs(workload.options), given))
    size = batch_size(context)
    argv = ["--table", str(given["--table"]), "--model", str(run), "--batch-size", str(size)]
    found = json.loads(aam(context, "memory", "--json", "predict", *argv))
    row = _row("predict", f"batch {size}", found["peak"])
    if not context.gpu:
        return row
    more = ["--output", str(context.folder / "predictions.tsv"), "--device", context.device]
    # The peak is read in the process itself: a prediction has no step log.
    command = [sys.executable, "-c", _PEAK, "predict", *argv, *more]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    fields = (done.stdout.splitlines() or [""])[-1].split()
    if done.returncode or fields[:1] != ["peak"]:
        return row | {"failure": (done.stderr.splitlines() or ["no output"])[-1][:300]}
    return row | {"allocated": int(fields[1]), "reserved": int(fields[2])}


def evaluate_memory(measured: Values, expected: Values) -> Evaluation:
    """Name the settings whose peak differs from the prediction, and those that failed."""
    runs = measured["runs"]
    failed = [f"{_name(run)}: {run['failure']}" for run in runs if run["failure"]]
    if failed:
        return Evaluation("wrong", f"{len(failed)} of {len(runs)} runs failed: {failed[0]}")
    compared = [run for run in runs if run["allocated"]]
    if not compared:
        most = max(run["predicted"] for run in runs)
        sentence = f"A CPU counts no allocations; up to {shown_size(most)} are predicted."
        return Evaluation("not possible here", sentence)
    tolerance = expected.get("tolerance", PEAK_TOLERANCE)
    shares = {_name(run): run["allocated"] / run["predicted"] - 1 for run in compared}
    bad = {name: share for name, share in shares.items() if abs(share) > tolerance}
    name = max(shares, key=lambda name: abs(shares[name]))
    if bad:
        return Evaluation(
            "wrong",
            f"{name} takes {abs(shares[name]):.0%} {'more' if shares[name] > 0 else 'less'} than "
            f"predicted; {len(bad)} of {len(shares)} peaks differ by more than {tolerance:.0%}.",
        )
    sentence = f"{len(shares)} peaks are within {abs(shares[name]):.1%} of the prediction"
    largest = measured.get("largest_batch")
    more = f"; --batch-size auto takes {largest} samples" if largest else ""
    return Evaluation("as predicted", f"{sentence}{more}.")


def _name(run: Values) -> str:
    return f"{run['command']}, {run['setting']}"


def measure_unified(context: Context) -> Measurement:
    """Measure copies between the memories of host and GPU, beside those within the GPU's."""
    if not context.gpu:
        raise NotPossible("There is no GPU.")
    device = select_gpu(0)
    properties = torch.cuda.get_device_properties(device)
    apu = bool(getattr(properties, "is_integrated", False)) or "MI300A" in properties.name
    if not apu:
        raise NotPossible(f"{properties.name} has memory of its own.")
    size = GIB // 4
    host = torch.ones(size, dtype=torch.uint8)
    rates = {
        "pageable host to GPU": _copies(host, device),
        "pinned host to GPU": _copies(host.pin_memory(), device),
        "within the GPU": _copies(host.to(device), device),
    }
    return Measurement({"apu": apu, "rates": rates})


def _copies(source: torch.Tensor, device: torch.device) -> float:
    """Return the rate of copies of a tensor to the GPU in GB/s, the best of several."""
    target, best = torch.empty_like(source, device=device), 0.0
    for _ in range(5):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize(device)
        best = max(best, len(source) / (time.perf_counter() - began) / 1e9)
    return best


def evaluate_unified(measured: Values, expected: Values) -> Evaluation:
    """State the cost of a copy that unified memory would avoid.

    >>> evaluate_unified({"rates": {"pinned host to GPU": 55.2}}, {}).summary
    'Copies: pinned host to GPU 55 GB/s.'
    """
    rates = measured["rates"]
    listed = ", ".join(f"{name} {rate:.0f} GB/s" for name, rate in rates.items())
    return Evaluation("as predicted", f"Copies: {listed}.")
