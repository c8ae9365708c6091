"""A run whose loss or gradients are not finite stops, and says where that began.

One flag for each optimiser step, made on the device from the loss and the norm of the gradients. On
a GPU it travels to the host while the next forward pass is queued, so nothing waits for it; a bad
step's gradients are emptied on the device meanwhile, so no weight becomes NaN and no checkpoint
holds one. Only then is the batch computed again, watched module by module.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from aam.errors import NotFinite, first_few
from aam.learn.optimiser import norm_of
from aam.learn.speed import Note
from aam.learn.suspects import Suspect, compute_again
from aam.learn.task import Task
from aam.ranks.portable import local
from aam.study.batches import Batch

OVERFLOWS = 32
"""Steps in a row that fp16's loss scaling may skip: its factor halves each time, from 2^16."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """A batch, when it came, and the state of random numbers before it."""

    batch: Batch
    epoch: int
    number: int
    states: dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Step:
    """The batches of one optimiser step, and the flag that is on its way to the host."""

    number: int
    batches: tuple[Seen, ...]
    flag: Tensor
    arrived: torch.cuda.Event | None

    @classmethod
    def sent(cls, number: int, batches: Sequence[Seen], flag: Tensor) -> Step:
        """Send a flag to the host without waiting for it."""
        if flag.device.type != "cuda":
            return cls(number, tuple(batches), flag, None)
        host = torch.empty((), dtype=torch.bool, pin_memory=True)
        host.copy_(flag, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        return cls(number, tuple(batches), host, arrived)

    @property
    def bad(self) -> bool:
        """The flag; waits for it if it has not arrived."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return bool(self.flag)


class Finite(Callback):
    """Watches loss and gradients.

    Args:
        sample_ids: of the study, for messages.
        checkpoint: the last one that is written, for messages.
        note: puts what happened into the record of the run.
    """

    def __init__(self, sample_ids: Sequence[str], checkpoint: Path, note: Note) -> None:
        self.sample_ids, self.checkpoint, self.note = sample_ids, checkpoint, note
        self._window: list[Seen] = []
        self._sent: Step | None = None
        self._bad_loss: Tensor | None = None
        self._overflows: Tensor | None = None

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Remember the batch until its step is known to be good."""
        states = {"cpu": torch.get_rng_state()}
        if pl_module.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(pl_module.device)
        self._window.append(Seen(batch, trainer.current_epoch, batch_idx, states))

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor
    ) -> None:
        """Look at the loss; the flag of the step before has had a forward pass to arrive."""
        self._ask(trainer, pl_module)
        bad = ~loss.detach().isfinite()
        self._bad_loss = bad if self._bad_loss is None else self._bad_loss | bad

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any
    ) -> None:
        """Look at the gradients, which loss scaling has been taken out of."""
        # Of a sharded gradient each rank looks at its own part.
        gradients = [local(p.grad) for p in pl_module.parameters() if p.grad is not None]
        norm = norm_of(gradients)
        bad = ~norm.isfinite()
        scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        if scaled:
            # The scaler skips the step and lowers its factor by itself: that is how it finds one.
            before = torch.zeros_like(norm) if self._overflows is None else self._overflows
            self._overflows = (before + 1) * bad
            bad = self._overflows >= OVERFLOWS
        if self._bad_loss is not None:
            bad = bad | self._bad_loss
        if trainer.world_size > 1:
            bad = trainer.strategy.reduce(bad.float(), reduce_op="sum") > 0
        if not scaled:
            for gradient in gradients:
                gradient.masked_fill_(bad, 0)
        self._sent = Step.sent(trainer.global_step + 1, self._window, bad)
        self._window, self._bad_loss = [], None
        if self._sent.arrived is None:
            self._ask(trainer, pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Know of the last step before its weights are judged."""
        self._ask(trainer, pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse a validation without a loss, which would end a run without a word."""
        if math.isfinite(trainer.callback_metrics.get("val_loss", 0.0)):
            return
        raise NotFinite(
            "The validation loss is not finite",
            f"after step {trainer.global_step}, epoch {trainer.current_epoch + 1}",
            self._remedy(trainer, pl_module),
        )

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Know of the last step."""
        self._ask(trainer, pl_module)

    def _ask(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the run if the last step that was sent is bad."""
        step, self._sent = self._sent, None
        if step is None or not step.bad:
            return
        assert isinstance(pl_module, Task)
        seen, suspect = self._investigate(trainer, pl_module, step)
        ids = [self.sample_ids[row] for row in seen.batch.rows_B.tolist()]
        place = f"step {step.number} (epoch {seen.epoch + 1}, batch {seen.number + 1})"
        self.note("not_finite", {"step": step.number, "epoch": seen.epoch + 1,
                                 "batch": seen.number + 1, "samples": ids,
                                 **dataclasses.asdict(suspect)})  # fmt: skip
        raise NotFinite(
            f"{suspect.what} not finite",
            f"{place}, {suspect.where}, samples {first_few(ids)}",
            self._remedy(trainer, pl_module),
        )

    def _investigate(self, trainer: pl.Trainer, task: Task, step: Step) -> tuple[Seen, Suspect]:
        """Compute the batches of a step again, until one of them shows where it begins."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        scale = 1.0 if scaler is None else float(scaler.get_scale())
        suspect = None
        for seen in step.batches:
            torch.set_rng_state(seen.states["cpu"])
            if "cuda" in seen.states:
                torch.cuda.set_rng_state(seen.states["cuda"], task.device)
            context = trainer.precision_plugin.forward_context
            suspect = compute_again(task, seen.batch, context, scale)
            if suspect is not None:
                return seen, suspect
        nowhere = Suspect(
            "Loss or gradients were",
            "but not when it was computed again: run `aam check`, the device may be at fault",
        )
        return step.batches[-1], nowhere

    def _remedy(self, trainer: pl.Trainer, task: pl.LightningModule) -> str:
        half = getattr(trainer.precision_plugin, "scaler", None) is not None
        advice = "use --mixed-precision bf16 or none" if half else "lower --lr"
        if self.checkpoint.exists():
            return f"{advice}; '{self.checkpoint}' is from before that"
        return advice
