"""The feature table: who holds how many reads of which ASV, as a sparse matrix of samples.

The files are read in `table_formats`; here stand the rules. What a model of reads cannot use is
refused with the names of the samples concerned; nothing is repaired in silence. Never densified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from aam.console import say
from aam.errors import AamError, DataError, first_few
from aam.study.artifact import contents
from aam.study.table_formats import parse

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
        samples, features, values = parse(data)
    except AamError as error:
        raise DataError(f"{error.cause} in '{path}'", error.evidence, error.remedy) from error
    values.eliminate_zeros()
    _check_counts(values, samples, path)
    counts = sparse.csr_array(values, dtype=np.int32)
    counts.sort_indices()
    table = FeatureTable(tuple(samples), tuple(features), counts)
    return _without_empty(table, path, drop_empty_samples)


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
