"""Predictions tables: reading what `aam predict` and `aam train` write."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aam.console import info
from aam.contract.errors import DataError, first_few
from aam.contract.run_files import PREDICTIONS, REPEATS, files_of
from aam.data.formats.text import LARGEST_FLOAT32, read_rows
from aam.data.metadata import ID_HEADER, Metadata, as_numbers
from aam.data.targets import encode_labels, label_samples
from aam.evaluation.metrics import ScoredPredictions

if TYPE_CHECKING:
    import pandas as pd

HELD_OUT_PARTS = ("new", "test", "validation")
"""Splits that measure a model, the better first; "new" is of `aam predict`."""


KEYS = (ID_HEADER, "repeat", "fold", "study", "split")
"""Columns that a file of several targets has once."""


def read_predictions(path: Path, target: str = "") -> pd.DataFrame:
    """Read a predictions file as strings, a row for each sample and fold; missing values are "".

    Training rows are left out, and validation rows too if there are test rows; a line is printed.
    In place of `predictions.tsv` of a run with several repeats those of each repeat are read;
    `target` names one of several, whose columns are `TARGET_predicted`, ...
    """
    import pandas as pd

    if path.name == PREDICTIONS and REPEATS in files_of(path.parent):
        path = path.with_name(REPEATS)
        info(f"Scored as in the run: the predictions of each repeat, '{path}'.")
    header, rows = read_rows(path, "predictions file")
    frame = pd.DataFrame(rows, columns=header, dtype=str)
    prefix = f"{target}_"
    if "predicted" not in header and f"{prefix}predicted" in header:
        # The columns of a target stand together and begin with `TARGET_actual` or
        # `TARGET_predicted`. Those of the next target may begin with the name of this one
        # ("diagnosis", "diagnosis_p").
        first = min(
            header.index(name)
            for name in header
            if name in (f"{prefix}actual", f"{prefix}predicted")
        )
        next_target = re.compile(re.escape(prefix) + "p.*_(actual|predicted)")
        columns = {name: name for name in KEYS if name in header}
        for name in header[first:]:
            if not name.startswith(prefix) or next_target.fullmatch(name):
                break
            columns[name] = name.removeprefix(prefix)
        frame = frame.loc[frame[f"{prefix}predicted"] != "", list(columns)].rename(columns=columns)
    if twice := frame.columns[frame.columns.duplicated()].tolist():
        evidence = f"'{path}' has {first_few(twice)} twice"
        raise DataError("Columns of the predictions are not unique", evidence, "check the file")
    if absent := [name for name in (ID_HEADER, "predicted") if name not in frame.columns]:
        raise DataError(
            f"The predictions have no column {' and '.join(absent)}",
            f"'{path}' has {', '.join(map(str, frame.columns[:8]))}",
            "give the TSV that aam wrote",
        )
    if "split" in frame.columns:
        counts = Counter(frame["split"])
        chosen = next((part for part in HELD_OUT_PARTS if counts[part]), None)
        if chosen is None:
            raise DataError(
                "The predictions have no test or validation samples",
                f"the splits of '{path}' are {', '.join(sorted(counts))}",
                "give predictions of test or validation samples",
            )
        rest = [f"{times} {part or 'unnamed'}" for part, times in counts.items() if part != chosen]
        if rest:
            info(f"Scored: {counts[chosen]} {chosen} rows; left out: {', '.join(rest)} rows.")
        frame = frame[frame["split"] == chosen]
    if "repeats" in frame.columns:
        info(f"These predictions are means over repeats; the run scores those of {REPEATS}.")
    folds = frame["fold"] if "fold" in frame.columns else [""] * len(frame)
    repeated = [
        sample
        for (sample, _), number in Counter(zip(frame[ID_HEADER], folds, strict=True)).items()
        if number > 1
    ]
    if repeated or not len(frame):
        reason = f"samples twice: {first_few(repeated)}" if repeated else "it has no rows"
        evidence = f"'{path}', {reason}"
        raise DataError("The predictions cannot be evaluated", evidence, "check the file")
    return frame.reset_index(drop=True)


def join_labels(
    frame: pd.DataFrame,
    metadata: Metadata,
    column: str,
    classifier: bool,
    levels: tuple[str, ...] = (),
) -> tuple[ScoredPredictions, list[str]]:
    """Join predictions with the labels of the metadata by sample id; also return the ids."""
    ids = frame[ID_HEADER].tolist()
    if not set(ids) & set(metadata.ids):
        raise DataError(
            "The predictions and the metadata have no sample in common",
            f"predicted are {first_few(ids)}, the metadata has {first_few(metadata.ids)}",
            "give the metadata of these samples",
        )
    labelled = label_samples(metadata, column, ids, classifier, levels, min_classes=1)
    rows, values = frame.iloc[labelled.rows], labelled.values
    if names := labelled.classes or levels:
        scored = class_predictions(rows, [names[int(code)] for code in values], levels)
    else:
        scored = numeric_predictions(rows, values)
    return scored, [ids[row] for row in labelled.rows.tolist()]


def other_labels(frame: pd.DataFrame, scored: ScoredPredictions, ids: Sequence[str]) -> int:
    """Count the samples whose label differs from `actual` of the predictions file; 0 without it."""
    if "actual" not in frame.columns:
        return 0
    recorded = dict(zip(frame[ID_HEADER], frame["actual"], strict=True))
    texts = [recorded[name] for name in ids]
    if scored.classes:
        labels = (scored.classes[code] for code in scored.actual)
        return sum(text != label for text, label in zip(texts, labels, strict=True))
    # Without an absolute tolerance: all labels may be small numbers.
    return int((~np.isclose(as_numbers(texts), scored.actual, atol=0)).sum())


def numeric_predictions(frame: pd.DataFrame, actual: npt.NDArray[np.float64]) -> ScoredPredictions:
    """Combine numeric predictions with the labels [n] of their rows."""
    predicted = numeric_column(frame, "predicted")
    folds, repeats, studies = (_names(frame, name) for name in ("fold", "repeat", "study"))
    return ScoredPredictions(actual, predicted, folds, repeats=repeats, studies=studies)


def class_predictions(
    frame: pd.DataFrame, actual: Sequence[str], levels: tuple[str, ...] = ()
) -> ScoredPredictions:
    """Combine predicted classes, and their probabilities if there are any, with n labels.

    `levels` are all classes if they are ordered, the lowest first.
    """
    predicted = frame["predicted"].tolist()
    columns = [name for name in frame.columns if name.startswith("p_")]
    # The columns have the order of the model, in which the positive class is the last.
    named = dict.fromkeys(name[2:] for name in columns)
    present = {*actual, *predicted, *named}
    classes = levels or (*named, *sorted(present - named.keys()))
    if unknown := sorted(present - set(classes)):
        raise DataError(
            "The predictions have values that the order does not have",
            f"{first_few(unknown)}, --ordinal {','.join(levels)}",
            "give the order that the model was trained with",
        )
    probabilities = None
    if columns:
        probabilities = np.zeros((len(frame), len(classes)))
        for name in columns:
            probabilities[:, classes.index(name[2:])] = numeric_column(frame, name)
    return ScoredPredictions(
        encode_labels(actual, classes),
        encode_labels(predicted, classes),
        _names(frame, "fold"),
        classes,
        probabilities,
        bool(levels),
        _names(frame, "repeat"),
        _names(frame, "study"),
    )


def _names(frame: pd.DataFrame, column: str) -> tuple[str, ...]:
    """Return the fold, repeat or study of each row; empty with fewer than two of them."""
    if column not in frame.columns or frame[column].nunique() < 2:
        return ()
    return tuple(frame[column].tolist())


def numeric_column(frame: pd.DataFrame, column: str) -> npt.NDArray[np.float64]:
    """Return a column of `read_predictions` as finite numbers, float64 [n]."""
    values = as_numbers(frame[column].tolist())
    wrong = np.flatnonzero(~(np.abs(values) <= LARGEST_FLOAT32))
    if wrong.size:
        named = first_few(frame[ID_HEADER].iloc[wrong])
        shown = f"'{frame[column].iloc[wrong[0]]}' in samples {named}"
        hint = "add --classifier if it is a category" if column == "predicted" else "check the file"
        raise DataError(f"The column '{column}' of the predictions is not numeric", shown, hint)
    return values
