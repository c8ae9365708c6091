"""Optimizer, learning-rate schedule, gradient clipping, and parameters without a loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from aam.contract.options.training import LoopOptions
from aam.distributed.state_dict import full_tensor

try:
    from torch.nn.utils import clip_grads_with_norm_
    from torch.nn.utils import get_total_norm as get_total_norm
except ImportError:  # PyTorch 2.4 and 2.5

    def get_total_norm(tensors: list[Tensor]) -> Tensor:  # type: ignore[misc]
        """Return the norm of all tensors together."""
        return torch.stack(torch._foreach_norm(tensors)).norm()

    def clip_grads_with_norm_(  # type: ignore[misc]
        parameters: Sequence[Parameter], max_norm: float, total_norm: Tensor
    ) -> None:
        """Scale gradients whose total norm is known."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        torch._foreach_mul_(gradients, (max_norm / (total_norm + 1e-6)).clamp(max=1))


def make_schedule(optimizer: Optimizer, loop: LoopOptions, steps: int) -> LambdaLR:
    """Build the learning-rate schedule of a run, linear warm-up and then half a cosine to 0.

    The cosine is that of Loshchilov and Hutter (2017, "SGDR"), without restarts.

    Args:
        optimizer: optimizer whose learning rates are the highest ones of the schedule.
        loop: options with the fraction of the steps that are warm-up (`warmup_fraction`, 0 to 1).
        steps: number of optimizer steps of the whole run, resumed parts included.
    """
    return LambdaLR(optimizer, factor_of_step(loop, steps))


def factor_of_step(loop: LoopOptions, steps: int) -> Callable[[int], float]:
    """Return the factor of the learning rate, 0 to 1, at each optimizer step, counted from 0.

    >>> factor = factor_of_step(LoopOptions(warmup_fraction=0.1), steps=100)
    >>> factor(10), round(factor(55), 3), factor(100)
    (1.0, 0.5, 0.0)
    """
    warmup = max(1, round(loop.warmup_fraction * steps))

    def factor(step: int) -> float:
        if step < warmup:
            # Neither 0, which would waste the first step, nor 1, which the cosine begins with.
            return (step + 1) / (warmup + 1)
        done = (step - warmup) / max(1, steps - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))

    return factor


def make_optimizer(task: torch.nn.Module, loop: LoopOptions) -> Optimizer:
    """Build AdamW (Loshchilov and Hutter 2019) for the trainable parameters of a module.

    Args:
        task: module whose parameters are trained unless they are frozen.
        loop: options with the learning rate and the weight decay, which applies to the weights of
            linear layers alone: not to biases, norms, embeddings and scales.
    """
    decaying = {
        id(module.weight) for module in task.modules() if isinstance(module, torch.nn.Linear)
    }
    trainable = [p for p in task.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if id(p) in decaying], "weight_decay": loop.weight_decay},
        {"params": [p for p in trainable if id(p) not in decaying], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=loop.lr)


def clip_gradients(parameters: Sequence[Parameter], max_norm: float) -> None:
    """Scale gradients in place so that their total norm is at most `max_norm`.

    Args:
        parameters: parameters with their gradients, which may be sharded over the ranks.
        max_norm: largest Euclidean norm of all gradients together, above 0.

    >>> weight = Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> clip_gradients([weight], max_norm=1.0)
    >>> round(float(weight.grad.norm()), 4)
    1.0
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if gradients:
        # `torch.nn.utils.clip_grad_norm_` adds its epsilon to the part of the norm of each rank,
        # before the parts of sharded gradients are added: weights differ with the world size.
        clip_grads_with_norm_(parameters, max_norm, full_tensor(get_total_norm(gradients)))
