"""The numbers that decide which weights a network has; stored in every checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

VOCABULARY = 7
"""Tokens that a nucleotide can be: pad (0), A, C, G, T, ambiguous, mask."""

PAD = 0
BASES = 4
"""A, C, G and T: tokens 1 to 4, the only ones that are predicted."""


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of the network.

    Attributes:
        max_bp: longest sequence in nucleotides.
        outputs: numbers that the target head gives; 0 for a network without a target.
        profile_features: random features of the community profile; 0 leaves it out.
        profile_dropout: dropout of what reads the profile.
    """

    max_bp: int
    embedding_dim: int = 64
    attention_heads: int = 4
    attention_layers: int = 2
    nucleotide_patch: int = 5
    dropout: float = 0.1
    outputs: int = 0
    profile_features: int = 0
    profile_dropout: float = 0.7

    @property
    def tokens(self) -> int:
        """Tokens of the longest sequence."""
        return -(-self.max_bp // self.nucleotide_patch)


def at_least_fp32(x: Tensor) -> Tensor:
    """Return a tensor of half precision in single; what is more precise stays as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
