"""Ordination: principal coordinates (PCoA) of embeddings, distances, kernels; its text files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aam.arrays import F64
from aam.contract.errors import DataError, first_few, reason_of, repeated
from aam.contract.files import write_text
from aam.contract.records import EDITED
from aam.data.formats.text import check_unquoted, floats, lines_of, numbers, read_rows, read_text
from aam.data.metadata import ID_HEADER


def read_embeddings(path: Path) -> tuple[tuple[str, ...], F64]:
    """Read the embeddings.tsv of `aam embed`: unique sample ids, float64 [N, D]."""
    title, remedy = "table of embeddings", "give the embeddings.tsv of `aam embed`"
    header, rows = read_rows(path, title, (ID_HEADER,))
    expected = [ID_HEADER, *(f"e{k}" for k in range(len(header) - 1))]
    if header != expected or len(header) < 2 or not rows:
        evidence = f"'{path}' has {len(rows)} rows and the columns {first_few(header)}"
        raise DataError("Not a table of embeddings", evidence, remedy)
    ids = tuple(row[ID_HEADER] for row in rows)
    if twice := repeated(ids):
        evidence = f"{first_few(twice)} in '{path}'"
        raise DataError("Sample ids occur twice", evidence, "give each sample one row")
    return ids, np.array([numbers(rows, name, path, title) for name in header[1:]]).T


def principal_coordinates(vectors_ND: npt.ArrayLike, axes: int = 2) -> tuple[F64, F64]:
    """Compute the PCoA of Euclidean distances between rows, without the N x N matrix.

    PCoA is the singular value decomposition of the centred vectors (Gower 1966). The largest
    coordinate of each axis is positive, so that equal input gives equal signs.

    Returns coordinates [N, axes], zero beyond the rank, and fractions of the variance [axes].
    """
    vectors = np.asarray(vectors_ND, dtype=np.float64)
    centred = vectors - vectors.mean(axis=0)
    left_vectors, singular, _ = np.linalg.svd(centred, full_matrices=False)
    rank = min(axes, len(singular))
    coordinates = np.zeros((len(vectors), axes))
    coordinates[:, :rank] = left_vectors[:, :rank] * singular[:rank]
    explained = np.zeros(axes)
    total = float(np.square(singular).sum())
    if total > 0:
        explained[:rank] = np.square(singular[:rank]) / total
    return _oriented(coordinates), explained


def coordinates_of_distances(distances_NN: npt.ArrayLike, axes: int = 2) -> tuple[F64, F64]:
    """Compute the PCoA of a distance matrix from all eigenvalues: for a few thousand samples."""
    squared = -0.5 * np.square(np.asarray(distances_NN, dtype=np.float64))
    means = squared.mean(axis=0)
    values, vectors = np.linalg.eigh(squared - means - means[:, None] + means.mean())
    largest = np.argsort(-values)[:axes]
    # Distances that are not Euclidean, such as UniFrac, have negative eigenvalues (imaginary axes).
    eigenvalues = values[largest].clip(min=0)
    return _oriented(vectors[:, largest] * np.sqrt(eigenvalues)), eigenvalues / values.clip(
        min=0
    ).sum()


def coordinates_of_kernel(kernel_NN: F64) -> tuple[F64, F64]:
    """Compute the first two principal coordinates of a kernel [N, N], N above 2."""
    from scipy.sparse.linalg import ArpackError, eigsh

    means = kernel_NN.mean(axis=0)
    centred = kernel_NN - means - means[:, None] + means.mean()
    # A fixed start makes the result reproducible.
    try:
        values, vectors = eigsh(centred, k=2, v0=np.arange(1.0, len(centred) + 1))
    except ArpackError:
        # If all samples are alike, or differ in one direction, the start is orthogonal to the axes.
        values, vectors = (array[..., -2:] for array in np.linalg.eigh(centred))
    eigenvalues = values[::-1].clip(min=0)
    coordinates = _oriented(vectors[:, ::-1] * np.sqrt(eigenvalues))
    return coordinates, eigenvalues / max(float(np.trace(centred)), 1e-300)


def _oriented(coordinates: F64) -> F64:
    """Make the largest coordinate of each axis positive."""
    farthest = np.abs(coordinates).argmax(axis=0)
    signs = np.sign(coordinates[farthest, np.arange(coordinates.shape[1])])
    return coordinates * np.where(signs < 0, -1.0, 1.0)


def write_ordination(
    path: Path, sample_ids: Sequence[str], coordinates_NA: F64, explained_A: F64
) -> None:
    """Write `ordination.txt` in scikit-bio's text format (PCoAResults in QIIME 2)."""
    check_unquoted(sample_ids, "the text format of an ordination")
    axes = coordinates_NA.shape[1]
    eigenvalues = np.square(coordinates_NA).sum(axis=0)
    lines = [f"Eigvals\t{axes}", _joined(eigenvalues), ""]
    lines += [f"Proportion explained\t{axes}", _joined(explained_A), ""]
    lines += ["Species\t0\t0", "", f"Site\t{len(sample_ids)}\t{axes}"]
    rows = zip(sample_ids, coordinates_NA, strict=True)
    lines += [f"{name}\t{_joined(row)}" for name, row in rows]
    lines += ["", "Biplot\t0\t0", "", "Site constraints\t0\t0", ""]
    write_text(path, "\n".join(lines))


def read_ordination(path: Path) -> tuple[tuple[str, ...], F64, F64]:
    """Read the samples of `ordination.txt`."""
    lines = lines_of(read_text(path, "ordination"))
    try:
        explained = lines[next(k for k, x in enumerate(lines) if x.startswith("Proportion")) + 1]
        start = next(k for k, line in enumerate(lines) if line.startswith("Site\t"))
        number = int(lines[start].split("\t")[1])
        rows = [line.split("\t") for line in lines[start + 1 : start + 1 + number]]
        coordinates = np.array([floats(row[1:3]) for row in rows]).reshape(number, 2)
        shares = floats(explained.split("\t")[:2])
        if len(shares) != 2 or not np.isfinite([*coordinates, shares]).all():
            raise ValueError("it has fewer than two axes of finite numbers")
        if len({row[0] for row in rows}) < number:
            raise ValueError("samples are in it twice")
    except (ValueError, IndexError, StopIteration) as error:
        evidence = f"'{path}', {reason_of(error) or 'sections are missing'}"
        raise DataError("Not an ordination of this program", evidence, EDITED) from error
    return tuple(row[0] for row in rows), coordinates, shares


def _joined(values: F64) -> str:
    return "\t".join(map(str, values.tolist()))
