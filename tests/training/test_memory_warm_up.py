"""Memory warm-up: the largest batch before the first step, without an effect on the training."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from aam.data.study import Study
from aam.training.data_loader import TrainingBatches
from aam.training.run_files import checkpoints
from tests.support.commands import pretrain, read
from tests.support.rank_steps import PLAN, Case, alone


def test_the_largest_step_has_the_samples_with_most_asvs(study: Study) -> None:
    batches = TrainingBatches(study, PLAN, np.arange(23), 6, fresh_reads=True)
    for epoch in range(3):
        asvs = [int(study.table.richness[batches[epoch, k].rows_B].sum()) for k in range(4)]
        assert asvs[batches.largest_step(epoch)] == max(asvs)
    few = dataclasses.replace(PLAN, token_limit=1)
    equal = TrainingBatches(study, few, np.arange(24), 6, fresh_reads=True)
    assert equal.largest_step(0) == 0


@pytest.mark.medium
def test_a_run_is_the_same_with_and_without(study_dir: Path, tmp_path: Path) -> None:
    """With dropout, recomputed chunks and accumulation."""
    given = ("--tree", study_dir / "tree.nwk", "--epochs", 2,
             "--asv-chunk", 16, "--gradient-accumulation-steps", 2)  # fmt: skip
    tables, weights = [], []
    for name in ("off", "on"):
        assert pretrain(study_dir, tmp_path / name, *given, "--memory-warm-up", name) == 0
        tables.append(read(tmp_path / name / "metrics.csv").drop(columns="seconds"))
        last = tmp_path / name / "checkpoints" / "last.ckpt"
        weights.append(checkpoints.read(last)[1]["state_dict"])
    assert tables[0].equals(tables[1])
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    records = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("off", "on")]
    assert "memory_warm_up" not in records[0]
    assert records[1]["memory_warm_up"]["epoch"] == 1 and records[1]["memory_warm_up"]["asvs"] > 0


@pytest.mark.medium
def test_a_resumed_run_warms_up_in_the_middle_of_an_epoch(study_dir: Path, tmp_path: Path) -> None:
    whole = alone(study_dir, tmp_path / "whole", Case())
    alone(study_dir, tmp_path / "cut", Case(every=1, stop=6))
    resumed = Case(every=1, resume=tmp_path / "cut", warm_up=True)
    found = alone(study_dir, tmp_path / "resumed", resumed)
    for name, expected in whole["weights"].items():
        assert torch.equal(found["weights"][name], expected), name
    for name, losses in whole["losses"].items():
        assert found["losses"][name].tolist() == losses.tolist(), name
