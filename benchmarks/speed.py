"""Benchmark of training speed and peak memory: `make bench`.

One simulated study of 200 samples and 2,000 ASVs of 150 nt (about 185 in a sample), width 64, 2
layers, 4 heads, batches of 8, on the CPU. Each method runs in a separate process, so that peak
memory is its own:

    plain     every ASV of every sample, padded to the token limit, gradient checkpointing, patch 1
    patch 1   distinct ASVs of a batch once, one nucleotide per token
    default   the same with the default patch
    frozen    training with a frozen encoder, after encoding the ASVs
    predict   a complete table, with the encoding of its ASVs

Scaling: loading and a step with 200, 2,000 and 20,000 samples. CPU-seconds are those of all
threads; an epoch is its number of steps times the mean step.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

BATCH = 8
TOKEN_LIMIT = 256
SEED = 42


@dataclass(frozen=True)
class Measured:
    """Measurement of one process: samples, CPU and wall seconds, peak GiB."""

    samples: int
    cpu: float
    wall: float
    peak_gib: float
    extra: dict[str, float]

    @property
    def rate(self) -> float:
        """Samples per CPU-second."""
        return self.samples / self.cpu


def main() -> None:
    """Measure every method and print the tables; `--json FILE` writes the figures."""
    console = Console(width=100)
    with tempfile.TemporaryDirectory() as folder:
        study = simulate(Path(folder) / "study", samples=200)
        ways: dict[str, Callable[[Path], Measured]] = {
            "plain": plain,
            "patch 1": patch_1,
            "default": default,
            "frozen": frozen,
            "predict": predict,
        }
        found = {name: apart(way, study) for name, way in ways.items()}
        console.print(speed_table(found))
        grown = {n: apart(growth, simulate(Path(folder) / str(n), n)) for n in (200, 2000, 20_000)}
        console.print(growth_table(grown))
    if "--json" in sys.argv:
        rows = {**found, **{f"growth {n}": m for n, m in grown.items()}}
        target = Path(sys.argv[sys.argv.index("--json") + 1])
        target.write_text(json.dumps({k: vars(v) for k, v in rows.items()}, indent=2) + "\n")


def simulate(folder: Path, samples: int) -> Path:
    """Simulate a study of 2,000 ASVs."""
    from aam.contract.options.commands.studies import Example
    from aam.data.simulation import simulate as make
    from aam.data.simulation import write_study

    options = Example(
        output_dir=folder,
        samples=samples,
        subjects=samples // 5,
        seed=SEED,
        asvs=2000,
        richness=185,
        depth=10_000,
    )
    write_study(make(options), options)
    return folder


def apart(way: Callable[[Path], Measured], study: Path) -> Measured:
    """Call `way` in a new process."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(way, (study,))


def plain(study: Path) -> Measured:
    """Encode every ASV of every sample, padding included."""
    return _pretrain(study, patch=1, steps=2, copies=True)


def patch_1(study: Path) -> Measured:
    """Encode distinct ASVs, one nucleotide per token."""
    return _pretrain(study, patch=1, steps=5)


def default(study: Path) -> Measured:
    """Encode distinct ASVs at the default patch."""
    return _pretrain(study, patch=None, steps=20)


def frozen(study: Path) -> Measured:
    """Train a predictor on encoded ASVs."""
    import numpy as np
    import torch

    from aam.data.targets import TargetTransform
    from aam.network.inference.outputs import encode_asvs
    from aam.network.inference.stored_networks import Target
    from aam.network.model.network import Predictor

    loaded, plan = _load(study, masks=False)
    torch.manual_seed(SEED)
    network = Predictor(_shape(None, outputs=1), "unweighted")
    network.encoder.requires_grad_(False)
    remembered = encode_asvs(network.encoder, loaded, torch.device("cpu"))
    values = np.linspace(0, 1, len(loaded.reads))
    target = Target("y", transform=TargetTransform("none", 0.0, 1.0))
    return _steps(
        loaded, plan, network, 25, target=target, target_values=values, asv_vectors_FD=remembered
    )


def predict(study: Path) -> Measured:
    """Predict a complete table: encode its ASVs, then all samples."""
    import numpy as np
    import torch

    from aam.network.inference.outputs import apply_network, encode_asvs
    from aam.network.model.network import Predictor

    loaded, plan = _load(study, masks=False)
    network = Predictor(_shape(None, outputs=1), "unweighted").eval()
    rows = np.arange(len(loaded.reads))
    cpu, wall = time.process_time(), time.perf_counter()
    device = torch.device("cpu")
    remembered = encode_asvs(network.encoder, loaded, device)
    apply_network(network, loaded, plan, rows, 32, device, remembered)
    return _measured(len(rows), cpu, wall)


def growth(study: Path) -> Measured:
    """Load a study and take ten steps at the default patch."""
    before = time.process_time()
    loaded, _ = _load(study, masks=True)
    load = time.process_time() - before
    found = _pretrain(study, patch=None, steps=10)
    counts = loaded.table.counts
    table = (counts.data.nbytes + counts.indices.nbytes + counts.indptr.nbytes) / 2**20
    extra = {"load": load, "table_mib": table, "samples": float(len(loaded.reads))}
    return Measured(found.samples, found.cpu, found.wall, _peak(), extra)


def _pretrain(study: Path, patch: int | None, steps: int, copies: bool = False) -> Measured:
    import torch

    from aam.network.model.network import Encoder

    loaded, plan = _load(study, masks=True)
    torch.manual_seed(SEED)
    network = Encoder(_shape(patch), "unweighted", recompute=copies)
    return _steps(loaded, plan, network, steps, copies)


def _load(study: Path, masks: bool) -> Any:
    from aam.contract.options.groups import PhylogenyOptions, TableOptions
    from aam.data.study import load_study
    from aam.network.batches import BatchPlan

    phylogeny = PhylogenyOptions(tree=study / "tree.nwk") if masks else None
    loaded = load_study(TableOptions(table=study / "table.biom"), phylogeny)
    plan = BatchPlan(
        SEED,
        5000,
        TOKEN_LIMIT,
        mask_ratio=0.15 if masks else 0.0,
        metric="unweighted" if masks else None,
    )
    return loaded, plan


def _shape(patch: int | None, outputs: int = 0) -> Any:
    from aam.contract.options import specs
    from aam.contract.options.commands.train import Train
    from aam.contract.options.groups import ModelOptions
    from aam.network.model.shape import NetworkShape

    profile = next(spec.default for spec in specs(Train) if spec.field == "profile_features")

    return NetworkShape(
        max_bp=150,
        embedding_dim=64,
        attention_heads=4,
        attention_layers=2,
        nucleotide_patch=patch or ModelOptions().nucleotide_patch,
        outputs=outputs,
        profile_features=profile if outputs else 0,
    )


def _steps(
    loaded: Any, plan: Any, network: Any, steps: int, copies: bool = False, **task_options: Any
) -> Measured:
    """Time training steps: batch, forward, backward, clipping, optimizer; one to warm up."""
    import numpy as np
    import torch

    from aam.contract.options.groups import LoopOptions
    from aam.network.batches import TrainingBatches
    from aam.network.training.fit import make_optimizer
    from aam.network.training.module import LossWeights, TrainingModule

    loop = LoopOptions(batch_size=BATCH)
    task = TrainingModule(network, LossWeights(), loop, steps + 1, **task_options).train()
    optimizer = make_optimizer(task, loop)
    rows = np.flatnonzero(loaded.reads >= plan.rarefy_depth)
    batches = TrainingBatches(loaded, plan, rows, BATCH, fresh_reads=True)
    seen = 0
    for k in range(steps + 1):
        if k == 1:
            cpu, wall, seen = time.process_time(), time.perf_counter(), 0
        batch = batches[divmod(k, batches.steps)]
        batch = _with_copies(batch) if copies else batch
        loss = task(batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        optimizer.step()
        seen += len(batch.rows_B)
    return _measured(seen, cpu, wall)


def _with_copies(batch: Any) -> Any:
    """Return a batch with one sequence for each ASV of each sample, padded."""
    import dataclasses

    import torch
    import torch.nn.functional as F

    wide = TOKEN_LIMIT - batch.slots_BS.shape[1]
    slots = F.pad(batch.slots_BS, (0, wide))
    counts = F.pad(batch.counts_BS, (0, wide))
    flat, present = slots.reshape(-1), counts.reshape(-1) > 0
    return dataclasses.replace(
        batch,
        asvs_U=batch.asvs_U[flat],
        tokens_UL=batch.tokens_UL[flat] * present[:, None],
        labels_UL=batch.labels_UL[flat] * present[:, None],
        shortest=0,
        slots_BS=torch.arange(len(flat)).view_as(slots),
        counts_BS=counts,
        attend_BS=counts > 0,
    )


def _measured(samples: int, cpu: float, wall: float) -> Measured:
    spent, passed = time.process_time() - cpu, time.perf_counter() - wall
    return Measured(samples, spent, passed, _peak(), {})


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def speed_table(found: dict[str, Measured]) -> Table:
    """Return the table of speed and memory by method."""
    table = Table(title="200 samples x 2,000 ASVs of 150 nt, width 64, 2 layers, batch 8, CPU")
    for name in ("way", "samples / CPU-s", "against plain", "samples / s", "peak GiB"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for name, m in found.items():
        times = m.rate / found["plain"].rate
        wall = m.samples / m.wall
        table.add_row(name, f"{m.rate:.2f}", f"{times:.1f} x", f"{wall:.2f}", f"{m.peak_gib:.2f}")
    return table


def growth_table(grown: dict[int, Measured]) -> Table:
    """Return the table of cost by number of samples."""
    table = Table(title="Growth at the default patch")
    names = ("samples", "load CPU-s", "CPU-s / step", "CPU-s / epoch", "table MiB", "peak GiB")
    for name in names:
        table.add_column(name, justify="right")
    for number, m in grown.items():
        steps = m.samples / BATCH
        epoch = m.cpu / m.samples * m.extra["samples"]
        table.add_row(
            f"{number:,}",
            f"{m.extra['load']:.1f}",
            f"{m.cpu / steps:.2f}",
            f"{epoch:,.0f}",
            f"{m.extra['table_mib']:.1f}",
            f"{m.peak_gib:.2f}",
        )
    return table


if __name__ == "__main__":
    main()
