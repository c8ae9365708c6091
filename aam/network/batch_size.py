"""Largest batch size and chunk that fit into memory by prediction, and the command `aam memory`.

`--batch-size auto` and `--asv-chunk auto` are replaced before a run begins, so that its record, its
checkpoints and a resumed run have numbers.
"""

from __future__ import annotations

import dataclasses
import json
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any, Literal, TypeVar

import torch
from rich.console import Console
from rich.table import Table

from aam.console import info, warn
from aam.contract.errors import DataError, UsageError
from aam.contract.options import from_plain
from aam.contract.options.commands.measure import Memory
from aam.contract.options.commands.train import Pretrain, Train
from aam.contract.options.commands.use import Embed, Predict
from aam.contract.options.groups import DeviceOptions
from aam.data.formats.text import read_text
from aam.data.study import load_study
from aam.environment import Ranks, read_environment
from aam.memory import GIB, memory_available, shown_size
from aam.network.inference.stored_networks import read_networks
from aam.network.memory_prediction import (
    InferenceMemory,
    StepMemory,
    StepSettings,
    TrainingRun,
    predict_inference,
    pretraining_run,
    training_run,
)
from aam.network.numerics.device import choose_device, is_gpu
from aam.network.numerics.report import CheckReport, latest_reports
from aam.network.training import checkpoints
from aam.network.training.runtime import numbers_of_host
from aam.pipeline import run_folder

FRAGMENTATION = 0.2
"""Memory that the allocator reserves but does not use, relative to the memory that it uses. In a
replay of its rules the ratio of reserved to used memory was 1.19, with the largest batch first."""

ASSUMED = GIB
"""Bytes of a GPU that driver, kernels and BLAS workspace are assumed to take if not measured."""

MIN_CHUNK = 64  # smallest chunk that is considered: smaller chunks take time and save little
DEVICES = (16, 24, 32, 64, 80, 128, 192)  # memory of common GPUs in GiB

NO_FACTS: Mapping[str, int] = {}

Learn = TypeVar("Learn", Pretrain, Train)


@dataclass(frozen=True)
class MemoryLimit:
    """Memory limit of a device, in bytes, of which driver and libraries take the overhead."""

    total: int
    overhead: int = ASSUMED
    description: str = "on the GPU"

    def holds(self, peak: int) -> bool:
        """Return whether a step with this predicted peak, in bytes, fits."""
        return needed(peak, self.overhead) <= self.total

    def __str__(self) -> str:
        return f"{shown_size(self.total)} {self.description}"


def needed(peak: int, overhead: int) -> int:
    """Return the memory of the device that a predicted peak needs, in bytes.

    >>> needed(10 * GIB, GIB) // GIB
    13
    """
    return round(peak * (1 + FRAGMENTATION)) + overhead


def measured_overhead(report: Path | None) -> int | None:
    """Return the memory of a GPU besides tensors from a check report, else from a stored one."""
    if report is None:
        stored = (stored.overhead for stored in latest_reports(os.environ))
        return next((overhead for overhead in stored if overhead is not None), None)
    overhead = CheckReport.from_json(read_text(report, "check report")).overhead
    if overhead is None:
        raise DataError(
            "The check report has no measurement of GPU memory",
            f"'{report}'",
            "run `aam check --json` on the GPU, with this version",
        )
    return overhead


def automatic(options: Learn, read: Callable[[Learn], TrainingRun]) -> Learn:
    """Replace --batch-size auto and --asv-chunk auto by the largest that fit into memory."""
    if "auto" not in (options.loop.batch_size, options.speed.asv_chunk):
        return options
    loop, speed = options.loop, options.speed
    groups: dict[str, Any] = {"loop": loop, "speed": speed}
    resumed = None
    if loop.batch_size == "auto":
        resumed = run_folder.resumed_checkpoint(options.run.output_dir, options.run.resume_from)
    if resumed is not None:
        stored_loop = from_plain(type(options), checkpoints.read(resumed).config.options).loop
        batch, steps = stored_loop.batch_size, stored_loop.gradient_accumulation_steps
        loop = dataclasses.replace(loop, batch_size=batch, gradient_accumulation_steps=steps)
        groups["loop"] = loop
        options = dataclasses.replace(options, **groups)
    divide = loop.batch_size == "auto"
    if not divide and speed.asv_chunk != "auto":
        return options
    ranks = read_environment(os.environ)
    limit = limit_of(options.device, ranks)
    settings = StepSettings(
        loop.batch_samples,
        # With the precision of this host, since the prediction takes `auto` for bf16.
        numbers_of_host(options).speed,
        ranks.world_size,
        options.scale.fsdp,
    )
    run = read(options)
    chosen, steps = choose(run, settings, limit, divide)
    size, chunk = chosen.batch_size, chosen.speed.chunk_size
    text = f"--batch-size {size} --asv-chunk {chunk}"
    if divide:
        text += f" --gradient-accumulation-steps {steps}"
    if ranks.is_main:
        info(f"Largest settings that fit into {limit}: {text}.")
        if divide and steps > 1 and run.config.plan.metric is not None and run.weights.unifrac:
            warn(f"The UniFrac loss compares the samples of a batch: {size} samples instead of "
                 f"{size * steps}. --gradient-checkpointing allows larger batches.")  # fmt: skip
    groups["loop"] = dataclasses.replace(loop, batch_size=size, gradient_accumulation_steps=steps)
    groups["speed"] = dataclasses.replace(speed, asv_chunk=chunk)
    return dataclasses.replace(options, **groups)


def limit_of(device: DeviceOptions, ranks: Ranks) -> MemoryLimit:
    """Return the memory limit of the device of a run: all memory of a GPU, free memory of a CPU."""
    chosen = choose_device(device)
    if is_gpu(chosen):
        # Not the free memory: other processes change it, and a run would get another batch size.
        total = torch.cuda.get_device_properties(chosen).total_memory
        return MemoryLimit(total, measured_overhead(None) or ASSUMED)
    if ranks.world_size > 1:
        raise UsageError(
            "Settings cannot be chosen for memory that several ranks share",
            f"{ranks.world_size} ranks on a CPU",
            "give numbers instead of auto; `aam memory` predicts the memory that they need",
        )
    return MemoryLimit(memory_available(), 0, "available")


def choose(
    run: TrainingRun, settings: StepSettings, limit: MemoryLimit, divide: bool
) -> tuple[StepSettings, int]:
    """Return the largest settings that fit, and the number of batches of an optimizer step."""
    # Batches of equal size, so that accumulated gradients equal the gradient of the whole batch,
    # with at least one sample for every rank.
    samples, least = settings.batch_size, settings.ranks
    sizes = [size for size in range(samples, least - 1, -1) if samples % size == 0]
    if not sizes:
        raise UsageError(
            "A batch has fewer samples than ranks",
            f"{samples} samples, {least} ranks",
            "give a larger --global-batch-size, or fewer ranks",
        )
    for size in sizes if divide else sizes[:1]:
        batch = dataclasses.replace(settings, batch_size=min(size, run.batches.samples))
        steps = max(samples // size, run.loop.gradient_accumulation_steps)
        loop = dataclasses.replace(run.loop, gradient_accumulation_steps=steps)
        chunk = largest_chunk(dataclasses.replace(run, loop=loop), batch, limit)
        if chunk is not None:
            return dataclasses.replace(with_chunk(settings, chunk), batch_size=size), steps
    raise UsageError(
        "No settings fit into memory",
        f"--batch-size {sizes[-1] if divide else samples}, {limit}",
        "give --gradient-checkpointing, --asv-chunk auto or a smaller --embedding-dim",
    )


def largest_chunk(run: TrainingRun, settings: StepSettings, limit: MemoryLimit) -> int | None:
    """Return the largest --asv-chunk that fits: 0 (all) or a power of two; None if none fits."""

    def fits(chunk: int) -> bool:
        return limit.holds(run.memory(with_chunk(settings, chunk)).peak)

    chosen = settings.speed.asv_chunk
    if chosen != "auto":
        return chosen if fits(chosen) else None
    if fits(0):
        return 0
    if run.frozen:
        return None
    asvs = run.batches.asvs(settings.batch_size)
    # Bisection of powers of two, since each trial predicts a complete step.
    return largest([2**k for k in range(MIN_CHUNK.bit_length() - 1, (asvs - 1).bit_length())], fits)


def with_chunk(settings: StepSettings, chunk: int | Literal["auto"]) -> StepSettings:
    """Return settings with another --asv-chunk."""
    return dataclasses.replace(settings, speed=dataclasses.replace(settings.speed, asv_chunk=chunk))


def largest(candidates: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Return the largest of ascending numbers that fits, by bisection.

    >>> largest(range(1, 100), lambda n: n <= 37)
    37
    """
    if not candidates or fits(candidates[-1]):
        return candidates[-1] if candidates else None
    end = len(candidates) - 1
    fitting = bisect_left(candidates, True, hi=end, key=lambda number: not fits(number))
    return candidates[fitting - 1] if fitting else None


def show_training(run: TrainingRun, options: Pretrain | Train, gpu: Memory) -> None:
    """Print the memory of a training step, the GPUs that fit, and the largest settings for one."""
    settings = StepSettings(
        min(options.loop.batch_samples, run.batches.samples),
        options.speed,
        max(1, options.scale.processes),
        options.scale.fsdp,
    )
    # Measured before the prediction, so that the process has the same memory as in training.
    host = getrusage(RUSAGE_SELF).ru_maxrss * 1024
    memory, size = run.memory(settings), settings.batch_size
    facts = {"host": host, "batch_size": size}
    title = "memory of a step" + (" on each GPU" if settings.ranks > 1 else "")
    overhead = show_step(memory, f"A batch of {size} samples", gpu, title, facts)
    if gpu.json:
        return
    console, study, phylogeny = Console(highlight=False), options.input, options.phylogeny
    # The page cache holds the input files, and all files of a store of `aam prepare`.
    paths = (study.table, study.sequences, phylogeny.tree, phylogeny.unifrac_matrix)
    cache = sum(
        file.stat().st_size
        for path in paths if path is not None
        for file in (path, *path.rglob("*")) if file.is_file()
    )  # fmt: skip
    console.print(
        "An APU (MI300A), whose GPU shares the memory of the host, needs "
        f"{shown_size(needed(memory.peak, overhead) + host + cache)}, with {shown_size(host)} of "
        f"the process and {shown_size(cache)} of page cache."
    )
    if gpu.device_memory is None:
        return
    limit, gib = MemoryLimit(round(gpu.device_memory * GIB), overhead), f"{gpu.device_memory:g} GiB"

    def holds(size: int) -> bool:
        return limit.holds(run.memory(dataclasses.replace(settings, batch_size=size)).peak)

    text = f"No --batch-size fits on {gib}: try --gradient-checkpointing or --asv-chunk."
    if most := largest(range(settings.ranks, run.batches.samples + 1), holds):
        text = f"Largest --batch-size on {gib}: {most} of {run.batches.samples}."
    console.print(text)
    if run.frozen:
        return
    chunk = largest_chunk(run, with_chunk(settings, "auto"), limit)
    if chunk is None:
        text = f"No --asv-chunk makes a batch of {size} fit on {gib}."
    elif chunk:
        text = f"Largest --asv-chunk on {gib} (a power of two): {chunk}."
    else:
        asvs = run.batches.asvs(size)
        text = f"All {asvs} ASVs of a batch fit at once on {gib}: no --asv-chunk is needed."
    console.print(text)


def show_step(
    memory: StepMemory | InferenceMemory,
    subject: str,
    gpu: Memory,
    title: str = "memory",
    facts: Mapping[str, int] = NO_FACTS,
) -> int:
    """Print the memory, and the GPUs that fit; return the memory of a GPU besides tensors."""
    measured, console = measured_overhead(gpu.check_report), Console(highlight=False)
    overhead, origin = (ASSUMED, "assumed") if measured is None else (measured, "measured")
    total = needed(memory.peak, overhead)
    if gpu.json:
        print(json.dumps(vars(memory) | {"overhead": overhead, "needed": total} | dict(facts)))
        return overhead
    table = Table(title, "", box=None, pad_edge=False)
    rows = vars(memory) | {
        f"fragmentation, {FRAGMENTATION:.0%}": round(memory.peak * FRAGMENTATION),
        f"driver and libraries, {origin}": overhead,
        "memory of the GPU": total,
    }
    for name, value in rows.items():
        table.add_row(name, shown_size(value))
    console.print(table)
    fitting = [f"{gib}" for gib in DEVICES if total <= gib * GIB]
    gpus = f"GPUs of {', '.join(fitting)}" if fitting else f"no GPU of up to {DEVICES[-1]}"
    console.print(f"{subject} fits on {gpus} GiB.")
    return overhead


def run_memory(options: Memory, measured: Pretrain | Train | Predict | Embed) -> None:
    """Run `aam memory`: print the memory for the samples with most ASVs, and the GPUs that fit."""
    if isinstance(measured, Pretrain):
        show_training(pretraining_run(measured), measured, options)
        return
    if isinstance(measured, Train):
        show_training(training_run(measured), measured, options)
        return
    # Inference encodes all ASVs, then reads the samples with most ASVs.
    if options.device_memory is not None:
        raise UsageError(
            "--device-memory finds the settings of a training",
            f"--device-memory {options.device_memory:g}",
            "omit it: the GPUs on which the batch fits are printed",
        )
    configs = [network.config for network in read_networks(measured.model)]
    study = load_study(measured.input, max_bp=configs[0].shape.max_bp)
    memory = predict_inference(configs[0], study, measured.batch_size, len(configs))
    show_step(memory, f"--batch-size {measured.batch_size}", options)
