"""Principal coordinates analysis (PCoA) of embeddings and of distance matrices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def principal_coordinates(vectors_ND: npt.ArrayLike, axes: int = 2) -> tuple[F64, F64]:
    """Compute the PCoA of the Euclidean distances between rows, without the N x N matrix.

    It is the singular value decomposition of the centred vectors (Gower 1966). The sign of an axis
    is chosen so that its largest coordinate is positive: the same input gives the same result.

    Args:
        vectors_ND: N of 1 or more.
        axes: number of axes; those beyond the rank are zero.

    Returns:
        coordinates float64 [N, axes]; fraction of the variance that each axis explains, [axes].
    """
    vectors = np.asarray(vectors_ND, dtype=np.float64)
    centred = vectors - vectors.mean(axis=0)
    left, singular, _ = np.linalg.svd(centred, full_matrices=False)
    kept = min(axes, len(singular))
    coordinates = np.zeros((len(vectors), axes))
    coordinates[:, :kept] = left[:, :kept] * singular[:kept]
    explained = np.zeros(axes)
    total = float(np.square(singular).sum())
    if total > 0:
        explained[:kept] = np.square(singular[:kept]) / total
    return _oriented(coordinates), explained


def coordinates_of_distances(distances_NN: npt.ArrayLike, axes: int = 2) -> tuple[F64, F64]:
    """Compute the PCoA of a distance matrix, by all its eigenvalues: for a few thousand samples.

    Args:
        distances_NN: symmetric, with a diagonal of zeros.
        axes: number of axes.

    Returns:
        coordinates float64 [N, axes]; fraction of the positive eigenvalues of each axis, [axes].
    """
    squared = -0.5 * np.square(np.asarray(distances_NN, dtype=np.float64))
    means = squared.mean(axis=0)
    values, vectors = np.linalg.eigh(squared - means - means[:, None] + means.mean())
    largest = np.argsort(-values)[:axes]
    kept = values[largest].clip(min=0)
    return _oriented(vectors[:, largest] * np.sqrt(kept)), kept / values.clip(min=0).sum()


def _oriented(coordinates: F64) -> F64:
    """Make the largest coordinate of each axis positive."""
    farthest = np.abs(coordinates).argmax(axis=0)
    signs = np.sign(coordinates[farthest, np.arange(coordinates.shape[1])])
    return coordinates * np.where(signs < 0, -1.0, 1.0)


def write_ordination(
    path: Path, sample_ids: Sequence[str], coordinates_NA: F64, explained_A: F64
) -> None:
    """Write `ordination.txt`, the text format of scikit-bio that QIIME 2 imports as PCoAResults.

    Args:
        path: the file.
        sample_ids: N names.
        coordinates_NA: of N samples on A axes.
        explained_A: fraction of the variance that each axis explains.
    """
    import pandas as pd
    from skbio import OrdinationResults

    axes = [f"PC{axis + 1}" for axis in range(coordinates_NA.shape[1])]
    OrdinationResults(
        "PCoA",
        "Principal Coordinate Analysis",
        eigvals=pd.Series(np.square(coordinates_NA).sum(axis=0), axes),
        samples=pd.DataFrame(coordinates_NA, list(sample_ids), axes),
        proportion_explained=pd.Series(explained_A, axes),
    ).write(str(path))
