"""Memory report: a predicted step, the GPUs on which it fits, and the largest settings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

from rich.console import Console
from rich.table import Table

from aam.contract.options.commands.measure import Memory
from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.commands.train import Train
from aam.memory import GIB, shown_size
from aam.performance.memory.fit import (
    ASSUMED,
    FRAGMENTATION,
    MemoryLimit,
    largest,
    largest_chunk,
    measured_overhead,
    needed,
    with_chunk,
)
from aam.performance.memory.runs import InferenceMemory, StepSettings, TrainingRun
from aam.performance.memory.step import Parallel, StepMemory

DEVICES = (16, 24, 32, 64, 80, 128, 192)
"""Memory of common GPUs in GiB."""


def show_training(run: TrainingRun, options: Pretrain | Train, gpu: Memory) -> None:
    """Print the memory of a step, where it fits, and the largest settings for --device-memory.

    Args:
        run: training run of which a step is predicted.
        options: options of that run.
        gpu: options of `aam memory`.

    Raises:
        MissingInput, DataError: the check report of --check-report cannot be read.
    """
    scale, measured = options.scale, measured_overhead(gpu.check_report)
    overhead = ASSUMED if measured is None else measured
    settings = StepSettings(
        min(options.loop.batch_samples, run.batches.samples),
        options.speed,
        Parallel(max(1, scale.processes), scale.fsdp),
    )
    host = getrusage(RUSAGE_SELF).ru_maxrss * 1024
    memory = run.memory(settings)
    if gpu.json:
        facts = {"overhead": overhead, "needed": needed(memory.peak, overhead), "host": host}
        print(json.dumps(vars(memory) | facts | {"batch_size": settings.batch_size}))
        return
    console = Console(highlight=False)
    title = "memory of a step" + (" on each GPU" if settings.parallel.ranks > 1 else "")
    total = needed(memory.peak, overhead)
    console.print(_parts(title, memory, measured))
    console.print(_where(f"A batch of {settings.batch_size} samples", total))
    console.print(_on_apu(total, host, options))
    if gpu.device_memory is not None:
        limit = MemoryLimit(round(gpu.device_memory * GIB), overhead)
        for line in _largest(run, settings, limit):
            console.print(line)


def show_step(memory: StepMemory | InferenceMemory, subject: str, gpu: Memory) -> None:
    """Print memory, and the GPUs on which the subject fits; with --json the memory alone.

    Args:
        memory: predicted memory, in bytes.
        subject: subject of the sentence about the GPUs, such as "A batch of 32 samples".
        gpu: options of `aam memory`.

    Raises:
        MissingInput, DataError: the check report of --check-report cannot be read.
    """
    measured, console = measured_overhead(gpu.check_report), Console(highlight=False)
    overhead = ASSUMED if measured is None else measured
    total = needed(memory.peak, overhead)
    if gpu.json:
        print(json.dumps(vars(memory) | {"overhead": overhead, "needed": total}))
        return
    console.print(_parts("memory", memory, measured))
    console.print(_where(subject, total))


def _parts(title: str, memory: StepMemory | InferenceMemory, measured: int | None) -> Table:
    """List the parts of the memory; `measured` is the overhead of the GPU, None if unknown."""
    overhead, how = (ASSUMED, "assumed") if measured is None else (measured, "measured")
    table = Table(title, "", box=None, pad_edge=False)
    rows = vars(memory) | {
        f"fragmentation, {FRAGMENTATION:.0%}": round(memory.peak * FRAGMENTATION),
        f"driver and libraries, {how}": overhead,
        "memory of the GPU": needed(memory.peak, overhead),
    }
    for name, value in rows.items():
        table.add_row(name, shown_size(value))
    return table


def _where(subject: str, total: int) -> str:
    fitting = [f"{gib}" for gib in DEVICES if total <= gib * GIB]
    if not fitting:
        return f"{subject} fits on no GPU of up to {DEVICES[-1]} GiB."
    return f"{subject} fits on GPUs of {', '.join(fitting)} GiB."


def _on_apu(gpu: int, host: int, options: Pretrain | Train) -> str:
    """Add the memory of the host, which an APU shares with its GPU."""
    study, phylogeny = options.input, options.phylogeny
    files = (study.table, study.sequences, phylogeny.tree, phylogeny.unifrac_matrix)
    cache = sum(_size(path) for path in files if path is not None)
    total = shown_size(gpu + host + cache)
    parts = f"{shown_size(host)} of the process and {shown_size(cache)} of page cache"
    return f"An APU (MI300A), whose GPU shares the memory of the host, needs {total}, with {parts}."


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder of `aam prepare`."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def _largest(run: TrainingRun, settings: StepSettings, limit: MemoryLimit) -> Iterator[str]:
    """Yield the largest --batch-size and --asv-chunk that fit on a GPU."""
    gib, most = limit.total / GIB, run.batches.samples
    size = largest(
        settings.parallel.ranks, most,
        lambda size: limit.holds(run.memory(dataclasses.replace(settings, batch_size=size)).peak),
    )  # fmt: skip
    yield (
        f"Largest --batch-size on {gib:g} GiB: {size} of {most}."
        if size
        else f"No --batch-size fits on {gib:g} GiB: try --gradient-checkpointing or --asv-chunk."
    )
    if run.frozen:
        return
    chunk = largest_chunk(run, with_chunk(settings, "auto"), limit)
    if chunk is None:
        yield f"No --asv-chunk makes a batch of {settings.batch_size} fit on {gib:g} GiB."
    elif chunk:
        yield f"Largest --asv-chunk on {gib:g} GiB, of powers of two: {chunk}."
    else:
        asvs = run.batches.asvs(settings.batch_size)
        yield f"All {asvs} ASVs of a batch fit at once on {gib:g} GiB: no --asv-chunk is needed."
