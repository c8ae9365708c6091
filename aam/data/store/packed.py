"""Packed strings: many strings in one array of bytes, which can be memory-mapped.

A tuple of ten million ids takes a gigabyte in every process; packed, pages of a file are shared by
all of them, and a selection of rows costs eight bytes a row.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 4096


class PackedStrings(Sequence[str]):
    """A sequence of strings in UTF-8.

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
        place = index % len(self) if self._rows is None else int(self._rows[index])
        return self._letters[self._ends[place] : self._ends[place + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        if self._rows is not None:
            yield from map(self.__getitem__, range(len(self)))
            return
        for start in range(0, len(self), _AT_ONCE):
            ends = self._ends[start : start + _AT_ONCE + 1].tolist()
            text = self._letters[ends[0] : ends[-1]].tobytes()
            for low, high in pairwise(ends):
                yield text[low - ends[0] : high - ends[0]].decode()

    def __repr__(self) -> str:
        return f"PackedStrings of {len(self)}"


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
