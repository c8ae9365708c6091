"""Benchmark of memory with 100,000 samples: `python benchmarks/large.py FOLDER [SAMPLES]`.

A study in FOLDER, written in blocks: SAMPLES samples of 200 ASVs each out of 50,000 of 150 nt,
with a tree and metadata. Measurements, each in a separate process:

    prepare    `aam prepare`: peak of private memory, and that of a process with the same imports
    train      opening the store as `aam pretrain` does, then 12 steps of 8 samples, width 32:
               private and file-backed memory and the time of a step, for 1,000 samples of the
               store and for all
    sharing    two of the latter at once: shared and private pages of the store
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

ASVS, LENGTH, RICHNESS = 50_000, 150, 200
SITES = 8
BLOCK = 5_000
MIB = 2**20


def main() -> None:
    """Make the study if it is missing, measure, print a table."""
    folder = Path(sys.argv[1])
    samples = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
    study = folder / f"large-{samples}"
    if not (study / "metadata.tsv").exists():
        in_process(make, study, samples)
    rows = Table(title=f"{samples:,} samples x {ASVS:,} ASVs, {RICHNESS} ASVs a sample")
    for name in ("what", "private MiB", "peak MiB", "of files MiB", "seconds", "of a batch"):
        rows.add_column(name, justify="left" if name == "what" else "right")

    def add(what: str, found: dict[str, float]) -> None:
        names = ("private", "peak", "files", "seconds", "batch")
        rows.add_row(what, *(f"{found[name]:.2f}" if name in found else "" for name in names))

    add("imports alone", in_process(idle, study))
    add("prepare", in_process(prepare, study))
    add("open and 12 steps, 1,000 samples: a step", in_process(steps, study, 1000))
    add("open and 12 steps, all samples: a step", in_process(steps, study, samples))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        both = [pool.apply_async(steps, (study, samples)) for _ in range(2)]
        for one in both:
            add("the same, two at once", one.get())
    Console(width=110).print(rows)


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call `function` in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def make(folder: Path, samples: int) -> None:
    """Write table.biom, tree.nwk and metadata.tsv."""
    import h5py

    from aam.data.simulation import evolve_dna, newick, yule_tree

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(5)
    tree = yule_tree(ASVS, rng)
    names = evolve_dna(tree, LENGTH, rng)
    (folder / "tree.nwk").write_text(newick(tree, names))
    ids = [f"S{row:07d}" for row in range(samples)]
    text = h5py.string_dtype()
    with h5py.File(folder / "table.biom", "w") as file:
        file.attrs["format-version"] = (2, 1)
        file.attrs["shape"] = (ASVS, samples)
        file.create_dataset("sample/ids", data=ids, dtype=text)
        file.create_dataset("observation/ids", data=list(names), dtype=text)
        group = file.create_group("sample/matrix")
        dtypes = {"data": np.float64, "indices": np.int32}
        parts = {
            name: group.create_dataset(name, (samples * RICHNESS,), dtype, compression="gzip",
                                       compression_opts=1, chunks=(1 << 16,))
            for name, dtype in dtypes.items()
        }  # fmt: skip
        group.create_dataset("indptr", data=np.arange(samples + 1) * RICHNESS, dtype=np.int32)
        for start in range(0, samples, BLOCK):
            count = min(BLOCK, samples - start)
            block = slice(start * RICHNESS, (start + count) * RICHNESS)
            parts["indices"][block] = members(rng, count).ravel()
            reads = 1 + rng.lognormal(2.5, 1.2, size=count * RICHNESS).astype(np.int64)
            parts["data"][block] = reads
    with (folder / "metadata.tsv").open("w") as file:
        file.write("sample-id\tage\tsite\tsubject\n")
        for row, name in enumerate(ids):
            file.write(f"{name}\t{rng.normal(50, 15):.1f}\tsite-{row % SITES}\tp{row // 4}\n")


def members(rng: np.random.Generator, samples: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return distinct ASVs of each sample [n, RICHNESS], ascending: few common, many rare ones."""
    common = np.cumsum(1 / np.arange(10, ASVS + 10))
    drawn = np.searchsorted(common, rng.random((samples, 4 * RICHNESS)) * common[-1])
    # The common ASVs differ between sites.
    shift = rng.integers(0, SITES, size=(samples, 1)) * (ASVS // SITES)
    found = np.empty((samples, RICHNESS), dtype=np.int32)
    for row, asvs in enumerate((drawn + shift) % ASVS):
        _, first = np.unique(asvs, return_index=True)
        found[row] = np.sort(asvs[np.sort(first)[:RICHNESS]])
    return found


def idle(study: Path) -> dict[str, float]:
    """Import what `aam prepare` imports."""
    import biom  # noqa: F401
    import h5py  # noqa: F401
    import pandas  # noqa: F401
    import skbio.metadata  # noqa: F401

    import aam.commands.studies  # noqa: F401

    return memory()


def prepare(study: Path) -> dict[str, float]:
    """Run `aam prepare`."""
    from aam.cli import main as aam

    began = time.perf_counter()
    paths = ("table.biom", "tree.nwk", "metadata.tsv", "study.aam")
    table, tree, metadata, output = (str(study / name) for name in paths)
    given = ("--table", table, "--tree", tree, "--metadata", metadata, "--output", output)
    assert aam(["prepare", *given, "--overwrite"]) == 0
    return memory() | {"seconds": time.perf_counter() - began}


def steps(study: Path, samples: int) -> dict[str, float]:
    """Open the store as pretraining does and take 12 steps on its first `samples`."""
    import torch

    from aam.contract.options.groups import (
        LoopOptions,
        MaskOptions,
        PhylogenyOptions,
        SampleOptions,
        SplitOptions,
        TableOptions,
    )
    from aam.data.study import load_study
    from aam.evaluation.splits import split_samples
    from aam.evaluation.subjects import Subjects
    from aam.network.batches import BatchPlan, FixedBatches, TrainingBatches
    from aam.network.model.network import Encoder
    from aam.network.model.shape import NetworkShape
    from aam.network.training.configuration import diversity_scale
    from aam.network.training.fit import make_optimizer
    from aam.network.training.module import LossWeights, TrainingModule
    from aam.pipeline.labelled_study import choose_depth, deep_enough

    loop, task, sample = LoopOptions(batch_size=8), MaskOptions(), SampleOptions()
    loaded = load_study(TableOptions(table=study / "study.aam"), PhylogenyOptions())
    loaded = loaded.take_samples(np.arange(samples))
    depth = choose_depth(loaded, sample.rarefy_depth)
    loaded = loaded.take_samples(deep_enough(loaded, depth))
    plan = BatchPlan(
        loop.seed, depth, sample.token_limit,
        mask_ratio=task.nuc_mask_ratio, metric="unweighted",
    )  # fmt: skip
    (split, *_), _ = split_samples(
        SplitOptions(), 1, 42, loaded.table.sample_ids, Subjects(np.arange(len(loaded.reads)))
    )
    diversity_scale(loaded, plan, split.train)
    shape = NetworkShape(
        max_bp=loaded.tokens_FL.shape[1],
        embedding_dim=32,
        attention_heads=4,
        attention_layers=2,
        nucleotide_patch=5,
    )
    network = Encoder(shape, "unweighted")
    learner = TrainingModule(network, LossWeights(), loop, 100).train()
    optimizer = make_optimizer(learner, loop)
    batches = TrainingBatches(loaded, plan, split.train, loop.batch_samples, fresh_reads=True)
    validation = FixedBatches(loaded, plan, split.validation, loop.batch_samples)
    times, made = [], []
    for step in range(12):
        began = time.perf_counter()
        batch = batches[divmod(step, batches.steps)]
        made.append(time.perf_counter() - began)
        optimizer.zero_grad()
        loss = learner(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        times.append(time.perf_counter() - began)
    with torch.no_grad():
        learner.validation_step(validation[0])
    return memory() | {
        "seconds": float(np.median(times[2:])),
        "batch": float(np.median(made[2:])),
    }


def memory() -> dict[str, float]:
    """Return peak and current memory of this process in MiB; file-backed pages are not private."""
    found = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("RssAnon", "RssFile"):
            found[name] = int(rest.split()[0]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"private": found["RssAnon"], "files": found["RssFile"], "peak": peak}


if __name__ == "__main__":
    main()
