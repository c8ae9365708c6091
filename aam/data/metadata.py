"""Sample metadata: a TSV by QIIME 2's rules, aligned by sample id, and conditions (--where).

scikit-bio's reader is the reference in tests; importing it takes a CPU-second, half of `aam
inspect`. Ids and values stay strings, so 2538.10 and 2538.1 are two samples; `aam.data.targets`
converts a column to labels.

A condition (--where) is one or more comparisons joined by `and`:

    COLUMN = VALUE      also ==, and != for the other values
    COLUMN < NUMBER     also <=, >, >=
    COLUMN in (A, B)    one of several values

Columns may be in [brackets] or quotes, values in quotes. Quotes are required around a value with
` and `, ` or `, a comma, a bracket or an operator: otherwise `!= A or B = 1` would exclude a
single value that no sample has. 18.0 equals 18, as in `Metadata.values`. A sample without a value
meets no comparison, not even `!=`, as in SQL and in QIIME 2's --p-where. In a comparison, `None`
and `NA` are values.
"""

from __future__ import annotations

import csv
import io
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aam.console import info, warn
from aam.contract.errors import DataError, UsageError, first_few, nearest, repeated
from aam.contract.files import require
from aam.data.formats import artifact
from aam.data.formats.text import decoded, id_remedy, number_remedy
from aam.data.store import Store, is_store
from aam.memory import memory_budget

DOUBTFUL = frozenset(
    # written by Qiita, R, pandas, spreadsheets and people
    ("missing", "unspecified", "na", "n/a", "#n/a", "nan", "none", "null", "unknown")
    + ("-", "--", "?", ".")
)
"""Missing values that may also be class names."""

MISSING = DOUBTFUL | {
    # QIIME 2 by default knows the empty cell alone; the terms come from its INSDC:missing scheme
    # and https://www.insdc.org/technical-specifications/missing-value-reporting/.
    *("", "not applicable", "not collected", "not provided", "restricted access"),
}
"""Missing values, in lower case; values that begin with 'missing:' are missing too."""

ID_HEADER = "sample-id"  # header of the ids in every table of samples that aam writes

_ID_HEADERS = frozenset(
    {"id", "sampleid", "sample id", "sample-id", "featureid", "feature id", "feature-id"}
)
"""First headers that QIIME 2 accepts, in any case."""

_OLD_HEADERS = frozenset({"#SampleID", "#Sample ID", "#OTUID", "#OTU ID", "sample_name"})
"""First headers of older programs and Qiita that QIIME 2 accepts in this spelling alone."""

_CODES = (-99999, -9999, -999, -99, -9, 99, 999, 9999, 99999)
"""Numbers that spreadsheets and statistics programs hold for missing values."""

LARGEST_NUMBER = 1e30  # larger numbers overflow in squares and in single precision

_ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LISTED_VALUES = 10
_QUOTED = r"'[^']*'|\"[^\"]*\""
_COMPARISON = re.compile(
    rf"\s*(?P<column>{_QUOTED}|\[[^\]]*\]|[^=!<>]+?)\s*"
    rf"(?:(?P<operator><=|>=|!=|==?|<|>)\s*(?P<value>{_QUOTED}|.*?)"
    r"|(?<=[\s\]'\"])(?P<in>in)\s*\((?P<values>.*?)\))"
    r"\s*(?:$|(?<=[\s)\]'\"])and\s)",
    re.IGNORECASE | re.DOTALL,
)
_ITEM = re.compile(rf"\s*(?:{_QUOTED})\s*(?=,|$)|[^,]+", re.DOTALL)
_UNCLEAR = re.compile(r"[<>=!&|(),]|(?<=\s)(?:and|or)(?=\s)", re.IGNORECASE)
"""Text that a value without quotes must not contain."""

_FORMS = (
    "write COLUMN=VALUE, COLUMN>=NUMBER or 'COLUMN in (A, B)', several joined by ' and ', and "
    "values that contain ' and ' in quotes"
)


_LISTED_COLUMNS = 50
_OBJECT_BYTES = 40
"""Bytes of memory per byte of metadata while reading: each cell is a string."""


@dataclass(frozen=True)
class Metadata:
    """Metadata of samples, by column."""

    ids: Sequence[str]  # n sample names, unique
    columns: Mapping[str, Sequence[str]]  # column -> n cells; "" for an empty cell
    categorical: frozenset[str] = frozenset()  # columns with the #q2:types "categorical"

    def values(self, column: str, sample_ids: Sequence[str]) -> NDArray[np.str_]:
        """Return the value of each sample [N]; "" for a missing value, and for a missing row."""
        texts = self.texts(column, sample_ids)
        values = ["" if text is None or is_missing(text) else normalized(text) for text in texts]
        return np.array(values, dtype=np.str_)

    def texts(self, column: str, sample_ids: Sequence[str]) -> list[str | None]:
        """Return the unchanged cell of each sample; None if the sample has no row."""
        self.require(column)
        cells = dict(zip(self.ids, self.columns[column], strict=True))
        texts = [cells.get(name) for name in sample_ids]
        if all(text is None for text in texts):
            raise self.no_common_sample(sample_ids)
        return texts

    def require(self, column: str) -> None:
        """Raise DataError if the metadata lack a column."""
        if column not in self.columns:
            columns = list(self.columns)
            more = ["..."] if len(columns) > _LISTED_COLUMNS else []
            raise DataError(
                f"The metadata has no column '{column}'",
                f"it has {len(columns)}: {', '.join(columns[:_LISTED_COLUMNS] + more)}",
                nearest(column, columns, "name one of them", most=3),
            )

    def no_common_sample(self, sample_ids: Sequence[str]) -> DataError:
        """Return the error for a table and metadata without a common sample."""
        otherwise = "make the ids alike (prefixes, '.' for '_', zeros lost in a spreadsheet)"
        return DataError(
            "The table and the metadata have no sample in common",
            f"the table has {first_few(sample_ids)}, the metadata {first_few(self.ids)}",
            id_remedy(sample_ids, self.ids, otherwise),
        )

    def listed(self, values: Sequence[str]) -> tuple[str, ...]:
        """Split `a,b` into column names, unless a column has that name; they need not exist."""
        lists = [[text] if text in self.columns else text.split(",") for text in values]
        return tuple(name.strip() for names in lists for name in names if name.strip())

    def groups(self, column: str, sample_ids: Sequence[str]) -> NDArray[np.str_]:
        """Return the group of each sample [N]: its value in `column`, such as a subject."""
        values = self.values(column, sample_ids).tolist()
        missing = values.count("")
        if missing == len(values):
            raise DataError(f"The column '{column}' is empty", f"{missing} samples", "name another")
        if missing:
            warn(
                f"Samples without a '{column}': {missing} of {len(values)}, each is its own group."
            )
        pairs = zip(values, sample_ids, strict=True)
        return np.array(
            [group or f"{sample} (no {column})" for group, sample in pairs], dtype=np.str_
        )

    def rows_where(self, condition: str | None, sample_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the positions of the samples whose metadata meet a condition, ascending."""
        if condition is None:
            return np.arange(len(sample_ids))
        met = np.ones(len(sample_ids), dtype=np.bool_)
        for comparison in parse_condition(condition):
            previous, met = met, met & comparison.meets(self, sample_ids)
            if met.any():
                continue
            values = set(self.values(comparison.column, sample_ids)[previous].tolist()) - {""}
            raise DataError(
                "No sample meets the condition",
                f"--where '{condition}', in {previous.sum()} samples '{comparison.column}' has "
                f"{', '.join(sorted(values)[:_LISTED_VALUES]) or 'no value'}",
                "change the condition",
            )
        rows = np.flatnonzero(met)
        info(f"Samples with {condition}: {len(rows)} of {len(sample_ids)}.")
        return rows


def read_metadata(path: Path) -> Metadata:
    """Read metadata from a TSV (gzipped or not), an artifact or a store."""
    if is_store(path):
        return Metadata(*Store(path).metadata())
    require(path, "metadata")
    most = memory_budget() // _OBJECT_BYTES
    text = decoded(
        artifact.read_payload(path, "metadata.tsv", "ImmutableMetadata", most), path, "metadata"
    )
    header: list[str] = []
    directives: dict[str, dict[str, str]] = {}
    ids: list[str] = []
    cells_NC: list[list[str]] = []
    for line, cells in _rows(text, path):
        first = cells[0]
        # The line #q2:missing names the terms of a column; aam accepts all of them everywhere.
        kind = first.split(" ")[0].partition(":")[2] if _is_directive(first) else ""
        if not header:
            header = _checked_header(cells, line, path)
        elif is_id_header(first):
            evidence = f"the sample id '{first}' in line {line} is a header of the id column"
            raise _refusal(path, evidence, "rename the sample, or remove the line")
        elif len(cells) > len(header):
            raise DataError(
                f"A row of the metadata '{path}' has more cells than the header has columns",
                f"line {line}, '{first[:80]}', has {len(cells)}, the header {len(header)}",
                "remove the tabs that are too many, or name the columns that are missing",
            )
        elif _is_directive(first):
            if ids or kind not in ("types", "missing") or kind in directives:
                evidence = f"'{first}' in line {line} is not a line of types below the header"
                raise _refusal(path, evidence, "move or remove the line")
            directives[kind] = dict(zip(header, cells, strict=False))
        elif not first:
            raise _refusal(path, f"line {line} has no sample id", "give each row one")
        else:
            ids.append(first)
            cells_NC.append(cells[1:] + [""] * (len(header) - len(cells)))
    if not ids:
        reason = "it has no sample" if header else "it has no header"
        remedy = "give a header whose first column is sample-id, and a row per sample"
        raise _refusal(path, reason, remedy)
    if twice := repeated(ids):
        cause = f"Duplicated sample ids in the metadata '{path}'"
        raise DataError(cause, first_few(twice), "keep one row of each")
    columns = {name: [row[k] for row in cells_NC] for k, name in enumerate(header[1:])}
    types = {name: directives.get("types", {}).get(name, "").lower() for name in columns}
    for name, column in columns.items():
        _check_type(name, column, types[name], path)
    categorical = frozenset(name for name in columns if types[name] == "categorical")
    return Metadata(tuple(ids), columns, categorical)


def _refusal(path: Path, reason: str, remedy: str) -> DataError:
    return DataError(f"QIIME 2's rules refuse the metadata '{path}'", reason, remedy)


def is_id_header(name: str) -> bool:
    """Return whether QIIME 2 accepts a name as the header of the id column."""
    return name.lower() in _ID_HEADERS or name in _OLD_HEADERS


def _is_directive(name: str) -> bool:
    return name.startswith(("#q2:", "#sk:"))


def _rows(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each row, without blank rows and comments."""
    if not text.strip():
        raise DataError("The metadata is empty", f"'{path}'", "give a table with a row per sample")
    start = text.partition("\n")[0]
    for name, separator in (("comma", ","), ("semicolon", ";")):
        if "\t" not in start and separator in start:
            raise DataError(
                f"The metadata is {name}-separated",
                f"the first line of '{path}' is '{start[:80].rstrip()}'",
                "save it as tab-separated text (.tsv)",
            )
    rows = csv.reader(io.StringIO(text, newline=""), dialect="excel-tab", strict=True)
    last = 0  # last line of the previous row
    try:
        for row in rows:
            last = rows.line_num
            cells = [cell.strip() for cell in row]
            while cells and not cells[-1]:
                cells.pop()
            is_comment = cells and cells[0].startswith("#") and not _is_directive(cells[0])
            if cells and (not is_comment or is_id_header(cells[0])):
                yield last, cells
    except csv.Error as error:
        raise _refusal(
            path,
            f"a quote that is not closed, or text after one, in line {last + 1} ({error})",
            'remove the quote; inside a quoted cell a quote is written ""',
        ) from error


def _checked_header(cells: list[str], line: int, path: Path) -> list[str]:
    # QIIME 2 refuses the frequent `sample_id`; aam accepts it.
    if not is_id_header(cells[0]) and cells[0] != "sample_id":
        line_start = "\t".join(cells)[:80]
        raise _refusal(
            path,
            f"its first column is called '{cells[0]}' (line {line} is '{line_start}')",
            "give tab-separated text whose first column is called sample-id",
        )
    if unnamed := [k for k, name in enumerate(cells, start=1) if not name]:
        raise _refusal(path, f"columns without a name: {first_few(unnamed)}", "name them")
    if twice := repeated(cells):
        raise _refusal(path, f"several columns have one name: {first_few(twice)}", "rename them")
    if reserved := [name for name in cells[1:] if is_id_header(name)]:
        evidence = f"'{reserved[0]}' is reserved for the first column"
        raise _refusal(path, evidence, "rename that column")
    return cells


def _check_type(name: str, cells: Sequence[str], stated: str, path: Path) -> None:
    kind = stated or "categorical"
    if kind not in ("categorical", "numeric"):
        evidence = f"the column '{name}' has the type '{kind}'"
        raise _refusal(path, evidence, "write categorical or numeric")
    values = dict.fromkeys(cell for cell in cells if kind == "numeric" and cell)
    wrong = [cell for cell in values if np.isnan(as_numbers([cell])[0])]
    if wrong:
        raise DataError(
            f"The column '{name}' is not numeric, as the line #q2:types of '{path}' states",
            f"values that are not numbers, {first_few(wrong)}",
            "leave missing cells of a typed column empty, as QIIME 2 demands"
            if all(map(is_missing, wrong))
            else number_remedy(wrong, "correct them, or the type in that line"),
        )


def is_missing(text: str) -> bool:
    """Return whether a cell is a missing value.

    >>> is_missing("Not collected"), is_missing("missing: control sample"), is_missing("0")
    (True, True, False)
    """
    value = text.strip().lower()
    return value in MISSING or value.startswith("missing:")


def as_numbers(texts: Sequence[str]) -> NDArray[np.float64]:
    """Convert texts to numbers [n]; NaN for other texts, such as "".

    >>> as_numbers(["1.5", "high", ""]).tolist()
    [1.5, nan, nan]
    """

    def number(text: str) -> float:
        try:
            return float(text) if "_" not in text else np.nan  # Python reads "1_0" as 10
        except ValueError:
            return np.nan

    return np.array([number(text) for text in texts], dtype=np.float64)


def warn_of_codes(column: str, values: NDArray[np.float64]) -> None:
    """Warn of outlying numbers that programs write for missing values, such as -999."""
    is_code, finite = np.isin(values, _CODES), np.isfinite(values)
    ordinary = values[finite & ~is_code]
    low, high = (ordinary.min(), ordinary.max()) if len(ordinary) else (-np.inf, np.inf)
    width = high - low
    for code, times in Counter(values[is_code].tolist()).items():
        if (code < 0 <= low) or not low - width <= code <= high + width:
            warn(
                f"'{column}' is {code:g} in {times} of {finite.sum()} samples, and {low:g} to "
                f"{high:g} in others: if that is a code for a missing value, leave the cells empty."
            )


def normalized(text: str) -> str:
    """Normalize the spelling of whole numbers ("18.0" to "18"); other texts stay as they are.

    >>> normalized("18.0"), normalized("18.5"), normalized("S18.0")
    ('18', '18.5', 'S18.0')
    """
    integer = re.fullmatch(r"(-?[0-9]+)\.0*", text)
    return integer[1] if integer else text


@dataclass(frozen=True)
class ColumnComparison:
    """Comparison of a metadata column with values."""

    column: str  # name of the metadata column
    operator: str  # "in", "!=", "<", "<=", ">" or ">="; `=` is "in" with one value
    values: tuple[str, ...]  # text of the value; several for "in"

    def meets(self, metadata: Metadata, sample_ids: Sequence[str]) -> NDArray[np.bool_]:
        """Return which samples meet the comparison, bool [N]."""
        texts = metadata.values(self.column, sample_ids)
        has_value = texts != ""
        if self.operator in _ORDER:
            values = as_numbers(texts.tolist())
            wrong = texts[has_value & ~np.isfinite(values)].tolist()
            if wrong:
                raise DataError(
                    f"The column '{self.column}' is not numeric, so '{self.operator}' cannot order "
                    "its values",
                    f"{len(wrong)} of {int(has_value.sum())} values, distinct ones: "
                    f"{first_few(sorted(set(wrong)))}",
                    f"compare with '{self.column}=VALUE' or '{self.column} in (A, B)'",
                )
            met: NDArray[np.bool_] = _ORDER[self.operator](values, as_numbers(self.values))
        else:
            cells = [normalized(text or "") for text in metadata.texts(self.column, sample_ids)]
            equal = np.isin(cells, [normalized(value) for value in self.values])
            if self.operator == "!=" and not equal.any():
                value = f"{self.column}={self.values[0]}"
                warn(f"--where excludes {value}, but no sample has this value.")
            met = equal if self.operator == "in" else has_value & ~equal
        return met


def parse_condition(condition: str) -> tuple[ColumnComparison, ...]:
    """Parse a --where condition into comparisons; a sample must meet all of them.

    >>> parse_condition("age >= 2 and site in (gut, skin)")[1]
    ColumnComparison(column='site', operator='in', values=('gut', 'skin'))
    """
    condition, position = condition.strip(), 0
    comparisons: list[ColumnComparison] = []

    def invalid(fault: str, remedy: str = _FORMS) -> UsageError:
        return UsageError("Invalid condition", f"--where '{condition}'{fault}", remedy)

    while position < len(condition) or not comparisons:
        match = _COMPARISON.match(condition, position)
        column = _unquoted(match["column"]) if match else ""
        if match is None or not column:
            raise invalid("")
        position = match.end()
        name = match["operator"] or "in"
        if match["in"]:
            values = tuple(_unquoted(item) for item in _ITEM.findall(match["values"]))
        else:
            values = (_unquoted(match["value"]),)
        if not values or not all(values):
            raise invalid(f": '{column}' has no value")
        if name in _ORDER and not np.isfinite(as_numbers(values)).all():
            raise invalid(f": '{values[0]}' after '{name}' is not a number")
        unquoted = match["operator"] and not re.fullmatch(_QUOTED, match["value"])
        if unquoted and (unclear := _UNCLEAR.search(match["value"])):
            raise invalid(
                f": '{unclear[0]}' in the value of '{column}'",
                "put the value in quotes, write COLUMN in (A, B) for several values, or join "
                "comparisons by ' and '; there is no 'or'",
            )
        comparisons.append(ColumnComparison(column, "in" if name in ("=", "==") else name, values))
    return tuple(comparisons)


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and (text[0], text[-1]) in (("'", "'"), ('"', '"'), ("[", "]")):
        return text[1:-1]
    return text
