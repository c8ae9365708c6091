"""UniFrac head: the distance of two sample embeddings. Shape suffixes: see `aam.model`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.model.shape import at_least_fp32


class PairwiseDistance(nn.Module):
    """Root-mean-square difference of two embeddings, scaled by a learned positive number.

    The mean over the width makes its range independent of the width. Bounded measures (all UniFrac
    variants but plain weighted) go through tanh, so predictions lie in [0, 1); the distance of an
    embedding to itself is exactly 0.

    Args:
        bounded: whether the distances lie in [0, 1).

    >>> head = PairwiseDistance(bounded=True)
    >>> embeddings_BD = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> distances_BB = head(embeddings_BD[:, None], embeddings_BD)
    >>> distances_BB[0, 0].item(), bool((distances_BB < 1).all())
    (0.0, True)
    """

    def __init__(self, bounded: bool) -> None:
        super().__init__()
        self.bounded = bounded
        # A vector of one: FSDP cannot shard a tensor without dimensions.
        self.scale = nn.Parameter(torch.tensor([0.5]))

    def forward(self, a_ND: Tensor, b_ND: Tensor) -> Tensor:
        """Return the distances [N] between the rows of `a_ND` and `b_ND`, whose axes broadcast."""
        square_N = (at_least_fp32(a_ND) - at_least_fp32(b_ND)).square().mean(dim=-1)
        # The square root has no gradient at 0, where the distance is 0 and stays 0. NaN counts as
        # not 0, so that it stays NaN.
        nonzero_N = square_N != 0
        root_N = torch.where(nonzero_N, square_N, 1.0).sqrt() * nonzero_N
        distance_N = F.softplus(self.scale) * root_N
        return distance_N.tanh() if self.bounded else distance_N
