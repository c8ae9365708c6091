"""Distance matrices by sample id: reading, validation, writing; ordination (PCoA), its text files.

    lsmat, TSV, CSV   text with ids above and on the left; also `distance-matrix.tsv` of a .qza
    .h5               as ssu writes it (`matrix`, `order`), or `distances` with or without ids
    .npy              ids from a .txt of the same name, or none

The format is recognized by the content of the file, not by its name; the rows of a matrix without
ids are in the order of the table. To add a format, add an entry to `BINARY_READERS` or `WRITERS`.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from aam.arrays import F64
from aam.contract.errors import DataError, UsageError, first_few, reason_of, repeated
from aam.contract.files import atomic_write, require, write_text
from aam.contract.records import EDITED
from aam.data.formats import artifact
from aam.data.formats.text import (
    check_unquoted,
    decoded,
    floats,
    lines_of,
    numbers,
    read_rows,
    read_text,
)
from aam.data.metadata import ID_HEADER
from aam.data.store import write_npy
from aam.memory import check_memory, memory_budget

ROUNDING = 1e-5
"""Asymmetry and diagonal up to this fraction of the largest distance are float32 rounding."""

_HDF5_BYTES = 1 << 14  # size of an HDF5 file besides its arrays, and more
_ROWS_PER_BLOCK = 1024

MatrixContent = tuple[tuple[str, ...] | None, NDArray[Any]]
"""Ids (None if the file has none) and values [N, N]."""


@dataclass(frozen=True)
class DistanceMatrix:
    """Distances between N samples."""

    ids: tuple[str, ...]  # N names, unique
    # [N, N], symmetric, finite, >= 0, with a diagonal of zeros; float64 if this program computed
    # them, float32 if they were read
    values: NDArray[Any]

    def aligned(self, sample_ids: Sequence[str]) -> DistanceMatrix:
        """Return the distances between `sample_ids`, in their order."""
        if tuple(sample_ids) == self.ids:
            return self
        row_of = {name: row for row, name in enumerate(self.ids)}
        if missing := [name for name in sample_ids if name not in row_of]:
            raise DataError(
                "Samples are not in the distance matrix",
                f"{first_few(missing)} of {len(sample_ids)}; the matrix has {first_few(self.ids)}",
                "make the matrix from this table, or leave these samples out of the table",
            )
        rows = np.array([row_of[name] for name in sample_ids], dtype=np.int64)
        return DistanceMatrix(tuple(sample_ids), self.values[np.ix_(rows, rows)])

    def write(self, path: Path) -> None:
        """Write a matrix in the format of the suffix: .tsv, .lsmat, .npy or .h5."""
        write = WRITERS[checked_suffix(path)]
        if path.suffix == ".npy":
            check_unquoted(self.ids, "the list of ids of a .npy")
            write_text(path.with_suffix(".txt"), "".join(f"{name}\n" for name in self.ids))
        with atomic_write(path) as temporary:
            write(temporary, self.ids, self.values)


def read_distances(
    path: Path, sample_ids: Sequence[str] | None = None, max_bytes: int | None = None
) -> DistanceMatrix:
    """Read and validate a distance matrix."""
    budget = max_bytes or memory_budget()
    with require(path, "distance matrix").open("rb") as stream:
        magic = stream.read(8)
    readers = [read for start, read in BINARY_READERS.items() if magic.startswith(start)]
    try:
        if readers and not artifact.is_artifact(path):
            ids, values = readers[0](path, budget)
        else:
            data = artifact.read_payload(path, "distance-matrix.tsv", "DistanceMatrix", budget // 4)
            ids, values = _read_text(decoded(data, path, "distance matrix"), path)
        if values.dtype.kind not in "biuf":
            raise ValueError(f"its values have the type {values.dtype}")
        values = values.astype(np.float32, copy=False)
    except (*artifact.DAMAGE, csv.Error, SyntaxError, MemoryError) as error:
        evidence = f"'{path}', {reason_of(error)}"
        raise _error("The distance matrix cannot be read", evidence) from error
    if values.ndim != 2 or values.shape[0] != values.shape[1] or not values.size:
        shape = " x ".join(map(str, values.shape))
        raise _error("The distance matrix is not square", f"'{path}' is {shape}")
    size = len(values)
    if ids is None:
        if sample_ids is None or len(sample_ids) != size:
            table = "no table" if sample_ids is None else f"the table has {len(sample_ids)} samples"
            raise _error(
                "The distance matrix has no ids and does not fit the table",
                f"'{path}' is {size} x {size}, {table}",
                f"write its ids into '{path.with_suffix('.txt').name}', one per line, or give a "
                ".tsv",
            )
        ids = tuple(sample_ids)
    if len(ids) != size:
        evidence = f"'{path}' has {size} rows and {len(ids)} ids"
        raise _error("The distance matrix has another size than its ids", evidence)
    if twice := repeated(ids):
        raise _error("Ids occur twice in the distance matrix", f"{first_few(twice)} in '{path}'")
    # Validate the values and remove rounding noise, a few rows at a time.
    clean = np.empty_like(values)
    noise = 0.0

    def refuse(cause: str, wrong_ones: NDArray[np.bool_], start: int) -> None:
        if (wrong := np.argwhere(wrong_ones)).size:
            i, j = wrong[0] + (start, 0)
            reverse = f"'{path}', reversed {values[j, i]:g}"
            raise _error(cause, f"'{ids[i]}' to '{ids[j]}' is {values[i, j]:g} in {reverse}")

    for start in range(0, size, _ROWS_PER_BLOCK):
        rows = slice(start, start + _ROWS_PER_BLOCK)
        block = values[rows]
        refuse("A distance is not a number", ~np.isfinite(block), start)
        # The tolerance depends on the largest distance, so comparing needs a second pass.
        noise = max(noise, ROUNDING * float(np.abs(block).max()))
        clean[rows] = (block + values[:, rows].T) / 2
    for start in range(0, size, _ROWS_PER_BLOCK):
        rows = slice(start, start + _ROWS_PER_BLOCK)
        asymmetric = np.abs(values[rows] - clean[rows]) > noise
        refuse("The distance matrix is not symmetric", asymmetric, start)
        refuse("A distance is negative", clean[rows] < -noise, start)
    if (off := np.flatnonzero(np.abs(np.diagonal(clean)) > noise)).size:
        raise _error(
            "The diagonal of the distance matrix is not zero",
            f"{first_few(ids[row] for row in off)} in '{path}'",
            "give distances, not similarities",
        )
    np.fill_diagonal(clean, 0)
    return DistanceMatrix(ids, np.maximum(clean, 0, out=clean))


def _read_hdf5(path: Path, budget: int) -> MatrixContent:
    with h5py.File(path, "r") as file:
        for name, dataset in file.items():
            if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
                raise ValueError(f"'{name}' is not an array of the file")
            # HDF5 unpacks a complete chunk to read any part of it.
            chunk = int(np.prod(dataset.chunks or (0,), dtype=object)) * dataset.dtype.itemsize
            _check_size(max(dataset.nbytes, chunk), path, budget)
        # Without the ids, rows would be taken in the order of the table: for the wrong samples.
        name = next((name for name in ("order", "ids", "sample_ids") if name in file), None)
        ids = tuple(file[name].asstr()[()].tolist()) if name else None
        return ids, file["matrix" if "matrix" in file else "distances"][()]


def _read_npy(path: Path, budget: int) -> MatrixContent:
    ids_path = path.with_suffix(".txt")
    ids = tuple(lines_of(read_text(ids_path, "list of ids"))) if ids_path.is_file() else None
    try:
        # Mapping allocates nothing, whatever the header describes.
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OverflowError, TypeError) as error:
        raise ValueError(f"it is cut off or not an array of numbers ({error})") from error
    _check_size(values.nbytes, path, budget)
    return ids, values


def _check_size(size: int, path: Path, budget: int) -> None:
    """Refuse a matrix (DataError) larger than half of the budget: it is copied once."""
    check_memory("distance matrix", f"'{path}'", size, budget / 2, "use --tree instead of a matrix")


def _read_text(text: str, path: Path) -> MatrixContent:
    """Parse a matrix with ids in the first row and column, after comment lines of '#'."""

    def not_square(shape: str) -> DataError:
        evidence = f"'{path}' has {len(ids)} columns{shape}"
        return _error("The distance matrix is not square", evidence)

    lines = (line for line in io.StringIO(text, newline=None) if line.strip())
    first = next((line for line in lines if line.strip()[0] != "#" or "\t" in line.strip()
                  or "," in line), None)  # fmt: skip
    if first is None:
        raise _error("The distance matrix is empty", f"'{path}'")
    delimiter = "\t" if "\t" in first else ","
    ids = tuple(name.strip() for name in next(csv.reader([first], delimiter=delimiter))[1:])
    rows = csv.reader(lines, delimiter=delimiter)
    # A value takes at least two characters; do not allocate more than the text can contain.
    if 2 * len(ids) ** 2 > len(text):
        raise not_square(f" and {sum(1 for _ in rows)} rows")
    values = np.zeros((len(ids), len(ids)), dtype=np.float32)
    row = -1
    for row, (cell, *cells) in enumerate(rows):
        name = cell.strip()
        if row >= len(ids) or len(cells) != len(ids):
            raise not_square(f", but row {row + 1}, '{name}', has {len(cells)} values")
        if name != ids[row]:
            raise _error(
                "The rows of the distance matrix are in another order than its columns",
                f"row {row + 1} of '{path}' is '{name}', column {row + 1} is '{ids[row]}'",
            )
        try:
            values[row] = floats(cells)
        except ValueError as error:
            evidence = f"row '{name}' of '{path}', {error}"
            raise _error("A distance is not a number", evidence) from error
    if row + 1 < len(ids):
        raise not_square(f" and {row + 1} rows")
    return ids, values


def _error(cause: str, evidence: str, remedy: str = "make the matrix again") -> DataError:
    return DataError(cause, evidence, remedy)


BINARY_READERS: dict[bytes, Callable[[Path, int], MatrixContent]] = {
    b"\x89HDF": _read_hdf5,
    b"\x93NUMPY": _read_npy,
}
"""First bytes of a file -> reader of a path within a memory budget in bytes."""


def checked_suffix(path: Path) -> str:
    """Return the suffix of an output file; UsageError for an unknown format."""
    if path.suffix not in WRITERS:
        remedy = f"end its name with one of {', '.join(WRITERS)}"
        raise UsageError("Unknown format of the distance matrix", f"'{path.name}'", remedy)
    return path.suffix


@contextmanager
def hdf5_matrix(path: Path, ids: Sequence[str], dtype: Any = np.float64) -> Iterator[h5py.Dataset]:
    """Create an HDF5 distance matrix in the layout of ssu, and yield the data set [N, N] to fill.

    HDF5 can crash the process when a write fails. The disk space is therefore reserved first, so a
    full disk raises OSError before HDF5 writes.
    """
    names = sum(len(name) + 32 for name in ids)
    _reserve(path, len(ids) ** 2 * np.dtype(dtype).itemsize + 2 * names + _HDF5_BYTES)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    # The data set takes its space at once, so no later write needs any. Filling it with zeros
    # would write all of it twice.
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(path, "w") as file:
        file.create_dataset("order", data=list(ids), dtype=h5py.string_dtype())
        file["format"], file["version"] = np.array([b"BDSM"]), np.array([b"2020.12"])
        file.create_dataset("matrix", (len(ids), len(ids)), dtype, dcpl=properties)
    _reserve(path, path.stat().st_size)
    with h5py.File(path, "r+") as file:
        yield file["matrix"]


def _reserve(path: Path, size: int) -> None:
    """Reserve disk space for a file, if the system can."""
    if hasattr(os, "posix_fallocate"):
        with path.open("ab") as stream:
            os.posix_fallocate(stream.fileno(), 0, size)


def _write_text(path: Path, ids: tuple[str, ...], values: NDArray[Any]) -> None:
    check_unquoted(ids, "a matrix of text")
    digits = 9 if values.dtype == np.float32 else 17  # enough for every number of the type
    line = "\t".join(["%s"] + [f"%.{digits}g"] * len(ids)) + "\n"
    with path.open("w", encoding="utf-8") as stream:
        stream.write("\t" + "\t".join(ids) + "\n")
        for name, row in zip(ids, values, strict=True):
            stream.write(line % (name, *row.tolist()))


def _write_hdf5(path: Path, ids: tuple[str, ...], values: NDArray[Any]) -> None:
    with hdf5_matrix(path, ids, values.dtype) as matrix:
        matrix[...] = values


WRITERS: dict[str, Callable[[Path, tuple[str, ...], NDArray[Any]], None]] = {
    ".tsv": _write_text,
    ".lsmat": _write_text,
    ".npy": lambda path, _, values: write_npy(path, values),
    ".h5": _write_hdf5,
}
"""Suffix of a file -> writer of ids and values."""


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
