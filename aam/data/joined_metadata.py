"""Metadata of several tables as one: rows by sample, columns by name, and what does not agree.

Nothing is converted silently: columns and values get other names by --relabel alone, and what looks
like one thing under two names, or two things under one name, is a warning.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

import numpy as np

from aam.arrays import F64
from aam.console import info, warn
from aam.contract.errors import DataError, UsageError, first_few, nearest, shortened
from aam.contract.files import require
from aam.contract.options.commands.studies import Prepare
from aam.contract.options.groups import listed
from aam.data.formats.text import decoded
from aam.data.ids import id_remedy
from aam.data.joined_tables import study_names
from aam.data.metadata import Metadata, as_numbers, normalized, read_metadata
from aam.data.targets import spelling

STUDY = "study"  # column with the name of each sample's study
KEPT_STUDY = "study_in_file"  # name of a column of the files that is called `study`
CLASSES = 10  # values of a column up to which they are compared between studies as classes
UNITS = 5  # ratio of two medians from which on numbers may be of different units
RELABEL_HEADER = ("column", "value", "new")  # columns of --relabel-file

_ANSWERS = frozenset(["yes", "no", "y", "n", "true", "false", "t", "f", "0", "1"])
"""Classes that columns of any meaning have."""

_FREE_TEXT = 4  # words of a value of free text
_SHOWN = 8  # warnings about columns that are printed; the number of further ones is


@dataclass(frozen=True)
class Relabelling:
    """A column, or a value `old` of a column ("" for itself), that gets another name."""

    column: str
    old: str
    new: str


def join_metadata(options: Prepare, id_of_sample: Sequence[Mapping[str, str]]) -> Metadata | None:
    """Read the metadata of `aam prepare`, and join them if there are several tables."""
    studies, read = study_names(options), [read_metadata(path) for path in options.metadata]
    if not read and not studies:
        return None
    one_for_all = len(read) == 1 < len(id_of_sample)
    parts = read
    if studies or len(read) > 1:
        parts = []
        for number, new_ids in enumerate(id_of_sample):
            if not read:
                parts.append(Metadata((), {}))
                continue
            # One file for all tables has the ids of the joined table.
            ids = {name: name for name in new_ids.values()} if one_for_all else new_ids
            file, study = number % len(read), studies[number] if studies else ""
            # Ids of two tables are in one file only with the prefixes that make them different.
            prefixed = one_for_all and any(name in new_ids for name in read[file].ids)
            parts.append(_of_samples(read[file], ids, options.metadata[file].name, study, prefixed))
    parts = relabelled(parts, options.relabel, options.relabel_file)
    if studies:
        if any(STUDY in part.columns for part in parts):
            info(f"The column '{STUDY}' of the metadata is now '{KEPT_STUDY}'.")
        described, samples = (sum(map(len, ids)) for ids in ((p.ids for p in parts), id_of_sample))
        if read and described < samples:
            info(f"Samples without metadata: {samples - described} of {samples}.")
        triples = zip(parts, studies, id_of_sample, strict=True)
        parts = [_with_study(part, study, ids.values()) for part, study, ids in triples]
        _compare_columns(studies, parts)
    names = dict.fromkeys(name for part in parts for name in part.columns)
    columns = {
        # A cell is empty where the file of a sample lacks the column.
        name: [cell for part in parts for cell in part.columns.get(name, [""] * len(part.ids))]
        for name in names
    }
    categorical = frozenset().union(*(part.categorical for part in parts))
    return Metadata(tuple(name for part in parts for name in part.ids), columns, categorical)


def _of_samples(
    metadata: Metadata, new_ids: Mapping[str, str], file: str, study: str, prefixed: bool
) -> Metadata:
    """Return the rows of a table's samples, with the samples' ids in the joined table."""
    rows = [row for row, name in enumerate(metadata.ids) if name in new_ids]
    if not rows:
        of_each = "give one file of metadata for each table, in their order"
        raise DataError(
            f"Study '{study}' has no metadata" if study else "A table has no metadata",
            f"none of its samples, {first_few(new_ids)}, is in '{file}', which has "
            f"{first_few(metadata.ids)}",
            of_each if prefixed else id_remedy(new_ids, metadata.ids, of_each),
        )
    cells = {name: [cells[row] for row in rows] for name, cells in metadata.columns.items()}
    ids = tuple(new_ids[metadata.ids[row]] for row in rows)
    return Metadata(ids, cells, metadata.categorical)


def _with_study(part: Metadata, study: str, samples: Iterable[str]) -> Metadata:
    """Add the column of the study, for all of its samples; one of that name gets another name."""
    known = set(part.ids)
    more = [name for name in samples if name not in known]
    ids = (*part.ids, *more)
    part = _with_names(part, Relabelling(STUDY, "", KEPT_STUDY))
    columns = {name: [*cells, *[""] * len(more)] for name, cells in part.columns.items()}
    return Metadata(ids, {STUDY: [study] * len(ids), **columns}, part.categorical)


# --- other names


def _relabellings(pairs: Sequence[str], file: Path | None) -> Iterator[Relabelling]:
    named = []
    for pair in listed(pairs):
        before, _, new = (part.strip() for part in pair.rpartition("="))
        column, colon, old = (part.strip() for part in before.partition(":"))
        named.append(
            (f"--relabel '{pair}'", Relabelling("" if colon and not old else column, old, new))
        )
    if file is not None:
        lines = enumerate(_of_file(file), start=2)
        named += [(f"line {number} of '{file}'", pair) for number, pair in lines]
    for source, relabelling in named:
        if not relabelling.column or not relabelling.new:
            remedy = "write COLUMN:VALUE=NEW for a value, COLUMN=NEW for a column, or give a file"
            raise UsageError("Not a pair of names", source, remedy)
        yield relabelling


def _of_file(path: Path) -> list[Relabelling]:
    """Read a TSV with the columns column, value and new; without a value, of the column itself."""
    text = decoded(require(path, "names").read_bytes(), path, "file of names")
    header, *rows = csv.reader(text.splitlines() or [""], dialect="excel-tab")
    if tuple(header) != RELABEL_HEADER or any(len(row) != 3 for row in rows):
        raise DataError(
            "Not a table of other names",
            f"'{path}' begins with '{shortened(text.partition(chr(10))[0])}'",
            "give three tab-separated columns: column, value (empty to rename the column), new",
        )
    return [Relabelling(*(cell.strip() for cell in row)) for row in rows]


def relabelled(
    parts: Sequence[Metadata], pairs: Sequence[str], file: Path | None
) -> list[Metadata]:
    """Return metadata with the other names; each must be that of a column or value of a part."""
    joined = list(parts)
    for pair in _relabellings(pairs, file):
        named = [part for part in joined if pair.column in part.columns]
        if not named:
            known = {name for part in joined for name in part.columns}
            remedy = nearest(pair.column, known, f"there are {first_few(sorted(known))}")
            raise DataError("No metadata has a column to relabel", f"'{pair.column}'", remedy)
        if pair.old:
            known = {normalized(cell) for part in named for cell in part.columns[pair.column]}
            if normalized(pair.old) not in known:
                remedy = nearest(pair.old, known, f"it has {first_few(sorted(known - {''}))}")
                evidence = f"'{pair.old}' of '{pair.column}'"
                raise DataError("No sample has a value to relabel", evidence, remedy)
        if not pair.old and (both := [part for part in named if pair.new in part.columns]):
            evidence = f"'{pair.column}' and '{pair.new}', for {len(both[0].ids)} samples"
            remedy = "remove one of them from that file"
            raise DataError("Metadata with both columns of a pair to relabel", evidence, remedy)
        joined = [
            _with_names(part, pair) if pair.column in part.columns else part for part in joined
        ]
    return joined


def _with_names(part: Metadata, pair: Relabelling) -> Metadata:
    columns, categorical = dict(part.columns), part.categorical
    if not pair.old:
        new_name = {name: name for name in columns} | {pair.column: pair.new}
        columns = {new_name[name]: columns[name] for name in columns}
        categorical = frozenset(new_name[name] for name in categorical)
    else:
        columns[pair.column] = [
            pair.new if normalized(cell) == normalized(pair.old) else cell
            for cell in columns[pair.column]
        ]
    return Metadata(part.ids, columns, categorical)


# --- what does not agree


@dataclass(frozen=True)
class StudyColumn:
    """A column of one study: its values that are not missing, and those that are numbers."""

    study: str
    values: Sequence[str]
    numbers: F64

    @property
    def is_numeric(self) -> bool:
        """Whether most values are numbers; a few words among them are mistakes or codes."""
        return 2 * len(self.numbers) > len(self.values)

    @property
    def classes(self) -> dict[str, None]:
        """Values that samples share; none of a single value, names of samples, or numbers."""
        classes = dict.fromkeys(self.values)
        shared = 2 <= len(classes) <= min(CLASSES, len(self.values) / 2)
        return classes if shared and (not self.is_numeric or len(classes) == 2) else {}


def _compare_columns(studies: Sequence[str], parts: Sequence[Metadata]) -> None:
    names = dict.fromkeys(name for part in parts for name in part.columns if name != STUDY)
    common = [name for name in names if all(name in part.columns for part in parts)]
    partly = [name for name in names if name not in common]
    if names:
        rest = f"; of some: {first_few(partly)}" if partly else ""
        info(f"Metadata columns of every study: {first_few(common)}{rest}.")
    columns_K = [_columns_of(study, part) for study, part in zip(studies, parts, strict=True)]
    warnings = [*_one_name_spelt_differently(studies, parts), *_same_classes(columns_K)]
    for name in names:
        columns = [of_study[name] for of_study in columns_K if name in of_study]
        text = _other_kind(columns) or _other_unit(columns) or _other_classes(name, columns)
        if text:
            warnings.append(f"Column '{name}' {text}.")
    for text in warnings[:_SHOWN]:
        warn(text)
    if len(warnings) > _SHOWN:
        warn(f"{len(warnings) - _SHOWN} further columns do not agree between the studies.")


def _columns_of(study: str, part: Metadata) -> dict[str, StudyColumn]:
    columns = {}
    for name in part.columns:
        if name != STUDY and (known := list(filter(None, part.values(name, part.ids).tolist()))):
            numbers = as_numbers(known)
            columns[name] = StudyColumn(study, known, numbers[np.isfinite(numbers)])
    return columns


def _same_classes(columns_K: Sequence[Mapping[str, StudyColumn]]) -> Iterator[str]:
    """Propose pairs of columns of other names that have the same classes in two studies."""
    for first, second in combinations(columns_K, 2):
        pairs = product(first.keys() - second.keys(), second.keys() - first.keys())
        for name, other in sorted(pairs):
            here, there = first[name], second[other]
            one, two = ({spelling(value) for value in side.classes} for side in (here, there))
            known = not one | two <= _ANSWERS and _plain(name) != _plain(other)
            if known and one and two and (one <= two or two <= one):
                yield (
                    f"Columns '{name}' in '{here.study}' and '{other}' in '{there.study}' have the "
                    f"same classes, {first_few(here.classes)}; --relabel {other}={name} joins them."
                )


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


def _one_name_spelt_differently(studies: Sequence[str], parts: Sequence[Metadata]) -> Iterator[str]:
    spellings: dict[str, dict[str, str]] = {}
    for study, part in zip(studies, parts, strict=True):
        for name in part.columns:
            spellings.setdefault(_plain(name), {}).setdefault(name, study)
    for names in spellings.values():
        if len(names) > 1:
            shown = ", ".join(f"'{name}' in '{study}'" for name, study in names.items())
            first, second, *_ = names
            remedy = f"--relabel {second}={first} joins them"
            yield f"Columns that differ in spelling alone: {shown}; {remedy}."


def _other_kind(columns: Sequence[StudyColumn]) -> str:
    """Return how a column is numbers in one study and words in another; "" if it is not."""
    numeric = [column for column in columns if column.is_numeric]
    words = [column for column in columns if not column.is_numeric]
    if not numeric or not words:
        return ""
    shown = first_few(dict.fromkeys(words[0].values))
    studies = first_few(column.study for column in numeric)
    return f"has numbers in studies {studies}, but words in '{words[0].study}': {shown}"


def _other_unit(columns: Sequence[StudyColumn]) -> str:
    """Return of which two studies the numbers are far apart; "" if there are none."""
    numeric = [column for column in columns if column.is_numeric]
    for column, second in combinations(numeric, 2):
        low, high = sorted((column, second), key=lambda side: float(np.median(side.numbers)))
        medians = float(np.median(low.numbers)), float(np.median(high.numbers))
        apart = np.quantile(low.numbers, 0.95) < np.quantile(high.numbers, 0.05)
        if apart and medians[0] > 0 and medians[1] >= UNITS * medians[0]:
            return (
                f"may have other units: its median is {medians[0]:g} in '{low.study}', "
                f"{medians[1]:g} in '{high.study}', and their ranges do not overlap"
            )
    return ""


def _other_classes(name: str, columns: Sequence[StudyColumn]) -> str:
    """Return the classes of studies that each have one that the other lacks; "" if none have."""
    classes = {column.study: column.classes for column in columns if column.classes}
    for (study, first_classes), (second, second_classes) in combinations(classes.items(), 2):
        # Free text has no value in common.
        words = max(len(value.split()) for value in (*first_classes, *second_classes))
        if words >= _FREE_TEXT and first_classes.keys().isdisjoint(second_classes):
            continue
        if first_classes.keys() - second_classes.keys() and (
            free := second_classes.keys() - first_classes.keys()
        ):
            old = next(value for value in second_classes if value in free)
            shown = (
                f"{', '.join(map(shortened, values))} in '{where}'"
                for where, values in ((study, first_classes), (second, second_classes))
            )
            return (
                f"has other classes: {' but '.join(shown)}; --relabel {name}:{old}=NAME gives "
                "one of them another name"
            )
    return ""
