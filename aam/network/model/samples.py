"""Sample encoder: one vector for each sample, from its ASVs and their abundances.

A sample is a set: without position embeddings the order of ASVs does not matter. The abundance is
added to the vector of the ASV. Shape suffixes: see `aam.network.model`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.network.model.attention import Backends
from aam.network.model.shape import NetworkShape
from aam.network.model.transformer import AttentionPooling, TransformerEncoder

ABUNDANCE_FEATURES = 3

TYPICAL_ABUNDANCE = -2.5
"""log10 of a relative abundance, at which the prediction of hidden ones starts."""


def abundance_features(counts_BS: Tensor) -> Tensor:
    """Return features [B, S, 3] of counts [B, S]: log count, root and log of relative abundance.

    Absent members (count 0) give zeros. The log relative abundance is scaled to about -1..0.

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
        """Vector that replaces that of a hidden abundance."""
        self.readout = nn.Linear(dim, 1)
        # The head starts near the labels; from 0, which is a sample of one ASV, it first learns
        # their mean.
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
        counts_BS: Tensor,  # reads of each member, 0 where there is none
        attend_BS: Tensor | None,  # True where a member exists; None where all do
        hidden_BS: Tensor | None = None,  # True where the abundance is not read; None where all are
    ) -> tuple[Tensor, Tensor]:
        """Encode samples."""
        if hidden_BS is not None:
            # Relative to the abundances that are read: the rest would tell the hidden ones.
            counts_BS = counts_BS.masked_fill(hidden_BS, 0)
        features = abundance_features(counts_BS.float()).to(asvs_UD.dtype)
        abundance_BSD = self.abundance(features)
        if hidden_BS is not None:
            assert self.counts is not None
            replaced_D = self.counts.hidden_D.to(abundance_BSD.dtype)
            abundance_BSD = torch.where(hidden_BS[..., None], replaced_D, abundance_BSD)
        # Not asvs_UD[slots_BS]: several threads of a CPU add up its gradient in any order, so that
        # a resumed run would differ in the last bits.
        x_BSD = F.embedding(slots_BS, asvs_UD) + abundance_BSD
        hidden_BSD = self.transformer(x_BSD, attend_BS)
        return self.out(self.pooling(hidden_BSD, attend_BS)), hidden_BSD
