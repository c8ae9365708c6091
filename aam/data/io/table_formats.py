"""Registry of feature-table formats (BIOM 2.1, BIOM 1, TSV), and validation of their content.

The format is recognized by the first bytes of the file, not by its name. A complete table is one
block (`aam.data.table`); `aam prepare` reads blocks that fit in memory. To add a format, write a
function from `OpenTable` to `TableBlocks` and add its entry to `TABLE_FORMATS`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from aam.contract.errors import DataError, first_few
from aam.data.io import artifact
from aam.data.io.biom_tables import HDF5_MAGIC, read_hdf5, read_json
from aam.data.io.table_blocks import OpenTable, TableBlocks, check_ids
from aam.data.io.tsv_tables import TRANSPOSED, read_tsv
from aam.memory import memory_budget

BLOCK_BYTES = 64 << 20
"""Largest size of a block, 12 bytes an entry; but at least one sample."""

_MAX_READS = int(np.iinfo(np.int32).max)
_ASV = re.compile(r"[ACGTUN]{20,}|[0-9a-f]{32}|[0-9a-f]{40}", re.IGNORECASE)
"""An id that is DNA, or the MD5 or SHA-1 of a sequence."""


@dataclass(frozen=True)
class TableFormat:
    """A file format of feature tables.

    Attributes:
        recognizes: whether a file that begins with these bytes (4,096 or fewer) has the format.
        read: opens the table. It raises DataError if the content is damaged or takes more memory
            than the budget; reading blocks may raise DataError too.
    """

    recognizes: Callable[[bytes], bool]
    read: Callable[[OpenTable], TableBlocks]


TABLE_FORMATS: dict[str, TableFormat] = {
    "BIOM 2.1": TableFormat(lambda start: start.startswith(HDF5_MAGIC), read_hdf5),
    "BIOM 1": TableFormat(
        lambda start: start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"), read_json
    ),
    "TSV": TableFormat(lambda start: True, read_tsv),
}
"""Formats by name; the first one that recognizes a file reads it."""


def open_blocks(
    path: Path,
    scratch: Path | None = None,
    block_bytes: int = BLOCK_BYTES,
    max_bytes: int | None = None,
) -> TableBlocks:
    """Open a feature table for reading counts of reads block by block."""
    budget = max_bytes or memory_budget()
    unpacked_bytes = budget if scratch is None else max(budget, shutil.disk_usage(scratch).free)
    with (
        _path_named(path),
        artifact.open_payload(path, "feature-table.biom", "FeatureTable", unpacked_bytes) as stream,
    ):
        start = stream.peek(4096)[:4096]
        if not start.strip():
            raise DataError("No feature table", "the file is empty", "make it again")
        table = OpenTable(path, stream, scratch, block_bytes, budget)
        read = next(each.read for each in TABLE_FORMATS.values() if each.recognizes(start))
        found = read(table)
        check_names(found.sample_ids, found.feature_ids)

    def blocks() -> Iterator[csr_array]:
        first = 0

        def as_counts(block: csr_array) -> csr_array:
            nonlocal first
            first += block.shape[0]
            return as_counts_of_reads(block, found.sample_ids[first - block.shape[0] : first])

        with _path_named(path):
            # Unlike a loop, map holds no reference to a block that its user has dropped.
            yield from map(as_counts, found.blocks())

    return TableBlocks(found.sample_ids, found.feature_ids, blocks)


@contextmanager
def _path_named(path: Path) -> Iterator[None]:
    """Add the path of the table to errors without it."""
    try:
        yield
    except DataError as error:
        if f"'{path}'" in str(error):
            raise
        raise DataError(f"{error.cause} in '{path}'", error.evidence, error.remedy) from error


def check_names(samples: Sequence[str], features: Sequence[str]) -> None:
    """Refuse duplicated and missing ids, and a table whose sample ids are ASVs (DataError)."""
    check_ids(samples, "sample")
    check_ids(features, "feature")
    if samples and all(map(_ASV.fullmatch, samples)) and not any(map(_ASV.fullmatch, features)):
        shown = f"samples {first_few(samples)} and features {first_few(features)}"
        raise DataError("The table is transposed: its samples are ASVs", shown, TRANSPOSED)


def as_counts_of_reads(block: csr_array, sample_ids: Sequence[str]) -> csr_array:
    """Convert values [n, F] in place to sorted int32 counts above 0."""
    values = block.data
    with np.errstate(invalid="ignore"):
        block.data = values.astype(np.int32)
    if values.size and not (block.data.min() >= 0 and np.array_equal(block.data, values)):
        finite = np.isfinite(values)
        integral = np.trunc(values) == values
        checks = (
            (~finite, "Counts that are NaN or infinite", "write 0 where a sample has no reads"),
            (values < 0, "Negative counts", "give counts of reads, not transformed values"),
            (~integral, "Fractional counts", "give counts of reads, not relative abundances"),
            (values > _MAX_READS, f"Counts beyond {_MAX_READS}", "check how the table was made"),
        )
        wrong, cause, remedy = next(check for check in checks if check[0].any())
        rows = np.unique(np.searchsorted(block.indptr, np.flatnonzero(wrong), "right") - 1)
        where = first_few(sample_ids[row] for row in rows)
        evidence = f"{int(wrong.sum())} of {np.count_nonzero(values)} values, in samples {where}"
        raise DataError(cause, evidence, remedy)
    block.eliminate_zeros()
    block.sort_indices()
    return block
