"""Folds: the labels and splits on which models are fitted and scored, and their held-out samples.

M held-out samples; further shape suffixes: see `base`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from aam.contract.errors import DataError
from aam.data.metrics import ScoredPredictions
from aam.data.splits import Split
from aam.data.target_transforms import UNSCALED, TargetScale
from aam.members.base import F64, Labels, Rows
from aam.members.scores import Drawn, Draws, draw_groups, draw_metrics
from aam.members.uncertainty import fit_proportional_odds, median_codes

_PARTS = 5
"""Parts of the groups of a single split, which stand for its folds in `Folds.parts_M`."""


@dataclass(frozen=True)
class Folds:
    """Labels of N samples, and the splits on which models are fitted and scored.

    The held-out samples are ordered by fold. A sample is held out in several folds where the splits
    file has it so.

    Attributes:
        labels: labels of all N samples, in the units of the target.
        splits: one split, or one per fold.
        seed: seed of the estimators.
        group_column: column of the metadata with the groups; None without groups.
        scale: transform of a number; estimators are fitted to transformed labels.

    Raises:
        DataError: a split without test and validation samples, or some with test samples and some
            with validation samples alone.

    >>> empty = np.empty(0, dtype=np.int64)
    >>> split = Split(train=np.arange(4), validation=empty, test=np.array([4, 5]))
    >>> folds = Folds(Labels.of(np.arange(6.0), (), None), (split,), seed=0)
    >>> folds.part, folds.rows_M.tolist(), folds.dummy_MC.ravel().tolist()
    ('test', [4, 5], [1.5, 1.5])
    """

    labels: Labels
    splits: tuple[Split, ...]
    seed: int
    group_column: str | None = None
    scale: TargetScale = UNSCALED

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
    def rows_M(self) -> Rows:
        """Rows of the held-out samples among all N."""
        return np.concatenate([split.held_out[1] for split in self.splits])

    @cached_property
    def fold_M(self) -> Rows:
        """Fold in which each sample is held out, from 1."""
        sizes = [len(split.held_out[1]) for split in self.splits]
        return np.repeat(np.arange(1, len(sizes) + 1), sizes)

    @cached_property
    def held_out(self) -> Labels:
        """Labels of the held-out samples."""
        return self.labels.take(self.rows_M)

    @property
    def parts_M(self) -> Rows:
        """Fold of each held-out sample; of a single split, one of five parts of groups."""
        if len(self.splits) > 1:
            return self.fold_M
        # A single split has no other folds from which weights and calibration could come.
        return np.unique(self.held_out.groups, return_inverse=True)[1] % _PARTS

    @cached_property
    def draws(self) -> Draws:
        """Draws of the bootstrap over the groups of the held-out samples."""
        return draw_groups(self.held_out.groups)

    @cached_property
    def dummy_MC(self) -> F64:
        """Mean or class frequencies of the training samples of the fold of each held-out sample."""
        outputs_NC = self.labels.outputs_NC
        return np.concatenate(
            [
                np.tile(outputs_NC[training_rows(split)].mean(axis=0), (len(split.held_out[1]), 1))
                for split in self.splits
            ]
        )

    @property
    def units(self) -> str:
        """Number and name of the units of the bootstrap ("42 groups of infant", "90 samples")."""
        unit = "samples" if self.group_column is None else f"groups of {self.group_column}"
        return f"{self.draws.groups} {unit}"

    def scored(self, predictions_MC: F64) -> ScoredPredictions:
        """Combine predictions of the held-out samples with their labels.

        Ranks become probabilities of the categories, and the median category the prediction.
        """
        labels = self.held_out
        folds = tuple(str(fold) for fold in self.fold_M) if len(self.splits) > 1 else ()
        if labels.type == "regression":
            return ScoredPredictions(labels.values, predictions_MC[:, 0], folds)
        codes_M = labels.values.astype(np.int64)
        if labels.classes:
            predicted_M = predictions_MC.argmax(axis=1)
            return ScoredPredictions(codes_M, predicted_M, folds, labels.classes, predictions_MC)
        chances_MC = self._level_probabilities(predictions_MC[:, 0])
        predicted_M = median_codes(chances_MC)
        return ScoredPredictions(
            codes_M, predicted_M, folds, labels.levels, chances_MC, ordered=True
        )

    def drawn(self, predictions_MC: F64) -> Drawn:
        """Compute the metrics of predictions of the held-out samples, also on each draw."""
        return draw_metrics(self.scored(predictions_MC), self.draws)

    def _level_probabilities(self, ranks_M: F64) -> F64:
        """Return the probabilities of ordered categories, of a model of the other folds."""
        levels, codes_M = len(self.labels.levels), self.held_out.values.astype(np.int64)
        chances_MC = np.empty((len(ranks_M), levels))
        for fold in np.unique(self.fold_M):
            inside = self.fold_M == fold
            # The model of a single split is fitted to all its held-out samples. Models of parts of
            # them would predict each part by the frequencies of the others: a guess then has a
            # kappa of -0.23 and an AUC of 0.21, means of 100 simulated studies of 24 groups.
            fitted = inside if inside.all() else ~inside
            odds = fit_proportional_odds(ranks_M[fitted], codes_M[fitted], levels)
            chances_MC[inside] = odds.probabilities(ranks_M[inside])
        return chances_MC


def training_rows(split: Split) -> Rows:
    """Return the samples that an estimator may read: all of the split that are not held out.

    It needs no validation samples, since its hyper-parameters are chosen by leaving out groups.
    """
    if not len(split.test):
        return split.train
    return np.sort(np.concatenate([split.train, split.validation]))
