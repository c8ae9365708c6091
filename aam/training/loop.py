"""Training loop: optimizer and schedule, epochs, steps, validation, checkpoints, early stopping.

A run that stops at any moment resumes from its last checkpoint with the same batches, learning
rates and metrics, on any number of ranks: the batch of a step follows from the seed, the epoch and
its number. Dropout follows from these and the rank, since each rank has other samples.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader

from aam.contract.errors import Interrupted
from aam.contract.options.training import LoopOptions
from aam.contract.records import Mismatch
from aam.data.batches import Batch
from aam.distributed import strategies
from aam.distributed.stop import StopOnRequest
from aam.training.checkpoints import OptimizerState, ResumeState, Row, TrainingProgress
from aam.training.finite import FiniteCheck
from aam.training.loader import EpochSampler
from aam.training.losses import LossTerm
from aam.training.module import (
    GradientStep,
    clip_grads_with_norm_,
    get_total_norm,
    seed_dropout,
)
from aam.training.observers import End, Observer

LAST, BEST = "last.ckpt", "best.ckpt"
"""Names of the checkpoints of a run."""

HIGHER_IS_BETTER = ("val_r2", "val_accuracy", "val_f1")

Save = Callable[[str, Mapping[str, Tensor], ResumeState], None]
"""Function that writes the checkpoint of a name with its weights."""


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

    The cosine is that of Loshchilov and Hutter (2017, "SGDR"), without restarts.

    Args:
        optimizer: optimizer whose learning rates are the highest ones of the schedule.
        loop: options with the fraction of the steps that are warm-up (`warmup_fraction`, 0 to 1).
        steps: number of optimizer steps of the whole run, resumed parts included.
        done: optimizer steps that a resumed run has done.
    """
    return LambdaLR(optimizer, factor_of_step(loop, steps), last_epoch=done - 1)


def factor_of_step(loop: LoopOptions, steps: int) -> Callable[[int], float]:
    """Return the factor of the learning rate, 0 to 1, at each optimizer step, counted from 0.

    >>> factor = factor_of_step(LoopOptions(warmup_fraction=0.1), steps=100)
    >>> factor(10), round(factor(55), 3), factor(100)
    (1.0, 0.5, 0.0)
    """
    warmup = max(1, round(loop.warmup_fraction * steps))

    def factor(step: int) -> float:
        if step < warmup:
            # Neither 0, which would waste the first step, nor 1, which the cosine begins with.
            return (step + 1) / (warmup + 1)
        done = (step - warmup) / max(1, steps - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))

    return factor


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

    The options of the optimizer, the schedule, the epochs and the patience are those of the module.

    Args:
        step: computation of the gradients of a batch, with the network and its losses.
        check: test that ends the run at a value that is not finite; it has the ranks.
        training: loader of the training batches, with an `EpochSampler`.
        validation: loader of the validation batches; None for a run without validation samples.
        monitor: metric of the validation by which the best epoch is chosen; metrics of
            `HIGHER_IS_BETTER` are maximized, all others minimized.
        save: function that writes a checkpoint, called on the first rank; None writes none.
        checkpoint_interval: optimizer steps between two checkpoints within an epoch; 0 writes them
            at the end of an epoch alone.
        stop: stop requests of all ranks; None for a run that cannot be stopped.
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
        save: Save | None = None,
        checkpoint_interval: int = 0,
        stop: StopOnRequest | None = None,
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
        self._began = time.monotonic()

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
        first, end = self.progress.step, End.FAILED
        for observer in self.observers:
            observer.begin(self.task, self.progress)
        try:
            while not self.complete:
                if self.progress.step > first:  # at the end of an epoch all is saved
                    self._stop_if_requested(first)
                self._train_epoch(first)
                self._end_epoch(self._validate())
            if self.stop is not None:
                self.stop.count_steps(self.progress.step - first)
            end = End.COMPLETE
        except Interrupted:
            end = End.STOPPED
            raise
        finally:
            for observer in self.observers:
                observer.end(end)

    def _train_epoch(self, first: int) -> None:
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
                for observer in self.observers:
                    observer.gradients_ready()
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
                self._stop_if_requested(first, LAST)
                interval = self.checkpoint_interval
                if interval and self.progress.step % interval == 0:
                    self.write(LAST)

    def _validate(self) -> Row:
        """Return the metrics of the validation samples; none without them."""
        if self.validation is None:
            return {}
        for observer in self.observers:
            observer.validation_begins()
        self.task.eval()
        for batch in self.validation:
            with self.step.autocast():
                self.task.validation_step(batch.to(self.task.device))
        metrics = self.task.validation_metrics()
        for observer in self.observers:
            observer.validation_ends()
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

    def _stop_if_requested(self, first: int, *names: str) -> None:
        """Write checkpoints and end the run on all ranks if any has a stop request."""
        if self.stop is not None and self.stop.requested():
            if names:
                self.write(*names)
            self.stop.count_steps(self.progress.step - first)
            raise self.stop.interrupted(self.progress.step)
