"""Feature tables: counts of reads as a sparse matrix of samples x features, validated.

`aam.data.io.table_formats` reads and validates the files. Nothing is repaired silently, and the
matrix is never made dense.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from aam.console import info
from aam.contract.errors import DataError, first_few
from aam.data.io.table_formats import as_counts_of_reads, check_names, open_blocks
from aam.data.store.mapped import MappedCounts, take_strings


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
    counts: csr_array

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
        DataError: the file is of no known format, is damaged or does not fit in memory; ids occur
            twice; values are not counts of reads; samples without reads; no reads at all.
    """
    table = open_blocks(path, block_bytes=sys.maxsize, max_bytes=max_bytes)
    read = list(table.blocks())  # One block; none for a table without samples.
    counts = read[0] if read else csr_array((0, len(table.feature_ids)), dtype=np.int32)
    found = FeatureTable(tuple(table.sample_ids), tuple(table.feature_ids), counts)
    return _with_reads(found, f"'{path}'", drop_empty_samples)


def table_of(
    values: csr_array, sample_ids: Sequence[str], feature_ids: Sequence[str]
) -> FeatureTable:
    """Check the values of a table in memory, as `read_table` does those of a file.

    Args:
        values: float64 [N, F], counts of reads; they are converted in place.
        sample_ids, feature_ids: N and F names.

    Raises:
        DataError: ids occur twice, values are not counts of reads, or a sample has no reads.
    """
    try:
        check_names(sample_ids, feature_ids)
        counts = as_counts_of_reads(values, sample_ids)
    except DataError as error:
        raise DataError(f"{error.cause} in the table", error.evidence, error.remedy) from error
    found = FeatureTable(tuple(sample_ids), tuple(feature_ids), counts)
    return _with_reads(found, "the table", drop_empty_samples=False)


def _with_reads(found: FeatureTable, source: str, drop_empty_samples: bool) -> FeatureTable:
    """Return the samples and features with reads, see `check_reads`."""
    counts = found.counts
    held = check_reads(
        np.diff(counts.indptr),
        np.bincount(counts.indices, minlength=counts.shape[1]),
        found.sample_ids,
        source,
        drop_empty_samples,
    )
    if len(held[0]) < counts.shape[0]:
        found = found.take_samples(held[0])
    return found if len(held[1]) == counts.shape[1] else found.take_features(held[1])


def check_reads(
    richness_N: NDArray[np.int64],
    prevalence_F: NDArray[np.int64],
    sample_ids: Sequence[str],
    source: str,
    drop_empty_samples: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Refuse samples without reads or print that they are left out; print unused features."""
    samples, features = np.flatnonzero(richness_N), np.flatnonzero(prevalence_F)
    if not len(samples):
        shape = f"{source} is {len(richness_N)} samples x {len(prevalence_F)} features"
        raise DataError("The feature table has no reads", shape, "check how it was filtered")
    empty = [sample_ids[row] for row in np.flatnonzero(richness_N == 0).tolist()]
    leave_out_samples(f"Samples without reads in {source}", empty, drop_empty_samples)
    if len(features) < len(prevalence_F):
        unused = len(prevalence_F) - len(features)
        info(f"Features without reads are left out: {unused} of {len(prevalence_F)}.")
    return samples, features


def leave_out_samples(what: str, ids: Sequence[str], drop_empty_samples: bool) -> None:
    """Print which samples are left out; without `drop_empty_samples`, refuse them (DataError)."""
    if ids and not drop_empty_samples:
        raise DataError(what, first_few(ids), "add --drop-empty-samples to leave them out")
    if ids:
        info(f"{what} are left out: {first_few(ids)}.")
