"""Training of a network: optimizer and schedule, the loop, and its files in a run folder.

A run that stops at any moment resumes from its last checkpoint with the same batches, learning
rates and metrics, on any number of ranks: the batch of a step follows from the seed, the epoch and
its number. Dropout follows from these and the rank, since each rank has other samples.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader

from aam.console import info
from aam.contract import stop_file
from aam.contract.errors import DataError, Interrupted
from aam.contract.options.commands.train import Pretrain, Train
from aam.contract.options.training import LoopOptions
from aam.contract.records import Mismatch
from aam.data.batches import Batch, BatchPlan, FixedBatches
from aam.data.study import Study
from aam.distributed import strategies
from aam.distributed.stop import StopRequests
from aam.evaluation.splits import Split
from aam.inference.stored_networks import ModelConfig
from aam.model.network import Predictor
from aam.numerics.device import device_name, is_gpu
from aam.training import checkpoints, run_folder
from aam.training.checkpoints import (
    FIRST_COLUMNS,
    OptimizerState,
    ResumeState,
    Row,
    TrainingProgress,
)
from aam.training.compilation import Fp32Report, compile_encoder, eager_again
from aam.training.finite import FiniteCheck
from aam.training.loader import EpochSampler, TrainingBatches, loader
from aam.training.loggers import Status
from aam.training.losses import LossTerm
from aam.training.module import (
    GradientStep,
    TrainingModule,
    clip_grads_with_norm_,
    get_total_norm,
    seed_dropout,
)
from aam.training.observers import LoggedMetrics, Observer, Progress, StepLog
from aam.training.run_folder import RecordFact, no_record
from aam.training.runtime import Runtime

LAST, BEST = "last.ckpt", "best.ckpt"
"""Names of the checkpoints of a run."""

HIGHER_IS_BETTER = ("val_r2", "val_accuracy", "val_f1")


def make_optimizer(task: torch.nn.Module, loop: LoopOptions) -> Optimizer:
    """Build AdamW (Loshchilov and Hutter 2019) for the trainable parameters of a module.

    The weight decay applies to the weights of linear layers alone: not to biases, norms, embeddings
    and scales.
    """
    linear = {id(module.weight) for module in task.modules() if isinstance(module, torch.nn.Linear)}
    trainable = [p for p in task.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if id(p) in linear], "weight_decay": loop.weight_decay},
        {"params": [p for p in trainable if id(p) not in linear], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=loop.lr)


def make_schedule(optimizer: Optimizer, loop: LoopOptions, steps: int, done: int = 0) -> LambdaLR:
    """Build the learning-rate schedule of a run, linear warm-up and then half a cosine to 0.

    The cosine is that of Loshchilov and Hutter (2017, "SGDR"), without restarts. `steps` are those
    of the whole run, of which `done` are over where it resumes.

    >>> optimizer = torch.optim.AdamW([Parameter(torch.zeros(1))], lr=1.0)
    >>> schedule = make_schedule(optimizer, LoopOptions(warmup_fraction=0.1), steps=100)
    >>> [round(schedule.lr_lambdas[0](step), 3) for step in (10, 55, 100)]
    [1.0, 0.5, 0.0]
    """
    warmup = max(1, round(loop.warmup_fraction * steps))

    def factor(step: int) -> float:
        if step < warmup:
            # Neither 0, which would waste the first step, nor 1, which the cosine begins with.
            return (step + 1) / (warmup + 1)
        part = (step - warmup) / max(1, steps - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(part, 1.0)))

    return LambdaLR(optimizer, factor, last_epoch=done - 1)


def clip_gradients(parameters: Sequence[Parameter], max_norm: float) -> None:
    """Scale gradients in place, sharded ones too, so that their total norm is at most `max_norm`.

    >>> weight = Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> clip_gradients([weight], max_norm=1.0)
    >>> round(float(weight.grad.norm()), 4)
    1.0
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if gradients:
        # `torch.nn.utils.clip_grad_norm_` adds its epsilon to the part of the norm of each rank,
        # before the parts of sharded gradients are added: weights differ with the world size.
        norm = strategies.full_tensor(get_total_norm(gradients))
        clip_grads_with_norm_(parameters, max_norm, norm)


class TrainingLoop:
    """Training of one network, from its progress to the last epoch.

    Args:
        step: computation of the gradients of a batch, with the network, its losses and options.
        check: test that ends the run at a value that is not finite; it has the ranks.
        training, validation: loaders of the batches, the first with an `EpochSampler`.
        monitor: metric of the validation by which the best epoch is chosen; metrics of
            `HIGHER_IS_BETTER` are maximized, all others minimized.
        save: function that writes a checkpoint of a name, on the first rank; None writes none.
        checkpoint_interval: optimizer steps between two checkpoints within an epoch; 0 writes them
            at the end of an epoch alone.
        stop: stop requests of this rank; None for a run that cannot be stopped.
        prepare: called with each batch before its step, until it returns True.
        observers: writers of files, progress and logs; they do not steer.

    Attributes:
        progress: numbers of epochs, batches and optimizer steps done.
        best: value of the metric in the best epoch; None before the first validation.
        epochs_without_improvement: number of epochs since the best one.
        history: rows of metrics.csv, one for each epoch.
    """

    def __init__(
        self,
        step: GradientStep,
        check: FiniteCheck,
        training: DataLoader[Batch],
        validation: DataLoader[Batch] | None = None,
        monitor: str = "val_loss",
        save: Callable[[str, Mapping[str, Tensor], ResumeState], None] | None = None,
        checkpoint_interval: int = 0,
        stop: StopRequests | None = None,
        prepare: Callable[[Batch], bool] | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.step, self.task, self.options = step, step.task, step.task.loop
        self.optimizer = make_optimizer(self.task, self.options)
        self.schedule: LRScheduler = make_schedule(self.optimizer, self.options, self.task.steps)
        assert isinstance(training.sampler, EpochSampler)
        self.training, self.sampler, self.validation = training, training.sampler, validation
        self.check, self.communicator, self.monitor = check, check.communicator, monitor
        self.save, self.checkpoint_interval, self.stop = save, checkpoint_interval, stop
        self.prepare, self.observers = prepare, observers
        self.progress = TrainingProgress(0, 0, 0)
        self.best: float | None = None
        self.epochs_without_improvement = 0
        self.history: list[Row] = []
        self._began, self._first_step = time.monotonic(), 0

    @property
    def complete(self) -> bool:
        """Whether all epochs are done, or the last ones were no better than one before."""
        patience = self.options.patience if self.validation is not None else 0
        stopped_early = 0 < patience <= self.epochs_without_improvement
        return stopped_early or self.progress.epoch >= self.options.epochs

    @property
    def seconds(self) -> float:
        """Seconds that the run has taken, with those before a resumption."""
        return time.monotonic() - self._began

    def run(self) -> None:
        """Train, validate and save until the run is complete."""
        if self.complete:
            return
        self._first_step = self.progress.step
        status: Status = "failed"
        for observer in self.observers:
            observer.begin(self.task, self.progress)
        try:
            while not self.complete:
                if self.progress.step > self._first_step:  # at the end of an epoch all is saved
                    self._stop_if_requested()
                self._train_epoch()
                self._end_epoch(self._validate())
            status = "complete"
            # What follows, such as the other members, may take hours.
            self._stop_if_requested()
            self._count_steps()
        except (Interrupted, SystemExit):  # the log of steps ends the process
            status = "complete" if self.complete else "stopped"
            raise
        finally:
            for observer in self.observers:
                observer.end(status)

    def _train_epoch(self) -> None:
        """Train from the batch of the progress to the last one of the epoch."""
        epoch, done, steps = self.progress.epoch, self.progress.batch, self.sampler.steps
        task, scaler, size = self.task, self.step.scaler, self.options.gradient_accumulation_steps
        task.train()
        if done == 0:
            task.train_sums = {}
        # Before the loader's iterator is made: it fixes the keys that worker processes prefetch.
        self.sampler.start(epoch, done)
        for observer in self.observers:
            observer.epoch_begins()
        for number, loaded in enumerate(self.training, start=done):
            last_of_epoch = number + 1 == steps
            last_of_step = last_of_epoch or (number + 1) % size == 0

            # Batch.
            seed_dropout(self.options.seed, epoch, number, self.communicator.ranks.rank)
            batch = loaded.to(task.device)
            if self.prepare is not None and self.prepare(batch):
                self.prepare = None
            for observer in self.observers:
                observer.batch_begins(batch)

            # Forward and backward. The last step of an epoch may have fewer batches: its loss is
            # the mean of these.
            if number % size == 0:
                self.optimizer.zero_grad()
            batches = min(size, steps - number // size * size)
            loss = self.step.add_gradients(batch, last_of_step, batches)
            self.check.add_batch(batch, epoch, number, loss)

            if last_of_step:
                # Clip. Unscaled first: the finite check and the norm of clipping are those of the
                # true gradients.
                scaler.unscale_(self.optimizer)
                self.check.check_gradients(self.progress.step + 1)
                if self.options.max_grad_norm:
                    clip_gradients(list(task.parameters()), self.options.max_grad_norm)

                # Step, which fp16 may skip.
                scaler.step(self.optimizer)
                scaler.update()
                with warnings.catch_warnings():
                    # PyTorch warns where fp16 skips the first steps; the schedule goes on.
                    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
                    self.schedule.step()
                self.progress = TrainingProgress(epoch, number + 1, self.progress.step + 1)
                self.communicator.publish_step(self.progress.step)

            # Log.
            for observer in self.observers:
                if last_of_step:
                    observer.step_ends(self.progress)
                observer.batch_ends(batch, loss)

            # Save, except at the end of the epoch, to which the validation belongs.
            if last_of_step and not last_of_epoch:
                self._stop_if_requested(LAST)
                interval = self.checkpoint_interval
                if interval and self.progress.step % interval == 0:
                    self.write(LAST)

    def _validate(self) -> Row:
        """Return the metrics of the validation samples; none without them."""
        if self.validation is None:
            return {}
        began = time.monotonic()
        self.task.eval()
        for batch in self.validation:
            with self.step.autocast():
                self.task.validation_step(batch.to(self.task.device))
        metrics = self.task.validation_metrics()
        for observer in self.observers:
            observer.validation_ends(time.monotonic() - began)
        self.check.check_validation(metrics["val_loss"], self.progress.epoch, self.progress.step)
        return metrics

    def _end_epoch(self, metrics: Row) -> None:
        """Add the row of an epoch, compare it with the best one, and save."""
        epoch, step = self.progress.epoch, self.progress.step
        self.history.append({
            "epoch": epoch, "step": step, "seconds": self.seconds,
            "lr": self.optimizer.param_groups[0]["lr"], **self.task.train_metrics(), **metrics,
        })  # fmt: skip
        for observer in self.observers:
            observer.epoch_ends(self.history)
        self.progress = TrainingProgress(epoch + 1, 0, step)
        improved = False
        if metrics:
            value, higher = metrics[self.monitor], self.monitor in HIGHER_IS_BETTER
            if math.isnan(value):  # r2 of a single sample; any number is better
                value = -math.inf if higher else math.inf
            improved = self.best is None or (value > self.best if higher else value < self.best)
            self.best = value if improved else self.best
        self.epochs_without_improvement = 0 if improved else self.epochs_without_improvement + 1
        # `BEST` comes first: a run that is killed between the two files repeats the epoch, whereas
        # `LAST` would already name a best value whose weights were never written.
        self.write(*([BEST] if improved else []), LAST)

    def write(self, *names: str) -> None:
        """Write checkpoints of the current progress; all ranks call this."""
        if self.save is None:
            return
        # Collectives where the network is sharded, so every rank calls them and the first one
        # writes.
        weights = strategies.model_state_dict(self.task)
        optimizer = strategies.optimizer_state_dict(self.task, self.optimizer)
        # After the last batch of an epoch its sums are in the history already.
        sums = self.task.train_sums if self.progress.batch else {}
        state = ResumeState(
            self.progress,
            {name: (float(term.total), float(term.number)) for name, term in sums.items()},
            self.best,
            self.epochs_without_improvement,
            self.history,
            self.seconds,
            OptimizerState(state=optimizer["state"], param_groups=optimizer["param_groups"]),
            self.step.scaler.state_dict(),
        )
        if self.communicator.ranks.is_main:
            for name in names:
                self.save(name, weights, state)
        self.communicator.barrier()

    def resume(self, weights: Mapping[str, Tensor], state: ResumeState) -> None:
        """Continue from a checkpoint; all ranks call this."""
        if state.progress.batch >= self.sampler.steps:
            raise Mismatch(f"resume.progress.batch is {state.progress.batch}, beyond the epoch")
        strategies.load_model(self.task, weights)
        strategies.load_optimizer(self.task, self.optimizer, dict(state.optimizer))
        self.schedule = make_schedule(
            self.optimizer, self.options, self.task.steps, state.progress.step
        )
        scaler = self.step.scaler
        if state.scaler and scaler.is_enabled():  # a run may change its precision
            if scaler.state_dict().keys() != state.scaler.keys():
                raise Mismatch("resume.scaler is of another loss scaler")
            scaler.load_state_dict(state.scaler)
        self.progress, self.best = state.progress, state.best
        self.epochs_without_improvement = state.epochs_without_improvement
        self.history, self._began = list(state.history), time.monotonic() - state.seconds
        self.task.train_sums = {
            name: LossTerm(*(torch.tensor(value, dtype=torch.float64) for value in sums))
            for name, sums in state.sums.items()
        }

    def _stop_if_requested(self, *names: str) -> None:
        """Write checkpoints and end the run on all ranks if any has a stop request."""
        # A request may reach one rank, some or all, at different moments.
        if self.stop is not None and self.communicator.any_rank(self.stop.pending):
            if names:
                self.write(*names)
            self._count_steps()
            raise Interrupted(
                f"Stopped at step {self.progress.step}{self.stop.by_signal}",
                f"'{self.check.checkpoint}' is written",
                "go on with --resume-from auto",
            )

    def _count_steps(self) -> None:
        """Add the optimizer steps of this process to the file of the request; folds add theirs."""
        if self.stop is not None and self.stop.file and self.communicator.ranks.is_main:
            stop_file.count_steps(self.stop.file, self.progress.step - self._first_step)


@dataclass(frozen=True)
class FitConfig:
    """Settings of a fit; its folder is the run folder, or that of the fold in it."""

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
    """Refuse a split with fewer training samples than a batch."""
    if len(split.train) < loop.batch_samples:
        raise DataError(
            "Fewer training samples than a batch",
            f"{len(split.train)} samples, --batch-size {loop.batch_samples}",
            "choose a smaller --batch-size",
        )


def fit_split(settings: FitConfig, task: TrainingModule, study: Study, split: Split) -> FitResult:
    """Train a module on the training samples of a split, with its validation samples."""
    options, plan = settings.options, settings.config.plan
    batch_size, sample = options.loop.batch_samples, options.sample
    training = TrainingBatches(
        study, plan, split.train, batch_size, sample.rarefy_each_epoch, options.loop.even_batches
    )
    validation = FixedBatches(study, plan, split.validation, batch_size)
    return fit(settings, task, training, validation if len(split.validation) else None)


def fit(
    settings: FitConfig,
    task: TrainingModule,
    training: TrainingBatches,
    validation: FixedBatches | None,
    more: Sequence[Observer] = (),
) -> FitResult:
    """Train a module and return its best checkpoint; without validation samples, the last one."""
    freeze_unused(task, training.plan, training.study)
    settings.record_fact("precision", settings.runtime.precision)
    loop = _make_loop(settings, task, training, validation, more)
    communicator = settings.runtime.communicator
    # Rank 0 decides: a network file system may show other ranks an earlier state of the folder.
    resumed = communicator.broadcast(
        run_folder.checkpoint_to_resume(settings.options.run, settings.folder)
    )
    if resumed is not None:
        stored = checkpoints.read(resumed)
        if stored.resume is None:
            raise checkpoints.unusable(resumed, "it has no resume state")
        try:
            loop.resume(stored.weights, stored.resume)
        except Mismatch as error:
            raise checkpoints.unusable(resumed, error) from error
        # The best checkpoint is beside the last one, which may be in another folder.
        best, here = resumed.with_name(BEST), settings.checkpoints / BEST
        if communicator.ranks.is_main and best.exists() and best.resolve() != here.resolve():
            checkpoints.copy(best, here)
        files = (here.exists(), (settings.checkpoints / LAST).exists())
        has_best, has_last = communicator.broadcast(files)
        if not has_best:
            # Without the weights of the best epoch its value could be chosen but not applied, so
            # the epochs of this process are compared with each other.
            loop.best = None
        # A complete run that is resumed into another folder trains no step that would write it.
        if loop.complete and not has_last:
            loop.write(LAST)
    try:
        with settings.runtime.stop.handled():
            loop.run()
    finally:
        eager_again(task.encoder.nucleotides)  # tensors after training have other shapes
    epochs, steps = loop.progress.epoch, loop.progress.step
    if loop.best is None:
        latest = loop.history[-1] if loop.history else {}
        metrics = {name: value for name, value in latest.items() if name not in FIRST_COLUMNS}
        return FitResult(settings.checkpoints / LAST, epochs, steps, metrics)
    monitor, options = settings.monitor, settings.options.loop
    chosen: dict[str, float] = {f"best_{monitor}": loop.best}
    # No row has the best value where it is NaN in all of them.
    if rows := [row for row in loop.history if row.get(monitor) == loop.best]:
        chosen["best_epoch"] = best_epoch = int(rows[0]["epoch"]) + 1
        sentence = f"Chosen: epoch {best_epoch} of {epochs}, {monitor} {loop.best:.4g}."
        if epochs < options.epochs:
            sentence = (
                f"Stopped early after epoch {epochs} of {options.epochs}: no better "
                f"{monitor} in {options.patience} epochs (--patience). {sentence}"
            )
        info(sentence)
    return FitResult(settings.checkpoints / BEST, epochs, steps, chosen)


def _make_loop(
    settings: FitConfig,
    task: TrainingModule,
    training: TrainingBatches,
    validation: FixedBatches | None,
    more: Sequence[Observer],
) -> TrainingLoop:
    """Build the training loop of a fit from the beginning."""
    options, runtime = settings.options, settings.runtime
    communicator, device, last = runtime.communicator, runtime.device, settings.checkpoints / LAST
    model = strategies.parallelize(task, options.scale, communicator.ranks, device)
    step = GradientStep(task, model, runtime.precision)
    load = partial(
        loader,
        workers=runtime.workers,
        pin=is_gpu(device),
        prefetch=options.speed.prefetch_factor,
        ranks=communicator.ranks,
        sequences=task.target is not None,  # it reads those of all samples
    )
    speed, record_fact = options.speed, settings.record_fact
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
                settings.folder / "metrics.csv",
                len(training.rows),
                device_name(device),
                settings.fold,
                settings.folds,
            ),
            LoggedMetrics(options, settings.folder, settings.name),
        ]
    if os.environ.get("AAM_STEP_LOG"):
        observers.append(StepLog(os.environ, is_main))
    observers += more

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
        monitor=settings.monitor,
        save=lambda name, *state: checkpoints.write(
            settings.checkpoints / name, settings.config, *state
        ),
        checkpoint_interval=options.run.checkpoint_every_n_steps or 0,
        stop=runtime.stop,
        prepare=prepare,
        observers=observers,
    )


def freeze_unused(task: TrainingModule, plan: BatchPlan, study: Study) -> None:
    """Freeze the parameters that no loss term of this run reaches."""
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
