"""Models of one study in each other one, and how far studies differ."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aam.arrays import F64
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.splits import Split
from aam.evaluation.study_transfer import study_differences, transfer_matrix

NAMES = ("a", "b", "c")


def class_means(features_NF: F64) -> Callable[[Folds, str], F64]:
    """Return a classifier by the nearest mean of the training samples of a class."""

    def predict(folds: Folds, _: str) -> F64:
        found = []
        codes_N = folds.labels.values.astype(np.int64)
        for split in folds.splits:
            rows, predicted = split.training_rows, split.held_out[1]
            logits_MC = np.full((len(predicted), len(folds.labels.classes)), -50.0)
            for code in np.unique(codes_N[rows]):
                mean_F = features_NF[rows[codes_N[rows] == code]].mean(axis=0)
                logits_MC[:, code] = -np.square(features_NF[predicted] - mean_F).sum(axis=1)
            chances_MC = np.exp(logits_MC - logits_MC.max(axis=1, keepdims=True))
            found.append(chances_MC / chances_MC.sum(axis=1, keepdims=True))
        return np.concatenate(found)

    return predict


def studies(directions: tuple[int, ...], shift: float = 0.0) -> tuple[Folds, F64]:
    """Draw studies of 60 samples whose classes differ in a direction, and which are shifted."""
    rng = np.random.default_rng(0)
    study_N = np.repeat(np.arange(len(directions)), 60)
    codes_N = rng.integers(2, size=len(study_N))
    features_NF = rng.normal(size=(len(study_N), 3))
    features_NF[:, 0] += 2 * codes_N * np.array(directions)[study_N]
    features_NF[:, 1] += shift * study_N
    labels = Labels.of(
        codes_N.astype(float), ("no", "yes"), None, studies=[NAMES[k] for k in study_N]
    )
    splits = tuple(
        Split(np.flatnonzero(study_N != k), np.arange(0), np.flatnonzero(study_N == k))
        for k in range(len(directions))
    )
    return Folds(labels, splits, 0, None, "study", NAMES[: len(directions)]), features_NF


def test_a_shared_signal_transfers_and_a_reversed_one_does_not() -> None:
    folds, features_NF = studies((1, 1, -1))
    predict = class_means(features_NF)
    found = transfer_matrix("means", predict, folds, predict(folds, ""))
    values = np.array(found.values, dtype=float)
    assert found.metric == "auc" and found.studies == [*NAMES]
    assert (np.diag(values) > 0.75).all()
    assert values[0, 1] > 0.75 and values[1, 0] > 0.75
    assert (values[:2, 2] < 0.25).all() and (values[2, :2] < 0.25).all()
    assert found.others[2] is not None and found.others[2] < 0.25


def test_the_diagonal_is_cross_validated() -> None:
    """A model that knows its training samples has no skill in others without a signal."""
    folds, _ = studies((0, 0, 0))
    names_NF = 20 * np.eye(len(folds.labels.values))

    found = transfer_matrix("means", class_means(names_NF), folds, folds.baseline_MC)
    assert all(value is not None and value < 0.65 for value in np.diag(np.array(found.values)))


def test_a_study_of_one_class_teaches_nothing() -> None:
    folds, features_NF = studies((1, 1, 1))
    folds.labels.values[120:] = 1
    predict = class_means(features_NF)
    found = transfer_matrix("means", predict, folds, predict(folds, ""))
    assert found.values[2] == [None, None, None]
    assert [row[2] for row in found.values] == [None, None, None]
    assert found.others[0] is not None and found.others[2] is None


@pytest.mark.parametrize(("shift", "low", "high"), [(0.0, 0.2, 0.5), (10.0, 0.99, 1.0)])
def test_shifted_studies_are_told_apart(shift: float, low: float, high: float) -> None:
    folds, features_NF = studies((1, 1, 1), shift)
    found = study_differences("means", class_means(features_NF), folds, "target")
    assert found.accuracy is not None and low <= found.accuracy <= high
    assert found.largest == pytest.approx(1 / 3)
    assert found.association < 0.2


def test_the_part_of_the_target_that_is_the_study() -> None:
    """All of it, of classes and of numbers."""
    folds, features_NF = studies((1, 1), 1.0)
    predict = class_means(features_NF)
    folds.labels.values[:] = np.repeat([0, 1], 60)
    assert study_differences("means", predict, folds, "target").association == pytest.approx(1)
    numbers = Folds(
        Labels(np.repeat([3.0, 8.0], 60), (), folds.labels.groups, (), folds.labels.studies),
        folds.splits, 0, None, "study", folds.studies,
    )  # fmt: skip
    found = study_differences("means", predict, numbers, "target")
    assert found.measure == "eta²" and found.association == pytest.approx(1)
