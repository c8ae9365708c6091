"""Predicted memory of a training step and of a rank, against the events of the CPU allocator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from aam.contract.options import build
from aam.contract.options.command_line import parse_command
from aam.contract.options.commands.train import Train
from aam.contract.options.groups import LoopOptions, ScaleOptions, SpeedOptions
from aam.data.study import Study
from aam.environment import Ranks
from aam.network.batches import make_batch, shard_of
from aam.network.distributed.collectives import Communicator, shard
from aam.network.memory_prediction import TrainingSteps, predict_step, training_run
from aam.network.model.attention import AUTO, Backends, named
from aam.network.model.network import Encoder
from aam.network.model.shape import NetworkShape
from aam.network.numerics.device import Precision
from aam.network.training.module import LossWeights, TrainingModule
from tests.support import local_ranks
from tests.support.allocator import allocated_peak, copy
from tests.support.rank_steps import PLAN, read


def maker(
    study: Study,
    patch: int = 5,
    width: int = 64,
    backends: Backends = AUTO,
    recompute: bool = False,
    asv_chunk: int = 0,
    frozen: bool = False,
    counts: bool = False,
) -> Callable[[], TrainingModule]:
    length, weights = study.tokens_FL.shape[1], LossWeights(count=float(counts))
    shape = NetworkShape(length, width, 4, 2, patch, dropout=0.1, predicts_counts=counts)

    def make() -> TrainingModule:
        encoder = Encoder(shape, "unweighted", backends, recompute)
        encoder.diversity.requires_grad_(False)
        if frozen:
            encoder.nucleotides.requires_grad_(False)
        return TrainingModule(encoder, weights, LoopOptions(), steps=4, asv_chunk=asv_chunk)

    return make


MATH = Backends(named("math"), named("math"))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("options", "precision"),
    [
        pytest.param({}, "none", id="plain"),
        pytest.param({"patch": 1, "width": 192}, "none", id="patch-1-width-192"),
        pytest.param({"backends": MATH}, "none", id="math", marks=pytest.mark.nightly),
        pytest.param(
            {"asv_chunk": 16, "recompute": True},
            "none",
            id="chunked-recomputed",
            marks=pytest.mark.nightly,
        ),
        pytest.param({"frozen": True}, "none", id="frozen", marks=pytest.mark.nightly),
        pytest.param({}, "bf16", id="bf16", marks=pytest.mark.nightly),
        pytest.param({"asv_chunk": 16}, "bf16", id="bf16-chunked"),
        pytest.param({"counts": True}, "none", id="counts"),
    ],
)
def test_the_peak_is_that_of_the_allocator(
    study: Study, tmp_path: Path, options: dict[str, Any], precision: Precision
) -> None:
    hidden_ratio = 0.15 if "counts" in options else 0
    plan = dataclasses.replace(PLAN, hidden_ratio=hidden_ratio)
    batch = make_batch(study, plan, np.arange(8))
    make = maker(study, **options)
    fused = not options
    predicted = predict_step(make, batch, precision, block=1, fused=fused)
    truth = allocated_peak(
        lambda: TrainingSteps(make().train(), copy(batch), precision, fused),
        tmp_path / "trace.json",
    )
    # The allocator of torch 2.4 holds 2.1 % more in bf16 with --asv-chunk.
    old = torch.__version__.startswith("2.4.")
    assert predicted.peak == pytest.approx(truth, rel=0.025 if old else 0.02)


@pytest.mark.medium
def test_the_peak_of_a_training_with_metadata_is_that_of_the_allocator(
    study_dir: Path, tmp_path: Path
) -> None:
    args = [
        *("--table", str(study_dir / "table.biom"), "--metadata", str(study_dir / "metadata.tsv")),
        *("--metadata-column", "ph", "--categorical-columns", "site", "--output-dir", "none"),
        *("--embedding-dim", "64", "--attention-layers", "1", "--rarefy-depth", "200"),
    ]
    run = training_run(build(Train, parse_command("train", args)))
    speed = SpeedOptions()
    batch = make_batch(run.study, run.config.plan, run.batches.rows_N[:8])
    predicted = predict_step(lambda: run.module(speed), batch, "none", block=1, fused=False)
    truth = allocated_peak(
        lambda: TrainingSteps(run.module(speed).train(), copy(batch), "none", False),
        tmp_path / "trace.json",
    )
    assert predicted.peak == pytest.approx(truth, rel=0.02)


WIDTH = 128

STEPS = 10
"""Measured steps: with a competing load gloo freed a block unrecorded in 9 of 60 with FSDP."""


def make_task(study: Study) -> TrainingModule:
    shape = NetworkShape(study.tokens_FL.shape[1], WIDTH, 4, 2, 5, dropout=0.1)
    encoder = Encoder(shape, "unweighted")
    encoder.diversity.requires_grad_(False)
    return TrainingModule(encoder, LossWeights(), LoopOptions(), steps=4)


def measured(communicator: Communicator, study_dir: Path, folder: Path, fsdp: bool) -> int:
    """Return the peak of a step of this rank in bytes."""
    study, ranks = read(study_dir), communicator.ranks
    batch = shard_of(make_batch(study, PLAN, np.arange(8)), ranks, False)

    def make() -> TrainingSteps:
        task, own = make_task(study).train(), copy(batch)
        if fsdp:
            shard(task, init_device_mesh("cpu", (ranks.world_size,)))
            return TrainingSteps(task, own, "none", fused=True)
        step = nn.parallel.DistributedDataParallel(
            task, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        return TrainingSteps(task, own, "none", fused=True, forward=step)

    return allocated_peak(make, folder / f"trace-{ranks.rank}.json", STEPS)


@pytest.mark.slow
@pytest.mark.nightly
@local_ranks.NEEDS_FSDP
@pytest.mark.parametrize("fsdp", [False, True], ids=["ddp", "fsdp"])
def test_the_peak_of_a_rank_is_that_of_its_allocator(
    study: Study, study_dir: Path, tmp_path: Path, fsdp: bool
) -> None:
    scale = ScaleOptions(fsdp=fsdp, distributed=not fsdp)
    truth = local_ranks.together(2, scale, measured, study_dir, tmp_path, fsdp)
    ranks = Ranks(rank=0, world_size=2)
    batch = shard_of(make_batch(study, PLAN, np.arange(8)), ranks, False)
    predicted = predict_step(
        lambda: make_task(study),
        batch,
        "none",
        block=1,
        ranks=2,
        fsdp=fsdp,
    )
    assert predicted.peak == pytest.approx(truth[0], rel=0.02)
    whole = sum(p.numel() for p in make_task(study).parameters()) * 4
    assert predicted.parameters == pytest.approx(whole / 2 if fsdp else whole, rel=0.01)
    assert not torch.distributed.is_initialized()
