"""Sizes of the network, which determine its parameters; stored in every checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from aam.contract.records import Count, Fraction, Positive


@dataclass(frozen=True)
class CovariateShape:
    """Sizes of the covariates."""

    # number of codes of each categorical column, 0 for unknown included
    categories: tuple[Positive, ...]
    numbers: Count  # numeric inputs: two for each column, its value and whether it is missing
    embed_dim: Positive  # width of a category's vector, and of that of all numbers
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
    # sizes of the covariates that the target reads; None: it reads the ASVs alone
    covariates: CovariateShape | None = None
    # whether the sample encoder predicts abundances that are hidden from it
    predicts_counts: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of the longest sequence."""
        return -(-self.max_bp // self.nucleotide_patch)


def least_weights(embedding_dim: int, attention_layers: int) -> int:
    """Return the number of weights in the transformer layers of both encoders, a lower bound.

    A layer has 3 D^2 for queries, keys and values, D^2 for their mixture, 8 D^2 for the
    feed-forward part, and 13 D of biases and norms.

    >>> least_weights(embedding_dim=128, attention_layers=4)
    1586176
    """
    return 2 * attention_layers * embedding_dim * (12 * embedding_dim + 13)


def at_least_fp32(x: Tensor) -> Tensor:
    """Return a tensor of half precision in single precision, any other unchanged.

    >>> at_least_fp32(torch.ones(1, dtype=torch.bfloat16)).dtype
    torch.float32
    >>> at_least_fp32(torch.ones(1, dtype=torch.float64)).dtype
    torch.float64
    """
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
