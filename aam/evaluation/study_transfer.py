"""Transfer between studies: scores of a model of one study in every other, and study differences.

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
from aam.evaluation.metrics import ResampledMetric, ScoredPredictions, accuracy
from aam.evaluation.splits import MIN_UNITS, Split, make_splits

Predict = Callable[[Folds, str], F64]
"""Fit a model to the training samples of folds, and predict their held-out samples, [M, C].

The text labels a progress bar."""

_FOLDS = 5
"""Folds of a cross-validation within a study, and of the prediction of the study."""


@dataclass(frozen=True)
class TransferMatrix:
    """Scores of models of one study in each study; None if a score is not defined."""

    model: str
    metric: str
    studies: list[str]
    # row: training study, column: scored study; the diagonal is cross-validated
    values: list[list[float | None]]
    others: list[float | None]  # models of all other studies


@dataclass(frozen=True)
class StudyDifferences:
    """How well the samples predict their study, and how strongly the study predicts the target."""

    sentence: str
    model: str
    accuracy: float | None  # accuracy of the predicted study, cross-validated over all samples
    largest: float  # share of the samples in the largest study
    measure: str  # "eta²" for numbers and ranks, "Cramér's V" for classes
    association: float  # of study and target, 0 to 1


def transfer_matrix(
    model: str, predict: Predict, folds: Folds, predictions_MC: F64
) -> TransferMatrix:
    """Fit a model to each study alone, and score it in each study.

    `predictions_MC` are predictions of the models that are fitted to all other studies.
    """
    metric, function = next(iter(scored_metrics(folds.scored(predictions_MC)).items()))
    rows_of = _rows_of(folds)
    values: list[list[float | None]] = []
    for study, rows in rows_of.items():
        if len(rows) < MIN_UNITS or len(np.unique(folds.labels.values[rows])) < 2:
            values.append([None for _ in rows_of])
            continue
        within_study = _split(rows, folds.labels, folds.seed)
        splits = (*within_study, Split(rows, rows[:0], np.setdiff1d(folds.rows_M, rows)))
        single = replace(
            folds, labels=replace(folds.labels, studies=None), studies=(), splits=splits
        )
        scored = single.scored(predict(single, f"of {study}"))
        within_M = single.fold_M <= len(within_study)
        row = []
        for scored_study, scored_rows in rows_of.items():
            chosen_M = ~within_M & np.isin(single.rows_M, scored_rows)
            if scored_study == study:
                chosen_M = within_M
            row.append(_value(function, scored.take(np.flatnonzero(chosen_M))))
        values.append(row)
    left_out = folds.scored(predictions_MC).by_study
    left_out_values = [_value(function, left_out[study][1]) for study in rows_of]
    return TransferMatrix(model, metric, [*rows_of], values, left_out_values)


def study_differences(model: str, predict: Predict, folds: Folds, column: str) -> StudyDifferences:
    """Predict the study of each sample, and measure the association of study and target."""
    rows_of = _rows_of(folds)
    rows = np.sort(np.concatenate([*rows_of.values()]))
    codes = np.empty(len(folds.labels.values))
    for code, members in enumerate(rows_of.values()):
        codes[members] = code
    sizes = [len(members) for members in rows_of.values()]
    labels = Labels(codes, tuple(rows_of), folds.labels.groups)
    study_accuracy, largest = None, max(sizes) / len(rows)
    if splits := _split(rows, labels, folds.seed):
        study_folds = Folds(labels, splits, folds.seed, folds.group_column)
        scored = study_folds.scored(predict(study_folds, "of the study"))
        study_accuracy = scored.value(accuracy)
    measure, association = _association(folds.labels.take(rows), codes[rows])
    sentence = f"'{folds.study_column}' explains {association:.0%} of the variance of '{column}'"
    if measure != "eta²":
        sentence = f"{measure} of '{folds.study_column}' and '{column}' is {association:.2f}"
    if study_accuracy is not None:
        sentence = (
            f"A {model} predicts the study of {study_accuracy:.0%} of the samples correctly "
            f"({largest:.0%} are in the largest study). {sentence}"
        )
    return StudyDifferences(f"{sentence}.", model, study_accuracy, largest, measure, association)


def _rows_of(folds: Folds) -> dict[str, Rows]:
    rows, codes = folds.rows_M, folds.held_out.studies
    assert codes is not None
    return {
        name: np.unique(rows[codes == code])
        for code, name in enumerate(folds.studies)
        if (codes == code).any()
    }


def _split(rows: Rows, labels: Labels, seed: int) -> tuple[Split, ...]:
    """Divide samples into folds by their groups; no folds with fewer groups than folds."""
    labels = labels.take(rows)
    codes = None if labels.type == "regression" else labels.values.astype(np.int64)
    try:
        splits = make_splits(
            len(rows), test_size=0, folds=_FOLDS, seed=seed,
            groups=[str(group) for group in labels.groups.tolist()], classes=codes,
        )  # fmt: skip
    except DataError:
        return ()
    return tuple(
        Split(rows[split.train], rows[split.validation], rows[split.test]) for split in splits
    )


def _value(function: ResampledMetric, scored: ScoredPredictions) -> float | None:
    if not len(scored.actual):
        return None
    value = scored.value(function)
    return None if math.isnan(value) else value


def _association(labels: Labels, study_M: F64) -> tuple[str, float]:
    """Return the name and value of eta² (numbers and ranks) or Cramér's V (classes)."""
    y_MC = labels.outputs_NC - labels.outputs_NC.mean(axis=0)
    member_MK = study_M[:, None] == np.unique(study_M)
    sizes_K = member_MK.sum(axis=0)
    between_C = np.square(member_MK.T @ y_MC / np.sqrt(sizes_K)[:, None]).sum(axis=0)
    total_C = np.square(y_MC).sum(axis=0)
    if not labels.classes:
        return "eta²", float(between_C[0] / total_C[0]) if total_C[0] > 0 else 0.0
    # Pearson's chi² is the number of samples times the between-study squares of each class divided
    # by its size, summed over classes.
    times_C = labels.outputs_NC.sum(axis=0)
    present = times_C > 0
    phi2 = float((between_C[present] / times_C[present]).sum())
    smaller = min(len(sizes_K), int(present.sum())) - 1
    return "Cramér's V", math.sqrt(phi2 / smaller) if smaller else 0.0
