"""Detection of NaN and infinity: a non-finite loss or gradient ends the run.

The flag of a step is read before its optimizer step, so no weight becomes NaN and no checkpoint
holds one. The step is then repeated in the eager network, with the same weights, batches and random
numbers, and with hooks that name the module where it begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aam.contract.errors import NotFinite, first_few
from aam.data.batches import Batch
from aam.distributed.collectives import SINGLE_PROCESS, Communicator, all_reduce_sum
from aam.distributed.strategies import local_tensor
from aam.numerics.device import is_gpu
from aam.training.compilation import eager_again
from aam.training.module import GradientStep, get_total_norm
from aam.training.run_folder import RecordFact

OVERFLOWS = 32
"""Steps in a row that fp16's loss scaling may skip: its factor halves each time, from 2^16."""

EXPLODED_NORM = 1e12
"""Gradient norm that counts as an explosion in a repetition too: the order of sums on a GPU varies,
so a step at the limit of fp32 may overflow once and not again."""

GROWTH = 10.0
"""Growth of the largest weight, since the process began, that shows a learning rate too high."""

_LOWER_LR = "start a new run with a lower --lr"
"""Remedy of an explosion; a resumed run keeps its learning rate."""


@dataclass(frozen=True)
class StepBatch:
    """A batch of a step, its epoch and number, and the states of the generators before it."""

    batch: Batch
    epoch: int
    number: int
    states: dict[str, Tensor]


class FiniteCheck:
    """Check that ends a run at a loss, gradient or validation that is not finite.

    Args:
        step: computation of the gradients, also of a step that is repeated.
        sample_ids: ids of the samples in the rows of the study.
        checkpoint: path of the last checkpoint of the run, for the message.
        record_fact: function that adds facts to the run record.
        communicator: communicator of the ranks, all of which call the methods.
    """

    def __init__(
        self,
        step: GradientStep,
        sample_ids: Sequence[str],
        checkpoint: Path,
        record_fact: RecordFact,
        communicator: Communicator = SINGLE_PROCESS,
    ) -> None:
        self.step, self.task = step, step.task
        self.sample_ids, self.checkpoint, self.record_fact = sample_ids, checkpoint, record_fact
        self.communicator = communicator
        self.window: list[StepBatch] = []
        """Batches of the current optimizer step."""
        self._bad_loss: Tensor | None = None
        self._overflows = 0
        self._largest = 0.0

    def begin(self) -> None:
        """Store the largest weight before the first step."""
        self._largest = self._largest_weight()

    def store(self, batch: Batch, epoch: int, number: int) -> None:
        """Store a batch and the states of the generators until its step is checked."""
        states, device = {"cpu": torch.get_rng_state()}, self.task.device
        if is_gpu(device):
            states["gpu"] = torch.cuda.get_rng_state(device)
        self.window.append(StepBatch(batch, epoch, number, states))

    def add_loss(self, loss: Tensor) -> None:
        """Test the loss of a batch; the result stays on the device."""
        # Reading the flag here would make the CPU wait for the GPU in each batch.
        bad = ~loss.isfinite()
        self._bad_loss = bad if self._bad_loss is None else self._bad_loss | bad

    def check_gradients(self, number: int) -> None:
        """Test the unscaled gradients of an optimizer step (from 1), and the flag of its losses."""
        window, self.window = self.window, []
        bad_loss, self._bad_loss = self._bad_loss, None
        assert bad_loss is not None
        bad_gradients = ~get_total_norm(_gradients(self.task)).isfinite()
        scaled = self.step.scaler.is_enabled()
        # With loss scaling an overflow is no fault: the scaler skips the step and lowers its factor
        # until no gradient overflows. All ranks read both flags, in one collective.
        flags = torch.stack([bad_loss, bad_gradients]).float()
        bad_loss_anywhere, overflow = (all_reduce_sum(flags) > 0).tolist()
        self._overflows = self._overflows + 1 if overflow else 0
        if bad_loss_anywhere or (overflow if not scaled else self._overflows >= OVERFLOWS):
            raise self._locate(number, window)

    def check_validation(self, loss: float, epoch: int, step: int) -> None:
        """Test the loss of a validation, after an epoch (from 0) and so many steps."""
        if not math.isfinite(loss):
            what = "The validation loss or predictions are not finite"
            raise self._error(step, what, f"epoch {epoch + 1}")

    def _locate(self, step: int, window: list[StepBatch]) -> NotFinite:
        """Repeat a step with hooks, record where it stops being finite, and return the error."""
        eager_again(self.task.encoder.nucleotides)
        findings: list[tuple[int, int, str, str]] = []  # batch of the window, stage, what, where
        with ExitStack() as hooks:
            forward, backward = _trace(self.task.network, hooks)
            for k, (step_batch, loss) in enumerate(replay(self.step, window)):
                entries = vars(step_batch.batch).items()
                if names := [name for name, value in entries if not _finite(value)]:
                    findings.append((k, 0, "The batch is", f"in its {', '.join(names)}"))
                elif forward or not _finite(loss):
                    what = "Values of the network are" if _finite(loss) else "The loss is"
                    where = forward[0] if forward else "first in the loss itself"
                    findings.append((k, 1, what, where))
                elif backward:
                    findings.append((k, 2, "The gradients are", backward[0]))
        # `not <`: a comparison with NaN is false.
        if not findings and not get_total_norm(_gradients(self.task)) < EXPLODED_NORM:
            bad = [
                f"first in that of {name}"
                for name, parameter in self.task.network.named_parameters()
                if parameter.grad is not None and not _finite(local_tensor(parameter.grad))
            ]
            what = "The gradients are" if bad else "The norm of the gradients is"
            where = bad[0] if bad else "although each gradient is finite"
            findings.append((len(window) - 1, 3, what, where))

        # The first of all ranks by batch and stage: a rank with finite values of its own receives
        # non-finite gradients of another one. Each rank names the samples of its part of a batch.
        samples = [[self.sample_ids[row] for row in one.batch.rows_B.tolist()] for one in window]
        of_ranks = self.communicator.all_gather((findings[:1], samples))
        located = [
            (batch, stage, rank, what, where, ids[batch])
            for rank, (of_rank, ids) in enumerate(of_ranks)
            for batch, stage, what, where in of_rank
        ]
        if located:
            batch, stage, _, what, where, named = min(located)
            advice = "correct the input" if stage == 0 else ""
        else:
            batch, named, what = len(window) - 1, samples[-1], "Loss or gradients were"
            where = "but are when the step is repeated: the device or torch.compile is at fault"
            advice = "run `aam check`, and omit --compile-model"
        epoch, number = window[batch].epoch + 1, window[batch].number + 1
        self.record_fact("not_finite", {
            "step": step, "epoch": epoch, "batch": number, "samples": named,
            "reproduced": bool(located), "what": what, "where": where,
        })  # fmt: skip
        if step == 1 and not self.step.scaler.is_enabled():  # the weights are the initial ones
            advice = advice or "run `aam check`"
        place = f"epoch {epoch}, batch {number}, {where}, samples {first_few(named)}"
        return self._error(step, f"{what} not finite", place, advice)

    def _error(self, step: int, what: str, place: str, advice: str = "") -> NotFinite:
        """Return the error of a step: an explosion if the weights grew and no advice is given."""
        largest = self._largest_weight()
        half = self.step.scaler.is_enabled()
        remedy = advice or ("use --mixed-precision bf16 or none" if half else _LOWER_LR)
        if self.checkpoint.exists():
            remedy += f"; '{self.checkpoint}' is from before that"
            if remedy.startswith(_LOWER_LR):
                remedy += ", --pretrained-encoder starts from its encoder"
        if advice or largest <= GROWTH * self._largest:
            return NotFinite(what, f"step {step}, {place}", remedy)
        growth = f"the largest weight grew from {self._largest:.3g} to {largest:.3g}"
        return NotFinite(
            f"The loss exploded at step {step} with --lr {self.task.loop.lr:g}",
            f"{what[:1].lower()}{what[1:]}, {place}, {growth}",
            remedy,
        )

    def _largest_weight(self) -> float:
        """Return the largest absolute trainable weight of all ranks; NaN if a weight is NaN."""
        weights = [local_tensor(p.detach()) for p in self.task.parameters() if p.requires_grad]
        # A shard of a small parameter may be empty, and `max` refuses an empty tensor.
        largest = [weight.abs().max() for weight in weights if weight.numel()]
        own = float(torch.stack(largest).max()) if largest else 0.0
        numbers = self.communicator.all_gather(own)
        return math.nan if any(map(math.isnan, numbers)) else max(numbers)


def replay(step: GradientStep, window: list[StepBatch]) -> Iterator[tuple[StepBatch, Tensor]]:
    """Repeat forward and backward passes of a step as in the training loop; yield each loss.

    The gradients at the end are those of the step, without loss scaling and before clipping.
    """
    task, scale = step.task, step.scaler.get_scale()
    task.zero_grad()
    for step_batch in window:
        torch.set_rng_state(step_batch.states["cpu"])
        if "gpu" in step_batch.states:
            torch.cuda.set_rng_state(step_batch.states["gpu"], task.device)
        last = step_batch is window[-1]
        yield step_batch, step.add_gradients(step_batch.batch, last, len(window))
    for gradient in _gradients(task):
        # `scaler.unscale_` refuses a second call between two updates, so the factor is divided out.
        gradient.div_(scale)


def _trace(network: nn.Module, hooks: ExitStack) -> tuple[list[str], list[str]]:
    """Register hooks on all modules; return the lists that get non-finite values and gradients."""
    forward: list[str] = []
    backward: list[str] = []

    def check(places: list[str], place: str, value: Any) -> None:
        if not _finite(value):
            places.append(place)

    def after(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        check(forward, f"first in {name}", output)
        for tensor in output if isinstance(output, tuple) else (output,):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                at: Callable[[Tensor], None] = partial(
                    check, backward, f"first at the output of {name}"
                )
                tensor.register_hook(at)  # type: ignore[no-untyped-call]

    def before(name: str, module: nn.Module, inputs: Any) -> None:
        # Attention has no module of its own: its output is the input of the next one.
        check(forward, f"first before {name}", inputs)

    for name, module in network.named_modules():
        if name:
            hooks.enter_context(module.register_forward_pre_hook(partial(before, name)))
            hooks.enter_context(module.register_forward_hook(partial(after, name)))
    return forward, backward


def _gradients(task: nn.Module) -> list[Tensor]:
    """Return the gradients; of sharded ones the parts of this rank."""
    return [local_tensor(p.grad) for p in task.parameters() if p.grad is not None]


def _finite(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_finite(item) for item in value)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return True
    return bool(value.detach().isfinite().all())
