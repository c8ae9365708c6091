"""A random forest on relative abundances: what a model has to beat. Needs no torch."""

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
    """The forest of each fold; see scikit-learn's RandomForestRegressor for the meanings."""

    n_estimators: int = 200
    max_features: float = 0.3
    min_samples_leaf: int = 2
    seed: int = 42
    n_jobs: int = -1


@dataclass(frozen=True)
class ForestPredictions:
    """What the forests say of the samples that judge; m rows, ordered by fold.

    Attributes:
        rows: int64 [m], rows of the table.
        folds: m names of folds, "1" and up.
        split: the part that judges: "test" or "validation".
        judged: answers and truth of these rows.
    """

    rows: npt.NDArray[np.int64]
    folds: tuple[str, ...]
    split: str
    judged: ScoredPredictions


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
    """Train a forest for each split and ask it about the samples that judge.

    Args:
        counts: [N, F] reads; every sample has some.
        target: [N] numbers, or codes of `classes`.
        classes: names; empty for a numeric target.
        splits: one, or one a fold.
        forest: its size.

    Raises:
        DataError: a split with nobody to judge.
    """
    abundances = relative_abundances(counts)
    rows, folds, predicted, probabilities = [], [], [], []
    for fold, split in enumerate(track(splits, "Forests", len(splits), "forests"), start=1):
        part, asked = split.held_out
        if not len(asked):
            raise DataError("The split has nobody to judge", f"fold {fold}", "check the splits")
        model = _model(forest, bool(classes))
        with warnings.catch_warnings():
            # A classifier of few samples a class is what was asked for.
            warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
            model.fit(_matrix(abundances, split.train), target[split.train])
        held = _matrix(abundances, asked)
        if classes:
            # A class without a training sample has no column in the forest's answer.
            chance = np.zeros((len(asked), len(classes)))
            chance[:, model.classes_] = model.predict_proba(held)
            probabilities.append(chance)
            predicted.append(chance.argmax(axis=1))
        else:
            predicted.append(model.predict(held))
        rows.append(asked)
        folds += [str(fold)] * len(asked)
    order = np.concatenate(rows)
    judged = ScoredPredictions(
        target[order],
        np.concatenate(predicted),
        tuple(folds) if len(splits) > 1 else (),
        tuple(classes),
        np.concatenate(probabilities) if classes else None,
    )
    return ForestPredictions(order, tuple(folds), part, judged)


def _matrix(abundances: sparse.csr_array, rows: npt.NDArray[np.int64]) -> sparse.csc_matrix:
    # Forests look at features one by one; scikit-learn wants the old matrix type and 32 bits.
    chosen = sparse.csc_matrix(abundances[rows])
    chosen.indices = chosen.indices.astype(np.int32)
    chosen.indptr = chosen.indptr.astype(np.int32)
    return chosen


def _model(forest: ForestOptions, classifier: bool):  # type: ignore[no-untyped-def]
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    kind = RandomForestClassifier if classifier else RandomForestRegressor
    return kind(
        forest.n_estimators,
        max_features=forest.max_features,
        min_samples_leaf=forest.min_samples_leaf,
        random_state=forest.seed,
        n_jobs=forest.n_jobs,
    )
