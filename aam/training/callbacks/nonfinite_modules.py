"""Module hooks that locate the first non-finite value or gradient of a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from aam.data.batches import Batch
from aam.distributed.state_dict import local_tensor

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
