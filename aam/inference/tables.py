"""Output tables: predictions and embeddings as TSV, with atomic writes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from aam.contract.errors import NotFinite, first_few
from aam.contract.files import atomic_write
from aam.contract.options.study import AsvVectorOptions
from aam.data.metadata import ID_HEADER

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


def require_finite(
    what: str, sample_ids: Sequence[str], values_BC: npt.NDArray[np.floating[Any]]
) -> None:
    """Refuse NaN and infinite values, which a table would show as empty cells.

    Args:
        what: name of the values in the message, such as "predictions".
        sample_ids: B names.
        values_BC: values of the samples.

    Raises:
        NotFinite: a sample, which is named, has a value that is NaN or infinite.

    >>> require_finite("predictions", ["a"], np.array([[1.0]]))
    """
    invalid = np.flatnonzero(~np.isfinite(values_BC).all(axis=1))
    if len(invalid):
        ids = (sample_ids[row] for row in invalid.tolist())
        raise NotFinite(
            f"The model's {what} are not finite numbers",
            f"samples {first_few(ids)} of {len(sample_ids)}",
            "run `aam check` on this device, or use another checkpoint",
        )


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a tab-separated file with numbers in full precision."""
    with atomic_write(path) as temporary:
        table.to_csv(temporary, sep="\t", index=False)


def write_embeddings(
    path: Path, sample_ids: Sequence[str], blocks: Iterable[npt.NDArray[np.float32]]
) -> None:
    """Write the table sample-id, e0, e1, ... of the samples, in their order.

    Args:
        path: file, written atomically.
        sample_ids: N names.
        blocks: float32 [n, D] of consecutive samples, N rows together.

    Raises:
        NotFinite: an embedding is NaN or infinite.
    """
    ids = iter(sample_ids)
    with (
        atomic_write(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as stream,
    ):
        for number, block_ND in enumerate(blocks):
            names = list(itertools.islice(ids, len(block_ND)))
            require_finite("embeddings", names, block_ND)
            table = pd.DataFrame(block_ND, columns=[f"e{i}" for i in range(block_ND.shape[1])])
            table.insert(0, ID_HEADER, names)
            table.to_csv(stream, sep="\t", index=False, header=number == 0)
