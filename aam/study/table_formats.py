"""The forms of a feature table: BIOM 2.1 (HDF5), BIOM 1 (JSON) and TSV, told apart by content.

Whether the values are counts of reads is not judged here.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aam.console import say
from aam.errors import DataError, first_few

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_BAD_CONTENT = (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
_TAXONOMY = frozenset({"taxonomy", "taxon", "consensus lineage", "consensuslineage"})
_SAMPLE_HEADERS = frozenset({"#sampleid", "#sample id", "sampleid", "sample-id", "sample_name"})


def parse(data: bytes) -> tuple[list[str], list[str], sparse.csr_array]:
    """Return sample ids, feature ids and the float64 [N, F] values, as the file has them.

    Raises:
        DataError: none of these forms, a damaged file, or duplicated or missing ids.
    """
    if data.startswith(_HDF5_MAGIC):
        return _from_hdf5(data)
    if not data.strip():
        raise DataError("No feature table", "the file is empty", "make it again")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            "No feature table",
            "the file is neither HDF5 nor UTF-8 text",
            "give BIOM, TSV or a .qza artifact",
        ) from error
    return _from_json(text) if text.lstrip().startswith("{") else _from_tsv(text)


def _from_hdf5(data: bytes) -> tuple[list[str], list[str], sparse.csr_array]:
    import biom
    import h5py
    from biom.exception import BiomException

    try:
        with h5py.File(io.BytesIO(data)) as file:
            # biom refuses duplicated ids too, but does not name them.
            _check_ids(file["sample/ids"].asstr()[:].tolist(), "sample")
            _check_ids(file["observation/ids"].asstr()[:].tolist(), "feature")
            return _from_biom(biom.Table.from_hdf5(file))
    except (BiomException, *_BAD_CONTENT) as error:
        raise _unreadable("BIOM 2.1 (HDF5)", error) from error


def _from_json(text: str) -> tuple[list[str], list[str], sparse.csr_array]:
    import biom
    from biom.exception import BiomException

    try:
        parsed = json.loads(text)
        _check_ids([str(column["id"]) for column in parsed["columns"]], "sample")
        _check_ids([str(row["id"]) for row in parsed["rows"]], "feature")
        return _from_biom(biom.Table.from_json(parsed))
    except (BiomException, *_BAD_CONTENT) as error:
        raise _unreadable("BIOM 1 (JSON)", error) from error


def _from_biom(table: Any) -> tuple[list[str], list[str], sparse.csr_array]:
    samples = [str(name) for name in table.ids()]
    features = [str(name) for name in table.ids(axis="observation")]
    return samples, features, sparse.csr_array(table.matrix_data.T, dtype=np.float64)


def _from_tsv(text: str) -> tuple[list[str], list[str], sparse.csr_array]:
    """Parse features x samples, row by row (biom walks every cell in Python)."""
    header, rows = _header_and_rows(text)
    width = len(header)
    if header[-1].strip().lower() in _TAXONOMY:
        say(f"The column '{header[-1].strip()}' of the table is not read.")
        width -= 1
    features, columns, values = [], [np.empty(0, dtype=np.int64)], [np.empty(0)]
    for number, line in rows:
        cells = line.split("\t")
        if len(cells) != len(header):
            raise DataError(
                "A row of another length",
                f"line {number} has {len(cells)} cells, the header {len(header)}",
                "is the file cut off, or are blanks used for tabs?",
            )
        counts = _numbers(cells[1:width], number)
        found = np.flatnonzero(counts)
        features.append(cells[0])
        columns.append(found)
        values.append(counts[found])
    _check_ids(header[1:width], "sample")
    _check_ids(features, "feature")
    indptr = np.cumsum([len(found) for found in columns])
    parts = (np.concatenate(values), np.concatenate(columns), indptr)
    by_feature = sparse.csr_array(parts, shape=(len(features), width - 1))
    return header[1:width], features, sparse.csr_array(by_feature.T)


def _header_and_rows(text: str) -> tuple[list[str], list[tuple[int, str]]]:
    """Return the cells of the header, and the lines below it with their numbers."""
    lines = [(number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), 1)]
    lines = [(number, line) for number, line in lines if line.strip()]
    first = next((i for i, (_, line) in enumerate(lines) if not line.startswith("#")), len(lines))
    # The header is the last commented line if that has columns, else the first plain one.
    start = first if first > 0 and "\t" in lines[first - 1][1] else first + 1
    header = lines[start - 1][1].split("\t") if start <= len(lines) else [""]
    if len(header) < 2:
        raise DataError(
            "No feature table",
            f"line 1 is '{lines[0][1][:60]}'",
            "give BIOM, a .qza artifact, or TSV with a row of sample ids and a column of features",
        )
    if header[0].strip().lower() in _SAMPLE_HEADERS:
        raise DataError(
            "The rows are samples",
            f"the first column is '{header[0]}'",
            "give features as rows and samples as columns (is it the metadata?)",
        )
    return header, lines[start:]


def _numbers(cells: list[str], line: int) -> NDArray[np.float64]:
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError as error:
        raise DataError(
            "A count that is not a number",
            f"line {line}, {error}",
            "write 0 where a sample has no reads",
        ) from error


def _unreadable(kind: str, error: Exception) -> DataError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return DataError(f"Not a whole {kind} table", reason, "copy the file again or make it again")


def _check_ids(ids: Sequence[str], what: str) -> None:
    twice = [name for name, times in Counter(ids).items() if times > 1]
    if twice:
        raise DataError(f"Duplicated {what} ids", first_few(twice), f"give each {what} one id")
    if any(not name.strip() for name in ids):
        nameless = sum(not name.strip() for name in ids)
        raise DataError(f"{what.capitalize()}s without an id", str(nameless), "name them")
