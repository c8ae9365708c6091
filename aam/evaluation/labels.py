"""Labels of samples: numbers, classes or ordered levels, with the group of each sample.

N samples, C outputs: 1 for a number, else the probability of each class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from aam.arrays import F64, Rows
from aam.contract.options.study import TargetType


@dataclass(frozen=True)
class Labels:
    """Labels of N samples."""

    values: F64  # float64 [N], numbers, ranks of `levels`, or codes of `classes`
    classes: tuple[str, ...]  # C names; empty for a number and for ranks
    groups: Rows  # int64 [N], the group of each sample; every sample its own without groups
    # ordered categories, the lowest first, whose ranks are the number; else empty
    levels: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        values: F64,
        classes: tuple[str, ...],
        groups: Sequence[str] | None,
        levels: tuple[str, ...] = (),
    ) -> Labels:
        """Number the groups, which are given by name; None makes each sample its own group."""
        if groups is None:
            return cls(values, classes, np.arange(len(values)), levels)
        numbered = np.unique(groups, return_inverse=True)[1].astype(np.int64)
        return cls(values, classes, numbered, levels)

    def take(self, rows: Rows) -> Labels:
        """Return the labels of the samples at `rows`."""
        return replace(self, values=self.values[rows], groups=self.groups[rows])

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

    def means_without_group(self, weights_N: F64 | None = None) -> F64:
        """Return for each sample the mean of `outputs_NC` over all other groups, float64 [N, C].

        A prediction without the own group starts from this mean, which is the lower the higher the
        labels of the group are. Predictions of different groups therefore follow their labels in
        reverse where there is little signal (Parker, Gunter and Bedo 2007, "Stratification bias in
        low signal microarray studies"), unless each is compared with its own mean. A single group
        is left out by sample.
        """
        y_NC, group_N = self.outputs_NC, np.unique(self.groups, return_inverse=True)[1]
        weights_N = np.ones(len(y_NC)) if weights_N is None else weights_N
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
