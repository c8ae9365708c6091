"""Detection of NaN and infinity: a non-finite loss or gradient ends the run.

The flag of a step is read before its optimizer step, so no weight becomes NaN and no checkpoint
holds one. The step is then repeated exactly: the same weights, batches, random numbers, precision,
compilation, accumulation and synchronisation of ranks. A repetition that is finite means that the
device or a kernel is unreliable. Otherwise the step is repeated once more in the eager network,
with hooks that name the module where it begins (`aam.training.callbacks.nonfinite_modules`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor

from aam.contract.errors import NotFinite, first_few
from aam.data.batches import Batch
from aam.distributed.communicator import SINGLE_PROCESS, Communicator
from aam.distributed.state_dict import local_tensor
from aam.numerics.compile import eager_again
from aam.numerics.device import is_gpu
from aam.training.callbacks.compilation import Note
from aam.training.callbacks.nonfinite_modules import BACKWARD, NonFiniteValue, traced
from aam.training.lightning_module import TrainingModule
from aam.training.optimizer import get_total_norm

OVERFLOWS = 32
"""Steps in a row that fp16's loss scaling may skip: its factor halves each time, from 2^16."""

EXPLODED_NORM = 1e12
"""Gradient norm that counts as an explosion in a repetition too: the order of sums on a GPU varies,
so a step at the limit of fp32 may overflow once and not again."""

GROWTH = 10.0
"""Growth of the largest weight, since the process began, that shows a learning rate too high."""


@dataclasses.dataclass(frozen=True)
class StepBatch:
    """A batch of a step, its epoch and number, and the states of the generators before it."""

    batch: Batch
    epoch: int
    number: int
    states: dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class NonFiniteStep:
    """Batch and module in which a step stops being finite.

    Attributes:
        epoch, batch: both counted from 1.
        samples: ids of the batch.
    """

    epoch: int
    batch: int
    samples: list[str]
    suspect: NonFiniteValue


class FiniteCheck(Callback):
    """Callback that ends a run at a non-finite loss or gradient."""

    def __init__(
        self,
        sample_ids: Sequence[str],
        checkpoint: Path,
        note: Note,
        lr: float,
        communicator: Communicator = SINGLE_PROCESS,
    ) -> None:
        self.sample_ids, self.checkpoint, self.note = sample_ids, checkpoint, note
        self.lr, self.communicator = lr, communicator
        self._window: list[StepBatch] = []
        self._bad_loss: Tensor | None = None
        self._overflows = 0
        self._largest = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Store the largest weight before the first step."""
        self._largest = self._largest_weight(pl_module)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Store the batch until its step is checked."""
        states = {"cpu": torch.get_rng_state()}
        if is_gpu(pl_module.device):
            states["gpu"] = torch.cuda.get_rng_state(pl_module.device)
        self._window.append(StepBatch(batch, trainer.current_epoch, batch_idx, states))

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor
    ) -> None:
        """Test the loss of a batch; the result stays on the device."""
        bad = ~loss.detach().isfinite()
        self._bad_loss = bad if self._bad_loss is None else self._bad_loss | bad

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any
    ) -> None:
        """Test the unscaled gradients, and read the flag of the loss."""
        window, self._window = self._window, []
        bad_loss, self._bad_loss = self._bad_loss, None
        assert bad_loss is not None and isinstance(pl_module, TrainingModule)
        bad_gradients = ~_gradient_norm(pl_module).isfinite()
        if _scaler(trainer) is None:
            bad = self._anywhere(trainer, bad_loss | bad_gradients)
        else:
            # The scaler skips the step and lowers its factor until no gradient overflows.
            overflow = self._anywhere(trainer, bad_gradients)
            self._overflows = self._overflows + 1 if overflow else 0
            bad = self._overflows >= OVERFLOWS or self._anywhere(trainer, bad_loss)
        if bad:
            raise self._investigate(trainer, pl_module, window)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the run at a non-finite validation loss, which cannot be compared."""
        if math.isfinite(trainer.callback_metrics.get("val_loss", 0.0)):
            return
        what = "The validation loss or predictions are not finite"
        place = f"epoch {trainer.current_epoch + 1}"
        raise self._error(trainer, pl_module, trainer.global_step, what, place)

    def _investigate(
        self, trainer: pl.Trainer, task: TrainingModule, window: list[StepBatch]
    ) -> NotFinite:
        """Repeat a non-finite step, record the result, and return the error to raise."""
        step = trainer.global_step + 1
        reproduced = self._repeat(trainer, task, window)
        finding = self._locate(trainer, task, window) if reproduced else None
        if finding is None:
            finding = self._finding(window[-1], _COMPILED if reproduced else _UNREPRODUCED)
        suspect = finding.suspect
        self.note("not_finite", {
            "step": step, "epoch": finding.epoch, "batch": finding.batch,
            "samples": finding.samples, "reproduced": reproduced, **dataclasses.asdict(suspect),
        })  # fmt: skip
        place = f"epoch {finding.epoch}, batch {finding.batch}, {suspect.where}"
        place += f", samples {first_few(finding.samples)}"
        advice = suspect.advice
        if step == 1 and _scaler(trainer) is None:  # no optimizer step has changed the weights yet
            advice = advice or "run `aam check`"
        return self._error(trainer, task, step, f"{suspect.what} not finite", place, advice)

    def _error(
        self,
        trainer: pl.Trainer,
        task: pl.LightningModule,
        step: int,
        what: str,
        place: str,
        advice: str = "",
    ) -> NotFinite:
        """Return the error of a step: an explosion if the weights grew and no advice is given."""
        largest = self._largest_weight(task)
        half = _scaler(trainer) is not None
        remedy = advice or ("use --mixed-precision bf16 or none" if half else _LOWER_LR)
        if self.checkpoint.exists():
            remedy += f"; '{self.checkpoint}' is from before that"
            if remedy.startswith(_LOWER_LR):
                remedy += ", --pretrained-encoder starts from its encoder"
        if advice or largest <= GROWTH * self._largest:
            return NotFinite(what, f"step {step}, {place}", remedy)
        growth = f"the largest weight grew from {self._largest:.3g} to {largest:.3g}"
        return NotFinite(
            f"The loss exploded at step {step} with --lr {self.lr:g}",
            f"{what[:1].lower()}{what[1:]}, {place}, {growth}",
            remedy,
        )

    def _repeat(self, trainer: pl.Trainer, task: TrainingModule, window: list[StepBatch]) -> bool:
        """Repeat a step exactly; return whether it is non-finite again, on any rank."""
        bad = torch.zeros((), dtype=torch.bool, device=task.device)
        for _, loss in replay(trainer, task, window):
            bad = bad | ~loss.isfinite()
        return self._anywhere(trainer, bad | ~(_gradient_norm(task) < EXPLODED_NORM))

    def _locate(
        self, trainer: pl.Trainer, task: TrainingModule, window: list[StepBatch]
    ) -> NonFiniteStep | None:
        """Repeat a step in the eager network; return the first non-finite value."""
        eager_again(task.encoder.nucleotides)
        findings: list[NonFiniteStep] = []
        with traced(task.network) as trace:
            for step_batch, loss in replay(trainer, task, window):
                suspect = trace.suspect(step_batch.batch, loss)
                if suspect is not None and not findings:
                    findings.append(self._finding(step_batch, suspect))
        if not findings and not _gradient_norm(task) < EXPLODED_NORM:
            findings.append(self._finding(window[-1], _NORM))
        of_ranks = [finding for rank in self.communicator.all_gather(findings) for finding in rank]
        # A rank with finite values of its own receives non-finite gradients of another rank.
        return min(of_ranks, key=lambda f: (f.epoch, f.batch, f.suspect.stage), default=None)

    def _finding(self, step_batch: StepBatch, suspect: NonFiniteValue) -> NonFiniteStep:
        ids = [self.sample_ids[row] for row in step_batch.batch.rows_B.tolist()]
        return NonFiniteStep(step_batch.epoch + 1, step_batch.number + 1, ids, suspect)

    def _anywhere(self, trainer: pl.Trainer, flag: Tensor) -> bool:
        """Return whether a flag is set on any rank; every rank must call this."""
        if trainer.world_size > 1:
            flag = trainer.strategy.reduce(flag.float(), reduce_op="sum") > 0
        return bool(flag)

    def _largest_weight(self, task: pl.LightningModule) -> float:
        """Return the largest absolute trainable weight of all ranks; NaN if a weight is NaN."""
        weights = [local_tensor(p.detach()) for p in task.parameters() if p.requires_grad]
        largest = [float(weight.abs().max()) for weight in weights if weight.numel()]
        return _max(self.communicator.all_gather(_max(largest)))


_LOWER_LR = "start a new run with a lower --lr"
"""Remedy of an explosion; a resumed run keeps its learning rate."""

_NORM = NonFiniteValue(BACKWARD, "The norm of the gradients is", "although each gradient is finite")
_COMPILED = NonFiniteValue(
    BACKWARD, "Loss or gradients are", "in the compiled network alone", "omit --compile-model"
)
_UNREPRODUCED = NonFiniteValue(
    BACKWARD,
    "Loss or gradients were",
    "but are in an exact repetition of the step, so the device may be at fault",
    "run `aam check`",
)


def replay(
    trainer: pl.Trainer, task: TrainingModule, window: list[StepBatch]
) -> Iterator[tuple[StepBatch, Tensor]]:
    """Repeat forward and backward passes of a step as in the training loop; yield each loss.

    The gradients at the end are those of the step, without loss scaling and before clipping.
    """
    strategy, scaler = trainer.strategy, _scaler(trainer)
    scale = 1.0 if scaler is None else float(scaler.get_scale())
    task.zero_grad()
    for step_batch in window:
        torch.set_rng_state(step_batch.states["cpu"])
        if "gpu" in step_batch.states:
            torch.cuda.set_rng_state(step_batch.states["gpu"], task.device)
        unsynchronised: AbstractContextManager[None] = nullcontext()
        if isinstance(strategy, ParallelStrategy) and step_batch is not window[-1]:
            unsynchronised = strategy.block_backward_sync()
        with unsynchronised, torch.enable_grad():
            loss = strategy.training_step(step_batch.batch, step_batch.number)
            assert isinstance(loss, Tensor)
            loss = loss / trainer.accumulate_grad_batches
            torch.autograd.backward(loss * scale)
        yield step_batch, loss.detach()
    for gradient in _gradients(task):
        gradient.div_(scale)


def _gradients(task: TrainingModule) -> list[Tensor]:
    """Return the gradients; of sharded ones the parts of this rank."""
    return [local_tensor(p.grad) for p in task.parameters() if p.grad is not None]


def _gradient_norm(task: TrainingModule) -> Tensor:
    return get_total_norm(_gradients(task))


def _scaler(trainer: pl.Trainer) -> Any:
    """Return the loss scaler of fp16; None in other precisions."""
    return getattr(trainer.precision_plugin, "scaler", None)


def _max(numbers: Sequence[float]) -> float:
    """Return the largest number; NaN if one is NaN."""
    return math.nan if any(map(math.isnan, numbers)) else max(numbers, default=0.0)
