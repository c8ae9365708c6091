"""Sizes of the network, which determine its parameters; stored in every checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from aam.contract.records import Count, Fraction, Positive


@dataclass(frozen=True)
class CovariateShape:
    """Sizes of the covariates.

    Attributes:
        categories: number of codes of each categorical column, 0 for unknown included.
        numbers: numeric inputs: two for each column, its value and whether it is missing.
        embed_dim: width of a category's vector, and of that of all numbers.
        fusion: how the vectors join the hidden states of the ASVs.
    """

    categories: tuple[Positive, ...]
    numbers: Count
    embed_dim: Positive
    fusion: Literal["concat", "add"]

    @property
    def width(self) -> int:
        """Width of the vector of all covariates."""
        return self.embed_dim * (len(self.categories) + (self.numbers > 0))


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of the network.

    Attributes:
        max_bp: longest sequence in nucleotides.
        embedding_dim: embedding width D, a multiple of `attention_heads`.
        attention_layers: transformer layers of each of the two encoders.
        nucleotide_patch: number of adjacent nucleotides of a token.
        outputs: outputs of the target head; 0 for a network without a target.
        profile_features: random features of the community profile; 0: no profile.
        profile_dropout: dropout of the profile head.
        covariates: sizes of the covariates that the target reads; None: it reads the ASVs alone.
        predicts_counts: whether the sample encoder predicts abundances that are hidden from it.
    """

    max_bp: Positive
    embedding_dim: Positive = 64
    attention_heads: Positive = 4
    attention_layers: Positive = 2
    nucleotide_patch: Positive = 5
    dropout: Fraction = 0.1
    outputs: Count = 0
    profile_features: Count = 0
    profile_dropout: Fraction = 0.7
    covariates: CovariateShape | None = None
    predicts_counts: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of the longest sequence."""
        return -(-self.max_bp // self.nucleotide_patch)


def least_weights(embedding_dim: int, attention_layers: int) -> int:
    """Return the number of weights in the transformer layers of both encoders, a lower bound.

    A layer has 3 D^2 for queries, keys and values, D^2 for their mixture, 8 D^2 for the
    feed-forward part, and 13 D of biases and norms.

    Args:
        embedding_dim: embedding width D, at least 1.
        attention_layers: layers of each encoder, at least 0.

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
