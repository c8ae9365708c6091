"""Losses of the target: a registry for numbers, and cross-entropy for classes."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from aam.contract.options.training import LossType
from aam.inference.target import Target
from aam.model.shape import at_least_fp32
from aam.training.losses import LossTerm


class NumericLoss(Protocol):
    """Loss of a numeric target."""

    def __call__(self, error_BC: Tensor, target: Target) -> Tensor:
        """Return the mean loss of a batch, a scalar.

        Args:
            error_BC: outputs minus labels on the transformed scale, float32 or float64; a column
                for each quantile, or one.
            target: the target, which has the parameters of its loss.
        """
        ...


def _mse(error_BC: Tensor, target: Target) -> Tensor:
    return error_BC.square().mean()


def _mae(error_BC: Tensor, target: Target) -> Tensor:
    return error_BC.abs().mean()


def _huber(error_BC: Tensor, target: Target) -> Tensor:
    return F.smooth_l1_loss(error_BC, torch.zeros_like(error_BC))


def _quantile(error_BC: Tensor, target: Target) -> Tensor:
    """Pinball loss (Koenker and Bassett 1978): level q weighs errors below by q."""
    level_C = error_BC.new_tensor(target.quantiles)
    return torch.maximum(-level_C * error_BC, (1 - level_C) * error_BC).mean()


def _asymmetric(error_BC: Tensor, target: Target) -> Tensor:
    return torch.where(
        error_BC > 0, target.over_penalty * error_BC, -target.under_penalty * error_BC
    ).mean()


LOSSES: dict[LossType, NumericLoss] = {
    "mse": _mse,
    "mae": _mae,
    "huber": _huber,
    "quantile": _quantile,
    "asymmetric": _asymmetric,
}
"""Registry of --loss-type; the option lists the same names (`LossType`)."""


def target_loss(target: Target, outputs_BC: Tensor, target_B: Tensor) -> LossTerm:
    """Return the loss summed over a batch, and the number or total weight of its samples.

    Their quotient over all ranks is the mean that one process computes, however the samples are
    divided among the ranks.

    Args:
        target: the target, which has the weights of its classes or the type of its loss.
        outputs_BC: outputs of the network, or logits of the classes; computed in at least float32.
        target_B: codes of the classes, int64, or transformed numbers; B may be 0.

    >>> outputs_BC, labels_B = torch.tensor([[1.0], [4.0]]), torch.tensor([1.0, 2.0])
    >>> float(target_loss(Target("age", loss_type="mse"), outputs_BC, labels_B).mean)
    2.0
    """
    outputs_BC = at_least_fp32(outputs_BC)
    number = outputs_BC.new_tensor(len(target_B))
    if not target.classes:
        # The sum over no samples is 0; their mean is undefined.
        mean = (
            LOSSES[target.loss_type](outputs_BC - target_B[:, None], target)
            if len(target_B)
            else outputs_BC.sum()
        )
        return LossTerm(mean * number, number)
    if not target.class_weights:
        return LossTerm(F.cross_entropy(outputs_BC, target_B, reduction="sum"), number)
    weights_C = outputs_BC.new_tensor(target.class_weights)
    total = F.cross_entropy(outputs_BC, target_B, weights_C, reduction="sum")
    # Over the weights and not the samples, as PyTorch's mean of a weighted cross-entropy: the
    # gradient keeps its size where the classes of a batch differ in frequency.
    return LossTerm(total, weights_C[target_B].sum())
