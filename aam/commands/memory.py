"""`aam memory`: the predicted peak memory of a pretraining step, and the GPUs that it fits on."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table

from aam.contract.options.commands.stack import Memory
from aam.contract.precision import Precision
from aam.data.batches import BatchPlan, make_batch
from aam.data.study import Study, load_study
from aam.memory import GIB, shown_size
from aam.model.network import Encoder
from aam.model.shape import NetworkShape
from aam.performance.memory import StepMemory, predict_step
from aam.training.lightning_module import LossWeights, TrainingModule
from aam.training.optimizer import freeze_idle
from aam.training.pretrained import choose_length, choose_metric, choose_shape
from aam.training.runtime import check_heads
from aam.training.sample_selection import batch_plan, choose_depth, deep_enough

DEVICES = (16, 24, 32, 64, 80, 128, 192)
"""Memory of common GPUs in GiB."""

USED = 0.8
"""Fraction of a GPU that a predicted peak may take: the allocator reserves about 1.2 times what is
allocated, in a replay of its rules with the largest batch first."""


def run(options: Memory) -> None:
    """Print the memory of the step on the samples with most ASVs, and where it fits.

    Raises:
        AamError: see the readers.
        UsageError: the heads do not divide the width.
    """
    check_heads(options.model)
    study = load_study(options.input, options.phylogeny, choose_length(None, options.sample))
    depth = choose_depth(study, options.sample)
    study = study.take_samples(deep_enough(study, depth))
    metric = choose_metric(None, options.phylogeny)
    plan = batch_plan(options, options.task, study, depth, metric)
    samples = len(study.table.sample_ids)
    shape, _ = choose_shape(None, study, options.model, plan, np.arange(samples))
    size = min(options.loop.batch_size, samples)
    _show(predicted(options, study, plan, shape, size), size)
    if options.device_memory is not None:
        budget = USED * options.device_memory * GIB
        largest = 0
        low, high = 1, samples
        while low <= high:
            middle = (low + high) // 2
            if predicted(options, study, plan, shape, middle).peak <= budget:
                largest, low = middle, middle + 1
            else:
                high = middle - 1
        print(
            f"Largest --batch-size on {options.device_memory:g} GiB: {largest} of {samples}."
            if largest
            else f"No --batch-size fits on {options.device_memory:g} GiB: see --asv-chunk, "
            "--gradient-checkpointing and --embedding-dim."
        )


def predicted(
    options: Memory, study: Study, plan: BatchPlan, shape: NetworkShape, size: int
) -> StepMemory:
    """Return the memory of a step on the `size` samples with most ASVs."""
    rows = np.sort(np.argsort(-study.table.richness, kind="stable")[:size]).astype(np.int64)
    batch = make_batch(study, plan, rows)
    speed, weights = options.speed, LossWeights.of(options.task)
    requested = speed.mixed_precision
    precision: Precision = "bf16" if requested == "auto" else requested

    def make() -> TrainingModule:
        encoder = Encoder(
            shape, plan.metric or "unweighted", recompute=speed.gradient_checkpointing
        )
        related = plan.metric is not None and weights.unifrac > 0
        freeze_idle(
            encoder,
            nucleotides=batch.labels_UL is not None,
            diversity=batch.diversity_B is not None if related else None,
            target=False,
        )
        return TrainingModule(encoder, weights, options.loop, steps=2, asv_chunk=speed.asv_chunk)

    return predict_step(make, batch, precision)


def _show(memory: StepMemory, size: int) -> None:
    console = Console(highlight=False)
    table = Table("memory of a step", "", box=None, pad_edge=False)
    for name, value in vars(memory).items():
        table.add_row(name, shown_size(value))
    console.print(table)
    fits = [f"{gib}" for gib in DEVICES if memory.peak <= USED * gib * GIB]
    console.print(
        f"A batch of {size} samples fits on GPUs of {', '.join(fits)} GiB."
        if fits
        else f"A batch of {size} samples fits on no GPU of up to {DEVICES[-1]} GiB."
    )
    console.print(f"{1 - USED:.0%} of a GPU are left for the driver and fragmentation.")
