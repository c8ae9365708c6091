"""The training step: no shape depends on values of the device."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from aam.contract.options.groups import LoopOptions
from aam.data.batches import Batch, BatchPlan, make_batch
from aam.data.study import Study
from aam.model.network import Encoder
from aam.model.shape import NetworkShape
from aam.training.lightning_module import LossWeights, TrainingModule

PLAN = BatchPlan(1, 200, 1024, "abundance", mask_ratio=0.15, metric="unweighted")


def module(study: Study, patch: int = 5, dropout: float = 0.0) -> TrainingModule:
    torch.manual_seed(2)
    shape = NetworkShape(study.tokens_FL.shape[1], 16, 2, 1, patch, dropout)
    return TrainingModule(Encoder(shape, "unweighted"), LossWeights(), LoopOptions(), steps=4)


@pytest.mark.filterwarnings("ignore:.*self.log.*")
@pytest.mark.parametrize("patch", [1, 5])
def test_no_shape_depends_on_the_masks(study: Study, patch: int) -> None:
    """A shape that depends on values makes a GPU wait; on tensors without values it raises."""
    batch = make_batch(study, PLAN, np.arange(4))
    assert batch.labels_UL is not None
    with FakeTensorMode() as fake:
        task = module(study, patch)
        shapes = Batch(
            **{
                name: fake.from_tensor(value) if torch.is_tensor(value) else value
                for name, value in vars(batch).items()
            }
        )
        task.training_step(shapes, 0).backward()
    gradients = [p.grad for p in task.encoder.nucleotides.parameters()]
    assert all(gradient is not None for gradient in gradients)


@pytest.mark.filterwarnings("ignore:.*self.log.*")
def test_labels_outside_the_masks_do_not_matter(study: Study) -> None:
    """The nucleotide loss is the mean cross-entropy at the labels alone."""
    batch = make_batch(study, PLAN, np.arange(4))
    assert batch.labels_UL is not None
    task = module(study)
    task.training_step(batch, 0)
    net = task.encoder.nucleotides
    _, hidden_UTD = net(batch.tokens_UL, batch.ragged(5))
    at = batch.labels_UL > 0
    logits = net.logits(hidden_UTD, batch.tokens_UL.shape[1])[at]
    expected = torch.nn.functional.cross_entropy(logits, batch.labels_UL[at].long() - 1)
    torch.testing.assert_close(task.train_sums["nucleotide"].mean.float(), expected)
    without = dataclasses.replace(batch, labels_UL=torch.zeros_like(batch.labels_UL))
    task.train_sums = {}
    task.training_step(without, 0)
    assert task.train_sums["nucleotide"].mean == 0
