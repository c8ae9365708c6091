"""Reader of feature tables in blocks of samples: BIOM 2.1 (HDF5), BIOM 1 (JSON) and TSV.

The form is told from the content. A whole table is one block (`aam.data.table`); `aam prepare`
reads blocks that memory holds. BIOM 2.1 keeps its matrix by sample too, so a block is a slice of
it. TSV is read once, line by line, and sorted by sample. BIOM 1 is one JSON value and is read as a
whole. What a file describes is compared with its own sizes and with the memory before it is read.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aam.contract.errors import DataError
from aam.data.io import artifact
from aam.data.io.table_formats import BAD_CONTENT, check_ids, parse_json, parse_tsv, unreadable
from aam.data.io.text import decoded
from aam.memory import memory_budget, shown_size

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
BLOCK_BYTES = 64 << 20
"""Most that a block takes as it is read, 12 bytes an entry; but at least one sample."""

_ENTRY = 12
_TRIPLE = np.dtype([("row", "<i4"), ("column", "<i4"), ("value", "<f8")])
_IDS_AT_ONCE = 1024
_JSON_BYTES = 12
"""Bytes of memory that a byte of JSON takes, measured on tables of small counts."""
_CELL_BYTES = 70
"""Bytes of memory that the cell of a line takes, as a string of Python and as a number."""


@dataclass(frozen=True)
class TableBlock:
    """Consecutive samples of a table, n of them from `start` on.

    Attributes:
        data: float64 [entries], values as the file has them.
        indices: int32 [entries], their features, each once in a sample.
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
    blocks: Callable[[], Iterator[TableBlock]]


def open_blocks(
    path: Path,
    scratch: Path | None = None,
    block_bytes: int = BLOCK_BYTES,
    max_bytes: int | None = None,
) -> TableBlocks:
    """Open a table.

    Args:
        path: in one of the forms above, gzipped or the payload of an artifact or neither.
        scratch: folder for what has to be unpacked or sorted; None for memory.
        block_bytes: most that a block takes; a larger sample is a block of its own.
        max_bytes: most memory that reading may take; None for half of what is available.

    Raises:
        MissingInput: there is no such file.
        DataError: not a table, a damaged one, one that memory does not hold, or duplicated or
            missing ids. Reading blocks raises it too.
    """
    budget = memory_budget() if max_bytes is None else max_bytes
    room = budget if scratch is None else max(budget, shutil.disk_usage(scratch).free)
    with _path_named(path):
        found = _open(path, scratch, block_bytes, budget, room)

    def blocks() -> Iterator[TableBlock]:
        with _path_named(path):
            yield from found.blocks()

    return TableBlocks(found.sample_ids, found.feature_ids, blocks)


@contextmanager
def _path_named(path: Path) -> Iterator[None]:
    """Name the table in errors that do not."""
    try:
        yield
    except DataError as error:
        if f"'{path}'" in str(error):
            raise
        raise DataError(f"{error.cause} in '{path}'", error.evidence, error.remedy) from error


def _open(
    path: Path, scratch: Path | None, block_bytes: int, budget: int, room: int
) -> TableBlocks:
    with artifact.open_payload(path, "feature-table.biom", "FeatureTable", room) as stream:
        start = stream.peek(4096)[:4096]
        if not start.strip():
            raise DataError("No feature table", "the file is empty", "make it again")
        if start.startswith(HDF5_MAGIC):
            return _of_hdf5(_seekable(path, stream, scratch), block_bytes, budget)
        if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
            return _of_json(path, stream, block_bytes, budget)
        return _of_tsv(stream, scratch, block_bytes, budget)


def _seekable(path: Path, stream: io.BufferedReader, scratch: Path | None) -> Path | io.BytesIO:
    """Return the file itself, or a copy of what it packs, in a file or in memory."""
    if not artifact.is_packed(path):
        return path
    if scratch is None:
        return io.BytesIO(stream.read())
    with (scratch / "table").open("wb") as target:
        shutil.copyfileobj(stream, target, 1 << 20)
    return scratch / "table"


def _check_size(size: float, what: str, budget: int) -> None:
    """Refuse what memory does not hold.

    Raises:
        DataError: `size` bytes are more than the budget.
    """
    if size > budget:
        raise DataError(
            "The table takes more memory than there is for it",
            f"{what} of {shown_size(size)}, {shown_size(budget)} may be taken",
            "check how it was made, raise --max-memory-gb, or use `aam prepare`",
        )


def _of_hdf5(source: Path | io.BytesIO, block_bytes: int, budget: int) -> TableBlocks:
    import h5py

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
    _check_size(min(2 * _ENTRY * int(indptr[-1]), 4 * block_bytes), "its counts", budget)

    def blocks() -> Iterator[TableBlock]:
        try:
            with h5py.File(source, "r") as file:
                data, indices = file["sample/matrix/data"], file["sample/matrix/indices"]
                for low, high in cuts(indptr, block_bytes // _ENTRY):
                    part = slice(int(indptr[low]), int(indptr[high]))
                    ends = indptr[low : high + 1] - indptr[low]
                    columns = _columns(_integers(indices[part]), ends, len(features))
                    values = data[part].astype(np.float64, copy=False)
                    yield TableBlock(low, values, columns, ends)
        except BAD_CONTENT as error:
            raise unreadable("BIOM 2.1 (HDF5)", error) from error

    return TableBlocks(samples, features, blocks)


def _dataset(file: Any, name: str, budget: int) -> Any:
    """Return a vector of the file, whose content lies in the file.

    Raises:
        KeyError: there is none.
        ValueError: it is no vector, or its content lies in another file.
        DataError: a piece of it is more than memory holds.
    """
    import h5py

    found = file[name]
    if not isinstance(found, h5py.Dataset) or found.ndim != 1:
        raise ValueError(f"'{name}' is not a vector")
    if found.external or found.is_virtual or found.file != file:
        raise ValueError(f"'{name}' lies in another file")
    # HDF5 unpacks a chunk as a whole, whatever part of it is read.
    piece = found.chunks[0] if found.chunks else 0
    _check_size(piece * found.dtype.itemsize, f"a piece of '{name}'", budget)
    return found


def _ids(dataset: Any, budget: int) -> list[str]:
    names: list[str] = []
    size = 64 * len(dataset)  # Each of them is an object of Python.
    for start in range(0, len(dataset), _IDS_AT_ONCE):
        _check_size(size, "its ids", budget)
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


def cuts(indptr: NDArray[np.int64], entries: int) -> Iterator[tuple[int, int]]:
    """Cut samples into runs of at most so many entries; a larger sample is a run of its own."""
    low, last = 0, len(indptr) - 1
    while low < last:
        high = int(np.searchsorted(indptr, indptr[low] + entries, side="right")) - 1
        high = min(max(high, low + 1), last)
        yield low, high
        low = high


def _of_json(path: Path, stream: io.BufferedReader, block_bytes: int, budget: int) -> TableBlocks:
    data = stream.read(budget // _JSON_BYTES + 1)
    _check_size(len(data) * _JSON_BYTES, "JSON, as it is read,", budget)
    samples, features, values = parse_json(decoded(data, path, "feature table"))

    def blocks() -> Iterator[TableBlock]:
        for low, high in cuts(values.indptr.astype(np.int64), block_bytes // _ENTRY):
            part = slice(int(values.indptr[low]), int(values.indptr[high]))
            indptr = values.indptr[low : high + 1].astype(np.int64) - part.start
            yield TableBlock(low, values.data[part], values.indices[part].astype(np.int32), indptr)

    return TableBlocks(samples, features, blocks)


def _of_tsv(
    stream: io.BufferedReader, scratch: Path | None, block_bytes: int, budget: int
) -> TableBlocks:
    """Sort a TSV of features x samples by sample: spooled in its order, then dealt into runs."""
    features: list[str] = []
    samples, rows = parse_tsv(_lines(stream, budget))
    sizes = np.zeros(len(samples), dtype=np.int64)
    spool = _Spool(None if scratch is None else scratch / "entries", block_bytes // 8)
    taken = 0
    for number, (name, values) in enumerate(rows):
        features.append(name)
        taken += len(name) + 100
        found = np.flatnonzero(values)
        sizes[found] += 1
        triples = np.empty(len(found), dtype=_TRIPLE)
        triples["row"], triples["column"], triples["value"] = found, number, values[found]
        spool.append(triples)
        _check_size(taken + 3 * spool.held, "its counts", budget)
    check_ids(samples, "sample")
    check_ids(features, "feature")
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    runs = list(cuts(indptr, max(1, block_bytes // (2 * _TRIPLE.itemsize))))
    dealt = [spool] if len(runs) < 2 else _deal(spool, [low for low, _ in runs], scratch)

    def blocks() -> Iterator[TableBlock]:
        for (low, high), run in zip(runs, dealt, strict=False):
            triples = run.whole()
            # Features came in order, so a stable sort by sample keeps them so.
            triples = triples[np.argsort(triples["row"], kind="stable")]
            part = indptr[low : high + 1] - indptr[low]
            yield TableBlock(low, triples["value"].copy(), triples["column"].copy(), part)

    return TableBlocks(samples, features, blocks)


def _lines(stream: io.BufferedReader, budget: int) -> Iterator[str]:
    """Yield the lines of UTF-8 text, whatever ends them: LF, CR LF or CR.

    Raises:
        DataError: it is no such text, or a line is longer than memory allows.
    """
    text = io.TextIOWrapper(stream, encoding="utf-8-sig")
    try:
        while line := text.readline(budget // _CELL_BYTES + 1):
            _check_size(len(line) * _CELL_BYTES, "a line", budget)
            yield line
    except UnicodeDecodeError as error:
        raise DataError(
            "No feature table",
            "the file is neither HDF5 nor UTF-8 text",
            "give BIOM, TSV (UTF-8) or a .qza artifact",
        ) from error


class _Spool:
    """Entries of a table in the order in which they come, in memory or in a file."""

    def __init__(self, file: Path | None, at_once: int) -> None:
        self._file, self._at_once = file, at_once
        self._waiting: list[NDArray[Any]] = []
        self.held = 0
        """Bytes in memory."""

    def append(self, triples: NDArray[Any]) -> None:
        """Add entries."""
        if triples.size:
            self._waiting.append(triples)
            self.held += triples.nbytes
            if self._file is not None and self.held > self._at_once:
                self.flush()

    def flush(self) -> None:
        """Write what waits in memory, if there is a file."""
        if self._file is not None:
            with self._file.open("ab") as stream:
                for triples in self._waiting:
                    stream.write(triples.tobytes())
            self._waiting.clear()
            self.held = 0

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Yield all entries, a few at a time."""
        self.flush()
        if self._file is None or not self._file.exists():
            yield from self._waiting
            return
        with self._file.open("rb") as stream:
            while len(data := stream.read(max(1, self._at_once // 16) * _TRIPLE.itemsize)):
                yield np.frombuffer(data, dtype=_TRIPLE)

    def whole(self) -> NDArray[Any]:
        """Return all entries."""
        return np.concatenate([np.empty(0, dtype=_TRIPLE), *self.pieces()])


def _deal(spool: _Spool, starts: list[int], scratch: Path | None) -> list[_Spool]:
    """Give each run of samples, which begin at `starts`, its entries."""
    dealt = [
        _Spool(None if scratch is None else scratch / f"samples-{start}", spool._at_once // 16)
        for start in starts
    ]
    for triples in spool.pieces():
        places = np.searchsorted(starts, triples["row"], side="right") - 1
        for place in np.unique(places).tolist():
            dealt[place].append(triples[places == place])
    for run in dealt:
        run.flush()
    return dealt
