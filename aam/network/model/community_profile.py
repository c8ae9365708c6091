"""Community profile: a kernel mean embedding of the sequences of a sample.

Each sequence is turned into random Fourier features of its letters (Rahimi and Recht, NIPS 2007):
the product of two sequences' features is close to exp(-differences / WIDTH), so equal sequences
have equal features and similar sequences have similar features. The profile of a sample is the sum
over its ASVs, weighted by the log of their abundance. Nothing is learned. ASVs that a narrow
learned vector would merge stay distinct (the strength of random forests on tables), and similar
ASVs stay similar.
Shape suffixes: see `aam.network.model`; W profile features.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.nucleotide_codes import BASES, FINEST, WIDTH


def log_abundance(counts_BS: Tensor) -> Tensor:
    """Return log10(1 + FINEST x relative abundance) of counts; 0 for an ASV without reads.

    >>> log_abundance(torch.tensor([[9999.0, 1.0, 0.0]])).round(decimals=2)
    tensor([[4.0000, 0.3000, 0.0000]])
    """
    relative_BS = counts_BS / counts_BS.sum(dim=1, keepdim=True).clamp_min(1)
    return (1 + FINEST * relative_BS).log10()


def weighted_sum(values_UW: Tensor, slots_BS: Tensor, counts_BS: Tensor) -> Tensor:
    """Return the sums [B, W] of the ASVs' values, weighted by their log abundances."""
    weight_BS = log_abundance(counts_BS).to(values_UW.dtype)
    return F.embedding_bag(slots_BS, values_UW, per_sample_weights=weight_BS, mode="sum")


class CommunityProfile(nn.Module):
    """Standardized features [B, W] of samples; buffers, saved in the checkpoint."""

    frequencies: Tensor
    phases: Tensor
    centre: Tensor
    spread: Tensor

    def __init__(self, max_bp: int, features: int) -> None:
        super().__init__()
        # exp(-|x-y|^2 / (2 s^2)) with |x-y|^2 = 2 * differences, hence s^2 = WIDTH.
        frequencies = torch.randn(max_bp * BASES, features) / math.sqrt(WIDTH)
        self.register_buffer("frequencies", frequencies)
        self.register_buffer("phases", torch.rand(features) * 2 * math.pi)
        self.register_buffer("centre", torch.zeros(features))
        self.register_buffer("spread", torch.ones(features))

    def fit(self, profiles: Iterable[Tensor]) -> None:
        """Fit centre and spread to the raw profiles [B, W] of the training samples."""
        number, total, squares = 0, torch.zeros(()), torch.zeros(())
        for raw_BW in profiles:
            # In float64: a variance as a difference of two large sums would vanish in float32.
            raw_BW = raw_BW.double()
            number += len(raw_BW)
            total = total + raw_BW.sum(dim=0)
            squares = squares + raw_BW.square().sum(dim=0)
        mean = total / number
        self.centre.copy_(mean)
        self.spread.copy_((squares / number - mean.square()).clamp_min(1e-12).sqrt())

    @torch.no_grad()
    def features(self, tokens_UL: Tensor) -> Tensor:
        """Return the random Fourier features [U, W] of sequences without masks."""
        bases = torch.arange(1, BASES + 1, dtype=tokens_UL.dtype, device=tokens_UL.device)
        letters = (tokens_UL[..., None] == bases).flatten(1).to(self.frequencies.dtype)
        # The angles are tens of radians: in half precision their cosine would be random.
        with torch.autocast(tokens_UL.device.type, enabled=False):
            # Padding is a letter of zeros, so letters beyond the longest sequence of the batch can
            # be omitted from the sum.
            return (letters @ self.frequencies[: letters.shape[1]] + self.phases).cos()

    @torch.no_grad()
    def raw(self, features_UW: Tensor, slots_BS: Tensor, counts_BS: Tensor) -> Tensor:
        """Return the profiles [B, W] before standardization."""
        return weighted_sum(features_UW, slots_BS, counts_BS)

    def forward(self, features_UW: Tensor, slots_BS: Tensor, counts_BS: Tensor) -> Tensor:
        """Return standardized profiles [B, W]."""
        return (self.raw(features_UW, slots_BS, counts_BS) - self.centre) / self.spread
