"""Predictions files of `aam predict` and `aam train`: read them, and join them with labels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aam.console import info
from aam.contract.errors import DataError, first_few, repeated
from aam.contract.run_files import PREDICTIONS, REPEATS, files_of
from aam.data.formats.text import LARGEST_FLOAT32, read_rows
from aam.data.metadata import ID_HEADER, Metadata, as_numbers
from aam.data.targets import encode_labels, label_samples
from aam.evaluation.metrics import ScoredPredictions

if TYPE_CHECKING:
    import pandas as pd

HELD_OUT = ("new", "test", "validation")
"""Values of `split` that can be scored, the best first; `aam predict` writes "new"."""

KEYS = (ID_HEADER, "repeat", "fold", "study", "split")
"""Columns that a file with several targets has once."""


def read_predictions(path: Path, target: str = "") -> pd.DataFrame:
    """Read the scored rows of a predictions file as strings, one for each sample and fold.

    Missing values are "". Training rows are left out, and validation rows too if there are test
    rows; a line is printed. For a run with several repeats, the predictions of each repeat replace
    `predictions.tsv`. `target` names one of several targets, with columns `TARGET_predicted`, ...
    """
    import pandas as pd

    if path.name == PREDICTIONS and REPEATS in files_of(path.parent):
        path = path.with_name(REPEATS)
        info(f"Scored as in the run: the predictions of each repeat, '{path}'.")
    header, rows = read_rows(path, "predictions file")
    frame = pd.DataFrame(rows, columns=header, dtype=str)
    prefix = f"{target}_"
    if "predicted" not in header and f"{prefix}predicted" in header:
        # The columns of a target are adjacent and begin with `TARGET_actual` or `TARGET_predicted`.
        # The next target's name may begin with this target's ("diagnosis", "diagnosis_p").
        starts = (f"{prefix}actual", f"{prefix}predicted")
        first = min(header.index(name) for name in starts if name in header)
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
        chosen = next((split for split in HELD_OUT if counts[split]), None)
        if chosen is None:
            raise DataError(
                "The predictions have no test or validation samples",
                f"the splits of '{path}' are {', '.join(sorted(counts))}",
                "give predictions of test or validation samples",
            )
        left_out = [f"{n} {split or 'unnamed'}" for split, n in counts.items() if split != chosen]
        if left_out:
            info(f"Scored: {counts[chosen]} {chosen} rows; left out: {', '.join(left_out)} rows.")
        frame = frame[frame["split"] == chosen]
    if "repeats" in frame.columns:
        info(f"These predictions are means over repeats; the run scores each repeat ({REPEATS}).")
    folds = frame["fold"] if "fold" in frame.columns else [""] * len(frame)
    twice = [sample for sample, _ in repeated(zip(frame[ID_HEADER], folds, strict=True))]
    if twice or not len(frame):
        reason = f"samples twice: {first_few(twice)}" if twice else "it has no rows"
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
            f"the predictions have {first_few(ids)}, the metadata {first_few(metadata.ids)}",
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
    """Count samples whose label differs from the file's column `actual`; 0 without this column."""
    if "actual" not in frame.columns:
        return 0
    recorded = dict(zip(frame[ID_HEADER], frame["actual"], strict=True))
    texts = [recorded[name] for name in ids]
    if scored.classes:
        labels = (scored.classes[code] for code in scored.actual)
        return sum(text != label for text, label in zip(texts, labels, strict=True))
    # No absolute tolerance, because all labels may be small numbers.
    return int((~np.isclose(as_numbers(texts), scored.actual, atol=0)).sum())


def numeric_predictions(frame: pd.DataFrame, actual: npt.NDArray[np.float64]) -> ScoredPredictions:
    """Combine numeric predictions with the labels [n] of their rows."""
    predicted = numeric_column(frame, "predicted")
    folds, repeats, studies = (_names(frame, name) for name in ("fold", "repeat", "study"))
    return ScoredPredictions(actual, predicted, folds, repeats=repeats, studies=studies)


def class_predictions(
    frame: pd.DataFrame, actual: Sequence[str], levels: tuple[str, ...] = ()
) -> ScoredPredictions:
    """Combine predicted classes, with probabilities if the file has them, with n labels.

    `levels` are all classes if they are ordered, the lowest first.
    """
    predicted = frame["predicted"].tolist()
    columns = [name for name in frame.columns if name.startswith("p_")]
    # The columns have the order of the model, in which the positive class is the last.
    modelled = dict.fromkeys(name[2:] for name in columns)
    present = {*actual, *predicted, *modelled}
    classes = levels or (*modelled, *sorted(present - modelled.keys()))
    if unknown := sorted(present - set(classes)):
        raise DataError(
            "Some predicted or true values are not in the order of the categories",
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
    """Return the fold, repeat or study of each row; empty with fewer than two different ones."""
    if column not in frame.columns or frame[column].nunique() < 2:
        return ()
    return tuple(frame[column].tolist())


def numeric_column(frame: pd.DataFrame, column: str) -> npt.NDArray[np.float64]:
    """Return a column of `read_predictions` as finite numbers, float64 [n]."""
    values = as_numbers(frame[column].tolist())
    wrong = np.flatnonzero(~(np.abs(values) <= LARGEST_FLOAT32))
    if wrong.size:
        ids = first_few(frame[ID_HEADER].iloc[wrong])
        evidence = f"'{frame[column].iloc[wrong[0]]}' in samples {ids}"
        hint = "add --classifier if it is a category" if column == "predicted" else "check the file"
        raise DataError(f"The column '{column}' of the predictions is not numeric", evidence, hint)
    return values
