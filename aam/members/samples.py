"""Samples as the members read them.

Shape suffixes: N samples, F ASVs of the training study, L nucleotides, C outputs (1 for a number,
else the probability of each class).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from aam.arrays import Rows, Tokens
from aam.data.covariates import Covariates
from aam.data.study import Study
from aam.nucleotide_codes import FINEST


@dataclass(frozen=True)
class Samples:
    """Counts of samples, the sequences of their ASVs, and metadata that the model reads."""

    counts: sparse.csr_array  # [N, F] reads; every sample has some
    # uint8, sequence of each ASV, codes of `aam.data.sequences`: 0 for padding on the right, 1 to 4
    # for A, C, G and T
    tokens_FL: Tokens
    covariates: Covariates | None = None  # None if the model reads the counts alone
    sample_ids: Sequence[str] = ()  # seed the reads that a network draws; estimators need none

    @classmethod
    def of(cls, study: Study, covariates: Covariates | None = None) -> Samples:
        """Gather the counts of a study; they may be memory-mapped."""
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
