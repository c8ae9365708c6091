"""Fits of tiny networks in double precision, run by the ranks of `tests.support.local_ranks`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from aam.contract.errors import NotFinite
from aam.contract.options.commands.train import Pretrain
from aam.contract.options.groups import (
    LoopOptions,
    PhylogenyOptions,
    RunOptions,
    ScaleOptions,
    TableOptions,
)
from aam.data.study import Study, load_study
from aam.network.batches import Batch, BatchPlan, FixedBatches, RunSampler, TrainingBatches, loader
from aam.network.distributed.collectives import (
    SINGLE_PROCESS,
    Communicator,
    local_tensor,
    parallelize,
)
from aam.network.inference.stored_networks import DiversityScale, ModelConfig, Target
from aam.network.model.network import Predictor
from aam.network.model.shape import NetworkShape
from aam.network.training import checkpoints
from aam.network.training.checkpoints import TrainingProgress
from aam.network.training.configuration import Runtime
from aam.network.training.finite import FiniteCheck, replay
from aam.network.training.fit import fit, freeze_unused, make_optimizer, make_schedule
from aam.network.training.loop import TrainingLoop
from aam.network.training.module import GradientStep, LossWeights, TrainingModule, full_tensor
from aam.network.training.observers import Observer
from aam.network.training.runs import optimizer_steps
from aam.pipeline.run_folder import no_record
from tests.support.option_groups import option_groups

PLAN = BatchPlan(1, 200, 1024, mask_ratio=0.15, metric="unweighted")
ALONE = ScaleOptions()
LOOP = LoopOptions(epochs=5, batch_size=6, lr=1e-2, seed=1)
SITES = Target("site", ("a", "b", "c"), class_weights=(0.5, 2.0, 1.0))


@dataclasses.dataclass(frozen=True)
class Case:
    """A fit.

    Attributes:
        scale: strategy.
        target: what is predicted; None pretrains.
        plan: how batches are made.
        loop: 23 samples in batches of 6 are four batches of 6, 6, 6 and 5.
        validation: validation samples; 7 in batches of 6 leave one alone.
        every: steps between checkpoints; 0: at the end of epochs only.
        resume: --resume-from.
        stop: leave after this many optimizer steps, as if the machine failed.
        signal: rank, step and number of a signal that is sent to a process.
        killed: the machine fails in the validation of the first epoch.
        asv_chunk: ASVs that are encoded at once; 0: all.
    """

    scale: ScaleOptions = ALONE
    target: Target | None = None
    plan: BatchPlan = PLAN
    loop: LoopOptions = LOOP
    validation: int = 7
    every: int = 0
    resume: Any = None
    stop: int = 0
    signal: tuple[int, int, int] | None = None
    killed: bool = False
    asv_chunk: int = 0


class PowerCut(RuntimeError):
    """Failure of the machine."""


class Recorder(Observer):
    """Observer that records the first gradient, and fails or gets a signal at a step."""

    def __init__(self, case: Case, rank: int) -> None:
        self.case, self.rank, self.step = case, rank, 0
        self.first: dict[str, torch.Tensor] | None = None

    def begin(self, task: TrainingModule, progress: TrainingProgress) -> None:
        self.task, self.step = task, progress.step

    def batch_begins(self, batch: Batch) -> None:
        if self.case.stop and self.step >= self.case.stop:
            raise PowerCut
        if self.case.signal and (self.rank, self.step) == self.case.signal[:2]:
            os.kill(os.getpid(), self.case.signal[2])

    def step_ends(self, progress: TrainingProgress) -> None:
        self.step = progress.step
        if self.first is None:
            self.first = {
                name: full_tensor(p.grad).clone()
                for name, p in self.task.named_parameters()
                if p.grad is not None
            }

    def validation_ends(self, seconds: float) -> None:
        if self.case.killed:
            raise PowerCut


def read(folder: Path) -> Study:
    return load_study(
        TableOptions(table=folder / "table.biom"), PhylogenyOptions(tree=folder / "tree.nwk")
    )


def fit_options(
    folder: Path, loop: LoopOptions, scale: ScaleOptions = ALONE, **run: Any
) -> Pretrain:
    """Return the options of a fit in a run folder; no study is read from them."""
    of_run = RunOptions(output_dir=folder, **run)
    return Pretrain(**option_groups(folder, folder, run=of_run, loop=loop, scale=scale))


def learn(communicator: Communicator, study_dir: Path, folder: Path, case: Case) -> dict[str, Any]:
    """Fit; return the loss of every epoch, the first gradient, and the last weights."""
    study = read(study_dir)
    torch.manual_seed(3)
    hides = case.plan.hidden_ratio > 0
    shape = NetworkShape(60, 8, 2, 1, 5, dropout=0.0, predicts_counts=hides)
    if case.target is not None:
        shape = dataclasses.replace(shape, outputs=case.target.outputs, profile_features=16)
        shape = dataclasses.replace(shape, profile_dropout=0.0)
    command = "pretrain" if case.target is None else "train"
    config = ModelConfig(command, shape, "unweighted", case.plan, DiversityScale(), case.target, {})
    network = config.network().double()
    values = (np.arange(36) % 3).astype(np.float64)
    if isinstance(network, Predictor):
        torch.nn.init.normal_(network.head[-1].weight)
    steps = optimizer_steps(23, case.loop)
    task = TrainingModule(
        network,
        LossWeights(count=float(hides)),
        case.loop,
        steps,
        case.target,
        values,
        asv_chunk=case.asv_chunk,
    )
    recorder = Recorder(case, communicator.ranks.rank)
    size = case.loop.batch_size
    training = TrainingBatches(study, case.plan, np.arange(23), size, fresh_reads=True)
    validation = FixedBatches(study, case.plan, np.arange(23, 23 + case.validation), 6)
    options = fit_options(
        folder, case.loop, case.scale, resume_from=case.resume, checkpoint_every_n_steps=case.every
    )
    runtime = Runtime(torch.device("cpu"), communicator=communicator)
    try:
        fit(task, config, training, validation, options, runtime, no_record, more=[recorder])
    except PowerCut:
        assert case.stop or case.killed
        if case.killed:
            return {}
    result: dict[str, Any] = {"gradient": recorder.first}
    if communicator.ranks.is_main:
        weights = checkpoints.read(folder / "checkpoints" / "last.ckpt").weights
        table = np.genfromtxt(folder / "metrics.csv", delimiter=",", names=True)
        losses = {name: table[name] for name in table.dtype.names if "_" in name}
        result |= {"weights": weights, "losses": losses}
    return result


def learn_all(
    communicator: Communicator, study_dir: Path, folder: Path, cases: list[Case]
) -> list[Any]:
    """Fit one after the other."""
    return [learn(communicator, study_dir, folder / str(k), case) for k, case in enumerate(cases)]


def alone(study_dir: Path, folder: Path, case: Case) -> dict[str, Any]:
    """Fit in this process."""
    return learn(SINGLE_PROCESS, study_dir, folder, case)


class Repeating(FiniteCheck):
    """Repeats every optimizer step and notes whether its gradients are the same bits."""

    def check_gradients(self, number: int, norm: Tensor) -> Tensor:
        window = list(self.window)
        skip = super().check_gradients(number, norm)
        named = dict(self.task.named_parameters())
        before = {n: p.grad.clone() for n, p in named.items() if p.grad is not None}
        rank = self.communicator.ranks.rank
        losses = [loss for _, loss in replay(self.step, window, rank)]
        assert len(losses) == self.task.loop.gradient_accumulation_steps
        after = {n: p.grad for n, p in named.items() if p.grad is not None}
        same = before.keys() == after.keys() and all(
            torch.equal(local_tensor(after[name]), local_tensor(value))
            for name, value in before.items()
        )
        self.record_fact("same", same)
        return skip


def repeat_steps(communicator: Communicator, study_dir: Path, scale: ScaleOptions) -> list[bool]:
    """Train two epochs of two steps; return whether each step was repeated exactly."""
    study = read(study_dir)
    torch.manual_seed(3)
    shape = NetworkShape(60, 16, 2, 1, 5, dropout=0.2)
    config = ModelConfig("pretrain", shape, "unweighted", PLAN, DiversityScale(), None, {})
    loop = dataclasses.replace(LOOP, gradient_accumulation_steps=2, epochs=2)
    training = TrainingBatches(study, PLAN, np.arange(24), loop.batch_size, fresh_reads=True)
    task = TrainingModule(config.network(), LossWeights(), loop, 4)
    freeze_unused(task, PLAN, study)
    same: list[bool] = []
    model = parallelize(task, scale, communicator.ranks, torch.device("cpu"))
    step = GradientStep(task, model)
    check = Repeating(step, (), Path("none"), lambda name, fact: same.append(fact), communicator)
    train(check, training)
    return same


class Spoiled(TrainingBatches):
    """Training batches of which one holds a distance that is no number."""

    spoiled = (-1, -1)

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        batch = super().__getitem__(key)
        if key != self.spoiled:
            return batch
        assert batch.distances_BB is not None
        distances_BB = batch.distances_BB.clone()
        distances_BB[0, 1] = torch.nan
        return dataclasses.replace(batch, distances_BB=distances_BB)


class Weights(Observer):
    """Observer that keeps the weights after each step, and counts the batches."""

    def __init__(self) -> None:
        self.of_steps: list[list[Tensor]] = []
        self.batches = 0

    def begin(self, task: TrainingModule, progress: TrainingProgress) -> None:
        self.task = task

    def batch_begins(self, batch: Batch) -> None:
        self.batches += 1

    def step_ends(self, progress: TrainingProgress) -> None:
        weights = self.task.parameters()
        self.of_steps.append([local_tensor(p.detach()).clone() for p in weights])


def spoiled_step(
    communicator: Communicator, study_dir: Path, scale: ScaleOptions
) -> tuple[bool, int, str]:
    """Train with a second step that is not finite.

    Returns:
        Whether that step alone left the weights as they were, the batches that had begun when the
        run ended, and the place in its error.
    """
    study = read(study_dir)
    torch.manual_seed(3)
    shape = NetworkShape(60, 16, 2, 1, 5)
    config = ModelConfig("pretrain", shape, "unweighted", PLAN, DiversityScale(), None, {})
    training = Spoiled(study, PLAN, np.arange(24), LOOP.batch_size, fresh_reads=True)
    training.spoiled = (0, 1)
    task = TrainingModule(config.network(), LossWeights(), LOOP, 4)
    freeze_unused(task, PLAN, study)
    before = [p.detach().clone() for p in task.parameters()]
    model = parallelize(task, scale, communicator.ranks, torch.device("cpu"))
    ids = study.table.sample_ids
    check = FiniteCheck(GradientStep(task, model), ids, Path("none"), print, communicator)
    weights = Weights()
    with pytest.raises(NotFinite) as caught:
        train(check, training, [weights])
    first, second = weights.of_steps
    whole = [full_tensor(p.detach()) for p in task.parameters()]
    moved = not all(map(torch.equal, before, whole))
    return moved and all(map(torch.equal, first, second)), weights.batches, caught.value.evidence


def train(
    check: FiniteCheck,
    training: TrainingBatches,
    observers: Sequence[Observer] = (),
    workers: int = 0,
) -> TrainingLoop:
    """Run a training loop without validation and checkpoints."""
    ranks = check.communicator.ranks
    sampler = RunSampler(training.steps, check.task.loop.epochs)
    batches = loader(training, sampler, workers, False, ranks=ranks)
    optimizer = make_optimizer(check.task, check.task.loop)
    for group in optimizer.param_groups:
        group["fused"] = True  # as on a GPU
    schedule = make_schedule(optimizer, check.task.loop, check.task.steps)
    done = TrainingLoop(check.step, check, optimizer, schedule, batches, observers=observers)
    done.run()
    return done
