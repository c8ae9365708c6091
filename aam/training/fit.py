"""Fit of a network: the training loop with the batches, checkpoints and files of a run folder."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

from aam.console import info
from aam.contract.errors import DataError
from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.commands.train import Train
from aam.contract.options.training import LoopOptions
from aam.contract.records import Mismatch
from aam.data.batches import Batch, BatchPlan, FixedBatches
from aam.data.splits import Split
from aam.data.study import Study
from aam.distributed.stop import StopOnRequest
from aam.distributed.strategies import parallelize
from aam.inference.stored_networks import ModelConfig
from aam.model.network import Predictor
from aam.numerics.device import device_name, is_gpu
from aam.training import checkpoints, run_folder
from aam.training.compilation import Fp32Report, compile_encoder, eager_again
from aam.training.finite import FiniteCheck
from aam.training.loader import EpochSampler, TrainingBatches, ValidationBatches, loader
from aam.training.loop import (
    BEST,
    HIGHER_IS_BETTER,
    LAST,
    TrainingLoop,
)
from aam.training.module import GradientStep, TrainingModule
from aam.training.observers import (
    LoggedMetrics,
    Observer,
    Progress,
    requested_log,
)
from aam.training.run_folder import RecordFact, no_record
from aam.training.runtime import Runtime


@dataclass(frozen=True)
class FitConfig:
    """Settings of a fit.

    Attributes:
        options: options of the command.
        config: configuration of the model.
        folder: run folder, or that of the fold in it.
        runtime: device, precision, backends and ranks.
        record_fact: function that adds facts to the run record.
        fold, folds: number of the fold, from 1, and of all folds.
    """

    options: Pretrain | Train
    config: ModelConfig
    folder: Path
    runtime: Runtime
    record_fact: RecordFact = no_record
    fold: int = 1
    folds: int = 1

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def monitor(self) -> str:
        """Metric of the validation by which the best epoch is chosen."""
        name = self.options.best_metric if isinstance(self.options, Train) else "val_loss"
        return name if name.startswith("val_") else f"val_{name}"

    @property
    def name(self) -> str:
        """Name of the run in a tracker: the run folder, and the fold where there are several."""
        run = self.options.run.output_dir.name
        return run if self.folds == 1 else f"{run}/fold-{self.fold}"


@dataclass(frozen=True)
class FitResult:
    """Result of a fit: chosen checkpoint, epochs, optimizer steps, best metrics."""

    checkpoint: Path
    epochs: int
    steps: int
    best: dict[str, float]


def optimizer_steps(samples: int, loop: LoopOptions) -> int:
    """Return the number of optimizer steps of a run, with gradient accumulation.

    >>> optimizer_steps(100, LoopOptions(epochs=2, batch_size=32, gradient_accumulation_steps=2))
    4
    """
    batches = math.ceil(samples / loop.batch_samples)
    return loop.epochs * math.ceil(batches / loop.gradient_accumulation_steps)


def check_split(split: Split, loop: LoopOptions) -> None:
    """Validate a split against the options of the training loop.

    Raises:
        DataError: fewer training samples than --batch-size.
    """
    if len(split.train) < loop.batch_samples:
        raise DataError(
            "Fewer training samples than a batch",
            f"{len(split.train)} samples, --batch-size {loop.batch_samples}",
            "choose a smaller --batch-size",
        )


def fit_split(fit: FitConfig, task: TrainingModule, study: Study, split: Split) -> FitResult:
    """Train a module on the training samples of a split, with its validation samples."""
    options, plan, ranks = fit.options, fit.config.plan, fit.runtime.communicator.ranks
    batch_size, sequences = options.loop.batch_samples, task.target is not None
    training = TrainingBatches(
        study, plan, split.train, batch_size, options.sample.rarefy_each_epoch,
        options.loop.even_batches, ranks, sequences,
    )  # fmt: skip
    validation = ValidationBatches(study, plan, split.validation, batch_size, ranks, sequences)
    return run(fit, task, training, validation if len(split.validation) else None)


def run(
    fit: FitConfig,
    task: TrainingModule,
    training: TrainingBatches,
    validation: FixedBatches | None,
    more: Sequence[Observer] = (),
) -> FitResult:
    """Train a module and return its best checkpoint; without validation samples, the last one."""
    freeze_unused(task, training.plan, training.study)
    fit.record_fact("precision", fit.runtime.precision)
    loop = _make_loop(fit, task, training, validation, more)
    communicator = fit.runtime.communicator
    # Rank 0 decides: a network file system may show other ranks an earlier state of the folder.
    resumed = communicator.broadcast(run_folder.checkpoint_to_resume(fit.options.run, fit.folder))
    if resumed is not None:
        stored = checkpoints.read(resumed)
        if stored.resume is None:
            raise checkpoints.unusable(resumed, "it has no resume state")
        try:
            loop.resume(stored.weights, stored.resume)
        except Mismatch as error:
            raise checkpoints.unusable(resumed, error) from error
        # The best checkpoint is beside the last one, which may be in another folder.
        best, here = resumed.with_name(BEST), fit.checkpoints / BEST
        if communicator.ranks.is_main and best.exists() and best.resolve() != here.resolve():
            checkpoints.copy(best, here)
        files = (here.exists(), (fit.checkpoints / LAST).exists())
        has_best, has_last = communicator.broadcast(files)
        if not has_best:
            # Without the weights of the best epoch its value could be chosen but not applied, so
            # the epochs of this process are compared with each other.
            loop.best = None
        # A complete run that is resumed into another folder trains no step that would write it.
        if loop.complete and not has_last:
            loop.write(LAST)
    try:
        with fit.runtime.stop.handled():
            loop.run()
    finally:
        eager_again(task.encoder.nucleotides)  # tensors after training have other shapes
    epochs, steps = loop.progress.epoch, loop.progress.step
    if loop.best is None:
        first = ("epoch", "step", "seconds", "lr")
        latest = loop.history[-1] if loop.history else {}
        metrics = {name: value for name, value in latest.items() if name not in first}
        return FitResult(fit.checkpoints / LAST, epochs, steps, metrics)
    chosen: dict[str, float] = {f"best_{fit.monitor}": loop.best}
    rows = [row for row in loop.history if math.isfinite(row.get(fit.monitor, math.nan))]
    if rows:
        better = max if fit.monitor in HIGHER_IS_BETTER else min
        chosen["best_epoch"] = int(better(rows, key=lambda row: row[fit.monitor])["epoch"]) + 1
        sentence = (
            f"Chosen: epoch {chosen['best_epoch']} of {epochs}, {fit.monitor} {loop.best:.4g}."
        )
        options = fit.options.loop
        if epochs < options.epochs:
            sentence = (
                f"Stopped early after epoch {epochs} of {options.epochs}: no better "
                f"{fit.monitor} in {options.patience} epochs (--patience). {sentence}"
            )
        info(sentence)
    return FitResult(fit.checkpoints / BEST, epochs, steps, chosen)


def _make_loop(
    fit: FitConfig,
    task: TrainingModule,
    training: TrainingBatches,
    validation: FixedBatches | None,
    more: Sequence[Observer],
) -> TrainingLoop:
    """Build the training loop of a fit from the beginning."""
    options, runtime = fit.options, fit.runtime
    communicator, device, last = runtime.communicator, runtime.device, fit.checkpoints / LAST
    model = parallelize(task, options.scale, communicator.ranks, device)
    step = GradientStep.of(task, model, runtime.precision)
    load = partial(
        loader, workers=runtime.workers, pin=is_gpu(device), prefetch=options.speed.prefetch_factor
    )
    speed, record_fact = options.speed, fit.record_fact
    observers: list[Observer] = []
    report = None
    if speed.report_fp32_fallbacks:
        report = Fp32Report(runtime.precision, record_fact)
        observers.append(report)
    # Files and lines are those of the first rank.
    if is_main := communicator.ranks.is_main:
        observers += [
            Progress(
                options.run.output_dir / "progress.json",
                fit.folder / "metrics.csv",
                len(training.rows),
                device_name(device),
                fit.fold,
                fit.folds,
            ),
            LoggedMetrics(options, fit.folder, fit.name),
        ]
    observers += [*requested_log(os.environ, is_main), *more]

    def prepare(batch: Batch) -> bool:
        # The compiler drops the hooks of the report, so it waits for its end.
        if report is not None and not report.done:
            return False
        if speed.compile_model != "off":
            compile_encoder(step, speed.compile_model, record_fact, batch)
        return True

    ids = training.study.table.sample_ids
    return TrainingLoop(
        step,
        FiniteCheck(step, ids, last, record_fact, communicator),
        load(training, EpochSampler(training.steps)),
        validation=None if validation is None else load(validation, None),
        monitor=fit.monitor,
        save=lambda name, *state: checkpoints.write(fit.checkpoints / name, fit.config, *state),
        checkpoint_interval=options.run.checkpoint_every_n_steps or 0,
        stop=StopOnRequest(runtime.stop, communicator, last),
        prepare=prepare,
        observers=observers,
    )


def freeze_unused(task: TrainingModule, plan: BatchPlan, study: Study) -> None:
    """Freeze the parameters that no loss term of this run reaches.

    Args:
        task: training module with the weights of its loss terms.
        plan: batch plan, which has the terms that are prepared.
        study: study of the run; with given distances Faith PD is not computed.
    """
    # Without a loss, DDP gives no gradient and FSDP zeros, to which weight decay applies: the
    # weights would differ with the strategy.
    encoder, samples, weights = task.encoder, task.encoder.samples, task.weights
    related = plan.metric is not None and weights.unifrac > 0 and not task.frozen
    by_diversity = plan.metric == "faith_pd" and study.distances is None
    target, counts = task.target is not None and weights.target > 0, plan.hidden_ratio > 0
    unused: list[nn.Module] = []
    if task.frozen or plan.mask_ratio == 0 or weights.nucleotide == 0:
        unused.append(encoder.nucleotides.head)
    if not (related and by_diversity):
        unused.append(encoder.diversity)
    if not related or by_diversity:
        unused.append(encoder.distance)
    if not related and not target:
        unused += [samples.pooling, samples.out] if counts else [samples]
    if samples.counts is not None and not counts:
        unused.append(samples.counts)
    if isinstance(task.network, Predictor) and not target:
        unused += [child for child in task.network.children() if child is not encoder]
    for module in unused:
        module.requires_grad_(False)
