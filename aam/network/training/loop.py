"""Training loop of a network: epochs, batches, optimizer steps, validation, checkpoints, stops.

A run that stops at any moment resumes from its last checkpoint with the same batches, learning
rates and metrics, on any number of ranks: a batch follows from the seed, the epoch and its number.
Dropout also depends on the rank, since ranks have different samples.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from aam.contract import stop_file
from aam.contract.errors import Interrupted
from aam.evaluation.metrics import METRICS
from aam.network.batches import Batch, PackedBatch, RunSampler
from aam.network.training.checkpoints import START, ResumeState, Row, TrainingProgress, state_dicts
from aam.network.training.finite import FiniteCheck
from aam.network.training.losses import LossTerm
from aam.network.training.module import LOGGED_METRICS, GradientStep
from aam.network.training.observers import Observer
from aam.pipeline.loggers import Status
from aam.pipeline.run_folder import BEST, LAST
from aam.pipeline.stop_requests import StopRequests

HIGHER_IS_BETTER = tuple(
    f"val_{name}" for name, key in LOGGED_METRICS.items() if METRICS[key].higher_is_better
)


def step_unless(optimizer: Optimizer, skip: Tensor) -> None:
    """Make an optimizer step unless `skip`, a float on the device of the weights, is 1."""
    if optimizer.param_groups[0]["fused"]:
        # The kernel reads the flag, as with loss scaling, so the CPU does not wait for it.
        optimizer.found_inf = skip  # type: ignore[attr-defined]
        optimizer.step()
    elif not skip:
        optimizer.step()


class TrainingLoop:
    """Training loop of one network, from its progress to the last epoch."""

    def __init__(
        self,
        step: GradientStep,
        check: FiniteCheck,
        optimizer: Optimizer,
        schedule: LRScheduler,
        training: DataLoader[PackedBatch],
        validation: DataLoader[PackedBatch] | None = None,
        monitor: str = "val_loss",  # metric that chooses the best epoch
        save: Callable[[str, Mapping[str, Tensor], ResumeState], None] | None = None,
        checkpoint_interval: int = 0,  # optimizer steps; 0: only at the end of an epoch
        stop: StopRequests | None = None,
        prepare: Callable[[Batch], bool] | None = None,  # called with batches until it returns True
        observers: Sequence[Observer] = (),
        state: ResumeState = START,  # weights and optimizer must be loaded already
    ) -> None:
        self.step, self.task, self.options = step, step.task, step.task.loop
        self.optimizer, self.schedule = optimizer, schedule
        assert isinstance(training.sampler, RunSampler)
        self.training, self.validation, self.steps = training, validation, training.sampler.steps
        self.check, self.communicator, self.monitor = check, check.communicator, monitor
        self.save, self.checkpoint_interval, self.stop = save, checkpoint_interval, stop
        self.prepare, self.observers = prepare, observers
        self.progress, self.best, self.history = state.progress, state.best, list(state.history)
        self.epochs_without_improvement = state.epochs_without_improvement
        self.task.train_sums = {
            name: LossTerm(*(torch.tensor(value, dtype=torch.float64) for value in sums))
            for name, sums in state.sums.items()
        }
        self._began, self._first_step = time.monotonic() - state.seconds, state.progress.step

    @property
    def complete(self) -> bool:
        """Whether all epochs are done, or `patience` epochs brought no improvement."""
        patience = self.options.patience if self.validation is not None else 0
        stopped_early = 0 < patience <= self.epochs_without_improvement
        return stopped_early or self.progress.epoch >= self.options.epochs

    @property
    def seconds(self) -> float:
        """Seconds that the run has taken, including the time before it was resumed."""
        return time.monotonic() - self._began

    def run(self) -> None:
        """Train, validate and write checkpoints until the run is complete."""
        if self.complete:
            return
        status: Status = "failed"
        for observer in self.observers:
            observer.begin(self.task, self.progress)
        try:
            batches = iter(self.training)
            while not self.complete:
                if self.progress.step > self._first_step:  # the end of an epoch is saved already
                    self._stop_if_requested()
                # Workers prefetch the first batches of a validation while the epoch is trained.
                held_out = iter(self.validation or ())
                self._train_epoch(batches)
                self._end_epoch(self._validate(held_out))
            status = "complete"
            # Later steps of the run, such as other members, may take hours.
            self._stop_if_requested()
            self._count_steps()
        except (Interrupted, SystemExit):  # the log of steps ends the process
            status = "complete" if self.complete else "stopped"
            raise
        finally:
            for observer in self.observers:
                observer.end(status)

    def _train_epoch(self, batches: Iterator[PackedBatch]) -> None:
        """Train from the current batch to the end of the epoch."""
        epoch, done, steps = self.progress.epoch, self.progress.batch, self.steps
        task, scaler, size = self.task, self.step.scaler, self.options.gradient_accumulation_steps
        task.train()
        if done == 0:
            task.train_sums = {}
        for observer in self.observers:
            observer.epoch_begins()
        for number in range(done, steps):
            loaded = next(batches)
            last_of_epoch = number + 1 == steps
            last_of_step = last_of_epoch or (number + 1) % size == 0

            # Batch.
            self.step.seed_dropout(epoch, number, self.communicator.ranks.rank)
            batch = loaded.to(task.device)
            if self.prepare is not None and self.prepare(batch):
                self.prepare = None
            for observer in self.observers:
                observer.batch_begins(batch)

            # Forward and backward. The last step of an epoch may have fewer batches; its loss is
            # their mean.
            if number % size == 0:
                self.optimizer.zero_grad()
            step_batches = min(size, steps - number // size * size)
            loss = self.step.add_gradients(batch, last_of_step, step_batches)
            self.check.add_batch(loaded, epoch, number, loss)

            if last_of_step:
                # Clip. Gradients are unscaled first, for the finite check and for clipping.
                scaler.unscale_(self.optimizer)
                norm = task.gradient_norm()
                skip = self.check.check_gradients(self.progress.step + 1, norm)
                task.clip_gradients(norm)

                # Step, unless its loss or gradients are not finite.
                step_unless(self.optimizer, skip)
                scaler.update()
                with warnings.catch_warnings():
                    # PyTorch warns if the first steps are skipped; the schedule goes on.
                    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
                    self.schedule.step()
                self.progress = TrainingProgress(epoch, number + 1, self.progress.step + 1)
                self.communicator.publish_step(self.progress.step)

            # Log.
            for observer in self.observers:
                if last_of_step:
                    observer.step_ends(self.progress)
                observer.batch_ends(batch, loss)

            # Save, except at the end of the epoch, where the validation comes first.
            if last_of_step and not last_of_epoch:
                self._stop_if_requested(LAST)
                interval = self.checkpoint_interval
                if interval and self.progress.step % interval == 0:
                    self.write(LAST)
        self.check.read()

    def _validate(self, batches: Iterable[PackedBatch]) -> Row:
        """Return the metrics of the validation samples, if there are any."""
        if self.validation is None:
            return {}
        began = time.monotonic()
        self.task.eval()
        for batch in batches:
            with self.step.autocast():
                self.task.validation_step(batch.to(self.task.device))
        metrics = self.task.validation_metrics()
        for observer in self.observers:
            observer.validation_ends(time.monotonic() - began)
        self.check.check_validation(metrics["val_loss"], self.progress.epoch, self.progress.step)
        return metrics

    def _end_epoch(self, metrics: Row) -> None:
        """Add the row of an epoch, compare it with the best epoch, and save."""
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
        # `BEST` comes first: a run that is killed between the two files then repeats the epoch. If
        # `LAST` came first, it would have a best value whose weights were never written.
        self.write(*([BEST] if improved else []), LAST)

    def write(self, *names: str) -> None:
        """Write checkpoints of the current progress; all ranks must call this."""
        if self.save is None:
            return
        self.check.read()
        # For a sharded network these are collectives: every rank calls them, the first rank writes.
        weights, optimizer = state_dicts(self.task, self.optimizer)
        # After the last batch of an epoch the history already has its metrics.
        sums = self.task.train_sums if self.progress.batch else {}
        state = ResumeState(
            self.progress,
            {name: (float(term.total), float(term.number)) for name, term in sums.items()},
            self.best,
            self.epochs_without_improvement,
            self.history,
            self.seconds,
            optimizer,
            self.step.scaler.state_dict(),
        )
        if self.communicator.ranks.is_main:
            for name in names:
                self.save(name, weights, state)
        self.communicator.barrier()

    def _stop_if_requested(self, *names: str) -> None:
        """Write checkpoints and end the run on all ranks if any rank has a stop request."""
        # A request may reach any number of ranks, at different times.
        if self.stop is not None and self.communicator.any_rank(self.stop.pending):
            if names:
                self.write(*names)
            self._count_steps()
            raise Interrupted(
                f"Stopped at step {self.progress.step}{self.stop.by_signal}",
                f"'{self.check.checkpoint}' is written",
                "continue with --resume-from auto",
            )

    def _count_steps(self) -> None:
        """Add the optimizer steps of this process and fold to the file of the stop request."""
        if self.stop is not None and self.stop.file and self.communicator.ranks.is_main:
            stop_file.count_steps(self.stop.file, self.progress.step - self._first_step)
