"""Transfer between studies: models of one study in each other one, and how far the studies differ.

What refits a model is an argument, `Predict`: it fits the model to the training samples of other
folds, and returns its predictions [M, C] of their held-out samples; the text names the part in a
progress bar.

K studies, M held-out samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from aam.arrays import F64, Rows
from aam.contract.errors import DataError
from aam.evaluation.folds import Folds
from aam.evaluation.intervals import scored_metrics
from aam.evaluation.labels import Labels
from aam.evaluation.metrics import ResampledMetric, ScoredPredictions, accuracy, value_of
from aam.evaluation.splits import MIN_UNITS, Split, make_splits

Predict = Callable[[Folds, str], F64]

_FOLDS = 5
"""Folds of a cross-validation within a study, and of the studies."""


@dataclass(frozen=True)
class TransferMatrix:
    """Scores of models of one study in each study; None where one is not defined."""

    model: str
    metric: str
    studies: list[str]
    # row: study of the training, column: study of the samples. The diagonal is cross-validated
    # within the study
    values: list[list[float | None]]
    others: list[float | None]  # of models of all other studies


@dataclass(frozen=True)
class StudyDifferences:
    """How well the samples tell the studies apart, and how much of the target the study is."""

    sentence: str
    model: str
    # accuracy of the predicted study in a cross-validation over all samples
    accuracy: float | None
    largest: float  # part of the samples that is of the largest study
    measure: str  # "eta²" of numbers and ranks, "Cramér's V" of classes
    association: float  # of study and target, 0 to 1


def transfer_matrix(
    model: str, predict: Predict, folds: Folds, predictions_MC: F64
) -> TransferMatrix:
    """Fit a model to each study alone, and score it in each study.

    `predictions_MC` are those of the model that is fitted to all other studies.
    """
    metric, function = next(iter(scored_metrics(folds.scored(predictions_MC)).items()))
    rows_of = _rows_of(folds)
    values: list[list[float | None]] = []
    for study, rows in rows_of.items():
        if len(rows) < MIN_UNITS or len(np.unique(folds.labels.values[rows])) < 2:
            values.append([None for _ in rows_of])
            continue
        inside = _split(rows, folds.labels, folds.seed)
        outside = np.setdiff1d(folds.rows_M, rows)
        splits = (*inside, Split(rows, rows[:0], outside))
        alone = replace(
            folds, labels=replace(folds.labels, studies=None), studies=(), splits=splits
        )
        scored = alone.scored(predict(alone, f"of {study}"))
        within_M = alone.fold_M <= len(inside)
        row = []
        for source, source_rows in rows_of.items():
            chosen_M = (
                within_M if source == study else ~within_M & np.isin(alone.rows_M, source_rows)
            )
            row.append(_value(function, scored.take(np.flatnonzero(chosen_M))))
        values.append(row)
    left_out = folds.scored(predictions_MC).by_study
    others_of = [_value(function, left_out[study][1]) for study in rows_of]
    return TransferMatrix(model, metric, [*rows_of], values, others_of)


def study_differences(model: str, predict: Predict, folds: Folds, column: str) -> StudyDifferences:
    """Predict the study of each sample, and measure how much of the target it is."""
    rows_of = _rows_of(folds)
    rows = np.sort(np.concatenate([*rows_of.values()]))
    codes = np.empty(len(folds.labels.values))
    for code, members in enumerate(rows_of.values()):
        codes[members] = code
    sizes = [len(members) for members in rows_of.values()]
    labels = Labels(codes, tuple(rows_of), folds.labels.groups)
    accuracy_here, largest = None, max(sizes) / len(rows)
    if splits := _split(rows, labels, folds.seed):
        apart = Folds(labels, splits, folds.seed, folds.group_column)
        accuracy_here = value_of(accuracy, apart.scored(predict(apart, "of the study")))
    measure, association = _association(folds.labels.take(rows), codes[rows])
    sentence = f"'{folds.study_column}' explains {association:.0%} of the variance of '{column}'"
    if measure != "eta²":
        sentence = (
            f"'{folds.study_column}' and '{column}' are associated with {measure} {association:.2f}"
        )
    if accuracy_here is not None:
        sentence = (
            f"A {model} assigns {accuracy_here:.0%} of the samples to their study; the largest "
            f"study has {largest:.0%}. {sentence}"
        )
    return StudyDifferences(f"{sentence}.", model, accuracy_here, largest, measure, association)


def _rows_of(folds: Folds) -> dict[str, Rows]:
    rows, codes = folds.rows_M, folds.held_out.studies
    assert codes is not None
    return {
        name: np.unique(rows[codes == code])
        for code, name in enumerate(folds.studies)
        if (codes == code).any()
    }


def _split(rows: Rows, labels: Labels, seed: int) -> tuple[Split, ...]:
    """Divide samples into folds by their groups; none with fewer groups than folds."""
    part = labels.take(rows)
    codes = None if part.type == "regression" else part.values.astype(np.int64)
    try:
        splits = make_splits(
            len(rows), test_size=0, folds=_FOLDS, seed=seed,
            groups=[str(group) for group in part.groups.tolist()], classes=codes,
        )  # fmt: skip
    except DataError:
        return ()
    return tuple(
        Split(rows[split.train], rows[split.validation], rows[split.test]) for split in splits
    )


def _value(function: ResampledMetric, scored: ScoredPredictions) -> float | None:
    if not len(scored.actual):
        return None
    value = value_of(function, scored)
    return None if math.isnan(value) else value


def _association(labels: Labels, study_M: F64) -> tuple[str, float]:
    """Return eta² of numbers and ranks, Cramér's V of classes, and its name."""
    y_MC = labels.outputs_NC - labels.outputs_NC.mean(axis=0)
    member_MK = study_M[:, None] == np.unique(study_M)
    sizes_K = member_MK.sum(axis=0)
    between_C = np.square(member_MK.T @ y_MC / np.sqrt(sizes_K)[:, None]).sum(axis=0)
    total_C = np.square(y_MC).sum(axis=0)
    if not labels.classes:
        return "eta²", float(between_C[0] / total_C[0]) if total_C[0] > 0 else 0.0
    # Pearson's chi² is the number of samples times the sum over the classes of the squares between
    # studies, divided by the class size.
    times_C = labels.outputs_NC.sum(axis=0)
    present = times_C > 0
    phi2 = float((between_C[present] / times_C[present]).sum())
    smaller = min(len(sizes_K), int(present.sum())) - 1
    return "Cramér's V", math.sqrt(phi2 / smaller) if smaller else 0.0
