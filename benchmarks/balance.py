"""Benchmark of --even-batches: `python benchmarks/balance.py [--table T --tree N] [--epochs E]`.

Random and even batches of a study (simulated without arguments):

    spread   distinct ASVs of a batch over two epochs: mean, standard deviation, maximum
    train    pretraining with both, two seeds each: samples per CPU-second, peak memory, and
             validation loss after the same number of steps; each run in a separate process
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from aam.contract.options.groups import Metric

SIZES = (8, 16, 64)
SEEDS = (1, 2)
BATCH = 16


def main() -> None:
    """Measure and print both tables."""
    reader = argparse.ArgumentParser()
    reader.add_argument("--table", type=Path)
    reader.add_argument("--tree", type=Path)
    reader.add_argument("--epochs", type=int, default=4)
    options = reader.parse_args()
    console = Console(width=110)
    with tempfile.TemporaryDirectory() as folder:
        table, tree = options.table, options.tree
        if table is None:
            table, tree = simulated(Path(folder))
        console.print(in_process(spread, table))
        rows = Table(
            "batches", "seed", "samples / CPU-s", "peak MiB", "validation loss", title="train"
        )
        for seed in SEEDS:
            for even in (False, True):
                found = in_process(train, table, tree, options.epochs, seed, even)
                rows.add_row("even" if even else "chance", str(seed), *found)
        console.print(rows)


def simulated(folder: Path) -> tuple[Path, Path]:
    """Simulate a study whose samples differ in richness like gut samples."""
    from aam.contract.options.commands.studies import Example
    from aam.data.simulation import simulate, write_study

    options = Example(
        output_dir=folder, samples=400, asvs=1000, richness=60, depth=2000, subjects=40
    )
    write_study(simulate(options), options)
    return folder / "table.biom", folder / "tree.nwk"


def in_process(function: Any, *arguments: Any) -> Any:
    """Call `function` in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def _study(table: Path, tree: Path | None) -> Any:
    from aam.contract.options.groups import PhylogenyOptions, TableOptions
    from aam.data.study import load_study
    from aam.data.table import auto_depth
    from aam.pipeline.labelled_study import deep_enough

    study = load_study(TableOptions(table=table), PhylogenyOptions(tree=tree))
    depth = auto_depth(study.reads)
    return study.take_samples(deep_enough(study, depth)), depth


def spread(path: Path) -> Table:
    """Count the distinct ASVs of the batches of two epochs."""
    from aam.network.batches import BatchPlan, TrainingBatches

    study, depth = _study(path, None)
    plan = BatchPlan(42, depth, 1024)
    rows = np.arange(len(study.reads))
    table = Table(
        "batch", "dealt", "mean", "deviation", "largest", title="distinct ASVs of a batch"
    )
    for size in SIZES:
        for even in (False, True):
            batches = TrainingBatches(study, plan, rows, size, fresh_reads=True, even=even)
            keys = [(epoch, step) for epoch in range(2) for step in range(batches.steps)]
            found = np.array([len(batches[key].asvs_U) for key in keys])
            how = "evenly" if even else "by chance"
            figures = (found.mean(), found.std(), found.max())
            table.add_row(str(size), how, *(f"{value:.0f}" for value in figures))
    return table


def train(path: Path, tree: Path | None, epochs: int, seed: int, even: bool) -> tuple[str, ...]:
    """Pretrain with width 32; return samples per CPU-second, peak MiB and validation loss."""
    import torch

    from aam.contract.options.groups import LoopOptions
    from aam.evaluation.splits import make_splits
    from aam.network.batches import BatchPlan, FixedBatches, TrainingBatches
    from aam.network.model.network import Encoder
    from aam.network.model.shape import NetworkShape
    from aam.network.training.fit import make_optimizer, make_schedule
    from aam.network.training.module import LossWeights, TrainingModule

    study, depth = _study(path, tree)
    metric: Metric | None = "unweighted" if tree is not None else None
    plan = BatchPlan(seed, depth, 1024, mask_ratio=0.15, metric=metric)
    (split,) = make_splits(len(study.reads), test_size=0.2, folds=1, seed=7)
    torch.manual_seed(seed)
    shape = NetworkShape(
        max_bp=study.tokens_FL.shape[1],
        embedding_dim=32,
        attention_heads=4,
        attention_layers=1,
        nucleotide_patch=5,
    )
    loop = LoopOptions(batch_size=BATCH, epochs=epochs)
    batches = TrainingBatches(study, plan, split.train, BATCH, fresh_reads=True, even=even)
    total = epochs * batches.steps
    task = TrainingModule(
        Encoder(shape, metric or "unweighted"), LossWeights(), loop, total
    ).train()
    optimizer = make_optimizer(task, loop)
    rate = make_schedule(optimizer, loop, total)
    began = time.process_time()
    for epoch in range(epochs):
        for step in range(batches.steps):
            optimizer.zero_grad()
            task(batches[epoch, step]).backward()
            torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
            optimizer.step()
            rate.step()
    spent = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    validation = FixedBatches(study, plan, split.validation, BATCH)
    task.eval()
    with torch.no_grad():
        for step in range(len(validation)):
            task.validation_step(validation[step])
    found = task.validation_metrics()
    rate_found = epochs * len(split.train) / spent
    return f"{rate_found:.1f}", f"{peak:.0f}", f"{found['val_loss']:.4f}"


if __name__ == "__main__":
    main()
