"""Memory report: a predicted step, the GPUs on which it fits, and the largest settings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
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

NO_FACTS: Mapping[str, int] = {}


def show_training(run: TrainingRun, options: Pretrain | Train, gpu: Memory) -> None:
    """Print the memory of a step, where it fits, and the largest settings for --device-memory.

    Args:
        run: training run of which a step is predicted.
        options: options of that run.
        gpu: options of `aam memory`.

    Raises:
        MissingInput, DataError: the check report of --check-report cannot be read.
    """
    settings = StepSettings(
        min(options.loop.batch_samples, run.batches.samples),
        options.speed,
        Parallel(max(1, options.scale.processes), options.scale.fsdp),
    )
    # Before the step is predicted: the process then has the study, as in the training.
    host = getrusage(RUSAGE_SELF).ru_maxrss * 1024
    memory, size = run.memory(settings), settings.batch_size
    facts = {"host": host, "batch_size": size}
    title = "memory of a step" + (" on each GPU" if settings.parallel.ranks > 1 else "")
    overhead = show_step(memory, f"A batch of {size} samples", gpu, title, facts)
    if gpu.json:
        return
    console, study, phylogeny = Console(highlight=False), options.input, options.phylogeny
    # The page cache has the files, or all files of a folder of `aam prepare`.
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
    if gpu.device_memory is not None:
        limit = MemoryLimit(round(gpu.device_memory * GIB), overhead)
        for line in _largest(run, settings, limit):
            console.print(line)


def show_step(
    memory: StepMemory | InferenceMemory,
    subject: str,
    gpu: Memory,
    title: str = "memory",
    facts: Mapping[str, int] = NO_FACTS,
) -> int:
    """Print memory, and the GPUs on which the subject fits; return the overhead of a GPU.

    Args:
        memory: predicted memory, in bytes.
        subject: subject of the sentence about the GPUs, such as "A batch of 32 samples".
        gpu: options of `aam memory`.
        title: title of the table.
        facts: further entries of the JSON.

    Raises:
        MissingInput, DataError: the check report of --check-report cannot be read.
    """
    measured, console = measured_overhead(gpu.check_report), Console(highlight=False)
    overhead, how = (ASSUMED, "assumed") if measured is None else (measured, "measured")
    total = needed(memory.peak, overhead)
    if gpu.json:
        print(json.dumps(vars(memory) | {"overhead": overhead, "needed": total} | dict(facts)))
        return overhead
    table = Table(title, "", box=None, pad_edge=False)
    rows = vars(memory) | {
        f"fragmentation, {FRAGMENTATION:.0%}": round(memory.peak * FRAGMENTATION),
        f"driver and libraries, {how}": overhead,
        "memory of the GPU": total,
    }
    for name, value in rows.items():
        table.add_row(name, shown_size(value))
    console.print(table)
    fitting = [f"{gib}" for gib in DEVICES if total <= gib * GIB]
    where = f"no GPU of up to {DEVICES[-1]}"
    if fitting:
        where = f"GPUs of {', '.join(fitting)}"
    console.print(f"{subject} fits on {where} GiB.")
    return overhead


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
