"""Sample metadata: columns about samples, aligned to a table by sample id.

Metadata follows QIIME 2's rules, read by scikit-bio. Ids and values stay the strings of the file,
so that 2538.10 and 2538.1 are two samples; `aam.data.target_columns` converts a column to labels.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aam.console import warn
from aam.contract.errors import DataError, first_few
from aam.contract.files import require
from aam.contract.suggestions import nearest
from aam.data.formats.artifact import read_payload
from aam.data.formats.text import decoded
from aam.data.store import is_store, stored_metadata
from aam.data.without_torch import without_torch
from aam.memory import memory_budget

MISSING = frozenset(
    # An empty cell is QIIME 2's only missing value; the terms are those of its INSDC:missing
    # scheme and of https://www.insdc.org/technical-specifications/missing-value-reporting/,
    {"", "missing", "not applicable", "not collected", "not provided", "restricted access"}
    # of Qiita's exports, and of R, pandas and spreadsheets.
    | {"unspecified", "na", "n/a", "#n/a", "nan", "none", "null"}
)
"""Missing values, in lower case; values that begin with 'missing:' are missing too."""

ID_HEADER = "sample-id"
"""First header of every table of samples that aam writes, as in QIIME 2."""

_COMMON_ID_HEADER = "sample_id"
"""First header that many tables have and QIIME 2 does not accept; it is read as `ID_HEADER`."""

_ID_HEADERS = frozenset(
    {"id", "sampleid", "sample id", "sample-id", "featureid", "feature id", "feature-id"}
)
"""First headers that QIIME 2 accepts, in any case."""

_OLD_HEADERS = frozenset(
    {"#SampleID", "#Sample ID", "#OTUID", "#OTU ID", "sample_name", _COMMON_ID_HEADER}
)
"""First headers of older programs, and of Qiita, that QIIME 2 accepts in this spelling."""

_TYPES = re.compile(r"^[\"']?#(?:q2|sk):types", re.MULTILINE)
"""Line with the types of the columns."""

LARGEST_NUMBER = 1e30
"""Larger numbers overflow in squares and in single precision."""

_DIFFERENCES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("blanks at the ends", str.strip),
    ("upper and lower case", str.lower),
    ("'.', '_' and '-'", lambda name: re.sub(r"[._-]", ".", name)),
    ("zeros at the beginning or the end", lambda name: name.strip("0").rstrip(".")),
    ("a prefix", lambda name: re.sub(r"^.*?[._-]", "", name)),
    ("a prefix", lambda name: re.sub(r"^.*[._-]", "", name)),
    ("a suffix", lambda name: re.sub(r"[._-][^._-]*$", "", name)),
    ("a suffix", lambda name: re.sub(r"[._-].*$", "", name)),
)
"""Likely reasons for ids that differ, and what makes them equal on one side or on both."""

_LISTED_COLUMNS = 50
_OBJECT_BYTES = 40
"""Bytes of memory per byte of metadata while reading: scikit-bio holds one string per cell."""


@dataclass(frozen=True)
class Metadata:
    """Metadata of samples, by column.

    Attributes:
        ids: n sample names, unique.
        columns: the n cells of each column, by its name; "" for an empty cell.
    """

    ids: Sequence[str]
    columns: Mapping[str, Sequence[str]]

    def values(self, column: str, sample_ids: Sequence[str]) -> NDArray[np.str_]:
        """Return the value of each sample, "" where it is missing or the sample has no row.

        A whole number is written without decimals: 18.0 and 18 are one subject.

        Returns:
            str [N], in the order of `sample_ids`.

        Raises:
            DataError: no such column, or no sample in common.
        """
        texts = self.texts(column, sample_ids)
        known = ["" if text is None or is_missing(text) else normalized(text) for text in texts]
        return np.array(known, dtype=np.str_)

    def texts(self, column: str, sample_ids: Sequence[str]) -> list[str | None]:
        """Return the cell of each sample as it is in the file, None where the sample has no row.

        Raises:
            DataError: no such column, or no sample in common.
        """
        self.require(column)
        cells = dict(zip(self.ids, self.columns[column], strict=True))
        texts = [cells.get(name) for name in sample_ids]
        if all(text is None for text in texts):
            raise self.no_common_sample(sample_ids)
        return texts

    def require(self, column: str) -> None:
        """Refuse metadata without a column.

        Raises:
            DataError: names the columns.
        """
        if column not in self.columns:
            columns = list(self.columns)
            more = ["..."] if len(columns) > _LISTED_COLUMNS else []
            raise DataError(
                f"The metadata has no column '{column}'",
                f"it has {len(columns)}: {', '.join(columns[:_LISTED_COLUMNS] + more)}",
                nearest(column, columns, "name one of them", most=3),
            )

    def no_common_sample(self, sample_ids: Sequence[str]) -> DataError:
        """Return the error of a table without any sample of the metadata."""
        reason = self.likely_reason(sample_ids)
        return DataError(
            "The table and the metadata have no sample in common",
            f"the table has {first_few(sample_ids)}, the metadata {first_few(self.ids)}",
            f"make the ids alike: they differ in {reason}"
            if reason
            else "make the ids alike (prefixes, '.' for '_', zeros lost in a spreadsheet)",
        )

    def likely_reason(self, sample_ids: Sequence[str]) -> str:
        """Return why samples of the table probably have no metadata; "" if no reason is likely.

        Args:
            sample_ids: ids of the table; those with metadata are not considered.
        """
        table, described = set(sample_ids), set(self.ids)
        absent, free = table - described, described - table
        for reason, change in _DIFFERENCES:
            changed, changed_free = ({change(name) for name in ids} for ids in (absent, free))
            alike = (changed & free, absent & changed_free, changed & changed_free)
            if max(map(len, alike)) > len(absent) / 2:
                return reason
        return ""


def read_metadata(path: Path) -> Metadata:
    """Read a metadata TSV, gzipped or not, or the metadata that a store holds.

    Raises:
        MissingInput: there is no such file.
        DataError: the file breaks QIIME 2's rules (first header, duplicated ids, no tabs, ...) or
            does not fit in memory; the store is damaged or has no metadata.
    """
    if is_store(path):
        return Metadata(*stored_metadata(path))
    require(path, "metadata")
    most = memory_budget() // _OBJECT_BYTES
    text = decoded(read_payload(path, "metadata.tsv", "ImmutableMetadata", most), path, "metadata")
    if not text.strip():
        raise DataError("The metadata is empty", f"'{path}'", "give a table with a row per sample")
    header = text.partition("\n")[0]
    for name, separator in (("comma", ","), ("semicolon", ";")):
        if "\t" not in header and separator in header:
            raise DataError(
                f"The metadata is {name}-separated",
                f"the first line of '{path}' is '{header[:80].rstrip()}'",
                "save it as tab-separated text (.tsv)",
            )
    if header.startswith(_COMMON_ID_HEADER):
        text = text.replace(_COMMON_ID_HEADER, ID_HEADER, 1)
    with without_torch():
        from skbio.metadata import SampleMetadata
        from skbio.metadata.io import MetadataFileError

    # scikit-bio reads files only.
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8", newline="") as plain:
        plain.write(text)
        plain.flush()
        try:
            if _TYPES.search(text):
                SampleMetadata.load(plain.name)  # checks the types that the file states
            # With every column categorical values keep their spelling. Its time grows with the
            # number of columns, so the columns are read from the header alone.
            columns = _columns_of(io.StringIO(text, newline="")) or ()
            as_text = dict.fromkeys(columns, "categorical")
            frame = SampleMetadata.load(plain.name, column_types=as_text).to_dataframe()
        except (MetadataFileError, csv.Error, ValueError) as error:
            raise _refused(path, text, error) from error
    ids = tuple(str(name) for name in frame.index)
    known = frame.astype(object).where(frame.notna(), "")
    return Metadata(ids, {str(name): known[name].tolist() for name in known.columns})


def _columns_of(lines: Iterable[str]) -> list[str] | None:
    """Return the columns of the header; None if it is none of QIIME 2's."""
    for row in csv.reader(lines, dialect="excel-tab", strict=True):
        first, *columns = [cell.strip() for cell in row] or [""]
        if first.lower() in _ID_HEADERS or first in _OLD_HEADERS:
            return [name for name in columns if name]
        if first and not first.startswith("#"):
            return None
    return None


def listed_columns(given: Sequence[str], metadata: Metadata) -> tuple[str, ...]:
    """Split `a,b` into columns, unless a column has that name.

    Args:
        given: values of an option that names columns; each may name several.
        metadata: metadata of the study.

    Returns:
        Names of columns in the order given; they need not exist.
    """
    parts = [[one] if one in metadata.columns else one.split(",") for one in given]
    return tuple(name.strip() for names in parts for name in names if name.strip())


def groups(metadata: Metadata, column: str, sample_ids: Sequence[str]) -> NDArray[np.str_]:
    """Return the group of each sample: the value of `column`, such as a subject.

    A sample without a value is a group of its own; a warning gives their number.

    Args:
        metadata: metadata of the study.
        column: name of the column, such as that of --group-column.
        sample_ids: ids of the N samples.

    Returns:
        str [N], in the order of `sample_ids`.

    Raises:
        DataError: no such column, or no sample in common.
    """
    found = metadata.values(column, sample_ids).tolist()
    missing = found.count("")
    if missing == len(found):
        raise DataError(f"The column '{column}' is empty", f"{missing} samples", "name another")
    if missing:
        warn(f"Samples without a '{column}': {missing} of {len(found)}, each is its own group.")
    pairs = zip(found, sample_ids, strict=True)
    return np.array([group or f"{sample} (no {column})" for group, sample in pairs], dtype=np.str_)


def is_missing(text: str) -> bool:
    """Return whether a cell is a missing value.

    >>> is_missing("Not collected"), is_missing("missing: control sample"), is_missing("0")
    (True, True, False)
    """
    value = text.strip().lower()
    return value in MISSING or value.startswith("missing:")


def as_numbers(texts: Sequence[str]) -> NDArray[np.float64]:
    """Convert texts to numbers [n]; NaN for a text that is none, such as "".

    >>> as_numbers(["1.5", "high", ""]).tolist()
    [1.5, nan, nan]
    """
    import pandas as pd

    series = pd.Series(list(texts), dtype=object)
    values: NDArray[np.float64] = pd.to_numeric(series, errors="coerce").to_numpy(np.float64)
    return values


def normalized(text: str) -> str:
    """Write a whole number without decimals; other texts stay as they are.

    >>> normalized("18.0"), normalized("18.5"), normalized("S18.0")
    ('18', '18.5', 'S18.0')
    """
    integer = re.fullmatch(r"(-?[0-9]+)\.0*", text)
    return integer[1] if integer else text


def number_remedy(wrong: Sequence[str], otherwise: str) -> str:
    """Return the remedy for values that are not numbers, which may have decimal commas."""
    commas = all(re.fullmatch(r"\s*[-+]?\d+,\d+\s*", text) for text in wrong)
    return "write decimal points, not commas" if commas else otherwise


def _refused(path: Path, text: str, error: Exception) -> DataError:
    header = text.partition("\n")[0]
    start = "There was an issue with loading the metadata file:"
    reason = str(error).removeprefix(start).partition("\n\nThere may be more errors")[0]
    reason = " ".join(reason.split())
    if "IDs are duplicated" in reason:
        return DataError(
            f"Duplicated sample ids in the metadata '{path}'",
            reason.rpartition(": ")[2].rstrip("."),
            "keep one row of each",
        )
    if found := re.match(r"Cannot convert metadata column '(.*?)' to numeric.*?: (.*)", reason):
        column, values = found.groups()
        wrong = re.findall(r"'([^']*)'", values)
        return DataError(
            f"The column '{column}' is not numeric, as the line #q2:types of '{path}' states",
            f"values that are not numbers, {first_few(wrong)}",
            "leave missing cells of a typed column empty, as QIIME 2 demands"
            if wrong and all(map(is_missing, wrong))
            else number_remedy(wrong, "correct them, or the type in that line"),
        )
    if (line := _long_row(text)) is not None:
        number, name, cells, named = line
        return DataError(
            f"A row of the metadata '{path}' has more cells than the header has columns",
            f"line {number}, '{name[:80]}', has {cells}, the header {named}",
            "remove the tabs that are too many, or name the columns that are missing",
        )
    return DataError(
        f"QIIME 2's rules refuse the metadata '{path}'",
        f"{reason.rstrip('.')} (its first line is '{header[:80].rstrip()}')",
        "give tab-separated text whose first column is called sample-id",
    )


def _long_row(text: str) -> tuple[int, str, int, int] | None:
    """Return line, first cell and cells of the first row longer than the header, and its cells."""
    named = 0
    with contextlib.suppress(csv.Error):
        rows = csv.reader(io.StringIO(text, newline=""), dialect="excel-tab", strict=True)
        for row in rows:
            cells = max((k for k, cell in enumerate(row, start=1) if cell.strip()), default=0)
            if not named and cells and (row[0].lower() in _ID_HEADERS or row[0] in _OLD_HEADERS):
                named = cells
            elif named and cells > named and not row[0].startswith("#"):
                return rows.line_num, row[0], cells, named
    return None
