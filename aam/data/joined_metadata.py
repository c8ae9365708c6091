"""Joined metadata of several tables: rows by sample, columns by name, warnings of disagreements.

Only --relabel renames columns and values. A warning reports columns that look like one variable
under two names, or like two variables under one name.
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
from aam.data.formats.text import decoded, id_remedy
from aam.data.metadata import Metadata, as_numbers, normalized, read_metadata
from aam.data.targets import spelling

STUDY = "study"  # column with the name of each sample's study
KEPT_STUDY = "study_in_file"  # name of a column of the files that is called `study`
CLASSES = 10  # distinct values up to which a column is compared between studies as classes
UNITS = 5  # ratio of two medians from which the units may differ
RELABEL_HEADER = ("column", "value", "new")  # columns of --relabel-file

_ANSWERS = frozenset(["yes", "no", "y", "n", "true", "false", "t", "f", "0", "1"])
"""Classes that unrelated columns share."""

_FREE_TEXT = 4  # words from which a value counts as free text
_MAX_WARNINGS = 8  # warnings about columns that are printed; more are only counted


@dataclass(frozen=True)
class Relabelling:
    """New name for a column, or for a value `old` of a column ("" renames the column)."""

    column: str
    old: str
    new: str


def join_metadata(
    options: Prepare, studies: Sequence[str], id_of_sample: Sequence[Mapping[str, str]]
) -> Metadata | None:
    """Read the metadata of `aam prepare`, and join them if there are several tables."""
    files = [read_metadata(path) for path in options.metadata]
    if not files and not studies:
        return None
    one_for_all = len(files) == 1 < len(id_of_sample)
    tables = files
    if studies or len(files) > 1:
        tables = []
        for number, new_ids in enumerate(id_of_sample):
            if not files:
                tables.append(Metadata((), {}))
                continue
            # A single metadata file has the sample ids of the joined table.
            ids = {name: name for name in new_ids.values()} if one_for_all else new_ids
            file, study = number % len(files), studies[number] if studies else ""
            # In a single metadata file, an id of two tables needs the prefix of its study.
            prefixed = one_for_all and any(name in new_ids for name in files[file].ids)
            name = options.metadata[file].name
            tables.append(_of_samples(files[file], ids, name, study, prefixed))
    tables = relabelled(tables, options.relabel, options.relabel_file)
    if studies:
        if any(STUDY in table.columns for table in tables):
            info(f"The column '{STUDY}' of the metadata is now '{KEPT_STUDY}'.")
        described = sum(len(table.ids) for table in tables)
        samples = sum(map(len, id_of_sample))
        if files and described < samples:
            info(f"Samples without metadata: {samples - described} of {samples}.")
        triples = zip(tables, studies, id_of_sample, strict=True)
        tables = [_with_study(table, study, ids.values()) for table, study, ids in triples]
        _compare_columns(studies, tables)
    names = dict.fromkeys(name for table in tables for name in table.columns)
    columns = {
        # A cell is empty if the metadata of the study lack the column.
        name: [cell for table in tables for cell in table.columns.get(name, [""] * len(table.ids))]
        for name in names
    }
    categorical = frozenset().union(*(table.categorical for table in tables))
    return Metadata(tuple(name for table in tables for name in table.ids), columns, categorical)


def _of_samples(
    metadata: Metadata, new_ids: Mapping[str, str], file: str, study: str, prefixed: bool
) -> Metadata:
    """Select the metadata of a table's samples, and rename the samples as in the joined table."""
    rows = [row for row, name in enumerate(metadata.ids) if name in new_ids]
    if not rows:
        of_each = "give one file of metadata for each table, in their order"
        raise DataError(
            f"Study '{study}' has no metadata" if study else "A table has no metadata",
            f"none of its samples, {first_few(new_ids)}, is in '{file}' "
            f"({first_few(metadata.ids)})",
            of_each if prefixed else id_remedy(new_ids, metadata.ids, of_each),
        )
    cells = {name: [cells[row] for row in rows] for name, cells in metadata.columns.items()}
    ids = tuple(new_ids[metadata.ids[row]] for row in rows)
    return Metadata(ids, cells, metadata.categorical)


def _with_study(metadata: Metadata, study: str, samples: Iterable[str]) -> Metadata:
    """Add the column `study` for all samples of a study; rename an existing column `study`."""
    described = set(metadata.ids)
    added = [name for name in samples if name not in described]
    ids = (*metadata.ids, *added)
    metadata = _with_names(metadata, Relabelling(STUDY, "", KEPT_STUDY))
    columns = {name: [*cells, *[""] * len(added)] for name, cells in metadata.columns.items()}
    return Metadata(ids, {STUDY: [study] * len(ids), **columns}, metadata.categorical)


# --- other names


def _relabellings(pairs: Sequence[str], file: Path | None) -> Iterator[Relabelling]:
    sources = []
    for pair in listed(pairs):
        selector, _, new = (field.strip() for field in pair.rpartition("="))
        column, colon, old = (field.strip() for field in selector.partition(":"))
        sources.append(
            (f"--relabel '{pair}'", Relabelling("" if colon and not old else column, old, new))
        )
    if file is not None:
        lines = enumerate(_of_file(file), start=2)
        sources += [(f"line {number} of '{file}'", pair) for number, pair in lines]
    for source, relabelling in sources:
        if not relabelling.column or not relabelling.new:
            remedy = "write COLUMN:VALUE=NEW for a value, COLUMN=NEW for a column, or give a file"
            raise UsageError("Not a pair of names", source, remedy)
        yield relabelling


def _of_file(path: Path) -> list[Relabelling]:
    """Read a --relabel-file: a TSV with the columns column, value (empty: the column) and new."""
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
    tables: Sequence[Metadata], pairs: Sequence[str], file: Path | None
) -> list[Metadata]:
    """Rename columns and values of metadata; each old name must occur in the metadata."""
    joined = list(tables)
    for pair in _relabellings(pairs, file):
        holders = [table for table in joined if pair.column in table.columns]
        if not holders:
            names = {name for table in joined for name in table.columns}
            remedy = nearest(pair.column, names, f"there are {first_few(sorted(names))}")
            raise DataError("No metadata has a column to relabel", f"'{pair.column}'", remedy)
        if pair.old:
            values = {normalized(cell) for table in holders for cell in table.columns[pair.column]}
            if normalized(pair.old) not in values:
                remedy = nearest(pair.old, values, f"it has {first_few(sorted(values - {''}))}")
                evidence = f"'{pair.old}' of '{pair.column}'"
                raise DataError("No sample has a value to relabel", evidence, remedy)
        if not pair.old and (twice := [table for table in holders if pair.new in table.columns]):
            evidence = f"'{pair.column}' and '{pair.new}', for {len(twice[0].ids)} samples"
            remedy = "remove one of them from that file"
            raise DataError("Metadata with both columns of a pair to relabel", evidence, remedy)
        joined = [
            _with_names(table, pair) if pair.column in table.columns else table for table in joined
        ]
    return joined


def _with_names(metadata: Metadata, pair: Relabelling) -> Metadata:
    columns, categorical = dict(metadata.columns), metadata.categorical
    if not pair.old:
        new_name = {name: name for name in columns} | {pair.column: pair.new}
        columns = {new_name[name]: columns[name] for name in columns}
        categorical = frozenset(new_name[name] for name in categorical)
    else:
        columns[pair.column] = [
            pair.new if normalized(cell) == normalized(pair.old) else cell
            for cell in columns[pair.column]
        ]
    return Metadata(metadata.ids, columns, categorical)


# --- what does not agree


@dataclass(frozen=True)
class StudyColumn:
    """Column of one study: values that are not missing, and the numbers among them."""

    study: str
    values: Sequence[str]
    numbers: F64

    @property
    def is_numeric(self) -> bool:
        """Whether most values are numbers; a few words among them are mistakes or codes."""
        return 2 * len(self.numbers) > len(self.values)

    @property
    def classes(self) -> dict[str, None]:
        """Classes of the column; empty for a constant, unique values, or more than two numbers."""
        classes = dict.fromkeys(self.values)
        shared = 2 <= len(classes) <= min(CLASSES, len(self.values) / 2)
        return classes if shared and (not self.is_numeric or len(classes) == 2) else {}


def _compare_columns(studies: Sequence[str], tables: Sequence[Metadata]) -> None:
    names = dict.fromkeys(name for table in tables for name in table.columns if name != STUDY)
    common = [name for name in names if all(name in table.columns for table in tables)]
    partly = [name for name in names if name not in common]
    if names:
        incomplete = f"; of some: {first_few(partly)}" if partly else ""
        info(f"Metadata columns of every study: {first_few(common)}{incomplete}.")
    columns_K = [_columns_of(study, table) for study, table in zip(studies, tables, strict=True)]
    warnings = [*_other_spellings(studies, tables), *_same_classes(columns_K)]
    for name in names:
        columns = [of_study[name] for of_study in columns_K if name in of_study]
        text = _other_kind(columns) or _other_unit(columns) or _other_classes(name, columns)
        if text:
            warnings.append(f"Column '{name}' {text}.")
    for text in warnings[:_MAX_WARNINGS]:
        warn(text)
    if len(warnings) > _MAX_WARNINGS:
        warn(f"{len(warnings) - _MAX_WARNINGS} further columns do not agree between the studies.")


def _columns_of(study: str, metadata: Metadata) -> dict[str, StudyColumn]:
    columns = {}
    for name in metadata.columns:
        values = list(filter(None, metadata.values(name, metadata.ids).tolist()))
        if name != STUDY and values:
            numbers = as_numbers(values)
            columns[name] = StudyColumn(study, values, numbers[np.isfinite(numbers)])
    return columns


def _same_classes(columns_K: Sequence[Mapping[str, StudyColumn]]) -> Iterator[str]:
    """Find columns of two studies with different names and the same classes."""
    for first, second in combinations(columns_K, 2):
        pairs = product(first.keys() - second.keys(), second.keys() - first.keys())
        for name, second_name in sorted(pairs):
            columns = first[name], second[second_name]
            smaller, larger = sorted(
                ({*map(spelling, column.classes)} for column in columns), key=len
            )
            is_candidate = not larger <= _ANSWERS and _plain(name) != _plain(second_name)
            if is_candidate and smaller and smaller <= larger:
                yield (
                    f"Columns '{name}' in '{columns[0].study}' and '{second_name}' in "
                    f"'{columns[1].study}' have the same classes, {first_few(columns[0].classes)}; "
                    f"--relabel {second_name}={name} joins them."
                )


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


def _other_spellings(studies: Sequence[str], tables: Sequence[Metadata]) -> Iterator[str]:
    spellings: dict[str, dict[str, str]] = {}
    for study, table in zip(studies, tables, strict=True):
        for name in table.columns:
            spellings.setdefault(_plain(name), {}).setdefault(name, study)
    for names in spellings.values():
        if len(names) > 1:
            spelt = ", ".join(f"'{name}' in '{study}'" for name, study in names.items())
            first, second, *_ = names
            remedy = f"--relabel {second}={first} joins them"
            yield f"Columns that differ in spelling alone: {spelt}; {remedy}."


def _other_kind(columns: Sequence[StudyColumn]) -> str:
    """Describe a column that is numeric in one study and text in another; else ""."""
    numeric = [column for column in columns if column.is_numeric]
    texts = [column for column in columns if not column.is_numeric]
    if not numeric or not texts:
        return ""
    values = first_few(dict.fromkeys(texts[0].values))
    studies = first_few(column.study for column in numeric)
    return f"has numbers in studies {studies}, but words in '{texts[0].study}': {values}"


def _other_unit(columns: Sequence[StudyColumn]) -> str:
    """Describe a column whose units may differ between two studies; else ""."""
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
    """Describe a column of which each of two studies has a class that the other lacks; else ""."""
    classes = {column.study: column.classes for column in columns if column.classes}
    for (study, first_classes), (second, second_classes) in combinations(classes.items(), 2):
        # Free text has no value in common.
        longest = max(len(value.split()) for value in (*first_classes, *second_classes))
        if longest >= _FREE_TEXT and first_classes.keys().isdisjoint(second_classes):
            continue
        free = second_classes.keys() - first_classes.keys()
        if free and first_classes.keys() - second_classes.keys():
            old = next(value for value in second_classes if value in free)
            lists = (
                f"{', '.join(map(shortened, values))} in '{name_of_study}'"
                for name_of_study, values in ((study, first_classes), (second, second_classes))
            )
            return (
                f"has other classes: {' but '.join(lists)}; --relabel {name}:{old}=NAME gives "
                "one of them another name"
            )
    return ""
