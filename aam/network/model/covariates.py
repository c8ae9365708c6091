"""Covariates: metadata columns that the target reads besides the ASVs.

A category is an embedding of its code, the numbers together are a linear map; their vectors are
concatenated. Code 0 is the unknown category: some codes are replaced with it in training, so that
its vector is trained too. UniFrac and nucleotides are predicted without covariates, so a pretrained
encoder and stored vectors of ASVs stay valid. Shape suffixes: K categorical columns, J numbers, W
width of the vector; others see `aam.network.model`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from aam.network.model.shape import CovariateShape

UNKNOWN_RATE = 0.1  # part of the codes that training replaces with 0


@dataclass(frozen=True)
class CovariateInputs:
    """Encoded covariates of samples."""

    codes_BK: Tensor  # int64, 0 for an unknown category
    numbers_BJ: Tensor  # float32, standardized numbers, and 1 where one is missing

    @classmethod
    def unknown(cls, shape: CovariateShape, samples: int, device: torch.device) -> CovariateInputs:
        """Return the inputs of samples without any known value.

        >>> CovariateInputs.unknown(CovariateShape((3,), 2, 8, "add"), 1, torch.device("cpu"))
        CovariateInputs(codes_BK=tensor([[0]]), numbers_BJ=tensor([[0., 1.]]))
        """
        numbers_BJ = torch.zeros(samples, shape.numbers, device=device)
        # The second half of the columns marks missing numbers; the first is their mean, 0.
        numbers_BJ[:, shape.numbers // 2 :] = 1
        codes_BK = torch.zeros(samples, len(shape.categories), dtype=torch.int64, device=device)
        return cls(codes_BK, numbers_BJ)

    def with_unknown(self, rate: float) -> CovariateInputs:
        """Return the inputs with a part (0 to 1) of the codes set to 0, the unknown category."""
        # Vector 0 would have no gradient where every training sample has its categories.
        kept_BK = torch.rand(self.codes_BK.shape, device=self.codes_BK.device) >= rate
        return CovariateInputs(self.codes_BK * kept_BK, self.numbers_BJ)

    def to(self, device: torch.device) -> CovariateInputs:
        """Copy the inputs to `device`."""
        return CovariateInputs(self.codes_BK.to(device), self.numbers_BJ.to(device))

    def take(self, rows_B: Tensor) -> CovariateInputs:
        """Return the inputs of the samples at `rows_B`, on the device of `rows_B`."""
        rows = rows_B.to(self.codes_BK.device)
        return CovariateInputs(self.codes_BK[rows], self.numbers_BJ[rows]).to(rows_B.device)


class CovariateEmbedding(nn.Module):
    """Vector [B, W] of the covariates."""

    def __init__(self, shape: CovariateShape) -> None:
        super().__init__()
        dim = shape.embed_dim
        self.categories = nn.ModuleList(nn.Embedding(number, dim) for number in shape.categories)
        self.numbers = nn.Linear(shape.numbers, dim) if shape.numbers else None

    def forward(self, inputs: CovariateInputs) -> Tensor:
        """Return the vectors of the samples; see `CovariateInputs`."""
        pairs = zip(self.categories, inputs.codes_BK.T, strict=True)
        parts = [embedding(codes_B) for embedding, codes_B in pairs]
        if self.numbers is not None:
            parts.append(self.numbers(inputs.numbers_BJ))
        return torch.cat(parts, dim=-1)
