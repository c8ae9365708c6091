"""The training step: no shape depends on values of the device; chunks of ASVs change no result."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aam.contract.options.groups import LoopOptions, Metric
from aam.data.study import Study
from aam.network.batches import Batch, BatchPlan, TrainingBatches, make_batch
from aam.network.inference.stored_networks import Target
from aam.network.model.network import Encoder
from aam.network.model.shape import NetworkShape
from aam.network.training.checkpoints import TrainingProgress
from aam.network.training.finite import FiniteCheck
from aam.network.training.fit import freeze_unused
from aam.network.training.losses import target_loss
from aam.network.training.module import GradientStep, LossWeights, TrainingModule
from aam.network.training.observers import Observer
from tests.support.rank_steps import train as train_loop

PLAN = BatchPlan(1, 200, 1024, mask_ratio=0.15, metric="unweighted")


LOOP = LoopOptions()


def module(
    study: Study, patch: int = 5, dropout: float = 0.0, asv_chunk: int = 0, loop: LoopOptions = LOOP
) -> TrainingModule:
    torch.manual_seed(2)
    shape = NetworkShape(study.tokens_FL.shape[1], 16, 2, 1, patch, dropout)
    network = Encoder(shape, "unweighted")
    return TrainingModule(network, LossWeights(), loop, steps=4, asv_chunk=asv_chunk)


def test_labels_outside_the_masks_do_not_matter(study: Study) -> None:
    """The nucleotide loss is the mean cross-entropy at the labels alone."""
    batch = make_batch(study, PLAN, np.arange(4))
    assert batch.labels_UL is not None
    task = module(study)
    task(batch)
    net = task.encoder.nucleotides
    _, hidden_UTD = net(batch.tokens_UL, batch.ragged(5))
    at = batch.labels_UL > 0
    logits = net.logits(hidden_UTD, batch.tokens_UL.shape[1])[at]
    expected = torch.nn.functional.cross_entropy(logits, batch.labels_UL[at].long() - 1)
    torch.testing.assert_close(task.train_sums["nucleotide"].mean.float(), expected)
    without = dataclasses.replace(batch, labels_UL=torch.zeros_like(batch.labels_UL))
    task.train_sums = {}
    task(without)
    assert task.train_sums["nucleotide"].mean == 0


class HostReads(TorchDispatchMode):
    """Names of operations for which the CPU waits for a GPU.

    They are reads of values (also of a number of nonzero elements, or by a boolean index), and
    copies of numbers of Python to the device.
    """

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "item", "lift_fresh", "unique")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put_", "index_put") else ()
        by_mask = any(index is not None and index.dtype == torch.bool for index in indices)
        if by_mask or any(part in name for part in self.WAITING):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("metric", ["unweighted", "faith_pd"])
def test_no_step_of_pretraining_waits_for_the_device(study: Study, metric: Metric) -> None:
    plan = dataclasses.replace(PLAN, metric=metric, hidden_ratio=0.15)
    torch.manual_seed(2)
    shape = NetworkShape(study.tokens_FL.shape[1], 16, 2, 1, 5, 0.1, predicts_counts=True)
    task = TrainingModule(Encoder(shape, metric), LossWeights(count=1.0), LOOP, steps=4)
    batch = make_batch(study, plan, np.arange(6))
    GradientStep(task, task).add_gradients(batch, True, 1)
    with HostReads() as reads:
        GradientStep(task, task).add_gradients(batch, True, 1)
    assert reads.found == []


class ReadsOfSteps(Observer):
    """Reads of the device in each batch, from when it is there to its end."""

    def __init__(self, reads: HostReads) -> None:
        self.reads, self.of_steps = reads, list[str]()

    def batch_begins(self, batch: Batch) -> None:
        self.reads.found.clear()

    def batch_ends(self, batch: Batch, loss: torch.Tensor) -> None:
        self.of_steps += self.reads.found


def test_no_optimizer_step_waits_for_the_device(study: Study) -> None:
    """Clipping, the check for NaN, the optimizer of a GPU, and its schedule."""
    task = module(study, loop=LoopOptions(epochs=2, gradient_accumulation_steps=2))
    freeze_unused(task, PLAN, study)
    check = FiniteCheck(GradientStep(task, task), (), Path("none"), lambda name, fact: None)
    batches = TrainingBatches(study, PLAN, np.arange(24), 6, fresh_reads=True)
    with HostReads() as reads:
        observer = ReadsOfSteps(reads)
        train_loop(check, batches, observers=[observer])
    assert observer.of_steps == []


@pytest.mark.parametrize(
    "target",
    [
        Target("age", loss_type="quantile", quantiles=(0.1, 0.5, 0.9)),
        Target("site", classes=("a", "b", "c"), class_weights=(1.0, 2.0, 3.0)),
    ],
    ids=lambda target: target.column,
)
def test_no_loss_of_a_target_waits_for_the_device(target: Target) -> None:
    outputs_BC = torch.randn(5, 3, requires_grad=True)
    labels_B = torch.arange(5) % 3 if target.classes else torch.randn(5)
    with HostReads() as reads:
        target_loss(target, outputs_BC, labels_B).mean.backward()
    assert reads.found == []


def gradients(task: TrainingModule, batch: Batch) -> dict[str, torch.Tensor]:
    task(batch).backward()
    return {name: p.grad for name, p in task.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("patch", "chunk"), [(1, 16), (5, 16), (5, 1), (5, 10_000)])
def test_chunks_give_the_same_loss_and_gradients(study: Study, patch: int, chunk: int) -> None:
    batch = make_batch(study, PLAN, np.arange(4))
    whole, chunked = (module(study, patch, asv_chunk=n).double() for n in (0, chunk))
    expected, found = gradients(whole, batch), gradients(chunked, batch)
    for name, term in whole.train_sums.items():
        torch.testing.assert_close(chunked.train_sums[name].mean, term.mean, rtol=1e-9, atol=0)
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12, msg=name)


def test_chunks_store_the_activations_of_one_chunk(study: Study) -> None:
    """What the backward pass needs is independent of the number of ASVs."""
    batch = make_batch(study, PLAN, np.arange(4))
    encoded = len(batch.tokens_UL)
    largest = {}
    for chunk in (0, 16):
        rows: list[int] = []

        def pack(value: torch.Tensor, rows: list[int] = rows) -> torch.Tensor:
            rows.append(value.numel() if value.requires_grad else 0)
            return value

        task = module(study, asv_chunk=chunk)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            task(batch)
        largest[chunk] = sum(rows)
    assert encoded > 32
    assert largest[16] < largest[0] / 2


def test_recomputed_chunks_repeat_their_dropout(study: Study) -> None:
    """The gradient is that of the loss with the dropout of the forward pass."""
    batch = make_batch(study, PLAN, np.arange(4))
    task = module(study, dropout=0.3, asv_chunk=16).double()
    weight = task.encoder.nucleotides.head.weight

    def loss() -> torch.Tensor:
        torch.manual_seed(5)
        return task(batch)

    loss().backward()
    assert weight.grad is not None
    step = 1e-6 * torch.ones_like(weight)
    with torch.no_grad():
        weight += step
        above = loss()
        weight -= 2 * step
        below = loss()
    slope = (above - below) / 2e-6
    torch.testing.assert_close(weight.grad.sum(), slope, rtol=1e-5, atol=1e-8)


class FirstGradients(Observer):
    """Observer that keeps the gradients of each optimizer step."""

    def __init__(self) -> None:
        self.of_steps: list[list[torch.Tensor]] = []

    def begin(self, task: TrainingModule, progress: TrainingProgress) -> None:
        self.task = task

    def step_ends(self, progress: TrainingProgress) -> None:
        gradients = [p.grad for p in self.task.parameters() if p.grad is not None]
        self.of_steps.append([gradient.clone() for gradient in gradients])


def test_a_shorter_last_accumulation_is_the_mean_of_its_batches(study: Study) -> None:
    """Three batches an epoch: the second step has one, as a run without accumulation."""
    batches = TrainingBatches(study, PLAN, np.arange(18), 6, fresh_reads=True)
    last = []
    for accumulated in (2, 1):
        # A learning rate of 0: the weights of the last step are those of the first.
        loop = LoopOptions(
            epochs=1, lr=0.0, max_grad_norm=0.0, gradient_accumulation_steps=accumulated
        )
        task = module(study, loop=loop)
        step = GradientStep(task, task)
        check = FiniteCheck(step, (), Path("none"), lambda name, fact: None)
        recorder = FirstGradients()
        train_loop(check, batches, observers=[recorder])
        last.append(recorder.of_steps[-1])
    for found, expected in zip(*last, strict=True):
        torch.testing.assert_close(found, expected)
