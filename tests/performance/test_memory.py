"""Predicted memory of a training step, against the events of the CPU allocator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aam.contract.options.training import LoopOptions
from aam.data.batches import BatchPlan, make_batch
from aam.data.study import Study
from aam.model.attention import AUTO, Backends, named
from aam.model.network import Encoder
from aam.model.shape import NetworkShape
from aam.performance.memory import TrainingSteps, fake, predict_step, training_workload
from aam.training.lightning_module import LossWeights, TrainingModule
from tests.support.allocator import allocated_peak, copy

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
    predicted = predict_step(
        lambda: training_workload(make(), fake(batch)), "none", block=1, foreach=foreach
    )
    truth = allocated_peak(
        lambda: TrainingSteps(training_workload(make(), copy(batch)), "none", foreach),
        tmp_path / "trace.json",
    )
    assert predicted.peak == pytest.approx(truth, rel=0.02)
