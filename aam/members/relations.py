"""Relations of the ASVs of a training study: mismatches of their sequences, similarity, linkage.

They depend on the sequences alone. One `AsvRelations` is made for a study, and estimators, folds,
trials of a search, importance and the training summary share it.

F ASVs of the training study, U and V any ASVs, K ASVs of a block, L nucleotides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from aam.console import info
from aam.data.sequences import PAD
from aam.members.base import F64, Rows, Tokens
from aam.members.dendrogram import F32, Dendrogram

WIDTH = 3.0
"""Mismatches at which the similarity of two ASVs is 1/e."""

MOST_LINKED = 10_000
"""With more ASVs there are no clades: the distances of all pairs need 12 bytes each."""

_MOST_KEPT = 16_384
"""ASVs of which the mismatches of all pairs are kept in memory, 4 bytes each: 1 GiB."""

_NUCLEOTIDES = range(1, 5)
_CHUNK = 1024


@dataclass(frozen=True, eq=False)
class AsvRelations:
    """Relations of the F ASVs of a training study, each computed when it is first used.

    Attributes:
        tokens_FL: sequence of each ASV, codes of `aam.data.sequences`.
    """

    tokens_FL: Tokens

    def mismatches(self, tokens_UL: Tokens) -> Iterator[tuple[slice, F32]]:
        """Yield blocks of ASVs of the study, and the mismatches [U, K] of U ASVs with them."""
        kept = tokens_UL is self.tokens_FL and len(tokens_UL) <= _MOST_KEPT
        for chunk in chunks(len(self.tokens_FL)):
            if kept:
                yield chunk, self._mismatches_FF[:, chunk]
            else:
                yield chunk, mismatches(tokens_UL, self.tokens_FL[chunk])

    def smooth(self, weights: sparse.csr_array, tokens_VL: Tokens) -> F32:
        """Return the sum over V ASVs of weight times similarity to each of the study, [N, F].

        Args:
            weights: float32 [N, V].
            tokens_VL: sequences of the V ASVs.
        """
        smoothed_NF = np.empty((weights.shape[0], len(self.tokens_FL)), dtype=np.float32)
        for chunk, mismatches_VK in self.mismatches(tokens_VL):
            smoothed_NF[:, chunk] = weights @ similarity(mismatches_VK)
        return smoothed_NF

    def known(self, tokens_UL: Tokens) -> tuple[Rows, Rows]:
        """Return which of U ASVs are ASVs of the study: their rows and its rows.

        Of several ASVs of the study with the same sequence, the row is that of the first.
        """
        pairs = [
            (row, self._rows[sequence])
            for row, sequence in enumerate(_sequences(tokens_UL))
            if sequence in self._rows
        ]
        rows, known = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return rows, known

    @property
    def distinct(self) -> bool:
        """Whether no two ASVs have the same sequence; --max-bp may make them equal.

        Sequences of length 0 are unknown ones, which are not equal.
        """
        asvs, length = self.tokens_FL.shape
        return bool(length == 0 or len(self._rows) == asvs)

    @cached_property
    def linkage(self) -> F64 | None:
        """SciPy's matrix of the average linkage, [F - 1, 4]; None for fewer than 2 or too many."""
        number = len(self.tokens_FL)
        if number > MOST_LINKED:
            info(f"No clades are read: {number} ASVs, more than {MOST_LINKED}.")
        if not 2 <= number <= MOST_LINKED:
            return None
        merges: F64 = linkage(squareform(self._mismatches_FF, checks=False), "average")
        return merges

    @cached_property
    def dendrogram(self) -> Dendrogram | None:
        """Dendrogram of the linkage; None without linkage."""
        return None if self.linkage is None else Dendrogram.of(self.linkage)

    @cached_property
    def _mismatches_FF(self) -> F32:
        mismatches_FF = np.empty((len(self.tokens_FL),) * 2, dtype=np.float32)
        for chunk in chunks(len(self.tokens_FL)):
            mismatches_FF[:, chunk] = mismatches(self.tokens_FL, self.tokens_FL[chunk])
        return mismatches_FF

    @cached_property
    def _rows(self) -> dict[bytes, int]:
        rows: dict[bytes, int] = {}
        for row, sequence in enumerate(_sequences(self.tokens_FL)):
            rows.setdefault(sequence, row)
        return rows


def mismatches(one_UL: Tokens, two_VL: Tokens) -> F32:
    """Return the positions at which each pair of sequences differs, float32 [U, V].

    A position counts half where one of the two has no nucleotide (its end, or an ambiguous letter).

    Args:
        one_UL, two_VL: sequences, codes of `aam.data.sequences`; their lengths may differ.

    >>> one = np.array([[1, 2, 3]], dtype=np.uint8)
    >>> mismatches(one, np.array([[1, 2, 4], [1, 2, 0]], dtype=np.uint8)).tolist()
    [[1.0, 0.5]]
    """
    length = min(one_UL.shape[1], two_VL.shape[1])
    (one, one_U), (two, two_V) = _letters(one_UL, length), _letters(two_VL, length)
    # Equal letters are an inner product of indicators, which BLAS computes; sums of halves up to
    # the length of a sequence are exact in float32.
    mismatches_UV: F32 = (one_U[:, None] + two_V[None]) / 2 - one @ two.T
    return mismatches_UV


def similarity(mismatches_UV: F32) -> F32:
    """Return exp(-mismatches / WIDTH), float32."""
    similar_UV: F32 = np.exp(np.float32(-1 / WIDTH) * mismatches_UV)
    return similar_UV


def chunks(number: int) -> Iterator[slice]:
    """Yield slices of at most 1,024 rows."""
    return (slice(start, start + _CHUNK) for start in range(0, number, _CHUNK))


def _letters(tokens_UL: Tokens, length: int) -> tuple[F32, F32]:
    """Return the indicators of the first `length` letters, [U, 4 length], and all their numbers."""
    present = (tokens_UL >= _NUCLEOTIDES[0]) & (tokens_UL <= _NUCLEOTIDES[-1])
    codes = tokens_UL[:, :length, None] == np.array(_NUCLEOTIDES, dtype=np.uint8)
    return codes.reshape(len(tokens_UL), -1).astype(np.float32), present.sum(1, dtype=np.float32)


def _sequences(tokens_UL: Tokens) -> list[bytes]:
    return [bytes(row[row != PAD]) for row in tokens_UL]
