"""Covariates: metadata columns that the target reads besides the ASVs.

A category is an embedding of its code, the numbers together are a linear map; their vectors are
concatenated. Code 0 is the unknown category: some codes are replaced with it in training, so that
its vector is trained too. UniFrac and nucleotides are predicted without covariates, so a pretrained
encoder and stored vectors of ASVs stay valid. Shape suffixes: K categorical columns, J numbers, C
width of the vector; others see `aam.model`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from aam.model.shape import CovariateShape

PSEUDO_SAMPLES = 5
"""Samples with the mean and the variance of all that are added to each category."""

UNKNOWN_RATE = 0.1
"""Part of the codes that training replaces with 0."""


@dataclass(frozen=True)
class CovariateInputs:
    """Encoded covariates of samples.

    Attributes:
        codes_BK: int64, 0 for an unknown category.
        numbers_BJ: float32, standardized numbers, and 1 where one is missing.
    """

    codes_BK: Tensor
    numbers_BJ: Tensor

    @classmethod
    def unknown(cls, shape: CovariateShape, samples: int, device: torch.device) -> CovariateInputs:
        """Return the inputs of samples without any known value."""
        numbers_BJ = torch.zeros(samples, shape.numbers, device=device)
        numbers_BJ[:, shape.numbers // 2 :] = 1
        codes_BK = torch.zeros(samples, len(shape.categories), dtype=torch.int64, device=device)
        return cls(codes_BK, numbers_BJ)

    def with_unknown(self, rate: float) -> CovariateInputs:
        """Return the inputs with a random part of the codes replaced by 0."""
        kept_BK = torch.rand(self.codes_BK.shape, device=self.codes_BK.device) >= rate
        return CovariateInputs(self.codes_BK * kept_BK, self.numbers_BJ)

    def take(self, rows_B: Tensor) -> CovariateInputs:
        """Return the inputs of the samples at `rows_B`, on the device of `rows_B`."""
        rows = rows_B.to(self.codes_BK.device)
        taken = (self.codes_BK[rows], self.numbers_BJ[rows])
        return CovariateInputs(*(tensor.to(rows_B.device) for tensor in taken))


class CovariateEmbedding(nn.Module):
    """Vector [B, C] of the covariates."""

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


class ConditionalScaling(nn.Module):
    """Scale and shift of the output for each category of some columns, one after the other.

    The unknown category has scale 1 and shift 0 at the start, as every other one without
    `start_from`.
    """

    def __init__(self, shape: CovariateShape) -> None:
        super().__init__()
        self.columns = shape.scaling
        sizes = [shape.categories[column] for column in shape.scaling]
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(size)) for size in sizes)
        self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)

    def forward(self, outputs_RBC: Tensor, codes_BK: Tensor) -> Tensor:
        """Map outputs [R, B, C] of samples with these codes."""
        for column, scale, shift in zip(self.columns, self.scales, self.shifts, strict=True):
            codes_B = codes_BK[:, column]
            outputs_RBC = outputs_RBC * scale[codes_B, None] + shift[codes_B, None]
        return outputs_RBC

    def start_from(self, values_B: Tensor, codes_BK: Tensor) -> None:
        """Start from the mean and the spread of a number in each category of training samples.

        Both are shrunk: to a category are added `PSEUDO_SAMPLES` with the mean and the variance of
        all, so that one with few samples is near the identity.

        Args:
            values_B: labels on the scale of the outputs.
            codes_BK: their codes.
        """
        mean, variance = values_B.mean(), values_B.var(correction=0)
        with torch.no_grad():
            # The last column is applied last, so it is fitted first.
            columns = list(zip(self.columns, self.scales, self.shifts, strict=True))
            for column, scale, shift in reversed(columns):
                codes_B = codes_BK[:, column]
                for code in range(1, len(scale)):
                    own = values_B[codes_B == code]
                    number = len(own) + PSEUDO_SAMPLES
                    centre = (own.sum() + PSEUDO_SAMPLES * mean) / number
                    spread = ((own - centre).square().sum() + PSEUDO_SAMPLES * variance) / number
                    scale[code] = (spread / variance).sqrt()
                    shift[code] = centre - scale[code] * mean
                values_B = (values_B - shift[codes_B]) / scale[codes_B]
