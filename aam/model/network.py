"""The whole network: sequences -> ASVs -> samples -> distances, and a target on top.

`Encoder` is what pretraining learns; `Predictor` holds an encoder and adds the target. ASVs are
encoded apart from samples, so that distinct ASVs are encoded once a batch, or once a study when the
encoder is frozen. Shape suffixes: see `aam.model`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from aam.contract.options.groups import Metric
from aam.model.attention import AUTO, Backends
from aam.model.distance import PairwiseDistance
from aam.model.nucleotides import NucleotideEncoder
from aam.model.profile import CommunityProfile
from aam.model.samples import SampleEncoder
from aam.model.shape import NetworkShape
from aam.model.transformer import AttentionPooling, Transformer

PROFILE_HIDDEN = 256
"""Width of the hidden layer that reads the profile."""


class Encoder(nn.Module):
    """Nucleotide encoder, sample encoder and the UniFrac head."""

    def __init__(
        self,
        shape: NetworkShape,
        metric: Metric,
        backends: Backends = AUTO,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.nucleotides = NucleotideEncoder(shape, backends, recompute)
        self.samples = SampleEncoder(shape, backends, recompute)
        self.distance = PairwiseDistance(bounded=metric != "weighted")
        self.diversity = nn.Linear(shape.embedding_dim, 1)

    def encode_all(self, chunks: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield the vectors [U, D] of chunks of sequences (uint8 [U, L]), without gradient."""
        device = self.nucleotides.position.device
        for tokens_UL in chunks:
            ragged = self.nucleotides.ragged(tokens_UL)
            with torch.no_grad():
                yield self.nucleotides(tokens_UL.to(device), ragged)[0]


class Predictor(nn.Module):
    """An encoder, and two ways to read the target from it, whose answers are averaged.

    One reads the members' hidden states with a further transformer: the embedding keeps what
    UniFrac needs, the target may need something else. The other reads the community profile. Each
    learns on its own (the loss is the mean of their losses), so that neither leans on the other.
    """

    def __init__(
        self,
        shape: NetworkShape,
        metric: Metric,
        backends: Backends = AUTO,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        dim = shape.embedding_dim
        self.encoder = Encoder(shape, metric, backends, recompute)
        self.transformer = Transformer(shape, 1, backends, recompute)
        self.pooling = AttentionPooling(dim)
        self.head = nn.Sequential(
            nn.LayerNorm(2 * dim),
            nn.Linear(2 * dim, dim),
            nn.GELU(),
            nn.Dropout(shape.dropout),
            nn.Linear(dim, shape.outputs),
        )
        self.profile: CommunityProfile | None = None
        if shape.profile_features:
            self.profile = CommunityProfile(shape.max_bp, shape.profile_features)
            self.profile_head = nn.Sequential(
                nn.Dropout(shape.profile_dropout),
                nn.Linear(shape.profile_features, PROFILE_HIDDEN),
                nn.GELU(),
                nn.Dropout(shape.profile_dropout),
                nn.Linear(PROFILE_HIDDEN, shape.outputs),
            )

    def start_from(self, outputs_C: Tensor) -> None:
        """Let every readout answer `outputs_C` before it has learnt anything."""
        heads = [self.head] if self.profile is None else [self.head, self.profile_head]
        for head in heads:
            last = head[-1]
            assert isinstance(last, nn.Linear)
            nn.init.zeros_(last.weight)
            with torch.no_grad():
                last.bias.copy_(outputs_C)

    def target(
        self,
        embedding_BD: Tensor,
        hidden_BSD: Tensor,
        attend_BS: Tensor | None,
        tokens_UL: Tensor,
        slots_BS: Tensor,
        counts_BS: Tensor,
    ) -> Tensor:
        """Outputs [R, B, C] of R readouts, from what the sample encoder gave and what it was given.

        Args:
            embedding_BD: embeddings of the samples.
            hidden_BSD: hidden states of their members.
            attend_BS: True where a member exists; None where all do.
            tokens_UL: distinct sequences, not masked.
            slots_BS: row of `tokens_UL` of each member.
            counts_BS: its reads, 0 where there is none.
        """
        pooled_BD = self.pooling(self.transformer(hidden_BSD, attend_BS), attend_BS)
        outputs = [self.head(torch.cat([embedding_BD, pooled_BD], dim=-1))]
        if self.profile is not None:
            profile_BW = self.profile(tokens_UL, slots_BS, counts_BS)
            outputs.append(self.profile_head(profile_BW).to(outputs[0].dtype))
        return torch.stack(outputs)
