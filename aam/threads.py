"""Threads of linear algebra (BLAS)."""

from __future__ import annotations

from contextlib import AbstractContextManager

from threadpoolctl import threadpool_limits

FEW_SAMPLES = 1500
"""Samples below which a second BLAS thread costs more than it saves: it spins between products of
small matrices (docs/experiments/cost.md)."""


def blas_threads(samples: int) -> AbstractContextManager[object]:
    """Limit BLAS to one thread while kernels of few samples are fitted; PyTorch is not limited."""
    limits: AbstractContextManager[object] = threadpool_limits(
        1 if samples < FEW_SAMPLES else None, "blas"
    )
    return limits
