"""Sample metadata: columns about samples, aligned to a table by sample id.

Read by QIIME 2's rules (scikit-bio keeps them); ids and values stay the strings of the file, so
that 2538.10 and 2538.1 are two samples. Numbers and classes are made where a column is asked for.
"""

from __future__ import annotations

import csv
import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aam.console import say, warn
from aam.contract.errors import DataError, first_few
from aam.contract.files import require
from aam.contract.suggestions import nearest
from aam.data.io.artifact import read_payload
from aam.data.io.text import decoded
from aam.data.store.files import is_store
from aam.data.store.reader import stored_metadata
from aam.memory import memory_budget

MISSING = frozenset(
    # An empty cell is QIIME 2's only missing value; the words are those of its INSDC:missing
    # scheme and of https://www.insdc.org/technical-specifications/missing-value-reporting/,
    {"", "missing", "not applicable", "not collected", "not provided", "restricted access"}
    # of Qiita's exports, and of R, pandas and spreadsheets.
    | {"unspecified", "na", "n/a", "nan", "none", "null"}
)
"""Values that stand for none, in lower case; so does all that begins with 'missing:'."""

ID_HEADER = "sample-id"
"""First header of every table of samples that this program writes; QIIME 2 reads it."""

OLD_ID_HEADER = "sample_id"
"""The same in tables of earlier versions, which are still read."""

_LISTED_COLUMNS = 50
_FEW_SAMPLES = 10
_OBJECT_BYTES = 40
"""Bytes of memory that a byte of metadata takes as it is read: scikit-bio keeps a string a cell."""


@dataclass(frozen=True)
class Metadata:
    """A table of samples.

    Attributes:
        ids: n sample names, unique.
        columns: the n cells of each column, by its name; "" where the file has nothing.
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
        texts = self._texts(column, sample_ids)
        known = ["" if text is None or _is_missing(text) else _tidy(text) for text in texts]
        return np.array(known, dtype=np.str_)

    def _texts(self, column: str, sample_ids: Sequence[str]) -> list[str | None]:
        """Return the cell of each sample as it is in the file, None where the sample has no row."""
        if column not in self.columns:
            columns = list(self.columns)
            listed = ", ".join(columns[:_LISTED_COLUMNS]) + ", ..." * (
                len(columns) > _LISTED_COLUMNS
            )
            raise DataError(
                f"The metadata has no column '{column}'",
                f"it has {len(columns)}: {listed}",
                nearest(column, columns, "name one of them", most=3),
            )
        cells = dict(zip(self.ids, self.columns[column], strict=True))
        texts = [cells.get(name) for name in sample_ids]
        if all(text is None for text in texts):
            raise DataError(
                "The table and the metadata have no sample in common",
                f"the table has {first_few(sample_ids)}, the metadata {first_few(self.ids)}",
                "make the ids alike (prefixes, '.' for '_', zeros lost in a spreadsheet)",
            )
        return texts


def read_metadata(path: Path) -> Metadata:
    """Read a metadata TSV, gzipped or not, or the metadata that a store holds.

    Raises:
        MissingInput: there is no such file.
        DataError: it breaks QIIME 2's rules: another first header, duplicated ids, no tabs, ...; it
            is more than memory holds; a store that is damaged or holds none.
    """
    if is_store(path):
        return Metadata(*stored_metadata(path))
    require(path, "metadata")
    most = memory_budget() // _OBJECT_BYTES
    text = decoded(read_payload(path, "metadata.tsv", "ImmutableMetadata", most), path, "metadata")
    header = text.partition("\n")[0]
    if "\t" not in header and "," in header:
        raise DataError(
            f"The metadata is comma-separated: '{path}'",
            f"its first line is '{header[:80].rstrip()}'",
            "save it as tab-separated text (.tsv)",
        )
    if header.startswith(OLD_ID_HEADER):
        text = text.replace(OLD_ID_HEADER, ID_HEADER, 1)
    from skbio.metadata import SampleMetadata
    from skbio.metadata.io import MetadataFileError

    # scikit-bio reads files alone.
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8", newline="") as plain:
        plain.write(text)
        plain.flush()
        try:
            names = SampleMetadata.load(plain.name).columns
            # Once more, now that the columns are known: as categories they keep their spelling.
            as_text = dict.fromkeys(names, "categorical")
            frame = SampleMetadata.load(plain.name, column_types=as_text).to_dataframe()
        except (MetadataFileError, csv.Error, ValueError) as error:
            raise _refused(path, header, error) from error
    ids = tuple(str(name) for name in frame.index)
    known = frame.astype(object).where(frame.notna(), "")
    return Metadata(ids, {str(name): known[name].tolist() for name in known.columns})


def numeric_target(
    metadata: Metadata, column: str, sample_ids: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the samples that have a number in `column`, and the numbers.

    Returns:
        rows int64 [n], ascending positions in `sample_ids`; values float64 [n], finite.

    Raises:
        DataError: no such column; no sample in common or none with a value; a value that is no
            finite number; the same number everywhere.
    """
    import pandas as pd

    rows, texts = _known(metadata, column, sample_ids)
    values = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce").to_numpy(np.float64)
    wrong = [text for text, value in zip(texts, values, strict=True) if np.isnan(value)]
    if wrong:
        raise DataError(
            f"The column '{column}' is not numeric",
            f"{len(wrong)} of {len(texts)} values are no numbers, distinct ones: "
            f"{first_few(dict.fromkeys(wrong))}",
            "write decimal points, not commas"
            if all(re.fullmatch(r"\s*[-+]?\d+,\d+\s*", text) for text in wrong)
            else "correct them, or add --classifier if it is a category",
        )
    infinite = [sample_ids[row] for row in rows[np.isinf(values)]]
    if infinite:
        raise DataError(
            f"The column '{column}' has infinite values",
            f"in samples {first_few(infinite)}",
            "leave these cells empty",
        )
    if np.all(values == values[0]):
        raise _constant(column, texts)
    return rows, values


def class_target(
    metadata: Metadata, column: str, sample_ids: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """Return the samples that have a class in `column`, their codes, and the classes.

    Returns:
        rows int64 [n], ascending positions in `sample_ids`; codes int64 [n], positions in the
        classes; the names of the classes, sorted.

    Raises:
        DataError: no such column; no sample in common or none with a value; one class only; more
            than half of the values are different numbers.
    """
    rows, texts = _known(metadata, column, sample_ids)
    labels = [_tidy(text) for text in texts]
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2:
        raise _constant(column, labels)
    if 2 * len(classes) > len(labels) > _FEW_SAMPLES and all(map(_is_number, classes)):
        raise DataError(
            f"The column '{column}' is numeric",
            f"it has {len(classes)} different numbers in {len(labels)} samples",
            "leave out --classifier",
        )
    alone = [name for name, times in sorted(Counter(labels).items()) if times == 1]
    if alone:
        warn(f"Classes of '{column}' with a single sample: {first_few(alone)}.")
    code = {name: number for number, name in enumerate(classes)}
    return rows, np.array([code[label] for label in labels], dtype=np.int64), classes


def groups(metadata: Metadata, column: str, sample_ids: Sequence[str]) -> NDArray[np.str_]:
    """Return the group of each sample: the value of `column`, such as a subject.

    A sample without a value is a group of its own, and a warning says so.

    Returns:
        str [N], in the order of `sample_ids`.

    Raises:
        DataError: no such column, or no sample in common.
    """
    found = metadata.values(column, sample_ids).tolist()
    alone = found.count("")
    if alone == len(found):
        raise DataError(f"The column '{column}' is empty", f"{alone} samples", "name another")
    if alone:
        warn(f"Samples without a '{column}': {alone} of {len(found)}, each is its own group.")
    named = zip(found, sample_ids, strict=True)
    return np.array([name or f"{own} (no {column})" for name, own in named], dtype=np.str_)


def _known(
    metadata: Metadata, column: str, sample_ids: Sequence[str]
) -> tuple[NDArray[np.int64], list[str]]:
    """Return positions and values of the samples that have one; say how many have none, and why."""
    texts = metadata._texts(column, sample_ids)
    present = [(row, text) for row, text in enumerate(texts) if text is not None]
    known = [(row, text) for row, text in present if not _is_missing(text)]
    words = Counter(text for _, text in present if _is_missing(text))
    reasons = [f"{times} with '{column}' '{word}'" for word, times in words.most_common()]
    if len(present) < len(texts):
        reasons.insert(0, f"{len(texts) - len(present)} without metadata")
    counted = f"{len(texts) - len(known)} of {len(texts)} ({', '.join(reasons)})"
    if not known:
        raise DataError(
            f"No sample has a value in the column '{column}'", counted, "name another column"
        )
    if reasons:
        say(f"Samples left out: {counted}.")
    rows = np.array([row for row, _ in known], dtype=np.int64)
    return rows, [text for _, text in known]


def _is_missing(text: str) -> bool:
    word = text.strip().lower()
    return word in MISSING or word.startswith("missing:")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _tidy(text: str) -> str:
    whole = re.fullmatch(r"(-?[0-9]+)\.0*", text)
    return whole[1] if whole else text


def _constant(column: str, texts: Sequence[str]) -> DataError:
    return DataError(
        f"The column '{column}' has one value only",
        f"'{texts[0]}' in {len(texts)} samples",
        "there is nothing to learn; name another column",
    )


def _refused(path: Path, header: str, error: Exception) -> DataError:
    reason = str(error).partition("\n\nThere may be more errors")[0]
    reason = " ".join(
        reason.removeprefix("There was an issue with loading the metadata file:").split()
    )
    if "IDs are duplicated" in reason:
        return DataError(
            f"Duplicated sample ids in the metadata '{path}'",
            reason.rpartition(": ")[2].rstrip("."),
            "keep one row of each",
        )
    return DataError(
        f"QIIME 2's rules refuse the metadata '{path}'",
        f"{reason.rstrip('.')} (its first line is '{header[:80].rstrip()}')",
        "give tab-separated text whose first column is called sample-id",
    )
