"""Sizes of the network: they determine its parameters and are stored in every checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from aam.contract.records import Count, Fraction, Positive


@dataclass(frozen=True)
class CovariateShape:
    """Sizes of the covariates."""

    # number of codes of each categorical column, including 0 for unknown
    categories: tuple[Positive, ...]
    numbers: Count  # numeric inputs: two for each column, its value and whether it is missing
    embed_dim: Positive  # width of the vector of a categorical column, and of all numbers together
    fusion: Literal["concat", "add"]  # how the vectors join the hidden states of the ASVs

    @property
    def width(self) -> int:
        """Width of the vector of all covariates."""
        return self.embed_dim * (len(self.categories) + (self.numbers > 0))


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of the network."""

    max_bp: Positive  # longest sequence in nucleotides
    embedding_dim: Positive = 64  # embedding width D, a multiple of `attention_heads`
    attention_heads: Positive = 4
    attention_layers: Positive = 2  # transformer layers of each of the two encoders
    nucleotide_patch: Positive = 5  # number of adjacent nucleotides of a token
    dropout: Fraction = 0.1
    outputs: Count = 0  # outputs of the target head; 0 for a network without a target
    profile_features: Count = 0  # random features of the community profile; 0: no profile
    profile_dropout: Fraction = 0.7  # dropout of the profile head
    # sizes of the covariates that the target heads read; None without covariates
    covariates: CovariateShape | None = None
    # whether the sample encoder predicts abundances that are hidden from it
    predicts_counts: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of the longest sequence."""
        return -(-self.max_bp // self.nucleotide_patch)


def at_least_fp32(x: Tensor) -> Tensor:
    """Convert a tensor of half precision to float32; return any other tensor unchanged.

    >>> at_least_fp32(torch.ones(1, dtype=torch.bfloat16)).dtype
    torch.float32
    >>> at_least_fp32(torch.ones(1, dtype=torch.float64)).dtype
    torch.float64
    """
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
