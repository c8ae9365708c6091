"""Registry of feature-table formats: BIOM 2.1 (HDF5), BIOM 1 (JSON) and TSV.

The format is recognized by the first bytes of the file, not by its name. A complete table is one
block (`aam.data.table`); `aam prepare` reads blocks that fit in memory. To add a format, write a
function from `OpenTable` to `TableBlocks` and add its entry to `TABLE_FORMATS`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aam.contract.errors import DataError
from aam.data.io import artifact
from aam.data.io.biom_tables import HDF5_MAGIC, read_hdf5, read_json
from aam.data.io.table_blocks import OpenTable, TableBlock, TableBlocks
from aam.data.io.tsv_tables import read_tsv
from aam.memory import memory_budget

BLOCK_BYTES = 64 << 20
"""Largest size of a block, 12 bytes an entry; but at least one sample."""


@dataclass(frozen=True)
class TableFormat:
    """A file format of feature tables.

    Attributes:
        recognizes: whether a file that begins with these bytes (4,096 or fewer) has the format.
        read: opens the table. It raises DataError if the content is damaged, if it takes more
            memory than the budget, and for duplicated or missing ids; reading blocks may raise
            DataError too.
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
    """Open a feature table for reading block by block.

    Args:
        path: a file of `TABLE_FORMATS`, plain, gzipped or in a QIIME 2 artifact.
        scratch: folder for temporary files of unpacking and sorting; None to use memory.
        block_bytes: largest size of a block; a larger sample is a block of its own.
        max_bytes: bytes of memory that reading may use; None for half of the available memory.

    Raises:
        MissingInput: there is no such file.
        DataError: the file is no table, is damaged, does not fit in memory, or has duplicated or
            missing ids. Reading blocks raises it too.
    """
    budget = memory_budget() if max_bytes is None else max_bytes
    unpacked_bytes = budget if scratch is None else max(budget, shutil.disk_usage(scratch).free)
    with _path_named(path):
        found = _open(path, scratch, block_bytes, budget, unpacked_bytes)

    def blocks() -> Iterator[TableBlock]:
        with _path_named(path):
            yield from found.blocks()

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


def _open(
    path: Path, scratch: Path | None, block_bytes: int, budget: int, unpacked_bytes: int
) -> TableBlocks:
    with artifact.open_payload(
        path, "feature-table.biom", "FeatureTable", unpacked_bytes
    ) as stream:
        start = stream.peek(4096)[:4096]
        if not start.strip():
            raise DataError("No feature table", "the file is empty", "make it again")
        table = OpenTable(path, stream, scratch, block_bytes, budget)
        used = next(each for each in TABLE_FORMATS.values() if each.recognizes(start))
        return used.read(table)
