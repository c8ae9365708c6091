"""Where in a network values stop being finite: one batch, computed again and watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aam.learn.task import Task
from aam.stack.compile import eager_again
from aam.study.batches import Batch


@dataclass(frozen=True)
class Suspect:
    """What is not finite, and where that begins.

    Attributes:
        what: the beginning of a sentence, "The loss is".
        where: a module, a part of the batch.
    """

    what: str
    where: str


def compute_again(
    task: Task,
    batch: Batch,
    context: Callable[[], AbstractContextManager[Any]],
    scale: float,
) -> Suspect | None:
    """Compute a batch forward and backward in the eager network; None if all is finite.

    Args:
        task: in the mode of training; its gradients are lost.
        batch: on its device.
        context: the precision of the run.
        scale: factor of the loss under fp16.
    """
    given = [name for name, value in vars(batch).items() if not _finite(value)]
    if given:
        return Suspect("The batch is", f"its {', '.join(given)} already")
    for name, value in task.network.state_dict().items():
        if not _finite(value):
            return Suspect("Weights are", f"{name} already")
    eager_again(task.encoder.nucleotides)
    task.zero_grad()
    with _watched(task.network) as (forward, backward):
        with torch.enable_grad(), context():
            loss = task.training_step(batch, 0)
        if not _finite(loss):
            return Suspect("The loss is", forward[0] if forward else "first in the loss itself")
        if forward:
            return Suspect("Values of the network are", forward[0])
        torch.autograd.backward(loss * scale)
    if backward:
        return Suspect("The gradients are", backward[0])
    for name, parameter in task.network.named_parameters():
        if not _finite(parameter.grad):
            return Suspect("The gradients are", f"first in that of {name}")
    return None


@contextmanager
def _watched(network: nn.Module) -> Iterator[tuple[list[str], list[str]]]:
    """Give two lists, in the order of computation, of where values and gradients are not finite."""
    forward: list[str] = []
    backward: list[str] = []

    def entered(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any) -> None:
            if not _finite(inputs):
                forward.append(f"first before {name}")

        return hook

    def left(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not _finite(output):
                forward.append(f"first in {name}")
            for tensor in output if isinstance(output, tuple) else (output,):
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    tensor.register_hook(returned(name))  # type: ignore[no-untyped-call]

        return hook

    def returned(name: str) -> Any:
        def hook(gradient: Tensor) -> None:
            if not _finite(gradient):
                backward.append(f"first at the output of {name}")

        return hook

    hooks = []
    for name, module in network.named_modules():
        if name:
            hooks.append(module.register_forward_pre_hook(entered(name)))
            hooks.append(module.register_forward_hook(left(name)))
    try:
        yield forward, backward
    finally:
        for hook in hooks:
            hook.remove()


def _finite(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_finite(item) for item in value)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return True
    return bool(value.detach().isfinite().all())
