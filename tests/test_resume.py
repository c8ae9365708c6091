"""A run that stops at any step and is resumed ends with the weights of one that never stopped."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from aam.learn import checkpoints, fit
from aam.learn.loaders import FixedBatches, TrainingBatches
from aam.learn.recipe import Recipe, Standard
from aam.learn.task import Task, Weights
from aam.model.shape import NetworkShape
from aam.options.groups import DeviceOptions, LoopOptions, RunOptions, SpeedOptions
from aam.study.batches import Batch, BatchPlan
from aam.study.study import Study

PLAN = BatchPlan(1, 200, 1024, "abundance", mask_ratio=0.15, metric="unweighted")
LOOP = LoopOptions(epochs=3, batch_size=6, lr=1e-2, gradient_accumulation_steps=2)


class PowerCut(RuntimeError):
    """What a machine that stops looks like from inside."""


class StoppingBatches(TrainingBatches):
    """Training batches of a machine that stops before one of them."""

    cut: tuple[int, int] = (-1, -1)

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        if key == self.cut:
            raise PowerCut
        return super().__getitem__(key)


def run(study: Study, folder: Path, cut: tuple[int, int], resume: bool, workers: int = 0) -> Path:
    torch.manual_seed(3)
    shape = NetworkShape(60, 16, 2, 1, 5, dropout=0.2)
    recipe = Recipe("pretrain", shape, "unweighted", PLAN, Standard(), None, {})
    loop = dataclasses.replace(LOOP, seed=1)
    rows = np.arange(24)
    task = Task(recipe.network(), Weights(), loop, fit.optimiser_steps(24, loop))
    training = StoppingBatches(study, PLAN, rows, loop.batch_size, fresh_reads=True)
    training.cut = cut
    options = RunOptions(
        output_dir=folder, resume_from=folder if resume else None, checkpoint_every_n_steps=1
    )
    device = DeviceOptions(device="cpu", num_workers=workers)
    given = fit.Fit(recipe, loop, SpeedOptions(), device, options, folder)
    validation = FixedBatches(study, PLAN, np.arange(24, 36), loop.batch_size)
    return fit.run(given, task, training, validation).checkpoint


def weights(folder: Path) -> dict[str, torch.Tensor]:
    _, content = checkpoints.read(folder / "checkpoints" / "last.ckpt")
    assert content["global_step"] == 6
    return content["state_dict"]


@pytest.fixture(scope="module")
def whole(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run(study, folder, (-1, -1), resume=False)
    return folder


@pytest.mark.parametrize("cut", [(0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (2, 3)])
def test_resumed_weights_are_the_same_bit_for_bit(
    study: Study, whole: Path, tmp_path: Path, cut: tuple[int, int]
) -> None:
    with pytest.raises(PowerCut):
        run(study, tmp_path, cut, resume=False)
    run(study, tmp_path, (-1, -1), resume=True)
    expected, found = weights(whole), weights(tmp_path)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name
    lines = [(f / "metrics.csv").read_text().splitlines() for f in (whole, tmp_path)]
    assert len(lines[0]) == len(lines[1]) == 1 + LOOP.epochs
    judged = [[row.rsplit(",", 4)[1:] for row in rows[1:]] for rows in lines]
    assert judged[0] == judged[1]


def test_the_same_seed_gives_the_same_run_with_workers(
    study: Study, whole: Path, tmp_path: Path
) -> None:
    run(study, tmp_path, (-1, -1), resume=False, workers=2)
    expected, found = weights(whole), weights(tmp_path)
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
