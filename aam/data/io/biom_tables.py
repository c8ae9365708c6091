"""Readers of BIOM feature tables: BIOM 2.1 (HDF5) block by block, BIOM 1 (JSON) in one piece."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aam.data.io.table_blocks import (
    BAD_CONTENT,
    ENTRY_BYTES,
    OpenTable,
    TableBlock,
    TableBlocks,
    check_ids,
    check_size,
    cuts,
    unreadable,
)
from aam.data.io.text import decoded

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"

_IDS_AT_ONCE = 1024
_JSON_BYTES = 12
"""Bytes of memory that a byte of JSON takes, measured on tables of small counts."""


def read_hdf5(table: OpenTable) -> TableBlocks:
    """Read BIOM 2.1, which stores its matrix by sample: a block is a slice of the file's arrays."""
    import h5py

    source, budget = table.seekable(), table.budget
    try:
        with h5py.File(source, "r") as file:
            samples = _ids(_dataset(file, "sample/ids", budget), budget)
            features = _ids(_dataset(file, "observation/ids", budget), budget)
            indptr = _integers(_dataset(file, "sample/matrix/indptr", budget), len(samples) + 1)
            indptr = indptr.astype(np.int64)
            stored = [
                len(_dataset(file, f"sample/matrix/{name}", budget)) for name in ("indices", "data")
            ]
        if stored != [indptr[-1]] * 2:
            raise ValueError("the matrix and the ids are of different sizes")
        if indptr[0] != 0 or (np.diff(indptr) < 0).any():
            raise ValueError("samples overlap in the matrix")
        if np.diff(indptr).max(initial=0) > len(features):
            raise ValueError("a sample has more values than there are features")
    except BAD_CONTENT as error:
        raise unreadable("BIOM 2.1 (HDF5)", error) from error
    check_ids(samples, "sample")
    check_ids(features, "feature")
    check_size(min(2 * ENTRY_BYTES * int(indptr[-1]), 4 * table.block_bytes), "its counts", budget)

    def blocks() -> Iterator[TableBlock]:
        try:
            with h5py.File(source, "r") as file:
                data, indices = file["sample/matrix/data"], file["sample/matrix/indices"]
                for low, high in cuts(indptr, table.block_bytes // ENTRY_BYTES):
                    part = slice(int(indptr[low]), int(indptr[high]))
                    ends = indptr[low : high + 1] - indptr[low]
                    columns = _columns(_integers(indices[part]), ends, len(features))
                    values = data[part].astype(np.float64, copy=False)
                    yield TableBlock(low, values, columns, ends)
        except BAD_CONTENT as error:
            raise unreadable("BIOM 2.1 (HDF5)", error) from error

    return TableBlocks(samples, features, blocks)


def _dataset(file: Any, name: str, budget: int) -> Any:
    """Return a vector of an HDF5 file.

    Raises:
        KeyError: there is no dataset `name`.
        ValueError: the dataset is not a vector, or its content is in another file.
        DataError: a chunk does not fit in memory.
    """
    import h5py

    found = file[name]
    if not isinstance(found, h5py.Dataset) or found.ndim != 1:
        raise ValueError(f"'{name}' is not a vector")
    if found.external or found.is_virtual or found.file != file:
        raise ValueError(f"'{name}' is in another file")
    # HDF5 unpacks a complete chunk to read any part of it.
    chunk = found.chunks[0] if found.chunks else 0
    check_size(chunk * found.dtype.itemsize, f"a chunk of '{name}'", budget)
    return found


def _ids(dataset: Any, budget: int) -> list[str]:
    names: list[str] = []
    size = 64 * len(dataset)  # Each id is a Python object.
    for start in range(0, len(dataset), _IDS_AT_ONCE):
        check_size(size, "its ids", budget)
        part = dataset.asstr()[start : start + _IDS_AT_ONCE].tolist()
        size += sum(map(len, part))
        names += part
    return names


def _integers(values: Any, length: int | None = None) -> NDArray[Any]:
    """Return a vector of whole numbers, of a given length.

    Raises:
        ValueError: it is another.
    """
    if values.dtype.kind not in "iu":
        raise ValueError(f"indices of the type {values.dtype}")
    if length is not None and len(values) != length:
        raise ValueError("the matrix and the ids are of different sizes")
    found: NDArray[Any] = values[:]
    return found


def _columns(indices: NDArray[Any], indptr: NDArray[np.int64], features: int) -> NDArray[np.int32]:
    """Return the features of some samples as int32 [entries].

    Raises:
        ValueError: there is no such feature, or a sample has two values for one.
    """
    if not indices.size:
        return indices.astype(np.int32)
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= features:
        wrong = low if low < 0 else high
        raise ValueError(f"feature index {wrong} in a table of {features} features")
    columns = indices.astype(np.int32, copy=False)
    rising = np.diff(columns) > 0
    ends = indptr[1:-1]
    rising[ends[(ends > 0) & (ends < columns.size)] - 1] = True
    if not rising.all():
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        if len(np.unique(rows * features + columns)) < columns.size:
            raise ValueError("a sample has two values for one feature")
    return columns


def read_json(table: OpenTable) -> TableBlocks:
    """Read BIOM 1, a single JSON value."""
    data = table.stream.read(table.budget // _JSON_BYTES + 1)
    check_size(len(data) * _JSON_BYTES, "JSON, as it is read,", table.budget)
    samples, features, values = parse_json(decoded(data, table.path, "feature table"))

    def blocks() -> Iterator[TableBlock]:
        for low, high in cuts(values.indptr.astype(np.int64), table.block_bytes // ENTRY_BYTES):
            part = slice(int(values.indptr[low]), int(values.indptr[high]))
            indptr = values.indptr[low : high + 1].astype(np.int64) - part.start
            yield TableBlock(low, values.data[part], values.indices[part].astype(np.int32), indptr)

    return TableBlocks(samples, features, blocks)


def parse_json(text: str) -> tuple[list[str], list[str], sparse.csr_array]:
    """Parse BIOM 1, whose matrix is a list of rows or of (feature, sample, value) triples.

    Returns:
        Sample ids, feature ids and the float64 [N, F] values.

    Raises:
        DataError: the table is incomplete; an index is outside the table or occurs twice; ids are
            duplicated or missing.
    """
    try:
        content = json.loads(text)
        samples = [str(column["id"]) for column in content["columns"]]
        features = [str(row["id"]) for row in content["rows"]]
        data = content["data"]
        is_sparse = content.get("matrix_type", "sparse") == "sparse"
        matrix = np.array(data, dtype=np.float64).reshape(-1, 3 if is_sparse else len(samples))
        if is_sparse:
            rows, columns = _indices(matrix, (len(features), len(samples)))
            values = matrix[:, 2]
        else:
            rows, columns = np.nonzero(matrix)
            values = matrix[rows, columns]
            if len(matrix) != len(features):
                raise ValueError(f"{len(matrix)} rows of values, but {len(features)} of ids")
    except BAD_CONTENT as error:
        raise unreadable("BIOM 1 (JSON)", error) from error
    check_ids(samples, "sample")
    check_ids(features, "feature")
    shape = (len(samples), len(features))
    return samples, features, sparse.csr_array((values, (columns, rows)), shape=shape)


def _indices(
    triples: NDArray[np.float64], shape: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and columns of triples [entries, 3].

    Raises:
        ValueError: an index is not an integer or outside the table, or a pair occurs twice.
    """
    for axis, name in enumerate(("row", "column")):
        given = triples[:, axis]
        wrong = ~((given >= 0) & (given < shape[axis]) & (given == np.floor(given)))
        if wrong.any():
            raise ValueError(
                f"{name} index {given[wrong][0]:g} in a table of {shape[0]} x {shape[1]}"
            )
    rows, columns = triples[:, 0].astype(np.int64), triples[:, 1].astype(np.int64)
    if len(np.unique(rows * shape[1] + columns)) < len(rows):
        raise ValueError("a sample has two values for one feature")
    return rows, columns
