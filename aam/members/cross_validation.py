"""Cross-validation of estimators: predictions of samples by models that were not fitted to them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aam.console import track
from aam.contract.errors import DataError
from aam.data.metrics import ScoredPredictions
from aam.data.splits import Split
from aam.members.base import F64, Estimator, Labels, Model, Rows, Samples
from aam.members.uncertainty import fit_proportional_odds, median_codes

_PARTS = 5


@dataclass(frozen=True)
class HeldOut:
    """Held-out samples of the splits, ordered by fold; m rows.

    Attributes:
        rows: int64 [m], rows of the study; it repeats rows as the splits file does.
        folds: int64 [m], from 1.
        part: "test" or "validation".
    """

    rows: Rows
    folds: Rows
    part: str

    def scored(self, predictions_MC: F64, labels: Labels) -> ScoredPredictions:
        """Combine predictions of the held-out samples with the labels of all samples.

        Ranks become probabilities of the categories, and the median category the prediction.
        """
        actual = labels.values[self.rows]
        folds = tuple(str(fold) for fold in self.folds) if self.folds.max() > 1 else ()
        if labels.levels:
            probabilities_MC = self._level_probabilities(predictions_MC[:, 0], labels)
            codes = median_codes(probabilities_MC)
            return ScoredPredictions(
                actual.astype(np.int64), codes, folds, labels.levels, probabilities_MC, ordered=True
            )
        if not labels.classes:
            return ScoredPredictions(actual, predictions_MC[:, 0], folds)
        codes = predictions_MC.argmax(axis=1)
        return ScoredPredictions(
            actual.astype(np.int64), codes, folds, labels.classes, predictions_MC
        )

    def parts(self, labels: Labels) -> Rows:
        """Return the fold of each sample; of a single split, one of five parts of groups."""
        if self.folds.max() > 1:
            return self.folds
        groups_M = labels.groups[self.rows]
        return np.unique(groups_M, return_inverse=True)[1] % _PARTS

    def _level_probabilities(self, ranks_M: F64, labels: Labels) -> F64:
        """Return the probabilities of ordered categories, of a model of the other parts."""
        codes_M, parts_M = labels.values[self.rows].astype(np.int64), self.parts(labels)
        found = np.empty((len(ranks_M), len(labels.levels)))
        for part in np.unique(parts_M):
            own = parts_M == part
            others = own if own.all() else ~own  # one group alone has no other part
            model = fit_proportional_odds(ranks_M[others], codes_M[others], len(labels.levels))
            found[own] = model.probabilities(ranks_M[own])
        return found


def held_out(splits: Sequence[Split]) -> HeldOut:
    """Return the held-out samples of the splits.

    Raises:
        DataError: a split without test and validation samples, or some with test samples and some
            with validation samples alone.
    """
    parts = [split.held_out for split in splits]
    for fold, (_, rows) in enumerate(parts, start=1):
        if not len(rows):
            raise DataError(
                "The split has no test or validation samples", f"fold {fold}", "check the splits"
            )
    if len({part for part, _ in parts}) > 1:
        raise DataError(
            "Some folds have test samples, others validation samples alone",
            f"{len(splits)} folds",
            "check the splits",
        )
    folds = np.repeat(np.arange(1, len(parts) + 1), [len(rows) for _, rows in parts])
    return HeldOut(np.concatenate([rows for _, rows in parts]), folds, parts[0][0])


def training_rows(split: Split) -> Rows:
    """Return the samples that an estimator may read: all of the split that are not held out.

    It needs no validation samples, since its hyper-parameters are chosen by leaving out groups.
    """
    if not len(split.test):
        return split.train
    return np.sort(np.concatenate([split.train, split.validation]))


@dataclass(frozen=True)
class CrossValidated:
    """An estimator's predictions of the held-out samples.

    Attributes:
        predictions_MC: float64, in the order of `HeldOut.rows`.
        fold_models: of the splits.
        model: fitted to all samples of the splits; None if it was not requested.
        cpu_seconds: CPU time of this process.
    """

    predictions_MC: F64
    fold_models: tuple[Model[Any], ...]
    model: Model[Any] | None
    cpu_seconds: float


def cross_validate(
    name: str,
    estimator: Estimator[Any],
    samples: Samples,
    labels: Labels,
    splits: Sequence[Split],
    seed: int,
    final: bool = True,
) -> CrossValidated:
    """Fit an estimator for each split and predict its held-out samples.

    Args:
        name: of the estimator, for the progress bar.
        estimator: to fit.
        samples: N samples.
        labels: of all N samples.
        splits: one, or one per fold.
        seed: of the estimator.
        final: also fit a model to all samples of the splits.
    """
    began = time.process_time()
    inputs = estimator.read(samples, samples.tokens_FL)
    parts = [(training_rows(split), split.held_out[1]) for split in splits]
    everything = np.unique(np.concatenate([rows for part in parts for rows in part]))
    jobs = [*parts, *([(everything, everything[:0])] if final else [])]
    models, predictions = [], []
    for fitted, predicted in track(jobs, name.title(), len(jobs), "models"):
        models.append(estimator.fit(inputs.take(fitted), labels.take(fitted), seed))
        if len(predicted):
            predictions.append(models[-1].predict(inputs.take(predicted)))
    return CrossValidated(
        np.concatenate(predictions),
        tuple(models[: len(parts)]),
        models[-1] if final else None,
        time.process_time() - began,
    )
