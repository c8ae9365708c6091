"""Folds of a cross-validation: labels, splits, baseline, and scores of held-out predictions.

M held-out samples, N samples, C outputs (1 for a number, else the probability of each class).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from aam.arrays import F64, Rows
from aam.contract.errors import DataError
from aam.data.targets import UNSCALED, TargetScale
from aam.evaluation.calibration import fit_odds, median_codes
from aam.evaluation.intervals import ResampledMetrics, Units
from aam.evaluation.labels import Labels
from aam.evaluation.meta_analysis import resample
from aam.evaluation.metrics import ScoredPredictions
from aam.evaluation.splits import Split


@dataclass(frozen=True)
class Folds:
    """Labels of N samples, and the splits on which models are fitted and scored.

    The held-out samples are ordered by fold. With several repeats, or if the splits file says so, a
    sample is held out in several folds.
    """

    labels: Labels  # labels of all N samples, in the units of the target
    splits: tuple[Split, ...]  # one split, or one per fold
    seed: int  # seed of the estimators
    group_column: str | None = None  # metadata column with the groups; None without groups
    study_column: str | None = None  # metadata column with the studies; None for a single study
    studies: tuple[str, ...] = ()  # names of the studies, by the codes of the labels
    scale: TargetScale = UNSCALED  # transform of a number; estimators fit transformed labels
    sensitivity: float | None = None  # sensitivity of the threshold; None: Youden's J
    baseline: tuple[float, ...] = ()  # its predictions; empty: from the training set of each fold

    def __post_init__(self) -> None:
        """Check that every split holds out samples, and all of them test or validation samples."""
        if not all(sizes := [len(split.held_out[1]) for split in self.splits]):
            cause, evidence = "The split has no test or validation samples", sizes.index(0) + 1
            raise DataError(cause, f"fold {evidence}", "check the splits")
        if len({split.held_out[0] for split in self.splits}) > 1:
            cause = "Some folds have test samples, others validation samples alone"
            raise DataError(cause, f"{len(self.splits)} folds", "check the splits")

    @property
    def part(self) -> str:
        """What the held-out samples are: "test" or "validation"."""
        return self.splits[0].held_out[0]

    @cached_property
    def fitted_rows(self) -> tuple[Rows, ...]:
        """Rows to which models are fitted: of each split, and last of the final model."""
        fitted = [split.training_rows for split in self.splits]
        # All samples, except studies of one category: no model is fitted to these
        # (`trainable_rows`).
        held_out = self.rows_M if self.labels.studies is None else self.rows_M[:0]
        return (*fitted, np.unique(np.concatenate([*fitted, held_out])))

    @cached_property
    def rows_M(self) -> Rows:
        """Rows of the held-out samples among all N."""
        return np.concatenate([split.held_out[1] for split in self.splits])

    @cached_property
    def fold_M(self) -> Rows:
        """Fold in which each sample is held out, from 1."""
        sizes = [len(split.held_out[1]) for split in self.splits]
        return np.repeat(np.arange(1, len(sizes) + 1), sizes)

    @property
    def repeats(self) -> int:
        """Number of repeats (partitions into folds)."""
        return self.splits[-1].repeat

    @cached_property
    def repeat_M(self) -> Rows:
        """Repeat in which each sample is held out, from 1."""
        return np.array([split.repeat for split in self.splits])[self.fold_M - 1]

    @property
    def first(self) -> Folds:
        """Folds of the first repeat."""
        return replace(self, splits=tuple(split for split in self.splits if split.repeat == 1))

    @cached_property
    def held_out(self) -> Labels:
        """Labels of the held-out samples."""
        return self.labels.take(self.rows_M)

    @cached_property
    def held_out_units(self) -> Units:
        """Jackknife units of the held-out samples: their groups."""
        return Units.of(self.held_out.groups)

    @cached_property
    def study_M(self) -> tuple[str, ...]:
        """Name of the study of each held-out sample; empty for a single study."""
        codes_M = self.held_out.studies
        return () if codes_M is None else tuple(self.studies[code] for code in codes_M.tolist())

    @cached_property
    def baseline_MC(self) -> F64:
        """Predictions of the baseline: training mean or class frequencies of each sample's fold."""
        if self.baseline:
            return np.tile(self.baseline, (len(self.rows_M), 1))
        predicted_NC = self.labels.predicted_NC
        means = [predicted_NC[split.training_rows].mean(axis=0) for split in self.splits]
        return np.stack(means)[self.fold_M - 1]

    @property
    def unit(self) -> str:
        """Name of the units within a study: "samples", or "groups of infant"."""
        return "samples" if self.group_column is None else f"groups of {self.group_column}"

    @property
    def units(self) -> str:
        """Number and name of the units of the intervals: "42 groups of infant", "3 studies"."""
        if self.studies:
            return f"{len(self.studies)} studies"
        return f"{self.held_out_units.number} {self.unit}"

    def with_levels(self, predictions_MC: F64, left_out: Sequence[F64 | None]) -> F64:
        """Append the probability of each level to predicted ranks; other predictions stay.

        The model from a rank to the levels is fitted to left-out predictions within the training
        set of the fold. Held-out predictions of other folds would leak: their models were trained
        on the labels of this fold (random labels in groups: weighted kappa 0.027, 500 studies).
        """
        if not self.labels.levels:
            return predictions_MC
        by_fold = []
        for k, rows in enumerate(self.fitted_rows[:-1]):
            ranks_M1 = predictions_MC[self.fold_M == k + 1]
            odds = fit_odds(left_out[k] if left_out else None, self.labels.training(rows))
            by_fold.append(np.hstack([ranks_M1, odds.probabilities(ranks_M1[:, 0])]))
        return np.concatenate(by_fold)

    def scored(self, predictions_MC: F64) -> ScoredPredictions:
        """Combine held-out predictions with labels; the median predicts ordered categories."""
        labels = self.held_out
        folds = tuple(str(fold) for fold in self.fold_M) if len(self.splits) > 1 else ()
        repeats = tuple(str(repeat) for repeat in self.repeat_M) if self.repeats > 1 else ()
        scored = partial(ScoredPredictions, folds=folds, repeats=repeats, studies=self.study_M)
        if labels.type == "regression":
            return scored(labels.values, predictions_MC[:, 0])
        codes_M = labels.values.astype(np.int64)
        classes, chances_MC = labels.classes, predictions_MC
        if classes:
            predicted_M = chances_MC.argmax(axis=1)
        else:
            classes, chances_MC = labels.levels, predictions_MC[:, 1:]
            predicted_M = median_codes(chances_MC)
        return scored(
            codes_M, predicted_M, classes=classes, probabilities=chances_MC,
            ordered=bool(labels.levels),
        )  # fmt: skip

    def resampled(self, predictions_MC: F64) -> ResampledMetrics:
        """Compute the metrics of held-out predictions with jackknife replicates for intervals."""
        return resample(self.scored(predictions_MC), self.held_out.groups)
