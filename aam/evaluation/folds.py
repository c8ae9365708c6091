"""Folds: labels of samples, the splits on which models are fitted and scored, held-out predictions.

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
from aam.evaluation.intervals import ResampledMetrics, Units, units_of
from aam.evaluation.labels import Labels
from aam.evaluation.meta_analysis import resample
from aam.evaluation.metrics import ScoredPredictions
from aam.evaluation.splits import Split


@dataclass(frozen=True)
class Folds:
    """Labels of N samples, and the splits on which models are fitted and scored.

    The held-out samples are ordered by fold; with several partitions, or where the splits file has
    it so, a sample is held out in several folds.
    """

    labels: Labels  # labels of all N samples, in the units of the target
    splits: tuple[Split, ...]  # one split, or one per fold
    seed: int  # seed of the estimators
    group_column: str | None = None  # column of the metadata with the groups; None without groups
    study_column: str | None = None  # column of the metadata with the studies; None of one study
    studies: tuple[str, ...] = ()  # names of the studies, by the codes of the labels
    # transform of a number; estimators are fitted to transformed labels
    scale: TargetScale = UNSCALED
    sensitivity: float | None = (
        None  # sensitivity of the threshold of two classes; None: Youden's J
    )
    # the guess; empty for that of the training samples of each fold
    guess: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check that every split has held-out samples of the same part."""
        for fold, split in enumerate(self.splits, start=1):
            if not len(split.held_out[1]):
                raise DataError(
                    "The split has no test or validation samples",
                    f"fold {fold}",
                    "check the splits",
                )
        if len({split.held_out[0] for split in self.splits}) > 1:
            raise DataError(
                "Some folds have test samples, others validation samples alone",
                f"{len(self.splits)} folds",
                "check the splits",
            )

    @property
    def part(self) -> str:
        """Name of the held-out part: "test" or "validation"."""
        return self.splits[0].held_out[0]

    @cached_property
    def fitted_rows(self) -> tuple[Rows, ...]:
        """Rows to which models are fitted: of each split, and last of all samples of the splits."""
        fitted = [training_rows(split) for split in self.splits]
        # Every sample is in the training part of a fold, but for studies of one category, which
        # no model may be fitted to, see `trainable_rows`.
        held_out = self.rows_M if self.labels.studies is None else self.rows_M[:0]
        everything = np.unique(np.concatenate([*fitted, held_out]))
        return (*fitted, everything)

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
        """Number of partitions into folds."""
        return self.splits[-1].repeat

    @cached_property
    def repeat_M(self) -> Rows:
        """Partition in which each sample is held out, from 1."""
        return np.array([split.repeat for split in self.splits])[self.fold_M - 1]

    @property
    def first(self) -> Folds:
        """The folds of the first partition."""
        return replace(self, splits=tuple(split for split in self.splits if split.repeat == 1))

    @cached_property
    def held_out(self) -> Labels:
        """Labels of the held-out samples."""
        return self.labels.take(self.rows_M)

    @cached_property
    def held_out_units(self) -> Units:
        """Groups of the held-out samples, which intervals leave out in turn."""
        return units_of(self.held_out.groups)

    @cached_property
    def study_M(self) -> tuple[str, ...]:
        """Name of the study of each held-out sample; empty for a single study."""
        codes_M = self.held_out.studies
        return () if codes_M is None else tuple(self.studies[code] for code in codes_M.tolist())

    @cached_property
    def dummy_MC(self) -> F64:
        """Mean or class frequencies of the training samples of the fold of each held-out sample."""
        if self.guess:
            return np.tile(self.guess, (len(self.rows_M), 1))
        predicted_NC = self.labels.predicted_NC
        means = [predicted_NC[training_rows(split)].mean(axis=0) for split in self.splits]
        return np.stack(means)[self.fold_M - 1]

    @property
    def units(self) -> str:
        """Number and name of the units of the intervals: "42 groups of infant", "3 studies"."""
        if self.studies:
            return f"{len(self.studies)} studies"
        unit = "samples" if self.group_column is None else f"groups of {self.group_column}"
        return f"{self.held_out_units.number} {unit}"

    def with_levels(self, predictions_MC: F64, left_out: Sequence[F64 | None]) -> F64:
        """Append the probability of each level to predicted ranks; other predictions stay.

        The model from a rank to the levels is fitted to predictions inside the training part of the
        fold. Held-out predictions of other folds would not do: their models were trained on the
        labels of this one (random labels in groups: weighted kappa 0.027, 500 studies).
        """
        if not self.labels.levels:
            return predictions_MC
        parts = []
        for k, rows in enumerate(self.fitted_rows[:-1]):
            ranks_M1 = predictions_MC[self.fold_M == k + 1]
            odds = fit_odds(left_out[k] if left_out else None, self.labels.training(rows))
            parts.append(np.hstack([ranks_M1, odds.probabilities(ranks_M1[:, 0])]))
        return np.concatenate(parts)

    def scored(self, predictions_MC: F64) -> ScoredPredictions:
        """Combine held-out predictions with their labels; of ordered categories the median."""
        labels = self.held_out
        folds = tuple(str(fold) for fold in self.fold_M) if len(self.splits) > 1 else ()
        repeats = tuple(str(repeat) for repeat in self.repeat_M) if self.repeats > 1 else ()
        parts = partial(ScoredPredictions, folds=folds, repeats=repeats, studies=self.study_M)
        if labels.type == "regression":
            return parts(labels.values, predictions_MC[:, 0])
        codes_M = labels.values.astype(np.int64)
        if labels.classes:
            predicted_M = predictions_MC.argmax(axis=1)
            return parts(codes_M, predicted_M, classes=labels.classes, probabilities=predictions_MC)
        chances_MC = predictions_MC[:, 1:]
        predicted_M = median_codes(chances_MC)
        return parts(
            codes_M, predicted_M, classes=labels.levels, probabilities=chances_MC, ordered=True
        )

    def drawn(self, predictions_MC: F64) -> ResampledMetrics:
        """Compute the metrics of predictions of the held-out samples, for intervals."""
        return resample(self.scored(predictions_MC), self.held_out.groups)


def training_rows(split: Split) -> Rows:
    """Return the samples that an estimator may read: all of the split that are not held out.

    It needs no validation samples, since its hyper-parameters are chosen by leaving out groups.
    """
    if not len(split.test):
        return split.train
    return np.sort(np.concatenate([split.train, split.validation]))
