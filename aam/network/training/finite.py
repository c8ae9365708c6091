"""Detection of NaN and infinity: a non-finite loss or gradient ends the run.

The flag of a step is computed on the device, where it keeps the optimizer from changing a weight.
The CPU reads it with the next step, before that one's optimizer step, or before a checkpoint or a
validation: it never waits for the step that it has just launched, and no checkpoint holds a NaN.
The step is then repeated in the eager network, with the same weights, batches and random numbers,
and with hooks that name the module where it begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from aam.contract.errors import NotFinite, first_few
from aam.network.batches import Batch, PackedBatch
from aam.network.distributed.collectives import SINGLE_PROCESS, Communicator, all_reduce_sum
from aam.network.distributed.strategies import local_tensor
from aam.network.numerics.device import HostCopy
from aam.network.training.compilation import eager_again
from aam.network.training.module import GradientStep, get_total_norm, seed_dropout
from aam.pipeline.run_folder import RecordFact

OVERFLOWS = 32
"""Steps in a row that fp16's loss scaling may skip: its factor halves each time, from 2^16."""

EXPLODED_NORM = 1e12
"""Gradient norm that counts as an explosion in a repetition too: the order of sums on a GPU varies,
so a step at the limit of fp32 may overflow once and not again."""


StepBatch = tuple[PackedBatch, int, int]  # a batch of a step, its epoch and its number in the epoch


class FiniteCheck:
    """Check that ends a run at a value that is not finite; all ranks call its methods."""

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
        self.window: list[StepBatch] = []  # of the current optimizer step
        self._losses: Tensor | None = None  # their sum over the current step
        # Number, batches and flags (loss, gradients) of the last step; None once they are read. The
        # batches are those of the loader, which take no memory of a GPU.
        self._unread: tuple[int, list[StepBatch], HostCopy] | None = None
        self._overflows = 0

    def add_batch(self, batch: PackedBatch, epoch: int, number: int, loss: Tensor) -> None:
        """Keep a batch of the loader until its step is checked, and test its loss."""
        self.window.append((batch, epoch, number))
        # On the device: reading it here would make the CPU wait for the GPU in each batch.
        self._losses = loss if self._losses is None else self._losses + loss

    def check_gradients(self, number: int, norm: Tensor) -> Tensor:
        """Test an optimizer step (from 1); raise NotFinite for the step before.

        Return 1 (float32, on the device) if the step must not change the weights, else 0.
        """
        window, self.window = self.window, []
        losses, self._losses = self._losses, None
        assert losses is not None
        both = torch.stack([losses, norm])
        # 0 for finite numbers alone. All ranks get both flags, in one collective.
        flags = all_reduce_sum((both - both != 0).float()).clamp(max=1)
        self.read()
        self._unread = number, window, HostCopy(flags)
        return flags.amax()

    def read(self) -> None:
        """Read the flags of the last step; raise NotFinite if they end the run."""
        if self._unread is None:
            return
        (number, window, flags), self._unread = self._unread, None
        bad_loss, overflow = flags.read().tolist()
        # With loss scaling an overflow is no fault: the scaler lowers its factor until no gradient
        # overflows.
        limit = OVERFLOWS if self.step.scaler.is_enabled() else 1
        self._overflows = self._overflows + 1 if overflow else 0
        if bad_loss or self._overflows >= limit:
            raise self._locate(number, window)

    def check_validation(self, loss: float, epoch: int, step: int) -> None:
        """Test the loss of a validation, after an epoch (from 0) and so many steps."""
        if not math.isfinite(loss):
            what = "The validation loss or predictions are not finite"
            raise self._error(what, f"step {step}, epoch {epoch + 1}")

    def _locate(self, step: int, window: list[StepBatch]) -> NotFinite:
        """Repeat a step with hooks, record where it stops being finite, and return the error."""
        eager_again(self.task.encoder.nucleotides)
        # A place: batch of the window, stage (0 input, 1 forward, 2 backward, 3 weights), what is
        # not finite, and where that begins.
        places: list[tuple[int, int, str, str]] = []
        rank = self.communicator.ranks.rank
        with _hooked(self.task.network) as first:
            # To the end of the window, since the ranks make the same collectives.
            for k, (batch, loss) in enumerate(replay(self.step, window, rank)):
                if bad := [name for name, value in vars(batch).items() if not _finite(value)]:
                    places.append((k, 0, "The batch is", f"in its {', '.join(bad)}"))
                places += [(k, stage, what, where) for stage, (what, where) in first.items()]
                if not _finite(loss):
                    places.append((k, 1, "The loss is", "first in the loss itself"))
        # `not <`: a comparison with NaN is false.
        if not places and not get_total_norm(_gradients(self.task)) < EXPLODED_NORM:
            what, where = "The norm of the gradients is", "although each gradient is finite"
            for name, parameter in self.task.network.named_parameters():
                if parameter.grad is not None and not _finite(local_tensor(parameter.grad)):
                    what, where = "The gradients are", f"first in that of {name}"
                    break
            places.append((len(window) - 1, 3, what, where))

        # The first of all ranks by batch and stage: a rank with finite values of its own receives
        # non-finite gradients of another one. Each rank names the samples of its part of a batch.
        on_cpu = [packed.to(torch.device("cpu")) for packed, *_ in window]
        samples = [[self.sample_ids[row] for row in batch.rows_B.tolist()] for batch in on_cpu]
        of_ranks = self.communicator.all_gather((places, samples))
        located = [(*place, ids) for places, ids in of_ranks for place in places]
        if located:
            k, stage, what, where, ids = min(located, key=lambda place: place[:2])
            advice = "correct the input" if stage == 0 else ""
            if step == 1 and not self.step.scaler.is_enabled():  # the weights are the initial ones
                advice = advice or "run `aam check`"
        else:
            k, ids, what = len(window) - 1, samples, "Loss or gradients were"
            where = "but are when the step is repeated: the device or torch.compile is at fault"
            advice = "run `aam check`, and omit --compile-model"
        epoch, number, named = window[k][1] + 1, window[k][2] + 1, ids[k]
        self.record_fact("not_finite", {
            "step": step, "epoch": epoch, "batch": number, "samples": named,
            "reproduced": bool(located), "what": what, "where": where,
        })  # fmt: skip
        place = f"step {step}, epoch {epoch}, batch {number}, {where}, samples {first_few(named)}"
        return self._error(f"{what} not finite", place, advice)

    def _error(self, what: str, place: str, advice: str = "") -> NotFinite:
        """Return the error; without other advice it is that for an explosion of the loss."""
        exploded = not advice and not self.step.scaler.is_enabled()
        if not advice:
            # A resumed run keeps its learning rate.
            lower = f"start a new run with a lower --lr than {self.task.loop.lr:g}"
            advice = lower if exploded else "use --mixed-precision bf16 or none"
        if self.checkpoint.exists():
            advice += f"; '{self.checkpoint}' is from before that"
            advice += ", --pretrained-encoder starts from its encoder" if exploded else ""
        return NotFinite(what, place, advice)


def replay(
    step: GradientStep, window: list[StepBatch], rank: int
) -> Iterator[tuple[Batch, Tensor]]:
    """Repeat a step as in the training loop, without scaling and clipping; yield each loss."""
    task, scale = step.task, step.scaler.get_scale()
    task.zero_grad()
    for k, (loaded, epoch, number) in enumerate(window, start=1):
        batch = loaded.to(task.device)
        seed_dropout(task.loop.seed, epoch, number, rank)
        yield batch, step.add_gradients(batch, k == len(window), len(window))
    for gradient in _gradients(task):
        # `scaler.unscale_` refuses a second call between two updates, so the factor is divided out.
        gradient.div_(scale)


@contextmanager
def _hooked(network: nn.Module) -> Iterator[dict[int, tuple[str, str]]]:
    """Yield the first non-finite values (1) and gradients (2) of the modules of a network."""
    first: dict[int, tuple[str, str]] = {}
    names = {module: name for name, module in network.named_modules() if name}

    def check(stage: int, what: str, where: str, value: Any) -> None:
        if not _finite(value):
            first.setdefault(stage, (what, f"first {where}"))

    def before(module: nn.Module, inputs: Any) -> None:
        # Attention has no module of its own: its output is the input of the next one.
        if name := names.get(module):
            check(1, "Values of the network are", f"before {name}", inputs)

    def after(module: nn.Module, inputs: Any, output: Any) -> None:
        if name := names.get(module):
            check(1, "Values of the network are", f"in {name}", output)
            backward = partial(check, 2, "The gradients are", f"at the output of {name}")
            for tensor in output if isinstance(output, tuple) else (output,):
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    tensor.register_hook(backward)  # type: ignore[no-untyped-call]

    with ExitStack() as hooks:
        hooks.enter_context(register_module_forward_pre_hook(before))
        hooks.enter_context(register_module_forward_hook(after))
        yield first


def _gradients(task: nn.Module) -> list[Tensor]:
    """Return the gradients; of sharded ones the parts of this rank."""
    return [local_tensor(p.grad) for p in task.parameters() if p.grad is not None]


def _finite(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_finite(item) for item in value)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return True
    return bool(value.detach().isfinite().all())
