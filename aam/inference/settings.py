"""Settings of the application of a model to samples."""

from __future__ import annotations

from dataclasses import dataclass

from aam.contract.options.study import AsvVectorOptions

NO_VECTORS = AsvVectorOptions()
"""No folder: every ASV is encoded."""


@dataclass(frozen=True)
class InferenceSettings:
    """How a model is applied to samples; only networks read these settings.

    Attributes:
        batch_size: samples at a time; the outputs depend on it by rounding alone.
        passes: number of rarefactions.
        vectors: folder of ASV vectors, see `aam.inference.asv_vectors`.
    """

    batch_size: int = 32
    passes: int = 1
    vectors: AsvVectorOptions = NO_VECTORS
