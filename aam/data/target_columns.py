"""Target columns: the numbers, classes or ordered categories of a metadata column as labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aam.console import info, warn
from aam.contract.errors import DataError, UsageError, first_few
from aam.data.metadata import (
    LARGEST_NUMBER,
    Metadata,
    as_numbers,
    is_missing,
    normalized,
    number_remedy,
)

_DOUBTFUL = frozenset({"missing", "unspecified", "na", "n/a", "nan", "none", "null"})
"""Missing values that a program or a person may also have written for a class."""

_FEW_SAMPLES = 10


def numeric_target(
    metadata: Metadata, column: str, sample_ids: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the samples with a number in `column`, and the numbers."""
    rows, texts = _labelled(metadata, column, sample_ids)
    values = as_numbers(texts)
    if wrong := [texts[place] for place in np.flatnonzero(np.isnan(values)).tolist()]:
        raise DataError(
            f"The column '{column}' is not numeric",
            f"{len(wrong)} of {len(texts)} values are not numbers, distinct ones: "
            f"{first_few(dict.fromkeys(wrong))}",
            number_remedy(wrong, "correct them, or add --classifier if it is a category"),
        )
    if infinite := [sample_ids[row] for row in rows[np.isinf(values)]]:
        raise DataError(
            f"The column '{column}' has infinite values",
            f"in samples {first_few(infinite)}",
            "leave these cells empty",
        )
    if large := [sample_ids[row] for row in rows[np.abs(values) > LARGEST_NUMBER]]:
        raise DataError(
            f"The column '{column}' has numbers beyond {LARGEST_NUMBER:g}",
            f"in samples {first_few(large)}",
            "give the column in larger units, or leave these cells empty",
        )
    if np.all(values == values[0]):
        raise _constant(column, texts)
    return rows, values


def class_target(
    metadata: Metadata, column: str, sample_ids: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """Return the samples with a class in `column`, their codes, and the classes."""
    rows, texts = _labelled(metadata, column, sample_ids, classes=True)
    labels = [normalized(text) for text in texts]
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2:
        raise _constant(column, labels)
    numeric = not np.isnan(as_numbers(classes)).any()
    if 2 * len(classes) > len(labels) > _FEW_SAMPLES and numeric:
        raise DataError(
            f"The column '{column}' is numeric",
            f"it has {len(classes)} different numbers in {len(labels)} samples",
            "leave out --classifier",
        )
    _warn_of_classes(column, labels)
    return rows, encode_labels(labels, classes), classes


def ordinal_target(
    metadata: Metadata, column: str, sample_ids: Sequence[str], levels: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the samples with a category in `column`, and the ranks of their categories."""
    order = f"--ordinal {','.join(levels)}"
    names = [normalized(level) for level in levels]
    if len(names) < 2 or len(set(names)) < len(names) or "" in names:
        remedy = "name each category of the column once, the lowest first"
        raise UsageError("No order of two or more categories", order, remedy)
    rows, texts = _labelled(metadata, column, sample_ids, names, classes=True)
    labels = [normalized(text) for text in texts]
    if unknown := {name: labels.count(name) for name in sorted(set(labels) - set(names))}:
        raise DataError(
            f"The column '{column}' has values that the order does not have",
            f"{first_few(unknown)} in {sum(unknown.values())} of {len(labels)} samples, {order}",
            "add them at their place in the order, or leave the samples out by --where",
        )
    if len(set(labels)) < 2:
        raise _constant(column, labels)
    if absent := [name for name in names if name not in labels]:
        warn(f"Categories of --ordinal that no sample has in '{column}': {first_few(absent)}.")
    _warn_of_single(column, labels)
    return rows, encode_labels(labels, names)


def _warn_of_classes(column: str, labels: Sequence[str]) -> None:
    """Warn about a column of names, classes with one sample, and classes that differ in case."""
    classes = sorted(set(labels))
    if 2 * len(classes) > len(labels) > _FEW_SAMPLES:
        warn(
            f"'{column}' has {len(classes)} classes in {len(labels)} samples, as a column of ids "
            "has: name another --metadata-column, or restrict the samples by --where."
        )
        return
    _warn_of_single(column, labels)
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(" ".join(name.casefold().split()), []).append(name)
    if same := [" and ".join(names) for names in alike.values() if len(names) > 1]:
        warn(
            f"Classes of '{column}' that differ in case or spaces alone: {first_few(same)}. Write "
            "them alike in the metadata if they are one class."
        )


def _warn_of_single(column: str, labels: Sequence[str]) -> None:
    if single := [name for name, number in sorted(Counter(labels).items()) if number == 1]:
        warn(f"Classes of '{column}' with a single sample: {first_few(single)}.")


def encode_labels(labels: Sequence[str], classes: Sequence[str]) -> NDArray[np.int64]:
    """Encode labels as numbers of their classes.

    >>> encode_labels(["sick", "well", "sick"], ["well", "sick"]).tolist()
    [1, 0, 1]
    """
    code_of = {name: code for code, name in enumerate(classes)}
    return np.array([code_of[label] for label in labels], dtype=np.int64)


def label_names(values_N: NDArray[Any], names: Sequence[str]) -> object:
    """Return the names of codes or ranks; the numbers themselves without names.

    Args:
        values_N: codes of classes, ranks, or numbers.
        names: names of the classes or ranks; empty for a numeric target.
    """
    return [names[int(code)] for code in values_N] if names else values_N


def _labelled(
    metadata: Metadata,
    column: str,
    sample_ids: Sequence[str],
    named: Sequence[str] = (),
    classes: bool = False,
) -> tuple[NDArray[np.int64], list[str]]:
    """Return positions and values of labelled samples; print how many are left out, and why."""
    texts = metadata.texts(column, sample_ids)
    present = [(row, text) for row, text in enumerate(texts) if text is not None]
    known = [(row, text) for row, text in present if text in named or not is_missing(text)]
    missing = Counter(text for _, text in present if text not in named and is_missing(text))
    reasons = [f"{times} with '{column}' '{value}'" for value, times in missing.most_common()]
    if len(present) < len(texts):
        likely = metadata.likely_reason(sample_ids)
        of_ids = f", whose ids differ in {likely} from those of the metadata" if likely else ""
        reasons.insert(0, f"{len(texts) - len(present)} without metadata{of_ids}")
    counted = f"{len(texts) - len(known)} of {len(texts)} ({', '.join(reasons)})"
    if not known:
        raise DataError(
            f"No sample has a value in the column '{column}'", counted, "name another column"
        )
    if reasons:
        info(f"Samples left out: {counted}.")
    doubtful = {text: n for text, n in missing.items() if text.strip().lower() in _DOUBTFUL}
    if classes and doubtful:
        shown = ", ".join(f"'{text}' in {n}" for text, n in doubtful.items())
        warn(
            f"Values of '{column}' that are taken as missing: {shown} of {len(texts)} samples. "
            "If one is a class, name it in --ordinal or write it otherwise in the metadata."
        )
    rows = np.array([row for row, _ in known], dtype=np.int64)
    return rows, [text for _, text in known]


def _constant(column: str, texts: Sequence[str]) -> DataError:
    return DataError(
        f"The column '{column}' has one value only",
        f"'{texts[0]}' in {len(texts)} samples",
        "there is nothing to learn; name another column",
    )
