"""Reader of TSV feature tables: features x samples, read line by line and sorted by sample."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from aam.console import info
from aam.contract.errors import DataError, reason_of
from aam.data.io.table_blocks import OpenTable, TableBlocks

TRANSPOSED = "give features as rows and samples as columns, or BIOM, which names its axes"

_ENTRY = np.dtype([("row", "<i4"), ("column", "<i4"), ("value", "<f8")])
_ENTRIES_AT_ONCE = 1 << 16
_CELL_BYTES = 70
"""Bytes of memory that the cell of a line takes, as a string of Python and as a number."""
_NAME_BYTES = 100
_TAXONOMY = frozenset({"taxonomy", "taxon", "consensus lineage", "consensuslineage"})
_SAMPLE_HEADERS = frozenset(
    {"#sampleid", "#sample id", "sampleid", "sample-id", "sample_name", "sample", "samples"}
)


def read_tsv(table: OpenTable) -> TableBlocks:
    """Read a TSV of features x samples: its entries by feature, then by runs of samples.

    The entries are in a temporary file, or in memory without a scratch folder; each run reads all.
    """
    lines = _lines(table)
    header, first = _header(lines)
    quoted = all(len(name) > 1 and name[0] == name[-1] == '"' for name in header[1:])
    samples = [_unquoted(name) for name in header[1:]] if quoted else header[1:]
    columns: list[int] | None = None  # cells with counts; all without a column of taxa
    names = [name.strip().lower() for name in samples]
    if not _TAXONOMY.isdisjoint(names):
        left_out = [k for k, name in enumerate(names) if name in _TAXONOMY | {"confidence"}]
        shown = "', '".join(samples[k].strip() for k in left_out)
        several = len(left_out) > 1
        info(
            f"The column{'s' * several} '{shown}' of the table {'are' if several else 'is'} not "
            "read."
        )
        columns = [k for k in range(len(samples)) if k not in left_out]
        samples = [samples[k] for k in columns]
    features: list[str] = []
    sizes = np.zeros(len(samples), dtype=np.int64)

    def entries_by_feature() -> Iterator[NDArray[Any]]:
        size = 0
        for number, line in chain(first, lines):
            cells = line.split("\t")
            if len(cells) != len(header):
                raise DataError(
                    "A row of another length",
                    f"line {number} has {len(cells)} cells, the header {len(header)}",
                    "is the file cut off, or are blanks used for tabs?",
                )
            counts = cells[1:] if columns is None else [cells[1 + k] for k in columns]
            values = _numbers(counts, number)
            found = np.flatnonzero(values)
            sizes[found] += 1
            entries = np.empty(len(found), dtype=_ENTRY)
            entries["row"], entries["column"] = found, len(features)
            entries["value"] = values[found]
            yield entries
            features.append(_unquoted(cells[0]) if quoted else cells[0])
            size += len(cells[0]) + _NAME_BYTES + (0 if table.scratch else 3 * entries.nbytes)
            table.check_size(size, "the content of the file")

    spool = np.empty(0, dtype=_ENTRY)
    if table.scratch is None:
        spool = np.concatenate([spool, *entries_by_feature()])
    else:
        with (table.scratch / "entries").open("wb") as stream:
            for entries in entries_by_feature():
                stream.write(entries.tobytes())
        if sizes.any():
            spool = np.memmap(table.scratch / "entries", _ENTRY, "r")
    indptr = np.concatenate([[0], np.cumsum(sizes)])

    def blocks() -> Iterator[csr_array]:
        for low, high in table.runs(indptr, 2 * _ENTRY.itemsize):
            yield _run(spool, indptr[low : high + 1], low, len(features))

    return TableBlocks(samples, features, blocks)


def _run(spool: NDArray[Any], indptr: NDArray[np.int64], low: int, features: int) -> csr_array:
    """Select the values [n, F] of samples from `low` on, at `indptr` [n + 1] in their order."""
    found = np.empty(indptr[-1] - indptr[0], dtype=_ENTRY)
    filled = 0
    for start in range(0, len(spool), _ENTRIES_AT_ONCE):
        entries = spool[start : start + _ENTRIES_AT_ONCE]
        selected = entries[(entries["row"] >= low) & (entries["row"] < low + len(indptr) - 1)]
        found[filled : filled + len(selected)] = selected
        filled += len(selected)
    # Features came in order, so a stable sort by sample keeps them so.
    found = found[np.argsort(found["row"], kind="stable")]
    parts = (found["value"].copy(), found["column"].copy(), indptr - indptr[0])
    return csr_array(parts, shape=(len(indptr) - 1, features))


def _lines(table: OpenTable) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines that are not blank, which end with LF, CR LF or CR."""
    text = io.TextIOWrapper(table.stream, encoding="utf-8-sig")
    number = 0
    try:
        while line := text.readline(table.budget // _CELL_BYTES + 1):
            number += 1
            table.check_size(len(line) * _CELL_BYTES, f"line {number}")
            if line.strip():
                yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            "No feature table",
            "the file is neither HDF5 nor UTF-8 text",
            "give BIOM, TSV (UTF-8) or a .qza artifact",
        ) from error


def _header(lines: Iterator[tuple[int, str]]) -> tuple[list[str], list[tuple[int, str]]]:
    """Return the cells of the header, and the lines after it that are already read."""
    first, comment = "", ""
    plain: list[tuple[int, str]] = []
    for number, line in lines:
        first = first or line
        if not line.startswith("#"):
            plain = [(number, line)]
            break
        comment = line
    # The header is the last commented line if that has columns, else the first plain one.
    is_commented = "\t" in comment
    header = (comment if is_commented else plain[0][1] if plain else "").split("\t")
    if len(header) < 2 and first.count(",") > 1:
        raise DataError(
            "The table is comma-separated",
            f"line 1 is '{first[:60]}'",
            "save it as tab-separated text (.tsv)",
        )
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
    if is_commented:
        return header, plain
    # R's write.table leaves out the header of the column of row names.
    following = list(islice(lines, 1))
    if following and following[0][1].count("\t") == len(header):
        header = ["", *header]
    return header, following


def _unquoted(name: str) -> str:
    """Return an id without the quotes of R's write.table."""
    is_quoted = len(name) > 1 and name[0] == name[-1] == '"'
    return name[1:-1].replace('\\"', '"').replace('""', '"') if is_quoted else name


def _numbers(cells: list[str], line: int) -> NDArray[Any]:
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError as error:
        comma = any("," in cell for cell in cells)
        raise DataError(
            "A count that is not a number",
            f"line {line}, {reason_of(error)}",
            "write decimal points, not commas" if comma else "write 0 where a sample has no reads",
        ) from error
