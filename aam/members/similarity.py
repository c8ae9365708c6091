"""Log abundances of samples, and the similarity of ASVs by the mismatches of their sequences.

U, V ASVs; further shape suffixes: see `base`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.members.base import Samples, Tokens

F32 = npt.NDArray[np.float32]

WIDTH = 3.0
"""Mismatches at which the similarity of two ASVs is 1/e."""

FINEST = 1e4
"""A relative abundance of 1/FINEST weighs log10(2), ten times as much log10(11)."""

_NUCLEOTIDES = range(1, 5)
_CHUNK = 1024


def log_abundances(samples: Samples) -> sparse.csr_array:
    """Return log10(1 + FINEST relative abundance), float32 [N, ASVs]."""
    relative = samples.relative
    weights = np.log10(1 + FINEST * relative.data)
    return sparse.csr_array((weights, relative.indices, relative.indptr), relative.shape)


def similarities(one_UL: Tokens, two_VL: Tokens) -> F32:
    """Return exp(-mismatches / WIDTH) of each pair of sequences, float32 [U, V]."""
    return similarity(mismatches(one_UL, two_VL))


def similarity(mismatches_UV: F32) -> F32:
    """Return exp(-mismatches / WIDTH), float32."""
    similar_UV: F32 = np.exp(np.float32(-1 / WIDTH) * mismatches_UV)
    return similar_UV


def mismatches(one_UL: Tokens, two_VL: Tokens) -> F32:
    """Return the positions at which each pair of sequences differs, float32 [U, V].

    A position counts half where one of the two has no nucleotide (its end, or an ambiguous letter).
    """
    length = min(one_UL.shape[1], two_VL.shape[1])
    (one, one_U), (two, two_V) = _letters(one_UL, length), _letters(two_VL, length)
    mismatches_UV: F32 = (one_U[:, None] + two_V[None]) / 2 - one @ two.T
    return mismatches_UV


def chunks(number: int) -> Iterator[slice]:
    """Yield slices of at most 1,024 rows."""
    return (slice(start, start + _CHUNK) for start in range(0, number, _CHUNK))


def _letters(tokens_UL: Tokens, length: int) -> tuple[F32, F32]:
    """Return the indicators of the first `length` letters, [U, 4 length], and all their numbers."""
    present = (tokens_UL >= _NUCLEOTIDES[0]) & (tokens_UL <= _NUCLEOTIDES[-1])
    codes = tokens_UL[:, :length, None] == np.array(_NUCLEOTIDES, dtype=np.uint8)
    return codes.reshape(len(tokens_UL), -1).astype(np.float32), present.sum(1, dtype=np.float32)
