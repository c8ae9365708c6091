"""Labels of samples: numbers, classes or ordered levels, with the group of each sample.

N samples, C outputs: 1 for a number, else the probability of each class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from aam.arrays import F64, Rows
from aam.contract.options.groups import TargetType
from aam.evaluation.splits import MIN_STUDIES
from aam.number_format import significant


@dataclass(frozen=True)
class Labels:
    """Labels of N samples."""

    values: F64  # float64 [N], numbers, ranks of `levels`, or codes of `classes`
    classes: tuple[str, ...]  # C names; empty for a number and for ranks
    groups: Rows  # int64 [N], group of each sample; without groups each sample is one
    levels: tuple[str, ...] = ()  # ordered categories, the lowest first; else empty
    studies: Rows | None = None  # int64 [N], study of each sample; None for a single study

    @classmethod
    def of(
        cls,
        values: F64,
        classes: tuple[str, ...],
        groups: Sequence[str] | None,
        levels: tuple[str, ...] = (),
        studies: Sequence[str] | None = None,
    ) -> Labels:
        """Make labels from the names of groups and studies; without groups each sample is one."""
        group_N = np.arange(len(values)) if groups is None else _numbered(groups)
        study_N = None if studies is None else _numbered(studies)
        return cls(values, classes, group_N, levels, study_N)

    def take(self, rows: Rows) -> Labels:
        """Return the labels of the samples at `rows`."""
        studies = None if self.studies is None else self.studies[rows]
        return replace(self, values=self.values[rows], groups=self.groups[rows], studies=studies)

    def training(self, rows: Rows) -> Labels:
        """Return labels of training samples, with the groups that choices leave out in turn.

        With at least `MIN_STUDIES` studies these groups are the studies, so that the choices suit a
        new study.
        """
        labels = self.take(rows)
        studies = labels.studies
        if studies is None or len(np.unique(studies)) < MIN_STUDIES:
            return labels
        return replace(labels, groups=studies)

    @property
    def weights_N(self) -> F64:
        """Sample weights that make categories and studies independent, float64 [N].

        The weight is P(study) P(category) / P(study, category), with mean 1 (Kamiran and Calders
        2012, "Data preprocessing techniques for classification without discrimination"). A
        difference between studies then predicts no category, however unequal their proportions are.
        Numbers, and samples of a single study, have weight 1.
        """
        if self.studies is None or self.type == "regression":
            return np.ones(len(self.values))
        study_N = _numbered(self.studies)
        counts_SC = np.zeros((study_N.max(initial=-1) + 1, len(self.classes or self.levels)))
        codes_N = self.values.astype(np.int64)
        np.add.at(counts_SC, (study_N, codes_N), 1)
        expected_SC = np.outer(counts_SC.sum(axis=1), counts_SC.sum(axis=0)) / len(codes_N)
        weights_N: F64 = (expected_SC / counts_SC.clip(min=1))[study_N, codes_N]
        weights_N /= weights_N.mean()  # below 1 if a study lacks a category
        return weights_N

    @property
    def type(self) -> TargetType:
        """Type of the target, which decides the metrics."""
        if self.classes:
            return "classification"
        return "ordinal" if self.levels else "regression"

    @property
    def several_groups(self) -> bool:
        """Whether there is more than one group."""
        return len(np.unique(self.groups)) > 1

    @property
    def outputs_NC(self) -> F64:
        """Numbers as one column, or an indicator column for each class."""
        if not self.classes:
            return self.values[:, None]
        return np.eye(len(self.classes))[self.values.astype(np.int64)]

    @property
    def mean_C(self) -> F64:
        """Weighted mean of `outputs_NC`."""
        return (self.weights_N[:, None] * self.outputs_NC).mean(axis=0)

    def means_without_group(self, weights_N: F64 | None = None) -> F64:
        """Return the mean of `outputs_NC` over all other groups for each sample, float64 [N, C].

        Leave-one-group-out predictions start from this mean, and groups with higher labels have a
        lower mean. With little signal, predictions of different groups therefore run against their
        labels (Parker, Gunter and Bedo 2007, "Stratification bias in low signal microarray
        studies"), unless each is compared with its own mean. A single group is left out by sample.
        """
        y_NC, group_N = self.outputs_NC, np.unique(self.groups, return_inverse=True)[1]
        weights_N = self.weights_N if weights_N is None else weights_N
        if not group_N.any():
            group_N = np.arange(len(y_NC))
        sums_IC = np.stack([np.bincount(group_N, weights_N * y_N) for y_N in y_NC.T], axis=1)
        remaining_I = weights_N.sum() - np.bincount(group_N, weights_N)
        # A single sample leaves no other samples.
        means_IC = (sums_IC.sum(axis=0) - sums_IC) / remaining_I.clip(min=1e-9)[:, None]
        return means_IC[group_N]

    @property
    def predicted_NC(self) -> F64:
        """The columns of `outputs_NC`; ranks are followed by an indicator of each level."""
        if not self.levels:
            return self.outputs_NC
        return np.hstack([self.outputs_NC, np.eye(len(self.levels))[self.values.astype(np.int64)]])


_OTHER_SCALE = 4.0
"""If the labels of two studies differ in spread by this ratio, their units may differ."""

_OUTSIDE = 0.25
"""Share of labels outside the training range from which a note is made."""

_OTHER_SHARE = 0.1
"""Difference between two frequencies of a class from which a note is made."""


@dataclass(frozen=True)
class LabelSummary:
    """Summary of the training labels: baseline for other samples, and quantiles to compare with."""

    # predictions of the baseline: the mean number, the mean rank and the frequency of each level,
    # or the frequency of each class
    guess: tuple[float, ...]
    quantiles: tuple[float, ...] = ()  # 0, 5, 50, 95 and 100 % of a number; empty for categories

    @classmethod
    def of(cls, labels: Labels) -> LabelSummary:
        """Summarize labels."""
        quantiles = ()
        if labels.type == "regression":
            quantiles = tuple(np.quantile(labels.values, (0, 0.05, 0.5, 0.95, 1)).tolist())
        return cls(tuple(labels.predicted_NC.mean(axis=0).tolist()), quantiles)

    def notes(self, column: str, labels: Labels) -> list[str]:
        """State how the labels of another study differ from the training labels.

        For classes: frequencies that differ by more than 0.1. For numbers: labels outside the
        training range, and a different spread, which may come from other units.
        """
        if names := labels.classes or labels.levels:
            counts_C = np.bincount(labels.values.astype(np.int64), minlength=len(names))
            shares = zip(
                names, counts_C / len(labels.values), self.guess[-len(names) :], strict=True
            )
            # With two classes the share of the second determines the first.
            shifts = [
                f"{share:.0%} of the samples are '{name}' ({training_share:.0%} in training)"
                for name, share, training_share in list(shares)[len(names) == 2 :]
                if abs(share - training_share) > _OTHER_SHARE
            ]
            if not shifts:
                return []
            return [
                f"{', '.join(shifts)}: predicted probabilities assume the training frequencies."
            ]
        low, q05, middle, q95, high = self.quantiles
        values_M, notes = labels.values, []
        outside = int(((values_M < low) | (values_M > high)).sum())
        if outside > _OUTSIDE * len(values_M):
            notes.append(
                f"{outside} of {len(values_M)} values of '{column}' are outside the training range "
                f"({significant(low)} to {significant(high)})."
            )
        new_q05, new_middle, new_q95 = np.quantile(values_M, (0.05, 0.5, 0.95)).tolist()
        ratio = (new_q95 - new_q05) / max(q95 - q05, 1e-300)
        if not 1 / _OTHER_SCALE <= ratio <= _OTHER_SCALE:
            notes.append(
                f"The values of '{column}' spread {significant(ratio)} times as far as in training "
                f"(middle 90 %: {significant(new_q05)} to {significant(new_q95)}; in training: "
                f"{significant(q05)} to {significant(q95)}). Are they in the same units?"
            )
        elif not q05 <= new_middle <= q95 and not notes:
            notes.append(
                f"The median of '{column}' is {significant(new_middle)} ({significant(middle)} in "
                "training): predictions start from the training mean."
            )
        return notes


def _numbered(names: Sequence[str] | Rows) -> Rows:
    return np.unique(names, return_inverse=True)[1].astype(np.int64)
