"""Memory-mapped counts and ids, of which a selection of samples copies nothing.

scipy's matrix copies the samples that it selects, and a tuple of ten million ids takes a gigabyte;
processes share neither. Here a selection is a list of rows, at eight bytes a row, over the pages of
a file that all processes share.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

_STRINGS_AT_ONCE = 4096


# Arrays have no single truth value, so that a generated comparison would raise.
@dataclass(frozen=True, eq=False)
class MappedCounts:
    """Counts of reads [N, F] over the arrays of all samples of a store.

    Attributes:
        data: int32 [entries], all above 0.
        indices: int32 [entries], their ASVs, ascending within a sample.
        indptr: int64, sample m is `indptr[m]` to `indptr[m + 1] - 1`.
        all_reads: int64, reads of each sample of the store.
        asvs: F.
        rows: int64 [N], the samples of this selection; None: all of the store.
    """

    data: NDArray[np.int32]
    indices: NDArray[np.int32]
    indptr: NDArray[np.int64]
    all_reads: NDArray[np.int64]
    asvs: int
    rows: NDArray[np.int64] | None = None

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
        if self.rows is None:
            return np.diff(self.indptr)
        return self.indptr[self.rows + 1] - self.indptr[self.rows]

    def take(self, rows: NDArray[np.int64]) -> MappedCounts:
        """Return the samples at `rows` of this selection, in that order, without copying them."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def __getitem__(self, rows: NDArray[np.int64]) -> csr_array:
        """Gather the samples at `rows`, [n, F], into memory of their own."""
        chosen = rows if self.rows is None else self.rows[rows]
        starts, ends = self.indptr[chosen], self.indptr[chosen + 1]
        spans = [slice(low, high) for low, high in zip(starts, ends, strict=True)]
        none = np.empty(0, dtype=np.int32)
        data = np.concatenate([none, *(self.data[span] for span in spans)])
        indices = np.concatenate([none, *(self.indices[span] for span in spans)])
        return self._matrix(data, indices, np.concatenate([[0], np.cumsum(ends - starts)]))

    def complete(self) -> csr_array:
        """Return scipy's matrix [N, F]; a copy unless all samples are selected."""
        if self.rows is None:
            return self._matrix(self.data, self.indices, self.indptr)
        return self[np.arange(len(self.rows))]

    def _matrix(
        self, data: NDArray[np.int32], indices: NDArray[np.int32], indptr: NDArray[np.int64]
    ) -> csr_array:
        # Both index arrays of one type, or scipy would copy the larger.
        if len(indices) <= np.iinfo(np.int32).max:
            indptr = indptr.astype(np.int32)
        return csr_array((data, indices, indptr), shape=(len(indptr) - 1, self.asvs))


class PackedStrings(Sequence[str]):
    """A sequence of strings in one array of bytes in UTF-8.

    Args:
        letters: uint8, all strings one after the other.
        ends: int64 [n + 1], string i is `letters[ends[i] : ends[i + 1]]`.
        rows: the strings of this sequence, in order; None for all n.
    """

    def __init__(
        self,
        letters: NDArray[np.uint8],
        ends: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        self._letters, self._ends, self._rows = letters, ends, rows

    def take(self, rows: NDArray[np.int64]) -> PackedStrings:
        """Return the strings at `rows` of this sequence, in that order, without copying any."""
        chosen = rows if self._rows is None else self._rows[rows]
        return PackedStrings(self._letters, self._ends, chosen)

    def __len__(self) -> int:
        return len(self._ends) - 1 if self._rows is None else len(self._rows)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...

    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._string(index % len(self) if self._rows is None else int(self._rows[index]))

    def _string(self, place: int) -> str:
        return self._letters[self._ends[place] : self._ends[place + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        if self._rows is not None:
            for start in range(0, len(self), _STRINGS_AT_ONCE):
                yield from map(self._string, self._rows[start : start + _STRINGS_AT_ONCE].tolist())
            return
        for start in range(0, len(self), _STRINGS_AT_ONCE):
            ends = self._ends[start : start + _STRINGS_AT_ONCE + 1].tolist()
            text = self._letters[ends[0] : ends[-1]].tobytes()
            for low, high in pairwise(ends):
                yield text[low - ends[0] : high - ends[0]].decode()


def pack(strings: Iterable[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return letters and ends of strings, as `PackedStrings` takes them."""
    letters, ends = bytearray(), array("q", [0])
    for string in strings:
        letters += string.encode()
        ends.append(len(letters))
    return np.frombuffer(letters, dtype=np.uint8), np.frombuffer(ends, dtype=np.int64)


def take_strings(strings: Sequence[str], rows: NDArray[np.int64]) -> Sequence[str]:
    """Return the strings at `rows`, in that order; packed ones stay packed."""
    if isinstance(strings, PackedStrings):
        return strings.take(rows)
    return tuple(strings[row] for row in rows.tolist())
