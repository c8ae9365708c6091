"""The feature table: who holds how many reads of which ASV, as a sparse matrix of samples.

Reads BIOM 1 (JSON), BIOM 2.1 (HDF5), TSV (as `biom convert` writes it, or plain) and QIIME 2
artifacts, told apart by their content. What a model of reads cannot use is refused with the names
of the samples concerned; nothing is repaired in silence. Never densified.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from aam.console import say
from aam.errors import AamError, DataError, first_few
from aam.study.artifact import contents

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_TAXONOMY = frozenset({"taxonomy", "taxon", "consensus lineage", "consensuslineage"})
_SAMPLE_HEADERS = frozenset({"#sampleid", "#sample id", "sampleid", "sample-id", "sample_name"})
_MOST_READS = int(np.iinfo(np.int32).max)


@dataclass(frozen=True)
class FeatureTable:
    """Counts of reads with their ids.

    Attributes:
        sample_ids: N names, unique.
        feature_ids: F names, unique; often the sequences themselves.
        counts: int32 [N, F], without explicit zeros, column indices sorted within a row.
    """

    sample_ids: tuple[str, ...]
    feature_ids: tuple[str, ...]
    counts: sparse.csr_array

    def take_samples(self, rows: ArrayLike) -> FeatureTable:
        """Return the table of the samples at `rows` (int [n]), in that order."""
        chosen = np.asarray(rows, dtype=np.int64)
        ids = tuple(self.sample_ids[row] for row in chosen)
        return FeatureTable(ids, self.feature_ids, self.counts[chosen])

    def take_features(self, columns: ArrayLike) -> FeatureTable:
        """Return the table of the features at `columns` (int [f]), in that order."""
        chosen = np.asarray(columns, dtype=np.int64)
        ids = tuple(self.feature_ids[column] for column in chosen)
        counts = self.counts[:, chosen]
        counts.sort_indices()
        return FeatureTable(self.sample_ids, ids, counts)


def read_table(path: Path, drop_empty_samples: bool = False) -> FeatureTable:
    """Read a feature table and check that it is one of reads.

    Features without any read are left out, and so are samples without reads if
    `drop_empty_samples`; both are said.

    Raises:
        MissingInput: there is no such file.
        DataError: not a table; duplicated or missing ids; counts that are not whole numbers from 0
            to 2**31 - 1; samples without reads; nothing left.
    """
    data = contents(path, "feature-table.biom", "FeatureTable")
    try:
        samples, features, values = _parse(data)
        _check_ids(samples, "sample")
        _check_ids(features, "feature")
    except AamError as error:
        raise DataError(f"{error.cause} in '{path}'", error.evidence, error.remedy) from error
    values.eliminate_zeros()
    _check_counts(values, samples, path)
    counts = sparse.csr_array(values, dtype=np.int32)
    counts.sort_indices()
    table = FeatureTable(tuple(samples), tuple(features), counts)
    return _without_empty(table, path, drop_empty_samples)


def _parse(data: bytes) -> tuple[list[str], list[str], sparse.csr_array]:
    """Return sample ids, feature ids and the float64 [N, F] values, as the file has them."""
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
    except (BiomException, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise _unreadable("BIOM 2.1 (HDF5)", error) from error


def _from_json(text: str) -> tuple[list[str], list[str], sparse.csr_array]:
    import biom
    from biom.exception import BiomException

    try:
        parsed = json.loads(text)
        _check_ids([str(column["id"]) for column in parsed["columns"]], "sample")
        _check_ids([str(row["id"]) for row in parsed["rows"]], "feature")
        return _from_biom(biom.Table.from_json(parsed))
    except (BiomException, LookupError, TypeError, ValueError) as error:
        raise _unreadable("BIOM 1 (JSON)", error) from error


def _from_biom(table: Any) -> tuple[list[str], list[str], sparse.csr_array]:
    samples = [str(name) for name in table.ids()]
    features = [str(name) for name in table.ids(axis="observation")]
    return samples, features, sparse.csr_array(table.matrix_data.T, dtype=np.float64)


def _from_tsv(text: str) -> tuple[list[str], list[str], sparse.csr_array]:
    """Parse features x samples; comments are lines with '#' above the header.

    Not by biom, which walks every cell in Python and loses the first sample of a header that
    begins with a tab.
    """
    rows = [(number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), 1)]
    rows = [(number, line) for number, line in rows if line.strip()]
    first = next((i for i, (_, line) in enumerate(rows) if not line.startswith("#")), len(rows))
    # The header is the last commented line if that has columns, else the first plain one.
    start = first if first > 0 and "\t" in rows[first - 1][1] else first + 1
    header = rows[start - 1][1].split("\t") if start <= len(rows) else [""]
    if len(header) < 2:
        raise DataError(
            "No feature table",
            f"line 1 is '{rows[0][1][:60]}'",
            "give BIOM, a .qza artifact, or TSV with a row of sample ids and a column of features",
        )
    if header[0].strip().lower() in _SAMPLE_HEADERS:
        raise DataError(
            "The rows are samples",
            f"the first column is '{header[0]}'",
            "give features as rows and samples as columns (is it the metadata?)",
        )
    if header[-1].strip().lower() in _TAXONOMY:
        say(f"The column '{header[-1].strip()}' of the table is not read.")
        width = len(header) - 1
    else:
        width = len(header)
    features, columns, values = [], [], []
    for number, line in rows[start:]:
        cells = line.split("\t")
        if len(cells) != len(header):
            raise DataError(
                "A row of another length",
                f"line {number} has {len(cells)} cells, the header {len(header)}",
                "is the file cut off, or are blanks used for tabs?",
            )
        numbers = _numbers(cells[1:width], number)
        found = np.flatnonzero(numbers)
        features.append(cells[0])
        columns.append(found)
        values.append(numbers[found])
    sizes = np.cumsum([0, *(len(found) for found in columns)])
    parts = (
        np.concatenate([*values, np.empty(0)]),
        np.concatenate([*columns, np.empty(0, dtype=np.int64)]),
        sizes,
    )
    by_feature = sparse.csr_array(parts, shape=(len(features), width - 1))
    return header[1:width], features, sparse.csr_array(by_feature.T)


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


def _check_counts(values: sparse.csr_array, samples: Sequence[str], path: Path) -> None:
    """Refuse values that cannot be numbers of reads.

    Args:
        values: float64 [N, F].
        samples: N names.
    """
    data = values.data
    finite = np.isfinite(data)
    whole = np.equal(np.trunc(data, where=finite, out=np.zeros_like(data)), data)
    checks = (
        (~finite, "Counts that are NaN or infinite", "write 0 where a sample has no reads"),
        (data < 0, "Negative counts", "give counts of reads, not transformed values"),
        (finite & ~whole, "Fractional counts", "give counts of reads, not relative abundances"),
        (data > _MOST_READS, f"Counts beyond {_MOST_READS}", "check how the table was made"),
    )
    for wrong, cause, remedy in checks:
        if wrong.any():
            rows = np.unique(np.searchsorted(values.indptr, np.flatnonzero(wrong), "right") - 1)
            where = first_few(samples[row] for row in rows)
            evidence = f"{int(wrong.sum())} of {data.size} values, in samples {where}"
            raise DataError(f"{cause} in '{path}'", evidence, remedy)


def _without_empty(table: FeatureTable, path: Path, drop_empty_samples: bool) -> FeatureTable:
    if not table.counts.nnz:
        raise DataError(
            "The feature table has no reads",
            f"'{path}' is {len(table.sample_ids)} samples x {len(table.feature_ids)} features",
            "check how it was filtered",
        )
    empty = np.flatnonzero(np.diff(table.counts.indptr) == 0)
    if empty.size:
        named = first_few(table.sample_ids[row] for row in empty)
        if not drop_empty_samples:
            raise DataError(
                f"Samples without reads in '{path}'", named, "add --drop-empty-samples to go on"
            )
        say(f"Samples without reads are left out: {named}.")
        table = table.take_samples(np.flatnonzero(np.diff(table.counts.indptr)))
    used = np.bincount(table.counts.indices, minlength=len(table.feature_ids)) > 0
    if not used.all():
        say(f"Features without reads are left out: {int((~used).sum())} of {used.size}.")
        table = table.take_features(np.flatnonzero(used))
    return table
