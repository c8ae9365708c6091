"""Parts `speed`, `profile` and `settings`: speed, what limits it, faster settings."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from aam.acceptance.memory import prediction
from aam.acceptance.part import Context, Evaluation, Measurement, aam
from aam.acceptance.result import Values
from aam.acceptance.workloads import (
    batch_size,
    precisions,
    pretraining,
    product_rate,
    steps,
    warmup,
)
from aam.contract.options import arguments, specs
from aam.contract.options.device import SpeedOptions
from aam.data.batches import make_batch
from aam.number_format import significant
from aam.numerics.device import compile_fault, select_gpu
from aam.performance.measurement.bench import rates
from aam.performance.memory.runs import TrainingRun
from aam.performance.memory.step import fake, training_workload

SPEED = {
    "runs": [
        {
            "setting": str,
            "batch_size": int,
            "samples": (None, float),
            "spread": (None, float),
            "wait": (None, float),
            "share": (None, float),
            "failure": str,
        }
    ],
    "products": [{str: float}],
    "data_path": float,
    "rates": {str: float},
}
"""Schema of the measured values of the part `speed`.

`samples` are per second, `spread` half their interquartile range, `wait` the share of the time
without a batch, `share` that of the peak of matrix products in the same precision; `products` are
TFLOP/s of each GPU by precision, `data_path` samples per second of one process that makes batches.
"""

PROFILE = {
    "source": str,
    "limit": str,
    "advice": str,
    "idle": (None, float),
    "wait": float,
    "shares": {str: float},
    "kernels": [{"name": str, "category": str, "calls": int, "milliseconds": float}],
}
"""Schema of the measured values of the part `profile`, see `aam profile --json`."""

SETTINGS = {
    "values": dict[str, Any],
    "gain": float,
    "samples": (None, float),
    "trials": [{"subject": str, "setting": str, "decision": str, "gain": float}],
}
"""Schema of the measured values of the part `settings`; `values` are what `aam tune` chose."""

SLOW_GPU = 0.7
"""Share of the median of all GPUs or ranks below which one is slow."""


def measure_speed(context: Context) -> Measurement:
    """Measure pretraining over batch size, precision, compilation and workers, and its limits."""
    devices = [select_gpu(k) for k in range(context.gpus)] if context.gpu else [torch.device("cpu")]
    products = [
        {one: product_rate(device, one) for one in precisions(device)} for device in devices
    ]
    workload = pretraining(context)
    run, _ = prediction(workload, {})
    flops, path = flops_per_asv(run), _data_path(run, batch_size(context))
    if context.gpu:
        # The runs are processes of their own, and need the memory that this one has cached.
        torch.cuda.empty_cache()
    rows, found_rates = [], {}
    for name, settings in _settings(context, list(products[0])):
        found = steps(context, workload, settings)
        speed = None if found.failure else rates([found], warmup(context))
        peak = products[0].get(settings.get("--mixed-precision", "fp32"), products[0]["fp32"])
        rows.append(
            {
                "setting": name,
                "batch_size": settings.get("--batch-size", batch_size(context)),
                "samples": speed and speed.samples,
                # One block of steps, as in a short run, has no spread.
                "spread": (speed and speed.spread) or None,
                "wait": speed and speed.wait,
                "share": speed and flops * speed.asvs / (peak * 1e12),
                "failure": found.failure,
            }
        )
        if speed:
            found_rates[name] = speed.samples
    for precision, value in products[0].items():
        found_rates[f"matrix products, {precision}"] = value
    measured = {"runs": rows, "products": products, "data_path": path, "rates": found_rates}
    return Measurement(measured)


def _settings(context: Context, known: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return the settings to measure, with their names."""
    usual = batch_size(context)
    sizes = (usual // 2, usual, 2 * usual) if context.small else (16, 64, 256, 1024)
    found: list[tuple[str, dict[str, Any]]] = [
        (f"batch {size}", {"--batch-size": size}) for size in sizes
    ]
    half = "bf16" if "bf16" in known else "fp16" if "fp16" in known else None
    if half:
        found.append((f"batch {usual}, {half}", {"--mixed-precision": half}))
    found.append((f"batch {usual}, 1 worker", {"--num-workers": 1}))
    if not context.small:
        found.append((f"batch {usual}, 8 workers", {"--num-workers": 8}))
        if not compile_fault():  # minutes on a CPU
            found.append((f"batch {usual}, compiled", {"--compile-model": "auto"}))
    return found


def flops_per_asv(run: TrainingRun) -> float:
    """Return the floating-point operations of matrix products in a step for each distinct ASV.

    The nucleotide encoder, which reads each ASV once, makes most of them.

    Args:
        run: training run with its study and configuration.

    Returns:
        Operations of forward and backward pass; a multiplication and an addition are two.
    """
    size = min(8, run.batches.samples)
    batch = run.batches.batch(size)
    counter = FlopCounterMode(display=False)
    # Fake tensors have shapes and no values: operations are counted without computing them.
    with FakeTensorMode(allow_non_fake_inputs=True), counter:
        workload = training_workload(run.module(SpeedOptions()), fake(batch))
        torch.autograd.backward(workload.loss())
    return counter.get_total_flops() / max(1, len(batch.asvs_U))


def _data_path(run: TrainingRun, size: int) -> float:
    """Return the samples per second of one process that makes the batches of a run."""
    study, plan = run.study, run.config.plan
    rows = np.flatnonzero(study.reads >= plan.rarefy_depth)[:size]
    make_batch(study, plan, rows[:2])
    began, made = time.process_time(), 0
    # CPU time, since other processes may use the same cores.
    while time.process_time() < began + 1.0:
        made += len(make_batch(study, plan, rows, 1, made).rows_B)
    return made / (time.process_time() - began)


def evaluate_speed(measured: Values, expected: Values) -> Evaluation:
    """Name a GPU that is slower than the others, and the fastest setting."""
    failed = [f"{run['setting']}: {run['failure']}" for run in measured["runs"] if run["failure"]]
    if failed:
        return Evaluation(
            "wrong", f"{len(failed)} of {len(measured['runs'])} runs failed: {failed[0]}"
        )
    slow = slow_ones([one["fp32"] for one in measured["products"]], "GPU")
    if slow:
        return Evaluation("slower", slow)
    best = max(measured["runs"], key=lambda run: run["samples"])
    share = f", {best['share']:.0%} of the peak of matrix products" if best["share"] else ""
    sentence = f"{significant(best['samples'])} samples/s with {best['setting']}{share}"
    path = f"the data path makes {significant(measured['data_path'])} samples/s per process"
    return Evaluation("as predicted", f"{sentence}; {path}.")


def slow_ones(values: list[float], what: str) -> str:
    """Return a sentence about the first value far below the median of all; "" without one.

    Args:
        values: speeds, one for each device or rank.
        what: name of one of them.

    >>> slow_ones([40.0, 41.0, 20.0, 40.0], "rank")
    'rank 2 computes at 0.50 of the median of all.'
    """
    middle = statistics.median(values)
    shares = [value / middle if middle else 1.0 for value in values]
    slow = [number for number, share in enumerate(shares) if share < SLOW_GPU]
    return (
        f"{what} {slow[0]} computes at {shares[slow[0]]:.2f} of the median of all." if slow else ""
    )


def measure_profile(context: Context) -> Measurement:
    """Record some steps with `aam profile`."""
    workload = pretraining(context)
    given = arguments(specs(workload.options), workload.given)
    number = ("--warmup-steps", 2, "--profile-steps", 3)
    trace = context.folder / "trace"
    text = aam(context, "profile", "--json", "--output-dir", trace, *number, "pretrain", *given)
    found = json.loads(text)
    for kernel in found["kernels"]:
        kernel["name"] = kernel["name"][:200]
    (trace / "trace.json.gz").unlink()  # tens of MB
    return Measurement({name: found[name] for name in PROFILE})


def evaluate_profile(measured: Values, expected: Values) -> Evaluation:
    """State what limits the run, and the largest category."""
    name, share = max(measured["shares"].items(), key=lambda item: item[1])
    limit = f"{measured['limit'].capitalize()}, {measured['advice']}"
    sentence = f"{limit}; most time is in {name} ({share:.0%})."
    return Evaluation("as predicted", sentence)


def measure_settings(context: Context) -> Measurement:
    """Let `aam tune` choose settings that train the same network."""
    workload = pretraining(context)
    given = arguments(specs(workload.options), workload.given)
    size: tuple[object, ...] = ("--steps", 15, "--rounds", 2, "--parity-steps", 60)
    if context.small:
        size = ("--subjects", "workers", "--steps", 6, "--warmup-steps", 2, "--rounds", 1,
                "--parity-steps", 20)  # fmt: skip
    folder = context.folder / "tune"
    aam(context, "tune", "--output-dir", folder, *size, "pretrain", *given)
    found = json.loads((folder / "tune.json").read_text())
    chosen = found["chosen"]
    trials = [
        {"subject": t["subject"], "setting": t["setting"], "decision": t["decision"],
         "gain": t["gain"]}
        for t in found["trials"]
    ]  # fmt: skip
    rate = (chosen["rates"] or {}).get("samples")
    return Measurement(
        {"values": chosen["values"], "gain": chosen["gain"], "samples": rate, "trials": trials,
         "rates": {} if rate is None else {"chosen settings": rate}}
    )  # fmt: skip


def evaluate_settings(measured: Values, expected: Values) -> Evaluation:
    """State what was chosen; a setting that changes the training is rejected, which is right."""
    values = measured["values"]
    if not values or measured["gain"] <= 1:
        return Evaluation(
            "as predicted", f"The defaults are as fast; {len(measured['trials'])} tried."
        )
    listed = ", ".join(f"{name} {value}" for name, value in values.items())
    return Evaluation("as predicted", f"{listed}: {measured['gain']:.2f} times as fast.")
