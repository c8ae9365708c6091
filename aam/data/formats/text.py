"""Text files: UTF-8, tables, numbers, ids that differ between files, and their errors."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from aam.contract.errors import DataError, first_few, reason_of
from aam.contract.files import atomic_write, require
from aam.contract.records import EDITED
from aam.memory import check_memory, memory_budget

if TYPE_CHECKING:
    import pandas as pd

_OBJECT_BYTES = 8  # bytes of memory per byte of text once it is split into cells

LARGEST_FLOAT32 = 3.4e38
"""Largest number in tables of this program: the float32 maximum, rounded down."""


_BINARY = {
    b"\x89HDF": "HDF5, the format of BIOM tables",
    b"PK\x03\x04": "a zip archive or a spreadsheet",
    b"\xd0\xcf\x11\xe0": "a spreadsheet",
    b"X\n\0\0": "an R object (.rds)",
    b"RDX2": "an R workspace (.RData)",
    b"RDX3": "an R workspace (.RData)",
    b"PAR1": "a Parquet table",
}
"""First bytes -> binary format that users give for text by mistake."""

_SAVE_AS_UTF8 = "save it as UTF-8 in a text editor (Excel's tab-delimited formats are not UTF-8)"


def check_text(start: bytes, path: Path, title: str) -> None:
    """Refuse a file whose first bytes are not UTF-8 text."""
    if (form := _BINARY.get(start[:4])) is not None:
        raise DataError(f"The {title} is not text", f"'{path}' is {form}", "save it as a text file")
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"The {title} is not UTF-8 text", f"'{path}' is UTF-16", _SAVE_AS_UTF8)


def decoded(data: bytes, path: Path, title: str) -> str:
    """Decode the content of a text file."""
    check_text(data[:4], path, title)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Text in an 8-bit encoding, such as Windows-1252, has no zero bytes.
        raise DataError(
            f"The {title} is not UTF-8 text",
            f"'{path}', {error.reason} at byte {error.start}",
            _SAVE_AS_UTF8 if b"\0" not in data else "check that it is the right file",
        ) from error


def lines_of(text: str) -> list[str]:
    r"""Split text at LF and CR LF only: ids may contain the other line ends of `str.splitlines`.

    >>> lines_of("a\u2028b\r\nc\n")
    ['a\u2028b', 'c']
    """
    lines = text.replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def quoting(cells: Iterable[object]) -> Literal[0, 2]:
    """Return the quoting mode for the writers of csv and pandas.

    Readers take a carriage return in a cell for a line end; Python quotes it only from 3.13 on.
    """
    returns = any("\r" in cell for cell in cells if isinstance(cell, str))
    return csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL


def check_unquoted(ids: Iterable[str], form: str) -> None:
    """Refuse ids that a format without quotes cannot hold."""
    if odd := [name for name in ids if set(name) & set("\t\n\r")]:
        raise DataError(
            f"Sample ids with tabs or line ends cannot be written as {form}",
            first_few(map(ascii, odd)),
            "rename the samples",
        )


def read_text(path: Path, title: str) -> str:
    """Read a small text file."""
    size = require(path, title).stat().st_size
    remedy = "check that it is the right file"
    check_memory(title, f"'{path}'", size * _OBJECT_BYTES, memory_budget(), remedy)
    return decoded(path.read_bytes(), path, title)


def read_rows(
    path: Path, title: str, columns: Collection[str] = (), delimiter: str = "\t"
) -> tuple[list[str], list[dict[str, str]]]:
    """Read a table that this program wrote: header, and cells of each row by column."""
    text = read_text(path, title)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[dict[str, str]] = []
    try:
        header = next(reader, [])
        if missing := [name for name in columns if name not in header]:
            raise ValueError(f"it has no column {' and '.join(missing)}")
        if len({*header}) < len(header):
            raise ValueError("two columns have one name")
        for cells in reader:
            if cells:
                if len(cells) != len(header):
                    raise ValueError(
                        f"line {reader.line_num} has {len(cells)} cells, the header {len(header)}"
                    )
                rows.append(dict(zip(header, cells, strict=True)))
    except (ValueError, csv.Error) as error:
        raise DataError(
            f"Not a {title} of this program", f"'{path}', {reason_of(error)}", EDITED
        ) from error
    return header, rows


def floats(cells: Sequence[str]) -> NDArray[np.float64]:
    """Convert cells to numbers [n]; ValueError for other text.

    >>> floats(["1", "0.5"]).tolist()
    [1.0, 0.5]
    """
    # Python and NumPy read "1_0" as 10.
    if "_" in "".join(cells):
        raise ValueError(f"not a number: '{next(cell for cell in cells if '_' in cell)}'")
    return np.array(cells, dtype=np.float64)


def number_remedy(wrong: Sequence[str], otherwise: str) -> str:
    """Return the remedy for texts that are not numbers: commas, dates, or `otherwise`."""
    first = wrong[0].strip()
    thousands = f"write {first.replace(',', '')} for {first} if the comma separates thousands"
    if first.count(",") == 1 and "." not in first:
        thousands += f", {first.replace(',', '.')} if it is a decimal comma"
    for pattern, remedy in (
        (r"\s*[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?\s*", thousands),
        (r"\s*[-+]?\d+,\d+\s*", "write decimal points, not commas"),
        (r"\s*\d+([-/.])\d+\1\d+([ T].*)?", "write dates as numbers, such as days since the first"),
    ):
        if all(re.fullmatch(pattern, text) for text in wrong):
            return remedy
    return otherwise


def numbers(
    rows: Sequence[dict[str, str]], column: str, path: Path, title: str, optional: bool = False
) -> list[float]:
    """Convert a column of `read_rows` to finite numbers; `optional` allows NaN for other cells."""
    fields = []
    for number, row in enumerate(rows, start=1):
        try:
            value = float(row[column] or "nan")
        except ValueError:
            value = LARGEST_FLOAT32 * 2
        if optional and not math.isfinite(value):
            value = math.nan
        elif not abs(value) <= LARGEST_FLOAT32:
            raise DataError(
                f"The column '{column}' of the {title} is not numeric",
                f"'{row[column]}' in row {number} of '{path}'",
                EDITED,
            )
        fields.append(value)
    return fields


_DIFFERENCES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("blanks at the ends", str.strip),
    ("upper and lower case", str.lower),
    ("blanks and '_'", lambda name: name.replace(" ", "_")),
    ("'.', '_' and '-'", lambda name: re.sub(r"[._-]", ".", name)),
    ("text after ';', as ';size='", lambda name: name.partition(";")[0]),
    ("zeros at the beginning or the end", lambda name: name.strip("0").rstrip(".")),
    ("a prefix", lambda name: re.sub(r"^.*?[._-]", "", name)),
    ("a prefix", lambda name: re.sub(r"^.*[._-]", "", name)),
    ("a suffix", lambda name: re.sub(r"[._-][^._-]*$", "", name)),
    ("a suffix", lambda name: re.sub(r"[._-].*$", "", name)),
)
"""Likely differences of ids, each with a function that makes the ids equal."""


def likely_difference(ids: Iterable[str], expected: Iterable[str]) -> str:
    """Return the likely difference between ids and the expected ids; "" if there is none.

    >>> likely_difference(["ASV_1", "ASV_2"], ["asv_1", "asv_2"])
    'upper and lower case'
    """
    id_set, expected_set = set(ids), set(expected)
    absent, free = id_set - expected_set, expected_set - id_set
    for reason, change in _DIFFERENCES:
        changed, changed_free = ({change(name) for name in names} for names in (absent, free))
        alike = (changed & free, absent & changed_free, changed & changed_free)
        if max(map(len, alike)) > len(absent) / 2:
            return reason
    return ""


def id_remedy(ids: Iterable[str], expected: Iterable[str], otherwise: str) -> str:
    """Return the remedy for unexpected ids: the likely difference, or `otherwise`."""
    reason = likely_difference(ids, expected)
    return f"make the ids alike: they differ in {reason}" if reason else otherwise


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a tab-separated file with numbers in full precision."""
    with atomic_write(path) as temporary:
        texts = table.select_dtypes(exclude="number").to_numpy().ravel()
        table.to_csv(temporary, sep="\t", index=False, quoting=quoting(texts))
