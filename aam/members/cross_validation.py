"""Cross-validation of estimators: predictions of samples by models that were not fitted to them."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from aam.console import track
from aam.members.base import F64, Estimator, Model, Samples
from aam.members.folds import Folds, training_rows
from aam.members.relations import AsvRelations


@dataclass(frozen=True)
class CrossValidated:
    """An estimator's predictions of the held-out samples.

    Attributes:
        predictions_MC: float64, numbers in the units of the target, or class probabilities.
        fold_models: of the splits.
        model: fitted to all samples of the splits; None if it was not requested.
        inputs: the samples as the estimator reads them.
        cpu_seconds: CPU time of this process.
    """

    predictions_MC: F64
    fold_models: tuple[Model[Any], ...]
    model: Model[Any] | None
    inputs: Any
    cpu_seconds: float


def cross_validate(
    name: str,
    estimator: Estimator[Any],
    samples: Samples,
    relations: AsvRelations,
    folds: Folds,
    final: bool = True,
) -> CrossValidated:
    """Fit an estimator for each split and predict its held-out samples.

    Args:
        name: of the estimator, for the progress bar.
        estimator: to fit.
        samples: N samples.
        relations: of their ASVs.
        folds: their labels and splits.
        final: also fit a model to all samples of the splits.
    """
    began = time.process_time()
    inputs = estimator.read(samples, relations)
    labels = dataclasses.replace(folds.labels, values=folds.scale.forward(folds.labels.values))
    parts = [(training_rows(split), split.held_out[1]) for split in folds.splits]
    everything = np.unique(np.concatenate([rows for part in parts for rows in part]))
    jobs = [*parts, *([(everything, everything[:0])] if final else [])]
    models, predictions = [], []
    for fitted, predicted in track(jobs, name.title(), len(jobs), "models"):
        models.append(estimator.fit(inputs.take(fitted), labels.take(fitted), folds.seed))
        if len(predicted):
            predictions.append(models[-1].predict(inputs.take(predicted)))
    return CrossValidated(
        folds.scale.inverse(np.concatenate(predictions)),
        tuple(models[: len(parts)]),
        models[-1] if final else None,
        inputs,
        time.process_time() - began,
    )
