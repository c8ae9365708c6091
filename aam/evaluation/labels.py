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


@dataclass(frozen=True)
class Labels:
    """Labels of N samples."""

    values: F64  # float64 [N], numbers, ranks of `levels`, or codes of `classes`
    classes: tuple[str, ...]  # C names; empty for a number and for ranks
    groups: Rows  # int64 [N], the group of each sample; every sample its own without groups
    # ordered categories, the lowest first, whose ranks are the number; else empty
    levels: tuple[str, ...] = ()
    studies: Rows | None = None  # int64 [N], the study of each sample; None of a single study

    @classmethod
    def of(
        cls,
        values: F64,
        classes: tuple[str, ...],
        groups: Sequence[str] | None,
        levels: tuple[str, ...] = (),
        studies: Sequence[str] | None = None,
    ) -> Labels:
        """Number groups and studies, which are given by name; None makes each sample a group."""
        numbered = np.arange(len(values)) if groups is None else _numbered(groups)
        study_N = None if studies is None else _numbered(studies)
        return cls(values, classes, numbered, levels, study_N)

    def take(self, rows: Rows) -> Labels:
        """Return the labels of the samples at `rows`."""
        studies = None if self.studies is None else self.studies[rows]
        return replace(self, values=self.values[rows], groups=self.groups[rows], studies=studies)

    def training(self, rows: Rows) -> Labels:
        """Return the labels of training samples, whose groups are those that choices leave out.

        These are the studies where there are at least `MIN_STUDIES`, so that what is chosen serves
        a study that is not known; else the groups within the studies.
        """
        labels = self.take(rows)
        studies = labels.studies
        if studies is None or len(np.unique(studies)) < MIN_STUDIES:
            return labels
        return replace(labels, groups=studies)

    @property
    def weights_N(self) -> F64:
        """Weights of the samples that make categories and studies independent, float64 [N].

        A sample weighs P(study) P(category) / P(study, category), 1 in the mean (Kamiran and
        Calders 2012, "Data preprocessing techniques for classification without discrimination"):
        a difference between studies then predicts no category, however unequal the proportions of
        the studies are. Numbers, and the samples of a single study, weigh 1.
        """
        if self.studies is None or self.type == "regression":
            return np.ones(len(self.values))
        study_N = _numbered(self.studies)
        counts_SC = np.zeros((study_N.max(initial=-1) + 1, len(self.classes or self.levels)))
        codes_N = self.values.astype(np.int64)
        np.add.at(counts_SC, (study_N, codes_N), 1)
        expected_SC = np.outer(counts_SC.sum(axis=1), counts_SC.sum(axis=0)) / len(codes_N)
        weights_N: F64 = (expected_SC / counts_SC.clip(min=1))[study_N, codes_N]
        weights_N /= weights_N.mean()  # a category that a study does not have lowers it
        return weights_N

    @property
    def type(self) -> TargetType:
        """Type of the target, which decides the metrics."""
        if self.classes:
            return "classification"
        return "ordinal" if self.levels else "regression"

    @property
    def several_groups(self) -> bool:
        """Whether there are groups to leave out."""
        return len(np.unique(self.groups)) > 1

    @property
    def outputs_NC(self) -> F64:
        """Numbers as one column, or one column for each class that is 1 where it applies."""
        if not self.classes:
            return self.values[:, None]
        return np.eye(len(self.classes))[self.values.astype(np.int64)]

    @property
    def mean_C(self) -> F64:
        """Mean of `outputs_NC` with the weights of the samples."""
        mean_C: F64 = (self.weights_N[:, None] * self.outputs_NC).mean(axis=0)
        return mean_C

    def means_without_group(self, weights_N: F64 | None = None) -> F64:
        """Return for each sample the mean of `outputs_NC` over all other groups, float64 [N, C].

        A prediction without the own group starts from this mean, which is the lower the higher the
        labels of the group are. Predictions of different groups therefore follow their labels in
        reverse where there is little signal (Parker, Gunter and Bedo 2007, "Stratification bias in
        low signal microarray studies"), unless each is compared with its own mean. A single group
        is left out by sample.
        """
        y_NC, group_N = self.outputs_NC, np.unique(self.groups, return_inverse=True)[1]
        weights_N = self.weights_N if weights_N is None else weights_N
        if not group_N.any():
            group_N = np.arange(len(y_NC))
        sums_IC = np.stack([np.bincount(group_N, weights_N * y_N) for y_N in y_NC.T], axis=1)
        rest_I = weights_N.sum() - np.bincount(group_N, weights_N)
        # Of a single sample nothing remains.
        means_IC = (sums_IC.sum(axis=0) - sums_IC) / rest_I.clip(min=1e-9)[:, None]
        means_NC: F64 = means_IC[group_N]
        return means_NC

    @property
    def predicted_NC(self) -> F64:
        """The columns of `outputs_NC`; ranks are followed by an indicator of each level."""
        if not self.levels:
            return self.outputs_NC
        return np.hstack([self.outputs_NC, np.eye(len(self.levels))[self.values.astype(np.int64)]])


@dataclass(frozen=True)
class LabelSummary:
    """Labels of the training samples, as a guess for other samples and for comparison with them."""

    # mean of `Labels.predicted_NC`: the mean of a number, or of the ranks followed by the frequency
    # of each level, or the frequency of each class
    guess: tuple[float, ...]
    quantiles: tuple[float, ...] = ()  # 0, 5, 50, 95 and 100 % of a number; empty for categories

    @classmethod
    def of(cls, labels: Labels) -> LabelSummary:
        """Summarize labels."""
        quantiles = ()
        if labels.type == "regression":
            quantiles = tuple(np.quantile(labels.values, (0, 0.05, 0.5, 0.95, 1)).tolist())
        return cls(tuple(labels.predicted_NC.mean(axis=0).tolist()), quantiles)


def _numbered(names: Sequence[str] | Rows) -> Rows:
    return np.unique(names, return_inverse=True)[1].astype(np.int64)
