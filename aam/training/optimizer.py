"""The optimiser, its schedule, and which parameters a run teaches at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from aam.contract.options.groups import LoopOptions
from aam.distributed.collectives import add_up
from aam.distributed.state_dict import local
from aam.model.network import Encoder, Predictor


def schedule(loop: LoopOptions, steps: int) -> Callable[[int], float]:
    """Return the factor of the learning rate at each optimiser step, counted from 0."""
    warmup = max(1, round(loop.warmup_fraction * steps))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if loop.scheduler == "constant":
            return 1.0
        done = (step - warmup) / max(1, steps - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))

    return factor


def make_optimizer(task: torch.nn.Module, loop: LoopOptions) -> Optimizer:
    """Build the optimiser; biases, norms, positions and embeddings do not decay."""
    decaying = {
        id(module.weight) for module in task.modules() if isinstance(module, torch.nn.Linear)
    }
    learned = [p for p in task.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in learned if id(p) in decaying], "weight_decay": loop.weight_decay},
        {"params": [p for p in learned if id(p) not in decaying], "weight_decay": 0.0},
    ]
    if loop.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=loop.lr, momentum=0.9)
    if loop.optimizer == "adam":
        return torch.optim.Adam(groups, lr=loop.lr)
    return torch.optim.AdamW(groups, lr=loop.lr)


def norm_of(parts: list[Tensor]) -> Tensor:
    """Return the norm of several tensors together; torch names it in public from 2.6 on."""
    return torch.stack(torch._foreach_norm(parts)).norm()


def clip(gradients: Sequence[Tensor], limit: float) -> None:
    """Shrink gradients in place until the norm of all of them together is at most `limit`.

    As `torch.nn.utils.clip_grad_norm_` does. That of PyTorch 2.7 takes its divisor of each rank's
    part of a sharded gradient, so a run on other ranks got other weights by some 1e-7.
    """
    own = [local(gradient) for gradient in gradients]
    if not own:
        return
    norm = norm_of(own)
    if own[0] is not gradients[0]:
        norm = add_up(norm.square()).sqrt()
    torch._foreach_mul_(own, (limit / (norm + 1e-6)).clamp(max=1))


def freeze_idle(
    network: Encoder | Predictor, nucleotides: bool, diversity: bool | None, target: bool
) -> None:
    """Freeze what no part of the loss reaches.

    What has no gradient is not updated, but strategies differ in what they take for no gradient:
    one leaves it out, another sends zeros, and weight decay would tell them apart.

    Args:
        network: that is trained.
        nucleotides: whether masked nucleotides are predicted.
        diversity: whether Faith PD is (True) or distances are (False) predicted; None: neither.
        target: whether the predictor's target is in the loss.
    """
    encoder = network if isinstance(network, Encoder) else network.encoder
    idle: list[torch.nn.Module] = [] if nucleotides else [encoder.nucleotides.head]
    if diversity is not True:
        idle.append(encoder.diversity)
    if diversity is not False:
        idle.append(encoder.distance)
    if diversity is None and not target:
        idle.append(encoder.samples)
    if isinstance(network, Predictor) and not target:
        idle += [child for child in network.children() if child is not encoder]
    for module in idle:
        module.requires_grad_(False)
