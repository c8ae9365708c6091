"""The forms of a feature table: BIOM 2.1 (HDF5), BIOM 1 (JSON) and TSV, told apart by content.

Whether the values are counts of reads is not judged here.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aam.console import say
from aam.errors import DataError, first_few

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
BAD_CONTENT = (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
_TAXONOMY = frozenset({"taxonomy", "taxon", "consensus lineage", "consensuslineage"})
_SAMPLE_HEADERS = frozenset({"#sampleid", "#sample id", "sampleid", "sample-id", "sample_name"})


def parse(data: bytes) -> tuple[list[str], list[str], sparse.csr_array]:
    """Return sample ids, feature ids and the float64 [N, F] values, as the file has them.

    Raises:
        DataError: none of these forms, a damaged file, or duplicated or missing ids.
    """
    if data.startswith(HDF5_MAGIC):
        return _from_hdf5(data)
    if not data.strip():
        raise DataError("No feature table", "the file is empty", "make it again")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise no_text() from error
    return _from_json(text) if text.lstrip().startswith("{") else _from_tsv(text)


def _from_hdf5(data: bytes) -> tuple[list[str], list[str], sparse.csr_array]:
    import biom
    import h5py
    from biom.exception import BiomException

    try:
        with h5py.File(io.BytesIO(data)) as file:
            # biom refuses duplicated ids too, but does not name them.
            check_ids(file["sample/ids"].asstr()[:].tolist(), "sample")
            check_ids(file["observation/ids"].asstr()[:].tolist(), "feature")
            return _from_biom(biom.Table.from_hdf5(file))
    except (BiomException, *BAD_CONTENT) as error:
        raise unreadable("BIOM 2.1 (HDF5)", error) from error


def _from_json(text: str) -> tuple[list[str], list[str], sparse.csr_array]:
    import biom
    from biom.exception import BiomException

    try:
        parsed = json.loads(text)
        check_ids([str(column["id"]) for column in parsed["columns"]], "sample")
        check_ids([str(row["id"]) for row in parsed["rows"]], "feature")
        return _from_biom(biom.Table.from_json(parsed))
    except (BiomException, *BAD_CONTENT) as error:
        raise unreadable("BIOM 1 (JSON)", error) from error


def _from_biom(table: Any) -> tuple[list[str], list[str], sparse.csr_array]:
    samples = [str(name) for name in table.ids()]
    features = [str(name) for name in table.ids(axis="observation")]
    return samples, features, sparse.csr_array(table.matrix_data.T, dtype=np.float64)


def _from_tsv(text: str) -> tuple[list[str], list[str], sparse.csr_array]:
    """Parse features x samples, row by row (biom walks every cell in Python)."""
    samples, rows = tsv(text.split("\n"))
    features, columns, values = [], [np.empty(0, dtype=np.int64)], [np.empty(0)]
    for name, counts in rows:
        found = np.flatnonzero(counts)
        features.append(name)
        columns.append(found)
        values.append(counts[found])
    check_ids(samples, "sample")
    check_ids(features, "feature")
    indptr = np.cumsum([len(found) for found in columns])
    parts = (np.concatenate(values), np.concatenate(columns), indptr)
    by_feature = sparse.csr_array(parts, shape=(len(features), len(samples)))
    return samples, features, sparse.csr_array(by_feature.T)


def tsv(
    lines: Iterable[str], quiet: bool = False
) -> tuple[list[str], Iterator[tuple[str, NDArray[np.float64]]]]:
    """Read the header of a TSV of features x samples; its rows follow as they are asked for.

    Args:
        lines: of the file, with or without line ends.
        quiet: do not say what is not read.

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
        if not quiet:
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
            "give features as rows and samples as columns (is it the metadata?)",
        )
    return header, [plain] if commented and plain[0] else []


def _numbers(cells: list[str], line: int) -> NDArray[np.float64]:
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError as error:
        raise DataError(
            "A count that is not a number",
            f"line {line}, {error}",
            "write 0 where a sample has no reads",
        ) from error


def no_text() -> DataError:
    """Say that a file is no table of any form."""
    return DataError(
        "No feature table",
        "the file is neither HDF5 nor UTF-8 text",
        "give BIOM, TSV or a .qza artifact",
    )


def unreadable(kind: str, error: Exception) -> DataError:
    """Say that a file of some kind is damaged."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return DataError(f"Not a whole {kind} table", reason, "copy the file again or make it again")


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
