"""Predicted memory of a training step, against the events of the CPU allocator."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aam.contract.options.training import LoopOptions
from aam.data.batches import Batch, BatchPlan, make_batch
from aam.data.study import Study
from aam.model.attention import AUTO, Backends, named
from aam.model.network import Encoder
from aam.model.shape import NetworkShape
from aam.performance.memory import TrainingSteps, predict_step
from aam.training.lightning_module import LossWeights, TrainingModule
from tests.support.commands import aam

PLAN = BatchPlan(1, 200, 1024, "abundance", mask_ratio=0.15, metric="unweighted")


def maker(
    study: Study,
    patch: int = 5,
    backends: Backends = AUTO,
    recompute: bool = False,
    asv_chunk: int = 0,
    frozen: bool = False,
) -> Callable[[], TrainingModule]:
    shape = NetworkShape(study.tokens_FL.shape[1], 64, 4, 2, patch, dropout=0.1)

    def make() -> TrainingModule:
        encoder = Encoder(shape, "unweighted", backends, recompute)
        encoder.diversity.requires_grad_(False)
        if frozen:
            encoder.nucleotides.requires_grad_(False)
        return TrainingModule(encoder, LossWeights(), LoopOptions(), steps=4, asv_chunk=asv_chunk)

    return make


def measured(make: Callable[[], TrainingModule], batch: Batch, trace: Path, foreach: bool) -> int:
    """Return the peak of the second step in bytes, from the allocator's events."""
    gc.collect()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        own = Batch(
            **{
                name: value.clone() if isinstance(value, torch.Tensor) else value
                for name, value in vars(batch).items()
            }
        )
        task = make().train()
        steps = TrainingSteps(task, "none", foreach)
        steps.run(own)
        with torch.profiler.record_function("second step"):
            steps.run(own)
    profile.export_chrome_trace(str(trace))
    events: list[dict[str, Any]] = json.loads(trace.read_text())["traceEvents"]
    begin = next(e["ts"] for e in events if e["name"] == "second step")
    live = peak = 0
    for event in sorted((e for e in events if e["name"] == "[memory]"), key=lambda e: e["ts"]):
        live += event["args"]["Bytes"]
        peak = max(peak, live) if event["ts"] >= begin else live
    return peak


MATH = Backends(named("math"), named("math"))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"patch": 1}, id="patch-1"),
        pytest.param({"backends": MATH}, id="math"),
        pytest.param({"recompute": True}, id="recomputed"),
        pytest.param({"asv_chunk": 16}, id="chunked"),
        pytest.param({"asv_chunk": 16, "recompute": True}, id="chunked-recomputed"),
        pytest.param({"frozen": True}, id="frozen"),
    ],
)
def test_the_peak_is_that_of_the_allocator(
    study: Study, tmp_path: Path, options: dict[str, Any]
) -> None:
    batch = make_batch(study, PLAN, np.arange(8))
    make = maker(study, **options)
    foreach = not options
    predicted = predict_step(make, batch, "none", block=1, foreach=foreach)
    truth = measured(make, batch, tmp_path / "trace.json", foreach)
    assert predicted.peak == pytest.approx(truth, rel=0.02)


@pytest.mark.slow
def test_the_command_finds_the_largest_batch(
    study_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--table", study_dir / "table.biom", "--tree", study_dir / "tree.nwk")
    assert aam("memory", *words, "--batch-size", 4, "--device-memory", 0.05) == 0
    shown = capsys.readouterr().out
    assert "A batch of 4 samples fits on GPUs of 16, 24, 32, 64, 80, 128, 192 GiB." in shown
    few = int(re.findall(r"Largest --batch-size on 0.05 GiB: (\d+) of", shown)[0])
    assert aam("memory", *words, "--asv-chunk", 8, "--device-memory", 0.05) == 0
    shown = capsys.readouterr().out
    assert int(re.findall(r"Largest --batch-size on 0.05 GiB: (\d+) of", shown)[0]) > few
    assert aam("memory", *words, "--device-memory", 0.001) == 0
    assert "No --batch-size fits on 0.001 GiB" in capsys.readouterr().out
    assert aam("memory", *words, "--attention-heads", 3) == 64
    assert "The heads do not divide the width" in capsys.readouterr().err
