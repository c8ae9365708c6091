"""Feature tables: counts of reads as a sparse matrix of samples x features, validated.

`aam.data.io.table_formats` reads the files. A table whose values cannot be counts of reads is
refused with the ids of the samples concerned; nothing is repaired silently. The matrix is never
made dense.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from aam.console import say
from aam.contract.errors import DataError, first_few
from aam.data.io.table_formats import open_blocks
from aam.data.io.tsv_tables import TRANSPOSED
from aam.data.store.mapped_counts import MappedCounts
from aam.data.store.packed import take_strings

_MAX_READS = int(np.iinfo(np.int32).max)
_ASV = re.compile(r"[ACGTUN]{20,}|[0-9a-f]{32}|[0-9a-f]{40}", re.IGNORECASE)


@dataclass(frozen=True)
class FeatureTable:
    """Counts of reads with their ids.

    Attributes:
        sample_ids: N names, unique; a tuple, or `PackedStrings` if memory-mapped.
        feature_ids: F names, unique; often the sequences themselves.
        counts: int32 [N, F], without explicit zeros, column indices sorted within a row; or
            `MappedCounts`, whose rows are memory-mapped.
    """

    sample_ids: Sequence[str]
    feature_ids: Sequence[str]
    counts: sparse.csr_array

    @property
    def reads(self) -> NDArray[np.int64]:
        """Reads of each sample, [N]."""
        if isinstance(self.counts, MappedCounts):
            return self.counts.reads
        return np.asarray(self.counts.sum(axis=1, dtype=np.int64)).ravel()

    @property
    def richness(self) -> NDArray[np.int64]:
        """ASVs of each sample, [N]."""
        if isinstance(self.counts, MappedCounts):
            return self.counts.richness
        return np.asarray(np.diff(self.counts.indptr), dtype=np.int64)

    def take_samples(self, rows: ArrayLike) -> FeatureTable:
        """Return the table of the samples at `rows` (int [n]), in that order.

        Memory-mapped counts stay in their file.
        """
        chosen = np.asarray(rows, dtype=np.int64)
        mapped = isinstance(self.counts, MappedCounts)
        counts = self.counts.take(chosen) if mapped else self.counts[chosen]
        return FeatureTable(take_strings(self.sample_ids, chosen), self.feature_ids, counts)

    def take_features(self, columns: ArrayLike) -> FeatureTable:
        """Return the table of the features at `columns` (int [f]), in that order, in memory."""
        chosen = np.asarray(columns, dtype=np.int64)
        ids = tuple(self.feature_ids[column] for column in chosen)
        counts = self.counts[:, chosen]
        counts.sort_indices()
        return FeatureTable(self.sample_ids, ids, counts)


def read_table(
    path: Path, drop_empty_samples: bool = False, max_bytes: int | None = None
) -> FeatureTable:
    """Read a feature table and check that its values are counts of reads.

    Features without reads are left out, and samples without reads if `drop_empty_samples`; a line
    is printed for each.

    Args:
        path: BIOM 2.1, BIOM 1 or TSV, gzipped or not, or a FeatureTable artifact.
        drop_empty_samples: leave out samples without reads instead of raising DataError.
        max_bytes: bytes of memory that reading may use; None for half of the available memory.

    Raises:
        MissingInput: there is no such file.
        DataError: not a table; does not fit in memory; duplicated or missing ids; transposed;
            counts that are not integers from 0 to 2**31 - 1; samples without reads; no reads at
            all.
    """
    blocks = open_blocks(path, block_bytes=sys.maxsize, max_bytes=max_bytes)
    shape = (len(blocks.sample_ids), len(blocks.feature_ids))
    check_orientation(blocks.sample_ids, blocks.feature_ids, path)
    read = list(blocks.blocks())  # One block; none for a table without samples.
    check_reads(sum(block.data.size for block in read), shape, path)
    (block,) = read
    values = sparse.csr_array((block.data, block.indices, block.indptr), shape=shape)
    values.eliminate_zeros()
    check_counts(values, blocks.sample_ids, path)
    counts = sparse.csr_array(values, dtype=np.int32)
    counts.sort_indices()
    table = FeatureTable(tuple(blocks.sample_ids), tuple(blocks.feature_ids), counts)
    return _without_empty(table, path, drop_empty_samples)


def check_orientation(samples: Sequence[str], features: Sequence[str], path: Path) -> None:
    """Refuse a table whose sample ids are ASVs and whose feature ids are not.

    Raises:
        DataError: it is transposed.
    """
    if samples and all(map(_is_asv, samples)) and not any(map(_is_asv, features)):
        raise DataError(
            "The table is transposed: its samples are ASVs",
            f"'{path}' has the samples {first_few(samples)} and the features {first_few(features)}",
            TRANSPOSED,
        )


def _is_asv(name: str) -> bool:
    """Return whether an id is DNA, or the MD5 or SHA-1 of a sequence."""
    return bool(_ASV.fullmatch(name))


def check_counts(values: sparse.csr_array, samples: Sequence[str], path: Path) -> None:
    """Refuse values that cannot be counts of reads.

    Args:
        values: float64 [N, F].
        samples: N names.
        path: of the table, for messages.

    Raises:
        DataError: naming the samples concerned.
    """
    data = values.data
    finite = np.isfinite(data)
    integral = np.equal(np.trunc(data, where=finite, out=np.zeros_like(data)), data)
    checks = (
        (~finite, "Counts that are NaN or infinite", "write 0 where a sample has no reads"),
        (data < 0, "Negative counts", "give counts of reads, not transformed values"),
        (
            finite & ~integral,
            "Fractional counts",
            "give counts of reads, not relative abundances",
        ),
        (data > _MAX_READS, f"Counts beyond {_MAX_READS}", "check how the table was made"),
    )
    for wrong, cause, remedy in checks:
        if wrong.any():
            rows = np.unique(np.searchsorted(values.indptr, np.flatnonzero(wrong), "right") - 1)
            where = first_few(samples[row] for row in rows)
            evidence = f"{int(wrong.sum())} of {data.size} values, in samples {where}"
            raise DataError(f"{cause} in '{path}'", evidence, remedy)


def _without_empty(table: FeatureTable, path: Path, drop_empty_samples: bool) -> FeatureTable:
    sizes = table.richness
    check_reads(int(sizes.sum()), (len(table.sample_ids), len(table.feature_ids)), path)
    if not sizes.all():
        empty = (table.sample_ids[row] for row in np.flatnonzero(sizes == 0).tolist())
        check_empty(empty, path, drop_empty_samples)
        table = table.take_samples(np.flatnonzero(sizes))
    used = np.bincount(table.counts.indices, minlength=len(table.feature_ids)) > 0
    if not used.all():
        report_unused(used)
        table = table.take_features(np.flatnonzero(used))
    return table


def check_reads(entries: int, shape: tuple[int, int], path: Path) -> None:
    """Refuse a table without reads.

    Raises:
        DataError: `entries` is 0.
    """
    if not entries:
        raise DataError(
            "The feature table has no reads",
            f"'{path}' is {shape[0]} samples x {shape[1]} features",
            "check how it was filtered",
        )


def check_empty(empty: Iterable[str], path: Path, drop: bool) -> None:
    """Refuse samples without reads, or print that they are left out.

    Raises:
        DataError: `drop` is false.
    """
    named = first_few(empty)
    if not drop:
        raise DataError(
            f"Samples without reads in '{path}'", named, "add --drop-empty-samples to go on"
        )
    say(f"Samples without reads are left out: {named}.")


def report_unused(used: NDArray[np.bool_]) -> None:
    """Print the number of features without reads; `used` bool [F] is True for those with reads."""
    say(f"Features without reads are left out: {int((~used).sum())} of {used.size}.")
