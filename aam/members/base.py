"""Samples, labels and models of the members: the types that they have in common.

Shape suffixes: N samples, F ASVs of the training study, L nucleotides, C outputs (1 for a number,
else the probability of each class).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.contract.options.study import TargetType
from aam.contract.records import Mismatch
from aam.data.covariates import Covariates
from aam.data.study import Study

F64 = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.uint8]
Arrays = Mapping[str, npt.NDArray[Any]]

FINEST = 1e4
"""A relative abundance of 1/FINEST weighs log10(2), ten times as much log10(11)."""


@dataclass(frozen=True)
class Samples:
    """Counts of samples, the sequences of their ASVs, and metadata that the model reads."""

    counts: sparse.csr_array  # [N, F] reads; every sample has some
    # uint8, sequence of each ASV, codes of `aam.data.sequences`: 0 for padding on the right, 1 to 4
    # for A, C, G and T
    tokens_FL: Tokens
    # metadata columns; None if the model reads the counts alone
    covariates: Covariates | None = None
    # N names, which seed the reads that a network draws; estimators need none
    sample_ids: Sequence[str] = ()

    @classmethod
    def of(cls, study: Study, covariates: Covariates | None = None) -> Samples:
        """Gather the counts of a study, which may be memory-mapped, see `Study.counts`."""
        ids = study.table.sample_ids
        return cls(study.counts(np.arange(len(ids))), study.tokens_FL, covariates, ids)

    def take(self, rows: Rows) -> Samples:
        """Return the samples at `rows`, with all ASVs."""
        covariates = self.covariates and self.covariates.take(rows)
        ids = tuple(self.sample_ids[row] for row in rows.tolist())
        return Samples(self.counts[rows], self.tokens_FL, covariates, ids)

    @property
    def present(self) -> tuple[Samples, Rows]:
        """The same samples with the ASVs that occur in them, and the columns of these."""
        seen = np.unique(self.counts.indices).astype(np.int64)
        if len(seen) == self.counts.shape[1]:
            # `AsvRelations` recognizes the ASVs of its study by the identity of their array.
            return self, seen
        samples = replace(self, counts=self.counts[:, seen], tokens_FL=self.tokens_FL[seen])
        return samples, seen

    @property
    def relative(self) -> sparse.csr_array:
        """Relative abundances, float32 [N, F]."""
        reads = np.asarray(self.counts.sum(axis=1, dtype=np.int64)).ravel()
        data = (self.counts.data / np.repeat(reads, np.diff(self.counts.indptr))).astype(np.float32)
        return sparse.csr_array((data, self.counts.indices, self.counts.indptr), self.counts.shape)

    @property
    def log_abundances(self) -> sparse.csr_array:
        """log10(1 + FINEST relative abundance), float32 [N, F]."""
        relative = self.relative
        weights = np.log10(1 + FINEST * relative.data)
        return sparse.csr_array((weights, relative.indices, relative.indptr), relative.shape)


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
    def outputs_NC(self) -> F64:
        """Numbers as one column, or one column for each class that is 1 where it applies."""
        if not self.classes:
            return self.values[:, None]
        return np.eye(len(self.classes))[self.values.astype(np.int64)]

    @property
    def predicted_NC(self) -> F64:
        """The columns of `outputs_NC`; ranks are followed by an indicator of each level."""
        if not self.levels:
            return self.outputs_NC
        return np.hstack([self.outputs_NC, np.eye(len(self.levels))[self.values.astype(np.int64)]])


class Inputs(Protocol):
    """Samples in the form that an estimator computes from them."""

    def take(self: T, rows: Rows) -> T:
        """Return the samples at `rows`."""
        ...


T = TypeVar("T", bound=Inputs)


def numbers(arrays: Arrays, name: str, *shape: int | None) -> F64:
    """Return an array of finite numbers as float64; None in `shape` for any length."""
    array = _of_shape(arrays, name, shape)
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        raise Mismatch(f"the array '{name}' does not hold finite numbers")
    return array.astype(np.float64)


def indices(arrays: Arrays, name: str, below: int, *shape: int | None) -> Rows:
    """Return an array of indices from 0 to `below` - 1 as int64."""
    array = _of_shape(arrays, name, shape)
    if array.dtype.kind != "i" or (array.size and not 0 <= array.min() <= array.max() < below):
        raise Mismatch(f"the array '{name}' does not hold indices from 0 to {below - 1}")
    return array.astype(np.int64)


def _of_shape(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    array = arrays.get(name)
    if array is None:
        raise Mismatch(f"the array '{name}' is missing")
    wrong = len(array.shape) != len(shape) or any(
        expected not in (None, size) for expected, size in zip(shape, array.shape, strict=True)
    )
    if wrong:
        raise Mismatch(f"the array '{name}' has the shape {array.shape}")
    return array
