"""Feature tables: validated counts of reads as a sparse matrix of samples x features.

`aam.data.formats.tables` reads and validates the files. Nothing is repaired silently, and the
matrix is never made dense.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, vstack

from aam.console import info, warn
from aam.contract.errors import DataError, first_few
from aam.data.formats import tables

AUTO_FRACTION = 0.95
AUTO_LARGEST = 5000

NUMPY_LIMIT = 10**9
"""Reads of a sample from which numpy's hypergeometric distribution is not defined."""

_AT_ONCE = 4096  # memory-mapped samples that are gathered into memory together


# eq=False: a generated comparison of arrays would raise, because arrays have no truth value.
@dataclass(frozen=True, eq=False)
class MappedCounts:
    """Memory-mapped counts of reads [N, F] of a selection of a store's samples.

    A selection from scipy's matrix copies the samples. Here it is a list of rows, eight bytes each,
    of a file whose pages all processes share.
    """

    data: NDArray[np.int32]  # [entries], all above 0
    indices: NDArray[np.int32]  # [entries], their ASVs, ascending within a sample
    indptr: NDArray[np.int64]  # int64, sample m is `indptr[m]` to `indptr[m + 1] - 1`
    all_reads: NDArray[np.int64]  # int64, reads of each sample of the store
    asvs: int  # F
    rows: NDArray[np.int64] | None = None  # [N], samples of this selection; None: all
    # int32, column to which the reads of each ASV of the store are added; None if every ASV has a
    # column of its own
    column_F: NDArray[np.int32] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """N samples, F ASVs."""
        return len(self.all_reads if self.rows is None else self.rows), self.asvs

    @property
    def reads(self) -> NDArray[np.int64]:
        """Reads of each sample, [N]."""
        return self.all_reads if self.rows is None else self.all_reads[self.rows]

    @property
    def richness(self) -> NDArray[np.int64]:
        """ASVs of each sample, [N]."""
        if self.column_F is not None:
            chunks = np.array_split(np.arange(self.shape[0]), 1 + self.shape[0] // _AT_ONCE)
            return np.concatenate([np.diff(self[chunk].indptr) for chunk in chunks])
        richness = np.diff(self.indptr)
        return richness if self.rows is None else richness[self.rows]

    def take(self, rows: NDArray[np.int64]) -> MappedCounts:
        """Select the samples at `rows` of this selection, in this order, without copying them."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def __getitem__(self, rows: NDArray[np.int64]) -> csr_array:
        """Copy the counts of the samples at `rows` into memory, [n, F]."""
        chosen = rows if self.rows is None else self.rows[rows]
        starts, ends = self.indptr[chosen], self.indptr[chosen + 1]
        spans = [slice(low, high) for low, high in zip(starts, ends, strict=True)]
        none = np.empty(0, dtype=np.int32)
        data = np.concatenate([none, *(self.data[span] for span in spans)])
        indices = np.concatenate([none, *(self.indices[span] for span in spans)])
        indptr = np.concatenate([[0], np.cumsum(ends - starts)])
        # Both index arrays have one type; otherwise scipy would copy the larger.
        if len(indices) <= np.iinfo(np.int32).max:
            indptr = indptr.astype(np.int32)
        if self.column_F is not None:
            return _summed(data, self.column_F[indices], indptr, self.asvs)
        return csr_array((data, indices, indptr), shape=(len(chosen), self.asvs))

    def take_columns(self, columns: NDArray[np.int64]) -> csr_array:
        """Copy the counts of the ASVs at `columns` into memory, [N, f]."""
        chunks = np.array_split(np.arange(self.shape[0]), 1 + self.shape[0] // _AT_ONCE)
        return vstack([self[chunk][:, columns] for chunk in chunks], format="csr")


def _summed(
    data: NDArray[np.int32], columns: NDArray[np.int32], indptr: NDArray[Any], asvs: int
) -> csr_array:
    """Sum the entries of equal row and column in place; counts [n, asvs]."""
    counts = csr_array((data, columns, indptr), shape=(len(indptr) - 1, asvs))
    counts.sum_duplicates()
    return counts


class PackedStrings(Sequence[str]):
    """Sequence of strings in one memory-mapped array of UTF-8 bytes.

    A tuple of ten million ids would take a gigabyte in each process.
    """

    def __init__(
        self,
        letters: NDArray[np.uint8],  # all strings one after the other
        ends: NDArray[np.int64],  # [n + 1], string i is `letters[ends[i] : ends[i + 1]]`
        rows: NDArray[np.int64] | None = None,  # the strings of this sequence; None for all n
    ) -> None:
        self._letters, self._ends, self._rows = letters, ends, rows

    def take(self, rows: NDArray[np.int64]) -> PackedStrings:
        """Select the strings at `rows` of this sequence, in this order, without copying them."""
        chosen = rows if self._rows is None else self._rows[rows]
        return PackedStrings(self._letters, self._ends, chosen)

    def __len__(self) -> int:
        return len(self._ends) - 1 if self._rows is None else len(self._rows)

    def __getitem__(self, index: Any) -> Any:  # str of an int, tuple[str, ...] of a slice
        if isinstance(index, slice):
            return tuple(self[row] for row in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        row = index % len(self) if self._rows is None else int(self._rows[index])
        return self._letters[self._ends[row] : self._ends[row + 1]].tobytes().decode()


def take_strings(strings: Sequence[str], rows: NDArray[np.int64]) -> Sequence[str]:
    """Select the strings at `rows`, in this order; packed strings stay packed."""
    if isinstance(strings, PackedStrings):
        return strings.take(rows)
    return tuple(strings[row] for row in rows.tolist())


@dataclass(frozen=True)
class FeatureTable:
    """Feature table: counts of reads, or relative abundances as integers, with ids."""

    sample_ids: Sequence[str]  # N names, unique; a tuple, or `PackedStrings` if memory-mapped
    feature_ids: Sequence[str]  # F names, unique; often the sequences themselves
    # int32 [N, F], without explicit zeros, column indices sorted within a row; or `MappedCounts` of
    # a store
    counts: csr_array
    quantity: tables.Quantity = "reads"  # relative abundances sum to `tables.PARTS` in a sample

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
        """Select the samples at `rows` (int [n]), in this order."""
        chosen = np.asarray(rows, dtype=np.int64)
        mapped = isinstance(self.counts, MappedCounts)
        counts = self.counts.take(chosen) if mapped else self.counts[chosen]
        return replace(self, sample_ids=take_strings(self.sample_ids, chosen), counts=counts)

    def take_features(self, columns: ArrayLike) -> FeatureTable:
        """Copy the features at `columns` (int [f]), in this order, into memory."""
        chosen = np.asarray(columns, dtype=np.int64)
        ids = tuple(self.feature_ids[column] for column in chosen)
        mapped = isinstance(self.counts, MappedCounts)
        counts = self.counts.take_columns(chosen) if mapped else self.counts[:, chosen]
        counts.sort_indices()
        return replace(self, feature_ids=ids, counts=counts)

    def sum_features(self, columns: NDArray[np.int64], column_F: NDArray[np.int32]) -> FeatureTable:
        """Sum features into the features at `columns` (int [f]); `column_F` has each one's sum."""
        counts: Any = self.counts
        if isinstance(counts, MappedCounts):
            counts = replace(counts, column_F=column_F, asvs=len(columns))
        else:
            indices = column_F[counts.indices]
            counts = _summed(counts.data.copy(), indices, counts.indptr.copy(), len(columns))
        return replace(self, feature_ids=take_strings(self.feature_ids, columns), counts=counts)


def read_table(
    path: Path, drop_empty_samples: bool = False, max_bytes: int | None = None
) -> FeatureTable:
    """Read a feature table and check that its values are counts of reads or relative abundances."""
    table = tables.open_blocks(path, block_bytes=sys.maxsize, max_bytes=max_bytes)
    blocks = list(table.blocks())  # one block; none for a table without samples
    values = blocks.pop() if blocks else csr_array((0, len(table.feature_ids)))
    with tables.path_named(path):
        counts, quantity = tables.as_abundances(values, table.sample_ids, table.quantity)
    read = FeatureTable(tuple(table.sample_ids), tuple(table.feature_ids), counts, quantity)
    return _with_reads(read, f"'{path}'", drop_empty_samples)


def table_of(
    values: csr_array, sample_ids: Sequence[str], feature_ids: Sequence[str]
) -> FeatureTable:
    """Make a feature table from counts [N, F] in memory: checked, and converted in place."""
    try:
        tables.check_names(sample_ids, feature_ids)
        counts, quantity = tables.as_abundances(values, sample_ids, "reads")
    except DataError as error:
        raise DataError(f"{error.cause} in the table", error.evidence, error.remedy) from error
    table = FeatureTable(tuple(sample_ids), tuple(feature_ids), counts, quantity)
    return _with_reads(table, "the table", drop_empty_samples=False)


def _with_reads(table: FeatureTable, source: str, drop_empty_samples: bool) -> FeatureTable:
    """Reduce a table to samples and features with reads; warn if its values are not reads."""
    counts = table.counts
    if table.quantity != "reads":
        warn(
            f"The values of {source} are {table.quantity}, not reads: kernel and forest compare "
            "relative abundances and need no reads, a transformer does. Effects of the sequencing "
            "depth cannot be checked."
        )
    with_reads = check_reads(
        np.diff(counts.indptr),
        np.bincount(counts.indices, minlength=counts.shape[1]),
        table.sample_ids,
        source,
        drop_empty_samples,
    )
    if len(with_reads[0]) < counts.shape[0]:
        table = table.take_samples(with_reads[0])
    return table if len(with_reads[1]) == counts.shape[1] else table.take_features(with_reads[1])


def check_reads(
    richness_N: NDArray[np.int64],
    prevalence_F: NDArray[np.int64],
    sample_ids: Sequence[str],
    source: str,
    drop_empty_samples: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find samples and features with reads; refuse the other samples or print their ids."""
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


def leave_out_samples(group: str, ids: Sequence[str], drop_empty_samples: bool) -> None:
    """Print which samples are left out; without `drop_empty_samples`, refuse them (DataError)."""
    if ids and not drop_empty_samples:
        raise DataError(group, first_few(ids), "add --drop-empty-samples to leave them out")
    if ids:
        info(f"{group} are left out: {first_few(ids)}.")


def auto_depth(reads: NDArray[np.int64]) -> int:
    """Choose the largest depth, at most 5000, that at least 95 % of the samples reach.

    >>> auto_depth(np.array([100, 2000, 3000])), auto_depth(np.array([8000, 9000]))
    (100, 5000)
    """
    lowest_kept = int(np.sort(reads)[int(np.floor(len(reads) * (1 - AUTO_FRACTION)))])
    return min(lowest_kept, AUTO_LARGEST)


def rarefy(
    counts: NDArray[np.int32], depth: int, sample_id: str, seed: int, draw: int
) -> NDArray[np.int64]:
    """Rarefy one sample: draw `depth` reads; all reads if it has fewer, or if `depth` is 0.

    Each draw is seeded by the run's seed, the number of the draw (an epoch or a prediction pass)
    and the sample's id, so it does not depend on the order of the table or on the batch.

    >>> int(rarefy(np.array([5, 0, 15], dtype=np.int32), 10, "sample-1", seed=0, draw=0).sum())
    10
    """
    counts_64 = counts.astype(np.int64)
    total = int(counts_64.sum())
    if depth == 0 or total <= depth:
        return counts_64
    # CRC-32, because Python's `hash` of a string differs between processes.
    rng = np.random.default_rng([seed, draw, zlib.crc32(sample_id.encode())])
    if total < NUMPY_LIMIT:
        # NumPy's other method, `count`, makes an array of all reads.
        return rng.multivariate_hypergeometric(counts_64, depth, method="marginals")
    return _draw_by_number(counts_64, depth, rng)


def _draw_by_number(
    counts_64: NDArray[np.int64], depth: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw `depth` distinct reads by their index; memory grows with the smaller of both halves."""
    total = int(counts_64.sum())
    if 2 * depth > total:
        return counts_64 - _draw_by_number(counts_64, total - depth, rng)
    reads = np.empty(0, dtype=np.int64)
    while len(reads) < depth:
        # Duplicates are drawn again, so every set of reads is equally likely.
        reads = np.union1d(reads, rng.integers(total, size=depth - len(reads)))
    owners = np.searchsorted(np.cumsum(counts_64), reads, side="right")
    return np.bincount(owners, minlength=len(counts_64)).astype(np.int64)
