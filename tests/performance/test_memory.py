"""Predicted memory of a training step, against the events of the CPU allocator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aam.contract.options import build
from aam.contract.options.command_line import parse_command
from aam.contract.options.commands.train import Train
from aam.contract.options.device import SpeedOptions
from aam.contract.options.training import LoopOptions
from aam.data.batches import BatchPlan, make_batch
from aam.data.study import Study
from aam.model.attention import AUTO, Backends, named
from aam.model.network import Encoder
from aam.model.shape import NetworkShape
from aam.numerics.device import Precision
from aam.performance.memory import TrainingSteps, predict_step, training_run
from aam.training.module import LossWeights, TrainingModule
from tests.support.allocator import allocated_peak, copy

pytestmark = pytest.mark.medium

PLAN = BatchPlan(1, 200, 1024, mask_ratio=0.15, metric="unweighted")


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


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        pytest.param({}, "none", id="plain"),
        pytest.param({"patch": 1, "width": 192}, "none", id="patch-1-width-192"),
        pytest.param({"backends": MATH}, "none", id="math"),
        pytest.param({"asv_chunk": 16, "recompute": True}, "none", id="chunked-recomputed"),
        pytest.param({"frozen": True}, "none", id="frozen"),
        pytest.param({}, "bf16", id="bf16"),
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
    foreach = not options
    predicted = predict_step(make, batch, precision, block=1, foreach=foreach)
    truth = allocated_peak(
        lambda: TrainingSteps(make().train(), copy(batch), precision, foreach),
        tmp_path / "trace.json",
    )
    # The allocator of torch 2.4 holds 2.1 % more in bf16 with --asv-chunk.
    old = torch.__version__.startswith("2.4.")
    assert predicted.peak == pytest.approx(truth, rel=0.025 if old else 0.02)


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
    predicted = predict_step(lambda: run.module(speed), batch, "none", block=1, foreach=False)
    truth = allocated_peak(
        lambda: TrainingSteps(run.module(speed).train(), copy(batch), "none", False),
        tmp_path / "trace.json",
    )
    assert predicted.peak == pytest.approx(truth, rel=0.02)
