"""The golden case: one small network with all its parts, and two batches.

"even" has sequences of one length and sets of one size, so that no mask is passed; "ragged" has
neither, so that every sequence and every sample has a mask of its own.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from aam.contract.options.training import LoopOptions
from aam.data.batches import Batch, shortest
from aam.data.sequences import MASK, PAD
from aam.data.target_transforms import TargetTransform
from aam.golden import random_numbers as rng
from aam.inference.stored_networks import Target
from aam.model.attention import AUTO, Backends
from aam.model.network import Predictor
from aam.model.shape import BASES, NetworkShape
from aam.training.module import LossWeights, TrainingModule

SHAPE = NetworkShape(
    max_bp=60,
    embedding_dim=16,
    attention_heads=2,
    attention_layers=2,
    nucleotide_patch=5,
    dropout=0.0,
    outputs=1,
    profile_features=16,
    profile_dropout=0.0,
)
STEPS = 50
"""Training steps of the loss curve; even and ragged batches in turn."""

CASES = ("even", "ragged")
_SAMPLES = {"even": (6, 6, 6, 6), "ragged": (9, 2, 7, 4, 5)}
"""ASVs of each sample."""
_ASVS = 14
_FIRST_ROW = {"even": 0, "ragged": len(_SAMPLES["even"])}
_LOOP = LoopOptions(lr=3e-3)


def network(backends: Backends = AUTO) -> Predictor:
    """Return the network with its random initial weights."""
    return Predictor(SHAPE, "unweighted", backends)


def weights() -> dict[str, Tensor]:
    """Return fixed weights and buffers of the network, by name."""
    return {name: _weight(name, value) for name, value in network().state_dict().items()}


def _weight(name: str, value: Tensor) -> Tensor:
    """Draw a tensor of about the size that it has after some training."""
    shape, last = value.shape, name.rpartition(".")[2]
    if last == "scale":
        return torch.full(shape, 0.5)
    noise = rng.uniform(name, *shape)
    if last in ("phases", "spread"):
        return (noise + 1) * math.pi if last == "phases" else 4 + noise
    if value.ndim == 1:
        return 1 + noise / 8 if last == "weight" and "norm" in name else noise / 8
    # Variance 1 / inputs, as after the initialisation of a linear layer.
    return noise * math.sqrt(3 / shape[-1])


def task(net: Predictor) -> TrainingModule:
    """Return the training module with the real losses and optimizer around the network."""
    target = Target("golden", transform=TargetTransform("none", 0.0, 1.0))
    values = rng.uniform("target", sum(map(len, _SAMPLES.values()))).double().numpy()
    return TrainingModule(net, LossWeights(), _LOOP, STEPS, target, values.astype(np.float64))


def max_grad_norm() -> float:
    """Return the norm to which gradients are clipped."""
    return _LOOP.max_grad_norm


def batch(case: str) -> Batch:
    """Return one of the two batches.

    Args:
        case: "even" or "ragged", one of `CASES`.

    >>> batch("even").attend_BS is None, batch("ragged").attend_BS is None
    (True, False)
    """
    sizes = _SAMPLES[case]
    tokens_UL = rng.integers(f"{case} tokens", 1, 1 + BASES, _ASVS, SHAPE.max_bp)
    if case == "ragged":
        lengths_U = rng.integers("ragged lengths", 23, SHAPE.max_bp + 1, _ASVS)
        lengths_U[0] = SHAPE.max_bp
        tokens_UL[torch.arange(SHAPE.max_bp) >= lengths_U[:, None]] = PAD
    masked_UL = rng.uniform(f"{case} masks", _ASVS, SHAPE.max_bp) < 0.3 - 1
    masked_UL &= tokens_UL != PAD
    labels_UL = torch.where(masked_UL, tokens_UL, PAD)
    tokens_UL[masked_UL] = MASK
    slots_BS = torch.zeros(len(sizes), max(sizes), dtype=torch.int64)
    counts_BS = torch.zeros(len(sizes), max(sizes))
    for row, size in enumerate(sizes):
        slots_BS[row, :size] = rng.permutation(f"{case} slots {row}", _ASVS)[:size]
        counts_BS[row, :size] = rng.integers(f"{case} counts {row}", 1, 400, size).float()
    attend_BS = counts_BS > 0
    distances_BB = (rng.uniform(f"{case} distances", len(sizes), len(sizes)) + 1) / 2
    return Batch(
        rows_B=torch.arange(len(sizes)) + _FIRST_ROW[case],
        asvs_U=torch.arange(_ASVS),
        tokens_UL=tokens_UL.to(torch.uint8),
        labels_UL=labels_UL.to(torch.uint8),
        shortest=shortest(tokens_UL),
        slots_BS=slots_BS,
        counts_BS=counts_BS,
        attend_BS=None if attend_BS.all() else attend_BS,
        distances_BB=distances_BB.triu(1) + distances_BB.triu(1).T,
    )
