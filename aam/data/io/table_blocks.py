"""Feature tables in blocks of samples: the result of every table reader, and its validation.

`aam.data.io.table_formats` is the registry of the formats, and validates ids and values of all.
Each reader compares the sizes that a file states with the size of the file and with the memory
budget before it allocates anything.
"""

from __future__ import annotations

import io
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from aam.contract.errors import DataError, first_few, reason_of
from aam.data.io import artifact
from aam.memory import check_memory

ENTRY_BYTES = 12
"""Bytes of an entry of a block: a float64 value and the int32 index of its feature."""

BAD_CONTENT = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,  # RecursionError is one
    TypeError,
    ValueError,
)
"""Exceptions that parsing damaged content raises."""


@dataclass(frozen=True)
class TableBlocks:
    """A table that is read block by block; `blocks` may be called more than once.

    Attributes:
        sample_ids: N names.
        feature_ids: F names.
        blocks: yields all samples in order, [n, F] at a time: float64 values of the file, each
            feature at most once in a sample.
    """

    sample_ids: Sequence[str]
    feature_ids: Sequence[str]
    blocks: Callable[[], Iterator[csr_array]]


@dataclass(frozen=True)
class OpenTable:
    """An open table file, unpacked, with the limits for reading it.

    Attributes:
        path: the file, for messages.
        stream: its content from the first byte on.
        scratch: folder for temporary files; None to use memory instead.
        block_bytes: largest size of a block; a larger sample is a block of its own.
        budget: bytes of memory that reading may use.
    """

    path: Path
    stream: io.BufferedReader
    scratch: Path | None
    block_bytes: int
    budget: int

    def seekable(self) -> Path | io.BytesIO:
        """Return the file itself, or its unpacked content in a temporary file or in memory."""
        if not artifact.is_compressed(self.path):
            return self.path
        if self.scratch is None:
            return io.BytesIO(self.stream.read())
        with (self.scratch / "table").open("wb") as target:
            shutil.copyfileobj(self.stream, target, 1 << 20)
        return self.scratch / "table"

    def runs(self, indptr: NDArray[np.int64], entry_bytes: int) -> Iterator[tuple[int, int]]:
        """Divide samples into runs of at most `block_bytes`; a larger sample is its own run."""
        entries = max(1, self.block_bytes // entry_bytes)
        low, last = 0, len(indptr) - 1
        while low < last:
            high = int(np.searchsorted(indptr, indptr[low] + entries, side="right")) - 1
            high = min(max(high, low + 1), last)
            yield low, high
            low = high

    def check_size(self, size: float, part: str) -> None:
        """Refuse a part of the table that does not fit in memory (DataError)."""
        remedy = "check how it was made, raise --max-memory-gb, or use `aam prepare`"
        check_memory("table", part, size, self.budget, remedy)


def check_ids(ids: Sequence[str], what: str) -> None:
    """Refuse duplicated and empty ids of samples or features.

    Args:
        ids: all ids of the table along one axis.
        what: name of what has the ids, "sample" or "feature", for the message.

    Raises:
        DataError: an id occurs twice or is empty.
    """
    if twice := [name for name, count in Counter(ids).items() if count > 1]:
        raise DataError(f"Duplicated {what} ids", first_few(twice), f"give each {what} one id")
    if unnamed := sum(not name.strip() for name in ids):
        raise DataError(f"{what.capitalize()}s without an id", str(unnamed), "name them")
    try:
        "\n".join(ids).encode()
    except UnicodeEncodeError as error:
        part = ascii(error.object[error.start : error.end])
        cause = f"A {what} id is no text"
        raise DataError(cause, f"it has half a character, {part}", "write the ids anew") from error


def unreadable(form: str, error: Exception) -> DataError:
    """Return the error of a damaged file of format `form`."""
    remedy = "copy the file again or make it again"
    return DataError(f"Invalid or incomplete {form} table", reason_of(error), remedy)
