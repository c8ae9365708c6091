"""The whole network: sequences -> ASVs -> samples -> distances, and a target on top.

`Encoder` is what pretraining learns; `Predictor` holds an encoder and adds the target. ASVs are
encoded apart from samples, so that distinct ASVs are encoded once a batch, or once a study when the
encoder is frozen. Shape suffixes: see `aam.model`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from aam.model.distance import PairwiseDistance
from aam.model.nucleotides import NucleotideEncoder
from aam.model.samples import SampleEncoder
from aam.model.shape import PAD, NetworkShape
from aam.model.transformer import AttentionPooling, Transformer
from aam.options.groups import AttnImplementation, Metric


class Encoder(nn.Module):
    """Nucleotide encoder, sample encoder and the UniFrac head."""

    def __init__(
        self,
        shape: NetworkShape,
        metric: Metric,
        implementation: AttnImplementation = "auto",
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.nucleotides = NucleotideEncoder(shape, implementation, recompute)
        self.samples = SampleEncoder(shape, implementation, recompute)
        self.distance = PairwiseDistance(bounded=metric != "weighted")
        self.diversity = nn.Linear(shape.embedding_dim, 1)

    def encode_all(self, tokens_FL: Tensor, chunk: int = 512) -> Iterator[Tensor]:
        """Yield the vectors [chunk, D] of all sequences (uint8, on the CPU), without gradient."""
        device = self.nucleotides.position.device
        for start in range(0, len(tokens_FL), chunk):
            tokens_UL = tokens_FL[start : start + chunk]
            ragged = bool((tokens_UL == PAD).any())
            with torch.no_grad():
                yield self.nucleotides(tokens_UL.to(device), ragged)[0]


class Predictor(nn.Module):
    """An encoder, and a further transformer over its members that reads out the target.

    The target is read from the members' hidden states, not from the embedding alone: the embedding
    keeps what UniFrac needs, the target may need something else.
    """

    def __init__(
        self,
        shape: NetworkShape,
        metric: Metric,
        implementation: AttnImplementation = "auto",
        recompute: bool = False,
    ) -> None:
        super().__init__()
        dim = shape.embedding_dim
        self.encoder = Encoder(shape, metric, implementation, recompute)
        self.transformer = Transformer(
            dim, shape.attention_heads, 1, shape.dropout, implementation, recompute
        )
        self.pooling = AttentionPooling(dim)
        self.head = nn.Sequential(
            nn.LayerNorm(2 * dim),
            nn.Linear(2 * dim, dim),
            nn.GELU(),
            nn.Dropout(shape.dropout),
            nn.Linear(dim, shape.outputs),
        )

    def target(self, embedding_BD: Tensor, hidden_BSD: Tensor, attend_BS: Tensor | None) -> Tensor:
        """Outputs [B, C] from the sample encoder's embedding and hidden states."""
        pooled_BD = self.pooling(self.transformer(hidden_BSD, attend_BS), attend_BS)
        return self.head(torch.cat([embedding_BD, pooled_BD], dim=-1))
