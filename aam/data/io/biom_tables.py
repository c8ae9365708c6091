"""Readers of BIOM feature tables: BIOM 2.1 (HDF5) block by block, BIOM 1 (JSON) in one piece."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from aam.data.io.table_blocks import BAD_CONTENT, ENTRY_BYTES, OpenTable, TableBlocks, unreadable
from aam.data.io.text import decoded

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"

_IDS_AT_ONCE = 1024
_JSON_BYTES = 12
"""Bytes of memory that a byte of JSON takes, measured on tables of small counts."""


def read_hdf5(table: OpenTable) -> TableBlocks:
    """Read BIOM 2.1, which stores its matrix by sample: a block is a slice of the file's arrays."""
    import h5py

    source = table.seekable()
    try:
        with h5py.File(source, "r") as file:
            samples = _ids(_dataset(file, "sample/ids", table), table)
            features = _ids(_dataset(file, "observation/ids", table), table)
            ends = _dataset(file, "sample/matrix/indptr", table)
            if len(ends) != len(samples) + 1:
                raise ValueError("the matrix and the ids are of different sizes")
            indptr = _integers(ends).astype(np.int64)
            stored = [len(_dataset(file, f"sample/matrix/{name}", table))
                      for name in ("indices", "data")]  # fmt: skip
        if stored != [indptr[-1]] * 2:
            raise ValueError("the matrix and the ids are of different sizes")
        if indptr[0] != 0 or (np.diff(indptr) < 0).any():
            raise ValueError("samples overlap in the matrix")
        if np.diff(indptr).max(initial=0) > len(features):
            raise ValueError("a sample has more values than there are features")
    except BAD_CONTENT as error:
        raise unreadable("BIOM 2.1 (HDF5)", error) from error
    table.check_size(min(2 * ENTRY_BYTES * int(indptr[-1]), 4 * table.block_bytes), "its counts")

    def blocks() -> Iterator[csr_array]:
        try:
            with h5py.File(source, "r") as file:
                data, indices = file["sample/matrix/data"], file["sample/matrix/indices"]
                for low, high in table.runs(indptr, ENTRY_BYTES):
                    part = slice(int(indptr[low]), int(indptr[high]))
                    ends = indptr[low : high + 1] - indptr[low]
                    # Nothing here refers to the block, so that its user decides how long it lives.
                    yield csr_array(
                        (
                            data[part].astype(np.float64, copy=False),
                            _columns(_integers(indices[part]), ends, len(features)),
                            ends,
                        ),
                        shape=(high - low, len(features)),
                    )
        except BAD_CONTENT as error:
            raise unreadable("BIOM 2.1 (HDF5)", error) from error

    return TableBlocks(samples, features, blocks)


def _dataset(file: Any, name: str, table: OpenTable) -> Any:
    """Return a vector of an HDF5 file."""
    import h5py

    found = file[name]
    if not isinstance(found, h5py.Dataset) or found.ndim != 1:
        raise ValueError(f"'{name}' is not a vector")
    # HDF5 follows links: a table from elsewhere could name any file that its reader may open.
    if found.external or found.is_virtual or found.file != file:
        raise ValueError(f"'{name}' is in another file")
    # HDF5 unpacks a complete chunk to read any part of it.
    chunk = found.chunks[0] if found.chunks else 0
    table.check_size(chunk * found.dtype.itemsize, f"a chunk of '{name}'")
    return found


def _ids(dataset: Any, table: OpenTable) -> list[str]:
    names: list[str] = []
    size = 64 * len(dataset)  # Each id is a Python object.
    for start in range(0, len(dataset), _IDS_AT_ONCE):
        table.check_size(size, "the list of ids")
        part = dataset.asstr()[start : start + _IDS_AT_ONCE].tolist()
        size += sum(map(len, part))
        names += part
    return names


def _integers(values: Any) -> NDArray[Any]:
    """Read a vector of integers; ValueError if it has another type."""
    if values.dtype.kind not in "iu":
        raise ValueError(f"indices of the type {values.dtype}")
    found: NDArray[Any] = values[:]
    return found


def _columns(indices: NDArray[Any], indptr: NDArray[np.int64], features: int) -> NDArray[np.int32]:
    """Return the features of some samples as int32 [entries]."""
    if not indices.size:
        return indices.astype(np.int32)
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= features:
        wrong = low if low < 0 else high
        raise ValueError(f"feature index {wrong} in a table of {features} features")
    columns = indices.astype(np.int32, copy=False)
    # Columns that rise within each sample cannot repeat, which spares the usual file a sort.
    rising = np.diff(columns) > 0
    ends = indptr[1:-1]
    rising[ends[(ends > 0) & (ends < columns.size)] - 1] = True
    if not rising.all():
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        _refuse_repeated(rows, columns, features)
    return columns


def _refuse_repeated(rows: NDArray[Any], columns: NDArray[Any], width: int) -> None:
    """Raise ValueError if a pair of a row and a column, below `width`, occurs twice."""
    if len(np.unique(rows * width + columns)) < len(rows):
        raise ValueError("a sample has two values for one feature")


def read_json(table: OpenTable) -> TableBlocks:
    """Read BIOM 1: a JSON value whose matrix is rows or (feature, sample, value) triples."""
    # One byte more than fits, so that a larger file is refused and not cut.
    data = table.stream.read(table.budget // _JSON_BYTES + 1)
    table.check_size(len(data) * _JSON_BYTES, "the JSON text")
    text = decoded(data, table.path, "feature table")
    try:
        content = json.loads(text)
        samples = [str(column["id"]) for column in content["columns"]]
        features = [str(row["id"]) for row in content["rows"]]
        if content.get("shape", [len(features), len(samples)]) != [len(features), len(samples)]:
            shape = f"{len(features)} rows and {len(samples)} columns"
            raise ValueError(f"its shape is {content['shape']}, but it has {shape}")
        is_sparse = content.get("matrix_type", "sparse") == "sparse"
        width = 3 if is_sparse else len(samples)
        matrix = np.array(content["data"], dtype=np.float64).reshape(-1, width)
        if is_sparse:
            rows, columns = _indices(matrix, (len(features), len(samples)))
            counts = matrix[:, 2]
        else:
            rows, columns = np.nonzero(matrix)
            counts = matrix[rows, columns]
            if len(matrix) != len(features):
                raise ValueError(f"{len(matrix)} rows of values, but {len(features)} of ids")
    except BAD_CONTENT as error:
        raise unreadable("BIOM 1 (JSON)", error) from error
    values = csr_array((counts, (columns, rows)), shape=(len(samples), len(features)))

    def blocks() -> Iterator[csr_array]:
        return (values[low:high] for low, high in table.runs(values.indptr, ENTRY_BYTES))

    return TableBlocks(samples, features, blocks)


def _indices(
    triples: NDArray[np.float64], shape: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and columns of triples [entries, 3]."""
    for axis, name in enumerate(("row", "column")):
        given = triples[:, axis]
        wrong = ~((given >= 0) & (given < shape[axis]) & (given == np.floor(given)))
        if wrong.any():
            raise ValueError(
                f"{name} index {given[wrong][0]:g} in a table of {shape[0]} x {shape[1]}"
            )
    rows, columns = triples[:, 0].astype(np.int64), triples[:, 1].astype(np.int64)
    _refuse_repeated(rows, columns, shape[1])
    return rows, columns
