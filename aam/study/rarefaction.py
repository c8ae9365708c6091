"""Drawing reads from samples without replacement, the same way every time it is asked.

Each draw is seeded by the run's seed, the pass and the sample's id, so that it depends neither on
the order of the table nor on who else is in the batch.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

AUTO_KEEPS = 0.95
AUTO_AT_MOST = 5000


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
    return rng.multivariate_hypergeometric(whole, depth, method="marginals")
