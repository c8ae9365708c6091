"""Pre-norm transformer blocks over sets and sequences, and the pooling of a set to one vector.

Notable: fused query-key-value projection; each layer is initialized independently, so layers start
with different weights; dropout on the residual branches only. Shape suffixes: see
`aam.network.model`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aam.network.model.attention import AUTO, AttentionMask, Backends, attention
from aam.network.model.shape import NetworkShape, at_least_fp32

FEED_FORWARD = 4  # width of the feed-forward layer, in embedding widths
PRODUCTS = 6  # successive matrix products of one block: qkv, scores, mix, out, widen, narrow


class TransformerBlock(nn.Module):
    """One pre-norm transformer layer (Xiong et al. 2020): attention, then feed-forward."""

    def __init__(self, dim: int, heads: int, dropout: float, backends: Backends) -> None:
        super().__init__()
        self.heads = heads
        self.backends = backends
        self.attention_norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.feed_forward_norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, FEED_FORWARD * dim)
        self.narrow = nn.Linear(FEED_FORWARD * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_NKD: Tensor, mask: AttentionMask | None) -> Tensor:
        """Map hidden states [N, K, D] to hidden states [N, K, D]."""
        n, k, d = x_NKD.shape
        # One product computes queries, keys and values, so the GPU reads the hidden states once.
        qkv_NK3HE = self.qkv(self.attention_norm(x_NKD)).view(n, k, 3, self.heads, d // self.heads)
        # Unbound before they are transposed: the gradient is then already one tensor in this order.
        q_NHKE, k_NHKE, v_NHKE = (x_NKHE.transpose(1, 2) for x_NKHE in qkv_NK3HE.unbind(2))
        mixed_NHKE = attention(q_NHKE, k_NHKE, v_NHKE, mask, self.backends)
        mixed_NKD = mixed_NHKE.transpose(1, 2).reshape(n, k, d)
        x_NKD = x_NKD + self.dropout(self.out(mixed_NKD))
        wide = F.gelu(self.widen(self.feed_forward_norm(x_NKD)))
        return x_NKD + self.dropout(self.narrow(wide))


class TransformerEncoder(nn.Module):
    """Stack of transformer blocks with a final norm."""

    def __init__(
        self,
        shape: NetworkShape,
        layers: int,  # number of blocks, at least 0
        backends: Backends = AUTO,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.blocks = nn.ModuleList(
            TransformerBlock(shape.embedding_dim, shape.attention_heads, shape.dropout, backends)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(shape.embedding_dim)

    def forward(self, x_NKD: Tensor, attend_NK: Tensor | None = None) -> Tensor:
        """Map hidden states [N, K, D] to normalized hidden states [N, K, D]."""
        mask = AttentionMask.of(attend_NK)
        for block in self.blocks:
            if self.recompute and self.training:
                x_NKD = checkpoint(block, x_NKD, mask, use_reentrant=False)
            else:
                x_NKD = block(x_NKD, mask)
        return self.norm(x_NKD)


class AttentionPooling(nn.Module):
    """Learned weighted mean of the members of a set."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, x_NKD: Tensor, attend_NK: Tensor | None = None) -> Tensor:
        """Map hidden states [N, K, D] to vectors [N, D]; sets without members give zeros."""
        weight_NK = self.weights(x_NKD, attend_NK)
        return torch.einsum("nk,nkd->nd", weight_NK.to(x_NKD.dtype), x_NKD)

    def weights(self, x_NKD: Tensor, attend_NK: Tensor | None = None) -> Tensor:
        """Return the weight of each member [N, K], at least float32; the sum of a set is 1."""
        score_NK = at_least_fp32(self.score(x_NKD).squeeze(-1))
        if attend_NK is not None:
            # Not -inf: in a set without members its softmax is NaN.
            score_NK = score_NK.masked_fill(~attend_NK, torch.finfo(score_NK.dtype).min)
        weight_NK = score_NK.softmax(dim=-1)
        # In a set without members the softmax is uniform, so its weights are set to 0.
        return weight_NK if attend_NK is None else weight_NK * attend_NK
