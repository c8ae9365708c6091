"""Encoders of ASVs and of samples: one vector for each ASV, then one for each sample.

A nucleotide token is a patch of P adjacent nucleotides. Its embedding is the sum of one learned
vector for each position in the patch, so patches of 5 need a fifth of the tokens and lose nothing.

A sample is a set of ASVs: there are no position embeddings, so the order of the ASVs does not
matter. An embedding of the abundance is added to the vector of each ASV.
Shape suffixes: see `aam.network.model`.
"""

from __future__ import annotations

import hashlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.network.model.attention import Backends
from aam.network.model.shape import NetworkShape
from aam.network.model.transformer import AttentionPooling, TransformerEncoder
from aam.nucleotide_codes import BASES, PAD, VOCABULARY

ABUNDANCE_FEATURES = 3

TYPICAL_ABUNDANCE = -2.5
"""log10 of a relative abundance: the initial prediction of hidden abundances."""


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
        # With this standard deviation the sum of `patch` vectors, a token, has variance 1.
        nn.init.normal_(self.patch_embedding.weight, std=self.patch**-0.5)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, tokens_UL: Tensor, ragged: bool) -> tuple[Tensor, Tensor]:
        """Return vectors [U, D] of sequences and hidden states [U, T, D] of their patches.

        `ragged` states whether some sequences have fewer patches than others.
        """
        tokens_UTP = self._patches(tokens_UL)
        u, t, p = tokens_UTP.shape
        attend_UT = (tokens_UTP != PAD).any(dim=-1) if ragged else None
        # Each position of a patch has its own table, so that the order of the bases counts.
        table_P = torch.arange(p, device=tokens_UL.device) * len(VOCABULARY)
        index = (tokens_UTP.long() + table_P).view(u * t, p)
        # A bag sums the P vectors of a patch without storing them.
        x_ND = F.embedding_bag(index, self.patch_embedding.weight, mode="sum")
        x_UTD = x_ND.view(u, t, x_ND.shape[1])
        hidden_UTD = self.transformer(x_UTD + self.position[:t], attend_UT)
        return self.norm(self.pooling(hidden_UTD, attend_UT)), hidden_UTD

    @property
    def digest(self) -> str:
        """Digest of the weights that determine the vector of a sequence."""
        digest = hashlib.sha256(f"patch {self.patch}".encode())
        for name, tensor in sorted(self.state_dict().items()):
            # The head predicts masked nucleotides and does not affect the vectors.
            if not name.startswith("head."):
                digest.update(f"{name} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:32]

    def last_patch(self, length: int) -> int:
        """Return the position of the first nucleotide of the last patch of `length` nucleotides."""
        return max(length - 1, 0) // self.patch * self.patch

    def ragged(self, tokens_UL: Tensor) -> bool:
        """Return whether a sequence has no nucleotide in the last patch."""
        return bool((tokens_UL[:, self.last_patch(tokens_UL.shape[1])] == PAD).any())

    def logits(self, hidden_UTD: Tensor, length: int) -> Tensor:
        """Return the logits [U, L, 4] of A, C, G, T for each nucleotide."""
        # The head maps every patch, not the masked ones alone: its output is narrower than a copy
        # of the hidden states of the masked patches.
        u, t, _ = hidden_UTD.shape
        return self.head(hidden_UTD).view(u, t * self.patch, BASES)[:, :length]

    def _patches(self, tokens_UL: Tensor) -> Tensor:
        u, length = tokens_UL.shape
        t = -(-length // self.patch)
        return F.pad(tokens_UL, (0, t * self.patch - length), value=PAD).view(u, t, self.patch)


def abundance_features(counts_BS: Tensor) -> Tensor:
    """Return features [B, S, 3] of counts [B, S]: log count, root and log of relative abundance.

    An absent member (count 0) has features of 0. The log relative abundance is scaled to -1..0.

    >>> abundance_features(torch.tensor([[99.0, 0.0]]))[0, 1]
    tensor([0., 0., 0.])
    """
    total_B1 = counts_BS.sum(dim=1, keepdim=True).clamp_min(1.0)
    relative_BS = counts_BS / total_B1
    present_BS = counts_BS > 0
    log_BS = torch.where(present_BS, relative_BS.clamp_min(1e-12).log10() / 4, 0.0)
    return torch.stack([counts_BS.log1p() / 4, relative_BS.sqrt(), log_BS], dim=-1)


class CountHead(nn.Module):
    """Prediction of hidden abundances from the hidden states of their ASVs."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.hidden_D = nn.Parameter(torch.zeros(dim))
        """Vector that replaces the embedding of a hidden abundance."""
        self.readout = nn.Linear(dim, 1)
        # The head starts near the mean of the labels. From 0, the abundance in a sample of one ASV,
        # it would first have to learn that mean.
        nn.init.constant_(self.readout.bias, TYPICAL_ABUNDANCE)

    def forward(self, hidden_BSD: Tensor) -> Tensor:
        """Return the log10 of the relative abundance of each member [B, S]."""
        predicted_BS: Tensor = self.readout(hidden_BSD).squeeze(-1)
        return predicted_BS


class SampleEncoder(nn.Module):
    """Transformer over the ASVs of each sample."""

    def __init__(self, shape: NetworkShape, backends: Backends, recompute: bool) -> None:
        super().__init__()
        dim = shape.embedding_dim
        self.abundance = nn.Sequential(
            nn.Linear(ABUNDANCE_FEATURES, dim), nn.GELU(), nn.Linear(dim, dim)
        )
        self.transformer = TransformerEncoder(shape, shape.attention_layers, backends, recompute)
        self.pooling = AttentionPooling(dim)
        self.out = nn.Linear(dim, dim)
        self.counts = CountHead(dim) if shape.predicts_counts else None

    def forward(
        self,
        asvs_UD: Tensor,
        slots_BS: Tensor,
        counts_BS: Tensor,  # reads of each ASV, 0 for padding
        attend_BS: Tensor | None,  # False for padding; None without padding
        hidden_BS: Tensor | None = None,  # True for abundances to hide; None to hide none
    ) -> tuple[Tensor, Tensor]:
        """Return embeddings [B, D] of samples and hidden states [B, S, D] of their ASVs."""
        if hidden_BS is not None:
            # Relative to the abundances that are read, since the sum would reveal the hidden ones.
            counts_BS = counts_BS.masked_fill(hidden_BS, 0)
        features = abundance_features(counts_BS.float()).to(asvs_UD.dtype)
        abundance_BSD = self.abundance(features)
        if hidden_BS is not None:
            assert self.counts is not None
            replaced_D = self.counts.hidden_D.to(abundance_BSD.dtype)
            abundance_BSD = torch.where(hidden_BS[..., None], replaced_D, abundance_BSD)
        # Not asvs_UD[slots_BS]: CPU threads add up the gradient of an index in any order, and a
        # resumed run would differ in the last bits.
        x_BSD = F.embedding(slots_BS, asvs_UD) + abundance_BSD
        hidden_BSD = self.transformer(x_BSD, attend_BS)
        return self.out(self.pooling(hidden_BSD, attend_BS)), hidden_BSD
