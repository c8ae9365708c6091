"""Reader of TSV feature tables: features x samples, read line by line and sorted by sample."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aam.console import say
from aam.contract.errors import DataError
from aam.data.io.table_blocks import (
    OpenTable,
    TableBlock,
    TableBlocks,
    check_ids,
    check_size,
    cuts,
)

TRANSPOSED = "give features as rows and samples as columns, or BIOM, which names its axes"

_ENTRY = np.dtype([("row", "<i4"), ("column", "<i4"), ("value", "<f8")])
_CELL_BYTES = 70
"""Bytes of memory that the cell of a line takes, as a string of Python and as a number."""
_TAXONOMY = frozenset({"taxonomy", "taxon", "consensus lineage", "consensuslineage"})
_SAMPLE_HEADERS = frozenset({"#sampleid", "#sample id", "sampleid", "sample-id", "sample_name"})


def read_tsv(table: OpenTable) -> TableBlocks:
    """Read a TSV of features x samples: spool its entries, then sort them into runs of samples."""
    scratch, block_bytes, budget = table.scratch, table.block_bytes, table.budget
    features: list[str] = []
    samples, rows = parse_tsv(_lines(table.stream, budget))
    sizes = np.zeros(len(samples), dtype=np.int64)
    spool = _Spool(None if scratch is None else scratch / "entries", block_bytes // 8)
    names_bytes = 0
    for number, (name, values) in enumerate(rows):
        features.append(name)
        names_bytes += len(name) + 100
        found = np.flatnonzero(values)
        sizes[found] += 1
        entries = np.empty(len(found), dtype=_ENTRY)
        entries["row"], entries["column"], entries["value"] = found, number, values[found]
        spool.append(entries)
        check_size(names_bytes + 3 * spool.bytes, "its counts", budget)
    check_ids(samples, "sample")
    check_ids(features, "feature")
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    runs = list(cuts(indptr, max(1, block_bytes // (2 * _ENTRY.itemsize))))
    divided = [spool] if len(runs) < 2 else _divide(spool, [low for low, _ in runs], scratch)

    def blocks() -> Iterator[TableBlock]:
        for (low, high), run in zip(runs, divided, strict=False):
            entries = run.all_entries()
            # Features came in order, so a stable sort by sample keeps them so.
            entries = entries[np.argsort(entries["row"], kind="stable")]
            part = indptr[low : high + 1] - indptr[low]
            yield TableBlock(low, entries["value"].copy(), entries["column"].copy(), part)

    return TableBlocks(samples, features, blocks)


def _lines(stream: io.BufferedReader, budget: int) -> Iterator[str]:
    """Yield the lines of UTF-8 text that end with LF, CR LF or CR.

    Raises:
        DataError: the text is not UTF-8, or a line does not fit in memory.
    """
    text = io.TextIOWrapper(stream, encoding="utf-8-sig")
    try:
        while line := text.readline(budget // _CELL_BYTES + 1):
            check_size(len(line) * _CELL_BYTES, "a line", budget)
            yield line
    except UnicodeDecodeError as error:
        raise DataError(
            "No feature table",
            "the file is neither HDF5 nor UTF-8 text",
            "give BIOM, TSV (UTF-8) or a .qza artifact",
        ) from error


class _Spool:
    """Entries of a table in the order of the file, in memory or in a temporary file."""

    def __init__(self, file: Path | None, at_once: int) -> None:
        self._file, self._at_once = file, at_once
        self._pending: list[NDArray[Any]] = []
        self.bytes = 0
        """Bytes in memory."""

    def append(self, entries: NDArray[Any]) -> None:
        """Add entries."""
        if entries.size:
            self._pending.append(entries)
            self.bytes += entries.nbytes
            if self._file is not None and self.bytes > self._at_once:
                self.flush()

    def flush(self) -> None:
        """Move the entries in memory to the temporary file, if there is one."""
        if self._file is not None:
            with self._file.open("ab") as stream:
                for entries in self._pending:
                    stream.write(entries.tobytes())
            self._pending.clear()
            self.bytes = 0

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Yield all entries in pieces."""
        self.flush()
        if self._file is None or not self._file.exists():
            yield from self._pending
            return
        with self._file.open("rb") as stream:
            while len(data := stream.read(max(1, self._at_once // 16) * _ENTRY.itemsize)):
                yield np.frombuffer(data, dtype=_ENTRY)

    def all_entries(self) -> NDArray[Any]:
        """Return all entries."""
        return np.concatenate([np.empty(0, dtype=_ENTRY), *self.pieces()])


def _divide(spool: _Spool, starts: list[int], scratch: Path | None) -> list[_Spool]:
    """Divide entries among runs of samples that begin at `starts`."""
    divided = [
        _Spool(None if scratch is None else scratch / f"samples-{start}", spool._at_once // 16)
        for start in starts
    ]
    for entries in spool.pieces():
        places = np.searchsorted(starts, entries["row"], side="right") - 1
        for place in np.unique(places).tolist():
            divided[place].append(entries[places == place])
    for run in divided:
        run.flush()
    return divided


def parse_tsv(
    lines: Iterable[str],
) -> tuple[list[str], Iterator[tuple[str, NDArray[np.float64]]]]:
    """Parse a TSV of features x samples: the header at once, the rows as they are iterated over.

    Args:
        lines: of the file, with or without line ends.

    Returns:
        Sample ids [N], and an iterator of feature ids with their float64 values [N].

    Raises:
        DataError: the text is no such table; the iterator raises it too.
    """
    numbered = enumerate((line.rstrip("\r\n") for line in lines), 1)
    nonempty = ((number, line) for number, line in numbered if line.strip())
    header, first = _header(nonempty)
    width = len(header)
    if header[-1].strip().lower() in _TAXONOMY:
        width -= 1
        say(f"The column '{header[-1].strip()}' of the table is not read.")
    return header[1:width], _rows(chain(first, nonempty), len(header), width)


def _rows(
    lines: Iterable[tuple[int, str]], cells_in_header: int, width: int
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    for number, line in lines:
        cells = line.split("\t")
        if len(cells) != cells_in_header:
            raise DataError(
                "A row of another length",
                f"line {number} has {len(cells)} cells, the header {cells_in_header}",
                "is the file cut off, or are blanks used for tabs?",
            )
        yield cells[0], _numbers(cells[1:width], number)


def _header(lines: Iterator[tuple[int, str]]) -> tuple[list[str], list[tuple[int, str]]]:
    """Return the cells of the header, and the line after it if it is already read."""
    first, comment, plain = "", (0, ""), (0, "")
    for number, line in lines:
        first = first or line
        if not line.startswith("#"):
            plain = (number, line)
            break
        comment = (number, line)
    # The header is the last commented line if that has columns, else the first plain one.
    commented = "\t" in comment[1]
    header = (comment if commented else plain)[1].split("\t")
    if len(header) < 2:
        raise DataError(
            "No feature table",
            f"line 1 is '{first[:60]}'",
            "give BIOM, a .qza artifact, or TSV with a row of sample ids and a column of features",
        )
    if header[0].strip().lower() in _SAMPLE_HEADERS:
        raise DataError(
            "The rows are samples",
            f"the first column is '{header[0]}'",
            f"{TRANSPOSED} (is it the metadata?)",
        )
    return header, [plain] if commented and plain[0] else []


def _numbers(cells: list[str], line: int) -> NDArray[np.float64]:
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError as error:
        comma = any("," in cell for cell in cells)
        raise DataError(
            "A count that is not a number",
            f"line {line}, {' '.join(str(error).split())[:200]}",
            "write decimal points, not commas" if comma else "write 0 where a sample has no reads",
        ) from error
