"""Encoder and predictor: sequences -> ASVs -> samples -> distances, and a target.

Pretraining trains an `Encoder`; a `Predictor` contains an encoder and adds the target heads. ASVs
are encoded separately from samples: each distinct ASV once in a batch, or once in a study if the
encoder is frozen. Shape suffixes: see `aam.network.model`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.contract.options.groups import Metric
from aam.network.model.attention import AUTO, Backends
from aam.network.model.community_profile import CommunityProfile, weighted_sum
from aam.network.model.covariate_embedding import CovariateEmbedding, CovariateInputs
from aam.network.model.encoders import NucleotideEncoder, SampleEncoder
from aam.network.model.shape import NetworkShape, at_least_fp32
from aam.network.model.transformer import AttentionPooling, TransformerEncoder

PROFILE_HIDDEN = 256  # width of the hidden layer of the profile head


class PairwiseDistance(nn.Module):
    """Root-mean-square difference of two embeddings, scaled by a learned positive number.

    Taking the mean over the width makes the range independent of the width. The prediction of a
    bounded metric (every UniFrac metric except "weighted") goes through tanh, so it lies in [0, 1).
    The distance of an embedding to itself is exactly 0.

    >>> head = PairwiseDistance(bounded=True)
    >>> embeddings_BD = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> distances_BB = head(embeddings_BD[:, None], embeddings_BD)
    >>> distances_BB[0, 0].item(), bool((distances_BB < 1).all())
    (0.0, True)
    """

    def __init__(self, bounded: bool) -> None:
        super().__init__()
        self.bounded = bounded
        # A vector of one number: FSDP cannot shard a tensor without dimensions.
        self.scale = nn.Parameter(torch.tensor([0.5]))

    def forward(self, a_ND: Tensor, b_ND: Tensor) -> Tensor:
        """Return the distances [N] between the rows of `a_ND` and `b_ND`, whose axes broadcast."""
        square_N = (at_least_fp32(a_ND) - at_least_fp32(b_ND)).square().mean(dim=-1)
        # The square root has no gradient at 0, so a distance of 0 is left out of it and stays 0.
        # NaN counts as nonzero, so that it stays NaN.
        nonzero_N = square_N != 0
        root_N = torch.where(nonzero_N, square_N, 1.0).sqrt() * nonzero_N
        distance_N = F.softplus(self.scale) * root_N
        return distance_N.tanh() if self.bounded else distance_N


class Encoder(nn.Module):
    """Nucleotide encoder, sample encoder and the UniFrac head."""

    def __init__(
        self,
        shape: NetworkShape,
        metric: Metric,  # phylogenetic metric; the distances of all but "weighted" are bounded by 1
        backends: Backends = AUTO,
        recompute: bool = False,  # whether to use gradient checkpointing
    ) -> None:
        super().__init__()
        self.shape = shape
        self.nucleotides = NucleotideEncoder(shape, backends, recompute)
        self.samples = SampleEncoder(shape, backends, recompute)
        self.distance = PairwiseDistance(bounded=metric != "weighted")
        self.diversity = nn.Linear(shape.embedding_dim, 1)

    @property
    def encoder(self) -> Encoder:
        """The encoder itself, for code that takes an encoder or a predictor."""
        return self

    def encode_all(self, chunks: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield the vectors [U, D] of chunks of sequences (uint8 [U, L]), without gradient."""
        device = self.nucleotides.position.device
        for tokens_UL in chunks:
            ragged = self.nucleotides.ragged(tokens_UL)
            with torch.no_grad():
                yield self.nucleotides(tokens_UL.to(device), ragged)[0]


class ProfileHead(nn.Sequential):
    """Head of the community profile: dropout, linear layer, activation, dropout, output layer."""

    def hidden(self, profile_BW: Tensor) -> Tensor:
        """Return the hidden layer [B, W], before the activation."""
        dropout, linear = self[0], self[1]
        hidden_BW: Tensor = linear(dropout(profile_BW))
        return hidden_BW

    def forward(self, hidden_BW: Tensor) -> Tensor:
        """Return the outputs [B, C] from the hidden layer, after covariates were added to it."""
        outputs_BC = hidden_BW
        for layer in list(self)[2:]:
            outputs_BC = layer(outputs_BC)
        return outputs_BC


class Predictor(nn.Module):
    """Encoder with two target heads, whose outputs are averaged.

    The first head reads the hidden states of a sample's ASVs through another transformer, because
    the embedding is trained for UniFrac. The second head reads the community profile. The loss is
    the mean of the losses of both heads, so each head is trained independently. Covariates are
    joined with the ASVs before the transformer, and with the hidden layer of the profile head; at
    the start of training they change nothing.
    """

    def __init__(
        self,
        shape: NetworkShape,  # sizes of the network; `outputs` is at least 1
        metric: Metric,
        backends: Backends = AUTO,
        recompute: bool = False,  # whether to use gradient checkpointing
    ) -> None:
        super().__init__()
        dim = shape.embedding_dim
        self.encoder = Encoder(shape, metric, backends, recompute)
        self.transformer = TransformerEncoder(shape, 1, backends, recompute)
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
            self.profile_head = ProfileHead(
                nn.Dropout(shape.profile_dropout),
                nn.Linear(shape.profile_features, PROFILE_HIDDEN),
                nn.GELU(),
                nn.Dropout(shape.profile_dropout),
                nn.Linear(PROFILE_HIDDEN, shape.outputs),
            )
        self.covariates: CovariateEmbedding | None = None
        if shape.covariates is not None:
            self.covariates = CovariateEmbedding(shape.covariates)
            width, concat = shape.covariates.width, shape.covariates.fusion == "concat"
            self.fusion = nn.Linear(dim + width if concat else width, dim)
            # The identity or zero: a pretrained encoder was trained without covariates, so they
            # must not change the hidden states at the start.
            (nn.init.eye_ if concat else nn.init.zeros_)(self.fusion.weight)
            nn.init.zeros_(self.fusion.bias)
            if self.profile is not None:
                self.profile_fusion = nn.Linear(width, PROFILE_HIDDEN, bias=False)
                nn.init.zeros_(self.profile_fusion.weight)

    def start_from(self, outputs_C: Tensor) -> None:
        """Initialize every head to a constant output."""
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
        counts_BS: Tensor,  # reads of each ASV, 0 for padding
        covariates: CovariateInputs | None = None,
    ) -> Tensor:
        """Return the outputs [X, B, C] of the X heads; `tokens_UL` must be unmasked."""
        profile_BW = None
        if self.profile is not None:
            features_UW = self.profile.features(tokens_UL)
            profile_BW = self.profile_head.hidden(self.profile(features_UW, slots_BS, counts_BS))
        return self.heads(embedding_BD, hidden_BSD, attend_BS, profile_BW, covariates)

    @torch.no_grad()
    def profile_terms(self, tokens_UL: Tensor) -> Tensor:
        """Return what each sequence adds to the hidden layer of the profile head, [U, W].

        Without dropout the hidden layer is linear in the profile: it is `profile_offset` plus the
        sum of these terms, weighted by the log abundances. A term takes fewer bytes than the
        features of a sequence.
        """
        first = self.profile_head[1]
        assert self.profile is not None and isinstance(first, nn.Linear)
        return self.profile.features(tokens_UL) / self.profile.spread @ first.weight.T

    @torch.no_grad()
    def profile_hidden(self, terms_UW: Tensor, slots_BS: Tensor, counts_BS: Tensor) -> Tensor:
        """Return the hidden layer [B, W] of the profile head from the terms of sequences."""
        return weighted_sum(terms_UW, slots_BS, counts_BS) + self.profile_offset()

    @torch.no_grad()
    def profile_offset(self) -> Tensor:
        """Return the hidden layer [W] of the profile head for a sample without ASVs."""
        assert self.profile is not None
        first = self.profile_head[1]
        offset_W: Tensor = first(-self.profile.centre / self.profile.spread)
        return offset_W

    def heads(
        self,
        embedding_BD: Tensor,
        hidden_BSD: Tensor,
        attend_BS: Tensor | None,
        profile_BW: Tensor | None,
        covariates: CovariateInputs | None = None,
    ) -> Tensor:
        """Return the outputs [X, B, C]; `profile_BW` is `ProfileHead.hidden` of the profile."""
        covariates_BW = None
        if self.covariates is not None:
            sizes, device = self.encoder.shape.covariates, hidden_BSD.device
            assert sizes is not None
            covariates = covariates or CovariateInputs.unknown(sizes, len(hidden_BSD), device)
            if self.training:
                covariates = covariates.with_unknown()
            covariates_BW = self.covariates(covariates)
            hidden_BSD = self._fuse(hidden_BSD, covariates_BW)
        pooled_BD = self.pooling(self.transformer(hidden_BSD, attend_BS), attend_BS)
        outputs = [self.head(torch.cat([embedding_BD, pooled_BD], dim=-1))]
        if profile_BW is not None:
            if covariates_BW is not None:
                profile_BW = profile_BW + self.profile_fusion(covariates_BW)
            outputs.append(self.profile_head(profile_BW).to(outputs[0].dtype))
        return torch.stack(outputs)

    def _fuse(self, hidden_BSD: Tensor, covariates_BW: Tensor) -> Tensor:
        """Join the vector of the covariates with the hidden state of every member."""
        assert self.encoder.shape.covariates is not None
        covariates_B1W = covariates_BW[:, None].to(hidden_BSD.dtype)
        if self.encoder.shape.covariates.fusion == "add":
            fused_BSD: Tensor = hidden_BSD + self.fusion(covariates_B1W)
            return fused_BSD
        covariates_BSW = covariates_B1W.expand(-1, hidden_BSD.shape[1], -1)
        fused_BSD = self.fusion(torch.cat([hidden_BSD, covariates_BSW], dim=-1))
        return fused_BSD
