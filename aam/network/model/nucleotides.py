"""Nucleotide encoder: one vector for each ASV, and logits of its nucleotides.

A token is a patch of P adjacent nucleotides. Its embedding is the sum of one learned vector for
each position in the patch: a patch of 5 needs a fifth of the tokens and keeps the whole sequence.
Shape suffixes: see `aam.network.model`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.network.model.attention import Backends
from aam.network.model.shape import NetworkShape
from aam.network.model.transformer import AttentionPooling, TransformerEncoder
from aam.nucleotide_codes import BASES, PAD, VOCABULARY


class NucleotideEncoder(nn.Module):
    """Transformer over the patches of each sequence."""

    def __init__(self, shape: NetworkShape, backends: Backends, recompute: bool) -> None:
        super().__init__()
        dim = shape.embedding_dim
        self.patch = shape.nucleotide_patch
        self.patch_embedding = nn.Embedding(self.patch * len(VOCABULARY), dim)
        self.position = nn.Parameter(torch.empty(shape.tokens, dim))
        self.transformer = TransformerEncoder(shape, shape.attention_layers, backends, recompute)
        self.pooling = AttentionPooling(dim)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, self.patch * BASES)
        # A token is the sum of `patch` vectors, which then has the variance 1.
        nn.init.normal_(self.patch_embedding.weight, std=self.patch**-0.5)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, tokens_UL: Tensor, ragged: bool) -> tuple[Tensor, Tensor]:
        """Encode sequences."""
        tokens_UTP = self._patches(tokens_UL)
        u, t, p = tokens_UTP.shape
        attend_UT = (tokens_UTP != PAD).any(dim=-1) if ragged else None
        # Each position of a patch has a table of its own, so that the order of the bases counts.
        place_P = torch.arange(p, device=tokens_UL.device) * len(VOCABULARY)
        index = (tokens_UTP.long() + place_P).view(u * t, p)
        # A bag sums the vectors of a patch without storing them one by one, P times as many.
        x_ND = F.embedding_bag(index, self.patch_embedding.weight, mode="sum")
        x_UTD = x_ND.view(u, t, x_ND.shape[1])
        hidden_UTD = self.transformer(x_UTD + self.position[:t], attend_UT)
        return self.norm(self.pooling(hidden_UTD, attend_UT)), hidden_UTD

    def last_patch(self, length: int) -> int:
        """Return the position of the first nucleotide of the last patch of `length` nucleotides."""
        return max(length - 1, 0) // self.patch * self.patch

    def ragged(self, tokens_UL: Tensor) -> bool:
        """Return whether a sequence has no nucleotide in the last patch."""
        return bool((tokens_UL[:, self.last_patch(tokens_UL.shape[1])] == PAD).any())

    def logits(self, hidden_UTD: Tensor, length: int) -> Tensor:
        """Return the logits [U, L, 4] of A, C, G, T for each nucleotide."""
        # The head maps every patch: its output is narrower than a copy of the hidden states of
        # the patches with a masked nucleotide.
        u, t, _ = hidden_UTD.shape
        return self.head(hidden_UTD).view(u, t * self.patch, BASES)[:, :length]

    def _patches(self, tokens_UL: Tensor) -> Tensor:
        u, length = tokens_UL.shape
        t = -(-length // self.patch)
        return F.pad(tokens_UL, (0, t * self.patch - length), value=PAD).view(u, t, self.patch)
