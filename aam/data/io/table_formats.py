"""Parsers of feature tables as text: TSV line by line, BIOM 1 (JSON) as a whole.

`aam.data.io.table_blocks` chooses among them; whether the values are counts of reads is checked in
`aam.data.table`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aam.console import say
from aam.contract.errors import DataError, first_few

BAD_CONTENT = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,  # RecursionError is one
    TypeError,
    ValueError,
)
_TAXONOMY = frozenset({"taxonomy", "taxon", "consensus lineage", "consensuslineage"})
_SAMPLE_HEADERS = frozenset({"#sampleid", "#sample id", "sampleid", "sample-id", "sample_name"})
TRANSPOSED = "give features as rows and samples as columns, or BIOM, which names its axes"


def parse_json(text: str) -> tuple[list[str], list[str], sparse.csr_array]:
    """Parse BIOM 1, whose matrix is a list of rows or of (feature, sample, value) triples.

    Returns:
        Sample ids, feature ids and the float64 [N, F] values.

    Raises:
        DataError: not a whole BIOM 1 table; an index outside the table, or used twice; duplicated
            or missing ids.
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
        ValueError: one is no whole number, outside the table, or a place occurs twice.
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


def parse_tsv(
    lines: Iterable[str],
) -> tuple[list[str], Iterator[tuple[str, NDArray[np.float64]]]]:
    """Read the header of a TSV of features x samples; its rows follow as they are iterated over.

    Args:
        lines: of the file, with or without line ends.

    Returns:
        Sample ids [N], and an iterator of feature ids with their float64 values [N].

    Raises:
        DataError: no such table; the iterator raises it too.
    """
    numbered = enumerate((line.rstrip("\r\n") for line in lines), 1)
    there = ((number, line) for number, line in numbered if line.strip())
    header, first = _header(there)
    width = len(header)
    if header[-1].strip().lower() in _TAXONOMY:
        width -= 1
        say(f"The column '{header[-1].strip()}' of the table is not read.")
    return header[1:width], _rows(chain(first, there), len(header), width)


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
    """Return the cells of the header, and the line after it if that has been read already."""
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


def unreadable(form: str, error: Exception) -> DataError:
    """Return the error of a damaged file of some form."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return DataError(f"Not a whole {form} table", reason, "copy the file again or make it again")


def check_ids(ids: Sequence[str], what: str) -> None:
    """Refuse ids that occur twice or are empty.

    Raises:
        DataError: naming them.
    """
    twice = [name for name, times in Counter(ids).items() if times > 1]
    if twice:
        raise DataError(f"Duplicated {what} ids", first_few(twice), f"give each {what} one id")
    if any(not name.strip() for name in ids):
        nameless = sum(not name.strip() for name in ids)
        raise DataError(f"{what.capitalize()}s without an id", str(nameless), "name them")
