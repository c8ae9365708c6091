"""Losses of the target, masked nucleotides, hidden abundances, distances and diversity.

A loss is a sum and a count: added over batches and ranks, both give the exact mean. Shape suffixes:
see `aam.network.model`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from aam.contract.options.groups import LossType
from aam.network.inference.stored_networks import Target
from aam.network.model.network import PairwiseDistance
from aam.network.model.shape import at_least_fp32
from aam.nucleotide_codes import PAD


@dataclass(frozen=True)
class LossTerm:
    """Term of a loss or metric: a sum and the number (or total weight) of its items, both scalars.

    Sums of batches or ranks are added before the division, so that the result is the mean of all
    items, however they are divided into batches.

    >>> batches = [LossTerm(torch.tensor(6.0), torch.tensor(3))]
    >>> batches.append(LossTerm(torch.tensor(4.0), torch.tensor(1)))
    >>> float(LossTerm(sum(b.total for b in batches), sum(b.number for b in batches)).mean)
    2.5
    """

    total: Tensor
    number: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean of the items; 0 without items."""
        # A batch may have no masked nucleotide, and a rank no sample: 0 / 0 would be NaN.
        return self.total / self.number.clamp_min(torch.finfo(torch.float32).tiny)


def _constant(like: Tensor, value: float) -> Tensor:
    """Return a scalar with the type and device of a tensor."""
    # Filled on the device: a tensor made from a number would be copied from the CPU, and the CPU
    # would wait until the GPU has done all earlier work.
    return like.new_full((), value)


def nucleotide_loss(logits_UL4: Tensor, labels_UL: Tensor) -> tuple[LossTerm, LossTerm]:
    """Return the cross-entropy loss and the accuracy of masked nucleotides.

    >>> labels_UL = torch.tensor([[1, 0, 4]])
    >>> logits_UL4 = 100.0 * torch.eye(4)[torch.tensor([[0, 0, 2]])]
    >>> entropy, correct = nucleotide_loss(logits_UL4, labels_UL)
    >>> float(correct.mean), int(correct.number)
    (0.5, 2)
    """
    label_N = labels_UL.flatten().long() - 1
    logits_N4 = logits_UL4.flatten(0, 1)
    entropy = F.cross_entropy(at_least_fp32(logits_N4), label_N, ignore_index=-1, reduction="sum")
    correct = (logits_N4.argmax(dim=-1) == label_N).sum()
    number = (labels_UL != PAD).sum()
    return LossTerm(entropy, number), LossTerm(correct, number)


def distance_loss(
    head: PairwiseDistance,
    local_BD: Tensor,
    distances_BA: Tensor,
    all_AD: Tensor | None = None,
    first: int = 0,
) -> LossTerm:
    """Return the squared error of the distances between samples, each pair once."""
    all_AD = local_BD if all_AD is None else all_AD
    rows, columns = distances_BA.shape
    # Above the diagonal of the complete matrix, so that all ranks together count each pair once.
    i, j = torch.triu_indices(rows, columns, first + 1, device=distances_BA.device)
    predicted = head(local_BD[i], all_AD[j])
    error = (predicted - distances_BA[i, j]).square().sum()
    return LossTerm(error, _constant(error, len(i)))


def count_loss(predicted_BS: Tensor, counts_BS: Tensor, hidden_BS: Tensor) -> LossTerm:
    """Return the squared error of the log10 of hidden relative abundances."""
    # Relative to all reads, including hidden ones: the label is the abundance in the sample.
    total_B1 = counts_BS.sum(dim=1, keepdim=True).clamp_min(1)
    log_BS = (counts_BS.clamp_min(1) / total_B1).log10()
    # A mask instead of a selection: the shape of a selection depends on the data, so a GPU waits.
    error_BS = torch.where(hidden_BS, at_least_fp32(predicted_BS) - log_BS, 0.0)
    return LossTerm(error_BS.square().sum(), hidden_BS.sum())


def diversity_loss(predicted_B: Tensor, diversity_B: Tensor) -> LossTerm:
    """Return the squared error of the standardized Faith PD (diversity)."""
    error = (at_least_fp32(predicted_B) - diversity_B).square().sum()
    return LossTerm(error, _constant(error, len(predicted_B)))


def _quantile(error_BC: Tensor, target: Target) -> Tensor:
    """Pinball loss (Koenker and Bassett 1978): level q weighs errors below by q."""
    level_C = torch.stack([_constant(error_BC, level) for level in target.quantiles])
    return torch.maximum(-level_C * error_BC, (1 - level_C) * error_BC)


def _asymmetric(error_BC: Tensor, target: Target) -> Tensor:
    above_BC, below_BC = target.over_penalty * error_BC, -target.under_penalty * error_BC
    return torch.where(error_BC > 0, above_BC, below_BC)


LOSSES: dict[LossType, Callable[[Tensor, Target], Tensor]] = {
    "mse": lambda error_BC, _: error_BC.square(),
    "mae": lambda error_BC, _: error_BC.abs(),
    "huber": lambda error_BC, _: F.smooth_l1_loss(
        error_BC, torch.zeros_like(error_BC), reduction="none"
    ),
    "quantile": _quantile,
    "asymmetric": _asymmetric,
}
"""Value of --loss-type -> loss of each error [B, C] of a batch; `LossType` lists the same names."""


def target_loss(
    target: Target, outputs_BC: Tensor, target_B: Tensor, weights_B: Tensor | None = None
) -> LossTerm:
    """Return the target loss summed over a batch, and the number or total weight of its samples.

    `weights_B` are weights of the samples, by default 1.

    >>> outputs_BC, labels_B = torch.tensor([[1.0], [4.0]]), torch.tensor([1.0, 2.0])
    >>> float(target_loss(Target("age", loss_type="mse"), outputs_BC, labels_B).mean)
    2.0
    """
    outputs_BC = at_least_fp32(outputs_BC)
    number = _constant(outputs_BC, len(target_B))
    if not target.classes:
        losses_BC = LOSSES[target.loss_type](outputs_BC - target_B[:, None], target)
        if weights_B is not None:
            return LossTerm((weights_B * losses_BC.mean(dim=1)).sum(), weights_B.sum())
        # The sum over no samples is 0; their mean is undefined.
        mean = losses_BC.mean() if len(target_B) else losses_BC.sum()
        return LossTerm(mean * number, number)
    if not target.class_weights and weights_B is None:
        return LossTerm(F.cross_entropy(outputs_BC, target_B, reduction="sum"), number)
    weight_B = torch.ones_like(outputs_BC[:, 0]) if weights_B is None else weights_B
    if target.class_weights:
        weights = [_constant(outputs_BC, weight) for weight in target.class_weights]
        weight_B = weight_B * torch.stack(weights)[target_B]
    total = (weight_B * F.cross_entropy(outputs_BC, target_B, reduction="none")).sum()
    # Divided by the weights instead of the number of samples, as in PyTorch's weighted
    # cross-entropy: the size of the gradient then does not depend on the classes of a batch.
    return LossTerm(total, weight_B.sum())
