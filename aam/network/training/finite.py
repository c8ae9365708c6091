"""Detection of NaN and infinity: a non-finite loss or gradient ends the run.

The flag of a step is computed on the device; if it is set, the optimizer changes no weight. The CPU
reads the flag in the next step, before the next optimizer step, checkpoint or validation. So the
CPU never waits for the step that it has just launched, and no checkpoint holds a NaN. A step with a
set flag is repeated in the eager network, with the same weights, batches and random numbers, and
with hooks that find the first module with a non-finite value.
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
from torch.utils._pytree import tree_leaves

from aam.contract.errors import NotFinite, first_few
from aam.network.batches import Batch, PackedBatch
from aam.network.distributed.collectives import (
    SINGLE_PROCESS,
    Communicator,
    all_reduce_sum,
    local_tensor,
)
from aam.network.numerics.device import HostCopy
from aam.network.training.module import GradientStep, get_total_norm
from aam.pipeline.run_folder import RecordFact

OVERFLOWS = 32
"""Successive steps that fp16's loss scaling may skip: each halves its factor, starting at 2^16."""

EXPLODED_NORM = 1e12
"""Gradient norm from which a repeated step counts as an explosion even if it is finite: the order
of sums on a GPU varies, so a step near the limit of fp32 may overflow once and not again."""


StepBatch = tuple[PackedBatch, int, int]  # batch of a step, epoch, and number in the epoch


class FiniteCheck:
    """Check for non-finite values, which ends the run; all ranks must call its methods."""

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
        self.window: list[StepBatch] = []  # batches of the current optimizer step
        self._losses: Tensor | None = None  # sum of their losses
        # Number, batches and flags (loss, gradients) of the last step; None once the flags are
        # read. The batches are in the memory of the host, not of the GPU.
        self._unread: tuple[int, list[StepBatch], HostCopy] | None = None
        self._overflows = 0

    def add_batch(self, batch: PackedBatch, epoch: int, number: int, loss: Tensor) -> None:
        """Add a batch and its loss to the current step."""
        self.window.append((batch, epoch, number))
        # The sum stays on the device: reading it would make the CPU wait for the GPU in each batch.
        self._losses = loss if self._losses is None else self._losses + loss

    def check_gradients(self, number: int, norm: Tensor) -> Tensor:
        """Check loss and gradient norm of a step (from 1); raise NotFinite for the previous step.

        Return 1 (float32, on the device) if the step must not change the weights, else 0.
        """
        window, self.window = self.window, []
        losses, self._losses = self._losses, None
        assert losses is not None
        loss_and_norm = torch.stack([losses, norm])
        # x - x is 0 for finite numbers only. One collective gives both flags to all ranks.
        flags = all_reduce_sum((loss_and_norm - loss_and_norm != 0).float()).clamp(max=1)
        self.read()
        self._unread = number, window, HostCopy(flags)
        return flags.amax()

    def read(self) -> None:
        """Read the flags of the last step; raise NotFinite if they end the run."""
        if self._unread is None:
            return
        (number, window, flags), self._unread = self._unread, None
        bad_loss, overflow = flags.read().tolist()
        # With loss scaling an overflow is expected: the scaler lowers its factor until no gradient
        # overflows.
        limit = OVERFLOWS if self.step.scaler.is_enabled() else 1
        self._overflows = self._overflows + 1 if overflow else 0
        if bad_loss or self._overflows >= limit:
            raise self._locate(number, window)

    def check_validation(self, loss: float, epoch: int, step: int) -> None:
        """Check the loss of the validation after an epoch (from 0) and `step` steps."""
        if not math.isfinite(loss):
            cause = "The validation loss or predictions are not finite"
            raise self._error(cause, f"step {step}, epoch {epoch + 1}")

    def _locate(self, step: int, window: list[StepBatch]) -> NotFinite:
        """Repeat a step with hooks, record its first non-finite value, and return the error."""
        eager_again(self.task.encoder.nucleotides)
        # Batch of the window, stage (0 input, 1 forward, 2 backward, 3 weights), subject (what is
        # not finite) and origin (where that begins).
        origins: list[tuple[int, int, str, str]] = []
        rank = self.communicator.ranks.rank
        with _hooked(self.task.network) as first:
            # All batches of the window, because the ranks must make the same collectives.
            for k, (batch, loss) in enumerate(replay(self.step, window, rank)):
                if names := [name for name, value in vars(batch).items() if not _finite(value)]:
                    origins.append((k, 0, "The batch is", f"in its {', '.join(names)}"))
                origins += [(k, stage, *subject_origin) for stage, subject_origin in first.items()]
                if not _finite(loss):
                    origins.append((k, 1, "The loss is", "first in the loss itself"))
        # `not <`: a comparison with NaN is false.
        if not origins and not get_total_norm(_gradients(self.task)) < EXPLODED_NORM:
            subject, origin = "The norm of the gradients is", "although each gradient is finite"
            for name, parameter in self.task.network.named_parameters():
                if parameter.grad is not None and not _finite(local_tensor(parameter.grad)):
                    subject, origin = "The gradients are", f"first in the gradient of {name}"
                    break
            origins.append((len(window) - 1, 3, subject, origin))

        # The first of all ranks by batch and stage: a rank with finite values may receive
        # non-finite gradients of another rank. Each rank names the samples of its shard of a batch.
        on_cpu = [packed.to(torch.device("cpu")) for packed, *_ in window]
        samples = [[self.sample_ids[row] for row in batch.rows_B.tolist()] for batch in on_cpu]
        by_rank = self.communicator.all_gather((origins, samples))
        located = [(*origin, ids) for origins, ids in by_rank for origin in origins]
        if located:
            k, stage, subject, origin, ids = min(located, key=lambda row: row[:2])
            advice = "correct the input" if stage == 0 else ""
            if step == 1 and not self.step.scaler.is_enabled():  # the weights are the initial ones
                advice = advice or "run `aam check`"
        else:
            k, ids, subject = len(window) - 1, samples, "Loss or gradients were"
            origin = "but are when the step is repeated: the device or torch.compile is at fault"
            advice = "run `aam check`, and omit --compile-model"
        epoch, number, sample_ids = window[k][1] + 1, window[k][2] + 1, ids[k]
        self.record_fact("not_finite", {
            "step": step, "epoch": epoch, "batch": number, "samples": sample_ids,
            "reproduced": bool(located), "what": subject, "where": origin,
        })  # fmt: skip
        evidence = f"step {step}, epoch {epoch}, batch {number}, {origin}"
        evidence += f", samples {first_few(sample_ids)}"
        return self._error(f"{subject} not finite", evidence, advice)

    def _error(self, cause: str, evidence: str, advice: str = "") -> NotFinite:
        """Return the error; without other advice, the advice for an explosion of the loss."""
        exploded = not advice and not self.step.scaler.is_enabled()
        if not advice:
            # A resumed run keeps its learning rate.
            lower = f"start a new run with a lower --lr than {self.task.loop.lr:g}"
            advice = lower if exploded else "use --mixed-precision bf16 or none"
        if self.checkpoint.exists():
            advice += f"; '{self.checkpoint}' was written before"
            advice += ", --pretrained-encoder starts from its encoder" if exploded else ""
        return NotFinite(cause, evidence, advice)


def replay(
    step: GradientStep, window: list[StepBatch], rank: int
) -> Iterator[tuple[Batch, Tensor]]:
    """Repeat a step of the training loop without scaling and clipping; yield batches and losses."""
    task, scale = step.task, step.scaler.get_scale()
    task.zero_grad()
    for k, (loaded, epoch, number) in enumerate(window, start=1):
        batch = loaded.to(task.device)
        step.seed_dropout(epoch, number, rank)
        yield batch, step.add_gradients(batch, k == len(window), len(window))
    for gradient in _gradients(task):
        # Divided by hand: `scaler.unscale_` refuses a second call between two updates.
        gradient.div_(scale)


@contextmanager
def _hooked(network: nn.Module) -> Iterator[dict[int, tuple[str, str]]]:
    """Yield subject and origin of the first non-finite value (1) and gradient (2) of modules."""
    first: dict[int, tuple[str, str]] = {}
    names = {module: name for name, module in network.named_modules() if name}

    def check(stage: int, subject: str, origin: str, value: Any) -> None:
        if not _finite(value):
            first.setdefault(stage, (subject, f"first {origin}"))

    def check_inputs(module: nn.Module, inputs: Any) -> None:
        # Attention is not a module: its output is the input of the next module.
        if name := names.get(module):
            check(1, "Values of the network are", f"before {name}", inputs)

    def check_output(module: nn.Module, inputs: Any, output: Any) -> None:
        if name := names.get(module):
            check(1, "Values of the network are", f"in {name}", output)
            backward = partial(check, 2, "The gradients are", f"at the output of {name}")
            for tensor in output if isinstance(output, tuple) else (output,):
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    tensor.register_hook(backward)  # type: ignore[no-untyped-call]

    with ExitStack() as hooks:
        hooks.enter_context(register_module_forward_pre_hook(check_inputs))
        hooks.enter_context(register_module_forward_hook(check_output))
        yield first


def _gradients(task: nn.Module) -> list[Tensor]:
    """Return the gradients, of sharded parameters the shards of this rank."""
    return [local_tensor(p.grad) for p in task.parameters() if p.grad is not None]


def _finite(value: Any) -> bool:
    tensors = (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
    return all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point())


def eager_again(module: nn.Module) -> None:
    """Undo `nn.Module.compile`."""
    # PyTorch has no public function for this; `nn.Module.compile` sets only this attribute.
    module._compiled_call_impl = None
