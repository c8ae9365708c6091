"""Workloads of the parts: a simulated study, pretraining and training on it, matrix products."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from aam.acceptance.part import NONE, Context, aam
from aam.contract.errors import UsageError
from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.commands.train import Train
from aam.numerics.device import arch_of, is_gpu
from aam.numerics.precision import choose_precision
from aam.performance.measurement.workload import AamCommand, RunPlan, RunResult, run_workload

HANGS = 300.0
"""Seconds without a step after which a run counts as hanging."""
SMALL = ("--samples", 64, "--asvs", 300, "--length", 100, "--richness", 40, "--depth", 2000)
FULL = ("--samples", 1100)
COLUMN = "ph"
"""Numeric metadata column of a simulated study."""

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def study(context: Context) -> dict[str, Path]:
    """Return the files of the simulated study by flag; it is made once for all parts."""
    folder = context.shared / ("study-small" if context.small else "study")
    if not (folder / "simulate.run.json").is_file():  # written last
        size = SMALL if context.small else FULL
        aam(context, "simulate", "--output-dir", folder, *size, "--overwrite")
    return {"--table": folder / "table.biom", "--tree": folder / "tree.nwk"}


def pretraining(context: Context) -> AamCommand:
    """Return `aam pretrain` on the simulated study."""
    return AamCommand(
        "pretrain",
        Pretrain,
        {**study(context), "--device": context.device, "--batch-size": batch_size(context)},
    )


def training(context: Context) -> AamCommand:
    """Return `aam train` of the network on the simulated study."""
    given: dict[str, Any] = dict(pretraining(context).given)
    metadata = given["--table"].with_name("metadata.tsv")
    more = {"--metadata": metadata, "--metadata-column": COLUMN, "--members": ("transformer",)}
    return AamCommand("train", Train, {**given, **more})


def batch_size(context: Context) -> int:
    """Return the batch size of the workloads where no other is tried."""
    return 8 if context.small else 64


def steps(
    context: Context,
    workload: AamCommand,
    settings: Mapping[str, Any],
    variables: Mapping[str, str] = NONE,
) -> RunResult:
    """Run some steps of a workload; a failure is part of the result."""
    number = warmup(context) + (6 if context.small else 20)
    plan = RunPlan(settings, number, "acceptance")
    return run_workload(workload, plan, context.folder / "running", HANGS, variables)


def warmup(context: Context) -> int:
    """Return the first steps that are not timed."""
    return 2 if context.small else 5


def precisions(device: torch.device) -> list[str]:
    """Return the precisions of matrix products that a device has."""
    found = ["fp32"]
    for name in ("bf16", "fp16"):
        try:
            choose_precision(name, arch_of(device))
        except UsageError:
            continue
        found.append(name)
    return found


def product_rate(device: torch.device, precision: str) -> float:
    """Return the rate of large matrix products in TFLOP/s, the median of several."""
    size = 8192 if is_gpu(device) else 1024
    left = torch.randn(size, size, device=device, dtype=_DTYPES[precision])
    times = []
    for _ in range(7):
        began = time.perf_counter()
        left @ left
        # A kernel is launched asynchronously: without this the time would be that of the launch.
        if is_gpu(device):
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    # The first two are a warm-up, in which libraries also choose and load a kernel.
    return 2 * size**3 / statistics.median(times[2:]) / 1e12
