"""Detection of NaN and infinity: a non-finite loss or gradient ends the run.

The flag of a step is read before its optimizer step, so no weight becomes NaN and no checkpoint
holds one. The step is then repeated exactly: the same weights, batches, random numbers, precision,
compilation, accumulation and synchronisation of ranks. A repetition that is finite means that the
device or a kernel is unreliable. Otherwise the step is repeated once more in the eager network,
with hooks that name the module where it begins (`aam.training.finite`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
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
from aam.training.module import GradientStep, TrainingModule, get_total_norm
from aam.training.run_folder import Note

INPUT, WEIGHTS, FORWARD, BACKWARD = range(4)
"""Stages of a step, in order."""


@dataclass(frozen=True)
class NonFiniteValue:
    """First non-finite value of a step, and its location.

    Attributes:
        stage: stage of the step, one of `INPUT`, `WEIGHTS`, `FORWARD` and `BACKWARD`.
        what: subject and verb of the message, "The loss is".
        where: module or field of the batch.
        advice: remedy, if the learning rate is not the cause.
    """

    stage: int
    what: str
    where: str
    advice: str = ""


@dataclass
class NonFiniteTrace:
    """Locations of non-finite values (forward) and gradients (backward), in order."""

    network: nn.Module
    forward: list[str] = field(default_factory=list)
    backward: list[str] = field(default_factory=list)

    def suspect(self, batch: Batch, loss: Tensor) -> NonFiniteValue | None:
        """Return the first non-finite value after a batch was computed; None if all are finite."""
        fields = [name for name, value in vars(batch).items() if not _finite(value)]
        if fields:
            return NonFiniteValue(
                INPUT, "The batch is", f"in its {', '.join(fields)}", "correct the input"
            )
        for name, value in self.network.named_parameters():
            if not _finite(local_tensor(value)):
                return NonFiniteValue(WEIGHTS, "Weights are", f"in {name}")
        if not _finite(loss):
            where = self.forward[0] if self.forward else "first in the loss itself"
            return NonFiniteValue(FORWARD, "The loss is", where)
        if self.forward:
            return NonFiniteValue(FORWARD, "Values of the network are", self.forward[0])
        if self.backward:
            return NonFiniteValue(BACKWARD, "The gradients are", self.backward[0])
        for name, parameter in self.network.named_parameters():
            if parameter.grad is not None and not _finite(local_tensor(parameter.grad)):
                return NonFiniteValue(BACKWARD, "The gradients are", f"first in that of {name}")
        return None


@contextmanager
def traced(network: nn.Module) -> Iterator[NonFiniteTrace]:
    """Register hooks on the modules of a network, forward and backward, while the block runs."""
    trace = NonFiniteTrace(network)

    def before_forward(name: str, module: nn.Module, inputs: Any) -> None:
        if not _finite(inputs):
            trace.forward.append(f"first before {name}")

    def after_forward(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if not _finite(output):
            trace.forward.append(f"first in {name}")
        for tensor in output if isinstance(output, tuple) else (output,):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                hook = partial(on_gradient, name)
                tensor.register_hook(hook)  # type: ignore[no-untyped-call]

    def on_gradient(name: str, gradient: Tensor) -> None:
        if not _finite(gradient):
            trace.backward.append(f"first at the output of {name}")

    with ExitStack() as hooks:
        for name, module in network.named_modules():
            if name:
                before, after = partial(before_forward, name), partial(after_forward, name)
                hooks.enter_context(module.register_forward_pre_hook(before))
                hooks.enter_context(module.register_forward_hook(after))
        yield trace


def _finite(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_finite(item) for item in value)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return True
    return bool(value.detach().isfinite().all())


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


class FiniteCheck:
    """Check that ends a run at a loss, gradient or validation that is not finite.

    Args:
        step: computation of the gradients, also of a step that is repeated.
        sample_ids: ids of the samples in the rows of the study.
        checkpoint: path of the last checkpoint of the run, for the message.
        note: function that adds facts to the run record.
        lr: learning rate of the run, for the message.
        communicator: communicator of the ranks, all of which call the methods.
    """

    def __init__(
        self,
        step: GradientStep,
        sample_ids: Sequence[str],
        checkpoint: Path,
        note: Note,
        lr: float,
        communicator: Communicator = SINGLE_PROCESS,
    ) -> None:
        self.step, self.task = step, step.task
        self.sample_ids, self.checkpoint, self.note = sample_ids, checkpoint, note
        self.lr, self.communicator = lr, communicator
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
        """Test the unscaled gradients of an optimizer step, and read the flag of its losses.

        Args:
            number: number of the step, from 1.

        Raises:
            NotFinite: see above.
        """
        window, self.window = self.window, []
        bad_loss, self._bad_loss = self._bad_loss, None
        assert bad_loss is not None
        bad_gradients = ~_gradient_norm(self.task).isfinite()
        if not self.step.scaler.is_enabled():
            bad = _on_any_rank(bad_loss | bad_gradients)
        else:
            # The scaler skips the step and lowers its factor until no gradient overflows.
            overflow = _on_any_rank(bad_gradients)
            self._overflows = self._overflows + 1 if overflow else 0
            bad = self._overflows >= OVERFLOWS or _on_any_rank(bad_loss)
        if bad:
            raise self._investigate(number, window)

    def check_validation(self, loss: float, epoch: int, step: int) -> None:
        """Test the loss of a validation, after an epoch (from 0) and so many steps.

        Raises:
            NotFinite: it cannot be compared.
        """
        if not math.isfinite(loss):
            what = "The validation loss or predictions are not finite"
            raise self._error(step, what, f"epoch {epoch + 1}")

    def _investigate(self, step: int, window: list[StepBatch]) -> NotFinite:
        """Repeat a non-finite step, record the result, and return the error to raise."""
        reproduced = self._repeat(window)
        finding = self._locate(window) if reproduced else None
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
        if step == 1 and not self.step.scaler.is_enabled():  # the weights are the initial ones
            advice = advice or "run `aam check`"
        return self._error(step, f"{suspect.what} not finite", place, advice)

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
            f"The loss exploded at step {step} with --lr {self.lr:g}",
            f"{what[:1].lower()}{what[1:]}, {place}, {growth}",
            remedy,
        )

    def _repeat(self, window: list[StepBatch]) -> bool:
        """Repeat a step exactly; return whether it is non-finite again, on any rank."""
        bad = torch.zeros((), dtype=torch.bool, device=self.task.device)
        for _, loss in replay(self.step, window):
            bad = bad | ~loss.isfinite()
        return _on_any_rank(bad | ~(_gradient_norm(self.task) < EXPLODED_NORM))

    def _locate(self, window: list[StepBatch]) -> NonFiniteStep | None:
        """Repeat a step in the eager network; return the first non-finite value."""
        task = self.task
        eager_again(task.encoder.nucleotides)
        findings: list[NonFiniteStep] = []
        with traced(task.network) as trace:
            for step_batch, loss in replay(self.step, window):
                suspect = trace.suspect(step_batch.batch, loss)
                if suspect is not None and not findings:
                    findings.append(self._finding(step_batch, suspect))
        # `not <` and no `>=`: a comparison with NaN is false.
        if not findings and not _gradient_norm(task) < EXPLODED_NORM:
            findings.append(self._finding(window[-1], _NORM))
        of_ranks = [finding for rank in self.communicator.all_gather(findings) for finding in rank]
        # A rank with finite values of its own receives non-finite gradients of another rank.
        return min(of_ranks, key=lambda f: (f.epoch, f.batch, f.suspect.stage), default=None)

    def _finding(self, step_batch: StepBatch, suspect: NonFiniteValue) -> NonFiniteStep:
        ids = [self.sample_ids[row] for row in step_batch.batch.rows_B.tolist()]
        return NonFiniteStep(step_batch.epoch + 1, step_batch.number + 1, ids, suspect)

    def _largest_weight(self) -> float:
        """Return the largest absolute trainable weight of all ranks; NaN if a weight is NaN."""
        weights = [local_tensor(p.detach()) for p in self.task.parameters() if p.requires_grad]
        # A shard of a small parameter may be empty, and `max` refuses an empty tensor.
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
        yield step_batch, step.add_gradients(step_batch.batch, step_batch is window[-1])
    for gradient in _gradients(task):
        # `scaler.unscale_` refuses a second call between two updates, so the factor is divided out.
        gradient.div_(scale)


def _gradients(task: TrainingModule) -> list[Tensor]:
    """Return the gradients; of sharded ones the parts of this rank."""
    return [local_tensor(p.grad) for p in task.parameters() if p.grad is not None]


def _gradient_norm(task: TrainingModule) -> Tensor:
    return get_total_norm(_gradients(task))


def _on_any_rank(flag: Tensor) -> bool:
    """Return whether a flag is set on any rank; every rank must call this."""
    return bool(all_reduce_sum(flag.float()) > 0)


def _max(numbers: Sequence[float]) -> float:
    """Return the largest number; NaN if one is NaN."""
    return math.nan if any(map(math.isnan, numbers)) else max(numbers, default=0.0)
