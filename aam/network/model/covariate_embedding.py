"""Embedding of covariates: metadata columns that the target heads read besides the ASVs.

Each categorical column has an embedding of its codes, and all numbers together go through a linear
layer; the resulting vectors are concatenated. Code 0 is the unknown category: training replaces
some codes with 0, so that its vector is trained too. UniFrac and nucleotides are predicted without
covariates, so a pretrained encoder and stored vectors of ASVs stay valid. Shape suffixes: K
categorical columns, J numbers, W width of the vector; for others see `aam.network.model`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from aam.network.model.shape import CovariateShape

UNKNOWN_RATE = 0.1  # fraction of the codes that training replaces with 0


@dataclass(frozen=True)
class CovariateInputs:
    """Encoded covariates of samples."""

    codes_BK: Tensor  # int64, 0 for an unknown category
    numbers_BJ: Tensor  # float32: standardized numbers, then for each number 1 if it is missing

    @classmethod
    def unknown(cls, shape: CovariateShape, samples: int, device: torch.device) -> CovariateInputs:
        """Return the inputs of samples whose covariates are all unknown.

        >>> CovariateInputs.unknown(CovariateShape((3,), 2, 8, "add"), 1, torch.device("cpu"))
        CovariateInputs(codes_BK=tensor([[0]]), numbers_BJ=tensor([[0., 1.]]))
        """
        numbers_BJ = torch.zeros(samples, shape.numbers, device=device)
        # The second half of the columns marks missing numbers; the first is their mean, 0.
        numbers_BJ[:, shape.numbers // 2 :] = 1
        codes_BK = torch.zeros(samples, len(shape.categories), dtype=torch.int64, device=device)
        return cls(codes_BK, numbers_BJ)

    def with_unknown(self, rate: float = UNKNOWN_RATE) -> CovariateInputs:
        """Return the inputs with a random fraction of the codes set to 0, the unknown category."""
        # Without this, vector 0 would have no gradient if every training sample has its categories.
        unchanged_BK = torch.rand(self.codes_BK.shape, device=self.codes_BK.device) >= rate
        return CovariateInputs(self.codes_BK * unchanged_BK, self.numbers_BJ)

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
        """Concatenate the vectors of the columns."""
        pairs = zip(self.categories, inputs.codes_BK.T, strict=True)
        vectors = [embedding(codes_B) for embedding, codes_B in pairs]
        if self.numbers is not None:
            vectors.append(self.numbers(inputs.numbers_BJ))
        return torch.cat(vectors, dim=-1)
