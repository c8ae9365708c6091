"""Memory-mapped counts of reads: a sparse matrix whose rows are read on access.

What scipy's matrix cannot do is to leave samples out without a copy, and processes that copy share
no pages. Here a selection is a list of rows; only the samples of a batch are ever gathered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array


@dataclass(frozen=True, eq=False)
class MappedCounts:
    """Counts [N, F] over arrays of M >= N samples.

    Attributes:
        data: int32 [entries], all above 0.
        indices: int32 [entries], their ASVs, ascending within a sample.
        indptr: int64 [M + 1], sample m is `indptr[m]` to `indptr[m + 1] - 1`.
        reads_M: int64 [M], sum of each sample.
        asvs: F.
        rows: int64 [N], the samples of this selection; None for all M.
    """

    data: NDArray[np.int32]
    indices: NDArray[np.int32]
    indptr: NDArray[np.int64]
    reads_M: NDArray[np.int64]
    asvs: int
    rows: NDArray[np.int64] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """N samples, F ASVs."""
        return (len(self.reads_M) if self.rows is None else len(self.rows)), self.asvs

    @property
    def reads(self) -> NDArray[np.int64]:
        """Reads of each sample, [N]."""
        return self.reads_M if self.rows is None else self.reads_M[self.rows]

    @property
    def richness(self) -> NDArray[np.int64]:
        """ASVs of each sample, [N]."""
        if self.rows is None:
            return np.diff(self.indptr)
        return self.indptr[self.rows + 1] - self.indptr[self.rows]

    def take(self, rows: NDArray[np.int64]) -> MappedCounts:
        """Return the samples at `rows` of this selection, in that order, without copying them."""
        chosen = rows if self.rows is None else self.rows[rows]
        return MappedCounts(self.data, self.indices, self.indptr, self.reads_M, self.asvs, chosen)

    def __getitem__(self, rows: NDArray[np.int64]) -> csr_array:
        """Gather the samples at `rows`, [n, F], into memory of their own."""
        chosen = rows if self.rows is None else self.rows[rows]
        starts, ends = self.indptr[chosen], self.indptr[chosen + 1]
        spans = list(zip(starts.tolist(), ends.tolist(), strict=True))
        none = np.empty(0, dtype=np.int32)
        data = np.concatenate([none, *(self.data[low:high] for low, high in spans)])
        indices = np.concatenate([none, *(self.indices[low:high] for low, high in spans)])
        indptr = np.concatenate([[0], np.cumsum(ends - starts)])
        return _matrix(data, indices, indptr, (len(chosen), self.asvs))

    def whole(self) -> csr_array:
        """Return scipy's matrix [N, F]; a copy unless all samples are selected."""
        if self.rows is None:
            return _matrix(self.data, self.indices, self.indptr, self.shape)
        return self[np.arange(len(self.rows))]


def _matrix(
    data: NDArray[np.int32],
    indices: NDArray[np.int32],
    indptr: NDArray[np.int64],
    shape: tuple[int, int],
) -> csr_array:
    # Both index arrays of one type, or scipy would copy the larger.
    if len(indices) <= np.iinfo(np.int32).max:
        indptr = indptr.astype(np.int32)
    return csr_array((data, indices, indptr), shape=shape)
