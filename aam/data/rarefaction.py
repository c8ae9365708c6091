"""Rarefaction: reads drawn from samples without replacement, reproducibly.

Each draw is seeded by the run's seed, the pass and the sample's id, so that it depends neither on
the order of the table nor on who else is in the batch.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

AUTO_KEEPS = 0.95
AUTO_AT_MOST = 5000
NUMPY_DRAWS_BELOW = 10**9
"""Reads of a sample above which numpy's hypergeometric distribution is not defined."""


def auto_depth(reads: npt.NDArray[np.int64]) -> int:
    """Choose the largest depth, at most 5000, that at least 95 % of the samples reach.

    Args:
        reads: reads of each sample.
    """
    lowest_kept = int(np.sort(reads)[int(np.floor(len(reads) * (1 - AUTO_KEEPS)))])
    return min(lowest_kept, AUTO_AT_MOST)


def rarefy(
    counts: npt.NDArray[np.int32], depth: int, sample_id: str, seed: int, draw: int
) -> npt.NDArray[np.int64]:
    """Draw `depth` reads from the counts of one sample.

    Args:
        counts: reads of each ASV of the sample.
        depth: reads to draw; 0, or a sample that has no more, gives all of its reads.
        sample_id: seeds the draw, with `seed`.
        seed: the run's seed.
        draw: number of the draw (an epoch, a prediction pass); another number, other reads.

    Returns:
        Reads drawn of each ASV, in the order of `counts`; their sum is `depth`.
    """
    whole = counts.astype(np.int64)
    if depth == 0 or whole.sum() <= depth:
        return whole
    rng = np.random.default_rng([seed, draw, zlib.crc32(sample_id.encode())])
    if whole.sum() < NUMPY_DRAWS_BELOW:
        return rng.multivariate_hypergeometric(whole, depth, method="marginals")
    return _drawn_one_by_one(whole, depth, rng)


def _drawn_one_by_one(
    whole: npt.NDArray[np.int64], depth: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw `depth` distinct reads by their number; memory is that of the smaller part."""
    total = int(whole.sum())
    if 2 * depth > total:
        return whole - _drawn_one_by_one(whole, total - depth, rng)
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < depth:
        # What was drawn before is drawn again: every set of numbers is as likely as any other.
        drawn = np.union1d(drawn, rng.integers(total, size=depth - len(drawn)))
    owners = np.searchsorted(np.cumsum(whole), drawn, side="right")
    return np.bincount(owners, minlength=len(whole)).astype(np.int64)
