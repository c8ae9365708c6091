"""Conditions on metadata (--where): parser and selection of samples.

A condition is one or more comparisons joined by `and`:

    COLUMN = VALUE      also ==, and != for the other values
    COLUMN < NUMBER     also <=, >, >=
    COLUMN in (A, B)    one of several values

Columns may be in [brackets] or quotes, values in quotes; values that contain ` and `, ` or `, a
comma, a bracket or an operator must be: `!= A or B = 1` would else exclude one value that no sample
has. Values are equal as in `Metadata.values`: 18.0 is 18. A sample without a value in the column
meets no comparison, not even `!=`, as in SQL and in QIIME 2's --p-where. A value that a comparison
names is a value, also `None` or `NA`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.console import info, warn
from aam.contract.errors import DataError, UsageError, first_few
from aam.data.metadata import Metadata, as_numbers, normalized

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
"""What a value without quotes may not contain."""

_FORMS = (
    "write COLUMN=VALUE, COLUMN>=NUMBER or 'COLUMN in (A, B)', several joined by ' and ', and "
    "values that contain ' and ' in quotes"
)


@dataclass(frozen=True)
class ColumnComparison:
    """A comparison of a column with values.

    Attributes:
        column: name of the metadata column.
        operator: "in", "!=", "<", "<=", ">" or ">="; `=` is "in" with one value.
        values: text of the value; several for "in".
    """

    column: str
    operator: str
    values: tuple[str, ...]

    def meets(self, metadata: Metadata, sample_ids: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return which samples meet the comparison, bool [N]."""
        texts = metadata.values(self.column, sample_ids)
        known = texts != ""
        if self.operator in _ORDER:
            values = as_numbers(texts.tolist())
            wrong = texts[known & ~np.isfinite(values)].tolist()
            if wrong:
                raise DataError(
                    f"The column '{self.column}' is not numeric, so '{self.operator}' cannot order "
                    "its values",
                    f"{len(wrong)} of {int(known.sum())} values, distinct ones: "
                    f"{first_few(sorted(set(wrong)))}",
                    f"compare with '{self.column}=VALUE' or '{self.column} in (A, B)'",
                )
            met: npt.NDArray[np.bool_] = _ORDER[self.operator](values, as_numbers(self.values))
        else:
            cells = [normalized(text or "") for text in metadata.texts(self.column, sample_ids)]
            equal = np.isin(cells, [normalized(value) for value in self.values])
            if self.operator == "!=" and not equal.any():
                warn(f"No sample has {self.column}={self.values[0]}, which --where excludes.")
            met = equal if self.operator == "in" else known & ~equal
        return met


def parse_condition(condition: str) -> tuple[ColumnComparison, ...]:
    """Parse a condition into its comparisons, all of which a sample must meet.

    >>> parse_condition("age >= 2 and site in (gut, skin)")[1]
    ColumnComparison(column='site', operator='in', values=('gut', 'skin'))
    """
    condition, place = condition.strip(), 0
    found: list[ColumnComparison] = []
    while place < len(condition) or not found:
        match = _COMPARISON.match(condition, place)
        column = _unquoted(match["column"]) if match else ""
        if match is None or not column:
            raise UsageError("Invalid condition", f"--where '{condition}'", _FORMS)
        place = match.end()
        name = match["operator"] or "in"
        if match["in"]:
            values = tuple(_unquoted(item) for item in _ITEM.findall(match["values"]))
        else:
            values = (_unquoted(match["value"]),)
        if not values or not all(values):
            raise UsageError(
                "Invalid condition", f"--where '{condition}': '{column}' has no value", _FORMS
            )
        if name in _ORDER and not np.isfinite(as_numbers(values)).all():
            raise UsageError(
                "Invalid condition",
                f"--where '{condition}': '{values[0]}' after '{name}' is not a number",
                _FORMS,
            )
        unquoted = match["operator"] and not re.fullmatch(_QUOTED, match["value"])
        if unquoted and (unclear := _UNCLEAR.search(match["value"])):
            raise UsageError(
                "Invalid condition",
                f"--where '{condition}': '{unclear[0]}' in the value of '{column}'",
                "put the value in quotes, write COLUMN in (A, B) for several values, or join "
                "comparisons by ' and '; there is no 'or'",
            )
        found.append(ColumnComparison(column, "in" if name in ("=", "==") else name, values))
    return tuple(found)


def rows_where(
    condition: str | None, metadata: Metadata, sample_ids: Sequence[str]
) -> npt.NDArray[np.int64]:
    """Return the samples whose metadata meet a condition.

    Args:
        condition: a condition in the forms above; None selects all samples.
        metadata: metadata that has the columns of the condition.
        sample_ids: ids of the N samples to select from.

    Returns:
        int64 [n], positions in `sample_ids`, ascending; n is at least 1 with a condition.

    Raises:
        UsageError: the condition is not of the forms above.
        DataError: no such column, a column that is not numeric, or no sample meets the condition.
    """
    if condition is None:
        return np.arange(len(sample_ids))
    met = np.ones(len(sample_ids), dtype=np.bool_)
    for comparison in parse_condition(condition):
        left, met = met, met & comparison.meets(metadata, sample_ids)
        if met.any():
            continue
        values = set(metadata.values(comparison.column, sample_ids)[left].tolist()) - {""}
        raise DataError(
            "No sample meets the condition",
            f"--where '{condition}', in {left.sum()} samples '{comparison.column}' has "
            f"{', '.join(sorted(values)[:_LISTED_VALUES]) or 'no value'}",
            "change the condition",
        )
    rows = np.flatnonzero(met)
    info(f"Samples with {condition}: {len(rows)} of {len(sample_ids)}.")
    return rows


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and (text[0], text[-1]) in (("'", "'"), ('"', '"'), ("[", "]")):
        return text[1:-1]
    return text
