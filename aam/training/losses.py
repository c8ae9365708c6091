"""Losses of masked nucleotides, hidden abundances, distances and diversity: sum and count.

Both add up over batches and ranks to exact means. Shape suffixes: see `aam.model`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from aam.model.distance import PairwiseDistance
from aam.model.shape import PAD, at_least_fp32


@dataclass(frozen=True)
class LossTerm:
    """A loss or metric as a sum and the number (or total weight) of its items; both scalars."""

    total: Tensor
    number: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean; 0 without items."""
        return self.total / torch.where(self.number > 0, self.number, 1)


def nucleotide_loss(logits_UL4: Tensor, labels_UL: Tensor) -> tuple[LossTerm, LossTerm]:
    """Return cross-entropy and accuracy of the masked nucleotides.

    Args:
        logits_UL4: logits of the bases.
        labels_UL: tokens that the mask replaced, 1 to 4; 0 where nothing is masked.
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
    """Return the squared error of the distance of every two samples, without the diagonal.

    Args:
        local_BD: embeddings of the samples of this rank; each is paired with all later samples.
        all_AD: embeddings of all samples of the batch; None if `local_BD` are all.
        first: row of the first of `local_BD` in `all_AD`.
    """
    all_AD = local_BD if all_AD is None else all_AD
    rows, columns = distances_BA.shape
    i, j = torch.triu_indices(rows, columns, first + 1, device=distances_BA.device)
    predicted = head(local_BD[i], all_AD[j])
    error = (predicted - distances_BA[i, j]).square().sum()
    return LossTerm(error, torch.as_tensor(len(i), device=error.device))


def count_loss(predicted_BS: Tensor, counts_BS: Tensor, hidden_BS: Tensor) -> LossTerm:
    """Return the squared error of the log10 relative abundances that are hidden.

    Args:
        predicted_BS: log10 of the relative abundance of each ASV of each sample.
        counts_BS: its reads.
        hidden_BS: True where the network did not read them.
    """
    total_B1 = counts_BS.sum(dim=1, keepdim=True).clamp_min(1)
    log_BS = (counts_BS.clamp_min(1) / total_B1).log10()
    error_BS = torch.where(hidden_BS, at_least_fp32(predicted_BS) - log_BS, 0.0)
    return LossTerm(error_BS.square().sum(), hidden_BS.sum())


def diversity_loss(predicted_B: Tensor, diversity_B: Tensor) -> LossTerm:
    """Return the squared error of standardized Faith PD."""
    error = (at_least_fp32(predicted_B) - diversity_B).square().sum()
    return LossTerm(error, torch.as_tensor(len(predicted_B), device=error.device))
