"""Rarefaction: draw reads from samples without replacement, reproducibly.

Each draw is seeded by the run's seed, the number of the draw and the sample's id, so that it
depends neither on the order of the table nor on the other samples of the batch.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

AUTO_FRACTION = 0.95
AUTO_LARGEST = 5000
NUMPY_LIMIT = 10**9
"""Reads of a sample from which on numpy's hypergeometric distribution is not defined."""


def auto_depth(reads: npt.NDArray[np.int64]) -> int:
    """Choose the largest depth, at most 5000, that at least 95 % of the samples reach.

    Args:
        reads: int64 [N], reads of each sample, N at least 1.

    >>> auto_depth(np.array([100, 2000, 3000])), auto_depth(np.array([8000, 9000]))
    (100, 5000)
    """
    lowest_kept = int(np.sort(reads)[int(np.floor(len(reads) * (1 - AUTO_FRACTION)))])
    return min(lowest_kept, AUTO_LARGEST)


def rarefy(
    counts: npt.NDArray[np.int32], depth: int, sample_id: str, seed: int, draw: int
) -> npt.NDArray[np.int64]:
    """Draw `depth` reads from the counts of one sample.

    Args:
        counts: reads of each ASV of the sample.
        depth: reads to draw; 0, or at least the reads of the sample, gives all of its reads.
        sample_id: seeds the draw, with `seed`.
        seed: the run's seed.
        draw: number of the draw (an epoch or a prediction pass); each number gives other reads.

    Returns:
        Reads drawn of each ASV, in the order of `counts`; their sum is `depth`, or that of `counts`
        if that is smaller.

    >>> int(rarefy(np.array([5, 0, 15], dtype=np.int32), 10, "sample-1", seed=0, draw=0).sum())
    10
    """
    counts_64 = counts.astype(np.int64)
    total = int(counts_64.sum())
    if depth == 0 or total <= depth:
        return counts_64
    # By CRC-32, since Python's `hash` of a string differs between processes.
    rng = np.random.default_rng([seed, draw, zlib.crc32(sample_id.encode())])
    if total < NUMPY_LIMIT:
        # The other method of NumPy, `count`, makes an array of all reads.
        return rng.multivariate_hypergeometric(counts_64, depth, method="marginals")
    return _draw_by_number(counts_64, depth, rng)


def _draw_by_number(
    counts_64: npt.NDArray[np.int64], depth: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw `depth` distinct reads by their number; memory grows with the smaller part."""
    total = int(counts_64.sum())
    if 2 * depth > total:
        return counts_64 - _draw_by_number(counts_64, total - depth, rng)
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < depth:
        # Numbers that occur twice are drawn again, so every set of numbers is equally likely.
        drawn = np.union1d(drawn, rng.integers(total, size=depth - len(drawn)))
    owners = np.searchsorted(np.cumsum(counts_64), drawn, side="right")
    return np.bincount(owners, minlength=len(counts_64)).astype(np.int64)
