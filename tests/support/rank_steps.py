"""Fits of tiny networks in double precision, run by the ranks of `tests.support.local_ranks`."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.device import ScaleOptions, SpeedOptions
from aam.contract.options.study import PhylogenyOptions, TableOptions
from aam.contract.options.training import LoopOptions, RunOptions
from aam.data.batches import BatchPlan
from aam.data.study import Study, load_study
from aam.distributed.communicator import SINGLE_PROCESS, Communicator
from aam.distributed.state_dict import full_tensor, local_tensor
from aam.distributed.strategies import choose_strategy
from aam.model.network import Predictor
from aam.model.shape import NetworkShape
from aam.training import fit
from aam.training.callbacks.nonfinite import FiniteCheck, replay
from aam.training.data_loader import EpochSampler, FixedBatches, TrainingBatches, loader
from aam.training.lightning_module import LossWeights, TrainingModule
from aam.training.model_config import DiversityScale, ModelConfig
from aam.training.run_files import checkpoints
from aam.training.runtime import Runtime
from aam.training.target import Target
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
        warm_up: compute the largest batch before the first step.
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
    warm_up: bool = False


class PowerCut(RuntimeError):
    """Failure of the machine."""


class RecordingModule(TrainingModule):
    """Training module that records the first gradient, and fails or gets a signal at a step."""

    stop, killed = 0, False
    signal: tuple[int, int, int] | None = None
    first: dict[str, torch.Tensor] | None = None

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.first is None:
            self.first = {
                name: full_tensor(p.grad).clone()
                for name, p in self.named_parameters()
                if p.grad is not None
            }

    def on_validation_start(self) -> None:
        if self.killed:
            raise PowerCut

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.stop and self.global_step >= self.stop:
            raise PowerCut
        if self.signal and (self.global_rank, self.global_step) == self.signal[:2]:
            os.kill(os.getpid(), self.signal[2])


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
    steps = fit.optimizer_steps(23, case.loop)
    task = RecordingModule(
        network,
        LossWeights(count=float(hides)),
        case.loop,
        steps,
        case.target,
        values,
        asv_chunk=case.asv_chunk,
    )
    task.stop, task.signal, task.killed = case.stop, case.signal, case.killed
    shard: dict[str, Any] = {"ranks": communicator.ranks, "sequences": case.target is not None}
    training = TrainingBatches(
        study, case.plan, np.arange(23), case.loop.batch_size, fresh_reads=True, **shard
    )
    validation = FixedBatches(study, case.plan, np.arange(23, 23 + case.validation), 6, **shard)
    options = fit_options(
        folder, case.loop, case.scale, resume_from=case.resume, checkpoint_every_n_steps=case.every
    )
    speed = SpeedOptions(memory_warm_up="on" if case.warm_up else "off")
    options = dataclasses.replace(options, speed=speed)
    runtime = Runtime(torch.device("cpu"), communicator=communicator)
    try:
        fit.run(fit.FitConfig(options, config, folder, runtime), task, training, validation)
    except PowerCut:
        assert case.stop or case.killed
        if case.killed:
            return {}
    result: dict[str, Any] = {"gradient": task.first}
    if communicator.ranks.is_main:
        _, content = checkpoints.read(folder / "checkpoints" / "last.ckpt")
        table = np.genfromtxt(folder / "metrics.csv", delimiter=",", names=True)
        losses = {name: table[name] for name in table.dtype.names if "_" in name}
        result |= {"weights": content["state_dict"], "losses": losses}
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

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any
    ) -> None:
        window = list(self._window)
        super().on_before_optimizer_step(trainer, pl_module, optimizer)
        assert isinstance(pl_module, TrainingModule)
        before = {n: p.grad.clone() for n, p in pl_module.named_parameters() if p.grad is not None}
        losses = [loss for _, loss in replay(trainer, pl_module, window)]
        assert len(losses) == trainer.accumulate_grad_batches
        after = {n: p.grad for n, p in pl_module.named_parameters() if p.grad is not None}
        same = before.keys() == after.keys() and all(
            torch.equal(local_tensor(after[name]), local_tensor(value))
            for name, value in before.items()
        )
        self.note("same", same)


def repeat_steps(communicator: Communicator, study_dir: Path, scale: ScaleOptions) -> list[bool]:
    """Train two epochs of two steps; return whether each step was repeated exactly."""
    study = read(study_dir)
    torch.manual_seed(3)
    shape = NetworkShape(60, 16, 2, 1, 5, dropout=0.2)
    config = ModelConfig("pretrain", shape, "unweighted", PLAN, DiversityScale(), None, {})
    loop = dataclasses.replace(LOOP, gradient_accumulation_steps=2)
    training = TrainingBatches(
        study, PLAN, np.arange(24), loop.batch_size, fresh_reads=True, ranks=communicator.ranks
    )
    task = TrainingModule(config.network(), LossWeights(), loop, 4)
    fit.freeze_unused(task, PLAN, study)
    same: list[bool] = []
    trainer = pl.Trainer(
        accelerator="cpu",
        strategy=choose_strategy(scale, communicator.ranks, torch.device("cpu")),
        max_epochs=2,
        accumulate_grad_batches=2,
        callbacks=[
            Repeating((), Path("none"), lambda name, fact: same.append(fact), loop.lr, communicator)
        ],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        gradient_clip_val=1.0,
    )
    trainer.fit(task, loader(training, EpochSampler(training.steps), 0, False))
    return same
