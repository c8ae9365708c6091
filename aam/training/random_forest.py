"""Random forest on relative abundances, the baseline of a model; imports no torch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.console import track
from aam.contract.errors import DataError
from aam.data.metrics import ScoredPredictions
from aam.data.splits import Split


@dataclass(frozen=True)
class ForestOptions:
    """Parameters of the forest of each fold, as of scikit-learn's RandomForestRegressor."""

    n_estimators: int = 200
    max_features: float = 0.3
    min_samples_leaf: int = 2
    seed: int = 42
    n_jobs: int = -1


@dataclass(frozen=True)
class ForestPredictions:
    """Predictions of the forests for the held-out samples; m rows, ordered by fold.

    Attributes:
        rows: int64 [m], rows of the table.
        folds: m names of folds, "1" and up.
        split: "test" or "validation".
        scored: predictions and labels of these rows.
    """

    rows: npt.NDArray[np.int64]
    folds: tuple[str, ...]
    split: str
    scored: ScoredPredictions


def relative_abundances(counts: sparse.csr_array) -> sparse.csr_array:
    """Divide reads by the reads of their sample; float32 [N, F], sparse."""
    reads = np.asarray(counts.sum(axis=1, dtype=np.int64)).ravel()
    data = (counts.data / np.repeat(reads, np.diff(counts.indptr))).astype(np.float32)
    return sparse.csr_array((data, counts.indices, counts.indptr), shape=counts.shape)


def cross_validate(
    counts: sparse.csr_array,
    target: npt.NDArray[np.float64] | npt.NDArray[np.int64],
    classes: Sequence[str],
    splits: Sequence[Split],
    forest: ForestOptions,
) -> ForestPredictions:
    """Train a forest for each split and predict its held-out samples.

    Args:
        counts: [N, F] reads; every sample has some.
        target: [N] numbers, or codes of `classes`.
        classes: names; empty for a numeric target.
        splits: one, or one per fold.
        forest: parameters of the forests.

    Raises:
        DataError: a split without test and validation samples.
    """
    abundances = relative_abundances(counts)
    rows, folds, predicted, probabilities = [], [], [], []
    for fold, split in enumerate(track(splits, "Forests", len(splits), "forests"), start=1):
        part, test_rows = split.held_out
        if not len(test_rows):
            raise DataError(
                "The split has no test or validation samples", f"fold {fold}", "check the splits"
            )
        model = _model(forest, bool(classes))
        with warnings.catch_warnings():
            # Classes with few samples are accepted.
            warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
            model.fit(_matrix(abundances, split.train), target[split.train])
        test = _matrix(abundances, test_rows)
        if classes:
            # A class without a training sample has no column in `predict_proba`.
            chance = np.zeros((len(test_rows), len(classes)))
            chance[:, model.classes_] = model.predict_proba(test)
            probabilities.append(chance)
            predicted.append(chance.argmax(axis=1))
        else:
            predicted.append(model.predict(test))
        rows.append(test_rows)
        folds += [str(fold)] * len(test_rows)
    order = np.concatenate(rows)
    scored = ScoredPredictions(
        target[order],
        np.concatenate(predicted),
        tuple(folds) if len(splits) > 1 else (),
        tuple(classes),
        np.concatenate(probabilities) if classes else None,
    )
    return ForestPredictions(order, tuple(folds), part, scored)


def _matrix(abundances: sparse.csr_array, rows: npt.NDArray[np.int64]) -> sparse.csc_matrix:
    # scikit-learn's forests take CSC matrices of the old type with 32-bit indices.
    chosen = sparse.csc_matrix(abundances[rows])
    chosen.indices = chosen.indices.astype(np.int32)
    chosen.indptr = chosen.indptr.astype(np.int32)
    return chosen


def _model(forest: ForestOptions, classifier: bool):  # type: ignore[no-untyped-def]
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    forest_class = RandomForestClassifier if classifier else RandomForestRegressor
    return forest_class(
        forest.n_estimators,
        max_features=forest.max_features,
        min_samples_leaf=forest.min_samples_leaf,
        random_state=forest.seed,
        n_jobs=forest.n_jobs,
    )
