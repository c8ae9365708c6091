"""Training loop: Lightning's trainer with the callbacks, checkpoints and files of a run folder."""

from __future__ import annotations

import logging
import math
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from torch import nn

from aam.console import info, interactive
from aam.contract.errors import DataError
from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.commands.train import Train
from aam.contract.options.training import LoopOptions
from aam.data.batches import BatchPlan
from aam.data.splits import Split
from aam.data.study import Study
from aam.distributed.communicator import Communicator
from aam.distributed.stop_request import StopOnRequest
from aam.distributed.strategies import choose_strategy
from aam.model.network import Predictor
from aam.numerics.device import device_name, is_gpu
from aam.training.callbacks.compilation import CompiledEncoder, Fp32Report, Note, unrecorded
from aam.training.callbacks.epoch_table import EpochTable
from aam.training.callbacks.loggers import make_loggers
from aam.training.callbacks.memory_warm_up import MemoryWarmUp
from aam.training.callbacks.nonfinite import FiniteCheck
from aam.training.callbacks.progress import Progress, RunLength, RunProgressBar
from aam.training.callbacks.step_log import requested_log
from aam.training.data_loader import EpochSampler, FixedBatches, TrainingBatches, loader
from aam.training.lightning_module import TrainingModule
from aam.training.model_config import ModelConfig
from aam.training.run_files import checkpoints
from aam.training.run_files.resume import (
    AtomicCheckpointIO,
    ExactResume,
    WithinEpochs,
)
from aam.training.runtime import Runtime

PRECISIONS = {"none": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
HIGHER_IS_BETTER = ("r2", "accuracy", "f1")


@dataclass(frozen=True)
class FitConfig:
    """Settings of a fit.

    Attributes:
        note: adds facts to the run record.
        fold, folds: number of the fold, from 1, and of all folds.
    """

    options: Pretrain | Train
    config: ModelConfig
    folder: Path
    runtime: Runtime
    note: Note = unrecorded
    fold: int = 1
    folds: int = 1

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
    """Return the number of optimizer steps of a run, with gradient accumulation."""
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
    validation = FixedBatches(
        study, plan, split.validation, batch_size, ranks=ranks, sequences=sequences
    )
    return run(fit, task, training, validation if len(split.validation) else None)


def run(
    fit: FitConfig, task: TrainingModule, training: TrainingBatches, validation: FixedBatches | None
) -> FitResult:
    """Train `task` and return its best checkpoint; without validation samples, the last one."""
    _silence_libraries()
    options, runtime, loop = fit.options, fit.runtime, fit.options.loop
    device, ranks = runtime.device, runtime.communicator.ranks
    sampler = EpochSampler(training.steps)
    freeze_unused(task, training.plan, training.study)
    pin, ahead = is_gpu(device), options.speed.prefetch_factor
    fit.note("precision", runtime.precision)
    length = RunLength(task.steps, loop.epochs, len(training.rows), fit.fold, fit.folds)
    progress = Progress(options.run.output_dir / "progress.json", length, device_name(device))
    table = EpochTable(fit.folder / "metrics.csv", progress)
    keeper, callbacks = _callbacks(fit, sampler, table, training, validation is not None)
    trainer = pl.Trainer(
        default_root_dir=fit.folder,
        accelerator="gpu" if is_gpu(device) else "cpu",
        devices=1,
        strategy=choose_strategy(options.scale, ranks, device),
        precision=PRECISIONS[runtime.precision],  # type: ignore[arg-type]
        max_epochs=loop.epochs,
        accumulate_grad_batches=loop.gradient_accumulation_steps,
        gradient_clip_val=loop.max_grad_norm or None,
        plugins=[AtomicCheckpointIO()],
        callbacks=callbacks,
        logger=make_loggers(options, fit.folder, fit.name) if ranks.is_main else False,
        enable_progress_bar=interactive() and ranks.is_main,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        log_every_n_steps=max(1, min(50, training.steps)),
    )
    resume = checkpoints.checkpoint_to_resume(options.run, fit.folder)
    folder = fit.folder / "checkpoints"
    if resume is not None:
        _copy_best(resume.with_name("best.ckpt"), folder, runtime.communicator)
    with runtime.stop.handled():
        trainer.fit(
            task,
            loader(training, sampler, runtime.workers, pin, ahead),
            validation and loader(validation, None, runtime.workers, pin, ahead),
            ckpt_path=resume,
        )
    best, chosen = table.latest, folder / "last.ckpt"
    if keeper is not None:
        chosen = Path(keeper.best_model_path or chosen)
        if keeper.best_model_score is not None:
            best = {f"best_{keeper.monitor}": float(keeper.best_model_score)}
            epoch = table.best_epoch(str(keeper.monitor), keeper.mode)
            if epoch is not None:
                best["best_epoch"] = epoch
                info(_choice(epoch, table.epochs, keeper, loop))
    return FitResult(chosen, table.epochs, trainer.global_step, best)


def _choice(epoch: int, epochs: int, keeper: ModelCheckpoint, loop: LoopOptions) -> str:
    """Return the message about the chosen epoch and about early stopping."""
    assert keeper.best_model_score is not None
    score = f"{keeper.monitor} {float(keeper.best_model_score):.4g}"
    chosen = f"Chosen: epoch {epoch} of {epochs}, {score}."
    if epochs >= loop.epochs:
        return chosen
    return (
        f"Stopped early after epoch {epochs} of {loop.epochs}: no better {keeper.monitor} in "
        f"{loop.patience} epochs (--patience). {chosen}"
    )


def _copy_best(best: Path, folder: Path, communicator: Communicator) -> None:
    """Copy the best checkpoint of the resumed run, if its folder is another one."""
    if communicator.ranks.is_main and best.exists() and best.parent.resolve() != folder.resolve():
        checkpoints.copy(best, folder)
    communicator.barrier()  # every rank reads the file next


def _callbacks(
    fit: FitConfig,
    sampler: EpochSampler,
    table: EpochTable,
    training: TrainingBatches,
    validated: bool,
) -> tuple[ModelCheckpoint | None, list[Callback]]:
    """Return the callback that keeps the best checkpoint, or None, and all callbacks."""
    folder, loop = fit.folder / "checkpoints", fit.options.loop
    communicator = fit.runtime.communicator
    name = fit.options.best_metric if isinstance(fit.options, Train) else "val_loss"
    monitor = name if name.startswith("val_") else f"val_{name}"
    mode = "max" if name in HIGHER_IS_BETTER else "min"
    last = folder / "last.ckpt"
    callbacks: list[Callback] = [
        ExactResume(fit.config, sampler, folder, loop.patience, communicator.ranks.rank),
        # After the callback that seeds a step, before those that validate and save.
        FiniteCheck(training.study.table.sample_ids, last, fit.note, loop.lr, communicator),
        StopOnRequest(fit.runtime.stop, communicator, last),
    ]
    keeper: ModelCheckpoint | None = None
    if validated:
        keeper = ModelCheckpoint(
            folder, "best", monitor=monitor, mode=mode, enable_version_counter=False
        )
        callbacks.append(keeper)
        if loop.patience:
            callbacks.append(EarlyStopping(monitor, patience=loop.patience, mode=mode))
    callbacks.append(
        ModelCheckpoint(folder, "last", enable_version_counter=False, save_on_train_epoch_end=True)
    )
    if every := fit.options.run.checkpoint_every_n_steps:
        callbacks.append(
            WithinEpochs(folder, "last", enable_version_counter=False, every_n_train_steps=every)
        )
    callbacks += [table.progress, table]
    if interactive() and communicator.ranks.is_main:
        callbacks.append(RunProgressBar(table.progress))
    return keeper, [*callbacks, *_first_steps(fit, training), *requested_log(os.environ)]


def _first_steps(fit: FitConfig, training: TrainingBatches) -> list[Callback]:
    """Return the callbacks of the first steps."""
    precision, speed = fit.runtime.precision, fit.options.speed
    report = Fp32Report(precision, fit.note) if speed.report_fp32_fallbacks else None
    callbacks: list[Callback] = [] if report is None else [report]
    if speed.compile_model != "off":
        callbacks.append(CompiledEncoder(speed.compile_model, precision, fit.note, report))
    on_gpu = is_gpu(fit.runtime.device)
    if speed.memory_warm_up == "on" or (speed.memory_warm_up == "auto" and on_gpu):
        callbacks.append(MemoryWarmUp(training, fit.note))
    return callbacks


def freeze_unused(task: TrainingModule, plan: BatchPlan, study: Study) -> None:
    """Freeze the parameters that no loss term of this run reaches.

    DDP leaves their gradients out and FSDP sends zeros, so weight decay would make them differ.
    """
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


def _silence_libraries() -> None:
    """Suppress Lightning's advice and warnings of libraries that users cannot act on."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
