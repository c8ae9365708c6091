"""A feature table as a stream of blocks of samples, for tables that memory should not hold.

BIOM 2.1 keeps its matrix by sample too, so a block is a slice of it. TSV is read line by line and
sorted by sample through files of triples. BIOM 1 is one JSON value and is read whole, as
`aam.study.table_formats` does. Artifacts and gzip files are unpacked into a file first.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aam.console import say
from aam.errors import DataError
from aam.study import artifact, table_formats
from aam.study.table_formats import BAD_CONTENT, HDF5_MAGIC, check_ids, unreadable

BLOCK_BYTES = 64 << 20
"""Most that a block takes as it is read, 12 bytes an entry; but at least one sample."""

_ENTRY = 12
_TRIPLE = np.dtype([("row", "<i4"), ("column", "<i4"), ("value", "<f8")])


@dataclass(frozen=True)
class Block:
    """Consecutive samples of a table, n of them from `start` on.

    Attributes:
        data: float64 [entries], values as the file has them.
        indices: int32 [entries], their features.
        indptr: int64 [n + 1].
    """

    start: int
    data: NDArray[np.float64]
    indices: NDArray[np.int32]
    indptr: NDArray[np.int64]


@dataclass(frozen=True)
class TableBlocks:
    """A table that is read block by block, as often as need be.

    Attributes:
        sample_ids: N names, unique.
        feature_ids: F names, unique.
        blocks: yields all samples in order, from the first.
    """

    sample_ids: Sequence[str]
    feature_ids: Sequence[str]
    blocks: Callable[[], Iterator[Block]]


def open_blocks(path: Path, scratch: Path, block_bytes: int = BLOCK_BYTES) -> TableBlocks:
    """Look at a table.

    Args:
        path: in one of the forms of `aam.study.table`.
        scratch: folder for what has to be unpacked or sorted.
        block_bytes: most that a block takes.

    Raises:
        MissingInput: there is no such file.
        DataError: not a table, a damaged one, or duplicated or missing ids.
    """
    plain = _plain(path, scratch)
    with plain.open("rb") as stream:
        start = stream.read(4096)
    try:
        if not start.strip():
            raise DataError("No feature table", "the file is empty", "make it again")
        if start.startswith(HDF5_MAGIC):
            return _of_hdf5(plain, block_bytes)
        if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
            say(f"'{path.name}' is BIOM 1, which is read whole; BIOM 2.1 (HDF5) is read in parts.")
            return _of_memory(*table_formats.parse(plain.read_bytes()), block_bytes)
        return _of_tsv(plain, scratch, block_bytes)
    except DataError as error:
        raise DataError(f"{error.cause} in '{path}'", error.evidence, error.remedy) from error


def _plain(path: Path, scratch: Path) -> Path:
    """Return the file itself, or what an artifact or a gzip file holds, in `scratch`."""
    packed = artifact.opened(path, "feature-table.biom", "FeatureTable")
    if packed is None:
        return path
    try:
        with packed as source, (scratch / "table").open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    except artifact.DAMAGE as error:
        raise artifact.damaged(path, error) from error
    return scratch / "table"


def _of_hdf5(path: Path, block_bytes: int) -> TableBlocks:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            samples = file["sample/ids"].asstr()[:].tolist()
            features = file["observation/ids"].asstr()[:].tolist()
            indptr = file["sample/matrix/indptr"][:].astype(np.int64)
            stored = {len(file["sample/matrix/indices"]), len(file["sample/matrix/data"])}
        if len(indptr) != len(samples) + 1 or stored != {int(indptr[-1])}:
            raise ValueError("the matrix and the ids are of different sizes")
        if indptr[0] != 0 or (np.diff(indptr) < 0).any():
            raise ValueError("samples overlap in the matrix")
    except BAD_CONTENT as error:
        raise unreadable("BIOM 2.1 (HDF5)", error) from error
    check_ids(samples, "sample")
    check_ids(features, "feature")

    def blocks() -> Iterator[Block]:
        try:
            with h5py.File(path, "r") as file:
                data, indices = file["sample/matrix/data"], file["sample/matrix/indices"]
                for low, high in cuts(indptr, block_bytes // _ENTRY):
                    part = slice(int(indptr[low]), int(indptr[high]))
                    yield Block(
                        low,
                        data[part].astype(np.float64, copy=False),
                        _columns(indices[part], len(features)),
                        indptr[low : high + 1] - indptr[low],
                    )
        except BAD_CONTENT as error:
            raise unreadable("BIOM 2.1 (HDF5)", error) from error

    return TableBlocks(samples, features, blocks)


def _columns(indices: NDArray[Any], features: int) -> NDArray[np.int32]:
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < features:
        raise ValueError("the matrix has more features than ids")
    return indices.astype(np.int32, copy=False)


def cuts(indptr: NDArray[np.int64], entries: int) -> Iterator[tuple[int, int]]:
    """Cut samples into runs of at most so many entries; a larger sample is a run of its own."""
    low, last = 0, len(indptr) - 1
    while low < last:
        high = int(np.searchsorted(indptr, indptr[low] + entries, side="right")) - 1
        high = min(max(high, low + 1), last)
        yield low, high
        low = high


def _of_memory(
    samples: Sequence[str], features: Sequence[str], values: sparse.csr_array, block_bytes: int
) -> TableBlocks:
    def blocks() -> Iterator[Block]:
        for low, high in cuts(values.indptr.astype(np.int64), block_bytes // _ENTRY):
            part = slice(int(values.indptr[low]), int(values.indptr[high]))
            indptr = values.indptr[low : high + 1].astype(np.int64) - part.start
            yield Block(low, values.data[part], values.indices[part], indptr)

    return TableBlocks(samples, features, blocks)


def _of_tsv(path: Path, scratch: Path, block_bytes: int) -> TableBlocks:
    """Sort a TSV of features x samples by sample: counted first, then dealt into files."""
    features: list[str] = []
    with _lines(path) as lines:
        samples, rows = table_formats.tsv(lines)
        sizes = np.zeros(len(samples), dtype=np.int64)
        for name, values in rows:
            features.append(name)
            sizes += values != 0
    check_ids(samples, "sample")
    check_ids(features, "feature")
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    runs = list(cuts(indptr, block_bytes // (2 * _TRIPLE.itemsize)))
    files = [scratch / f"samples-{low}" for low, _ in runs]
    _deal(path, [low for low, _ in runs], files, block_bytes)

    def blocks() -> Iterator[Block]:
        for (low, high), file in zip(runs, files, strict=True):
            triples = np.fromfile(file, dtype=_TRIPLE)
            # Features came in order, so a stable sort by sample keeps them so.
            triples = triples[np.argsort(triples["row"], kind="stable")]
            part = indptr[low : high + 1] - indptr[low]
            yield Block(low, triples["value"].copy(), triples["column"].copy(), part)

    return TableBlocks(samples, features, blocks)


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as lines:
            yield lines
    except UnicodeDecodeError as error:
        raise table_formats.no_text() from error


def _deal(path: Path, starts: list[int], files: list[Path], block_bytes: int) -> None:
    """Write the entries of each run of samples into a file of its own."""
    waiting: list[list[NDArray[Any]]] = [[] for _ in files]
    held = 0

    def flush() -> None:
        for file, pieces in zip(files, waiting, strict=True):
            with file.open("ab") as stream:
                for piece in pieces:
                    stream.write(piece.tobytes())
            pieces.clear()

    with _lines(path) as lines:
        _, rows = table_formats.tsv(lines, quiet=True)
        for number, (_, values) in enumerate(rows):
            found = np.flatnonzero(values)
            triples = np.empty(len(found), dtype=_TRIPLE)
            triples["row"], triples["column"], triples["value"] = found, number, values[found]
            places = np.searchsorted(found, [*starts[1:], len(values)])
            for pieces, low, high in zip(waiting, [0, *places[:-1]], places, strict=True):
                if high > low:
                    pieces.append(triples[low:high].copy())
            held += triples.nbytes
            if held > block_bytes // 8:
                flush()
                held = 0
    flush()
