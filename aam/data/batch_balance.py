"""Batch balancing: order of the samples of an epoch that gives batches of even cost.

The cost of a batch is the number of its distinct ASVs: the nucleotide encoder computes each of them
once, and the largest batch must fit in memory. `aam.data.batch_shards` divides the work of a batch
evenly among ranks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


def even_slice(samples: int, steps: int, step: int) -> slice:
    """Return the slice of one of several consecutive parts of nearly equal size.

    Args:
        samples: number of samples, at least 0.
        steps: number of parts, at least 1. Sizes differ by at most one; larger parts come first.
        step: number of the part, 0 to `steps` - 1.

    >>> [even_slice(5, 2, step) for step in range(2)]
    [slice(0, 3, None), slice(3, 5, None)]
    """
    size, larger = divmod(samples, steps)
    start = step * size + min(step, larger)
    return slice(start, start + size + (step < larger))


def balanced_order(
    rows: Rows, cost: npt.NDArray[np.int64], steps: int, rng: np.random.Generator
) -> Rows:
    """Order the samples of an epoch so that consecutive batches cost alike.

    Samples are divided into layers of equal cost, and every batch gets one of each layer: a
    stratified draw. The first half of the layers is assigned at random; in the others the most
    expensive sample goes to the batch with the lowest cost so far (longest processing time first,
    Graham 1969).

    Args:
        rows: the samples, int64 [n], n at least `steps`.
        cost: number of ASVs of each of `rows`, [n].
        steps: number of batches.
        rng: orders samples of equal cost, and the batches.

    Returns:
        `rows` in another order, [n]; cut at `even_slice(n, steps, step)` it gives the batches.

    >>> cost = np.array([9, 1, 1, 9])
    >>> order = balanced_order(np.arange(4), cost, 2, np.random.default_rng(0))
    >>> cost[order].reshape(2, 2).sum(axis=1).tolist()
    [10, 10]
    """
    shuffled = rng.permutation(len(rows))
    # A stable sort of shuffled samples: those of equal cost stay in random order.
    by_cost = shuffled[np.argsort(-cost[shuffled], kind="stable")]
    batch_of = np.empty(len(rows), dtype=np.int64)
    total_cost = np.zeros(steps, dtype=np.int64)
    layers = len(rows) // steps
    for done, number in enumerate([*rng.permutation(layers).tolist(), layers]):
        layer = by_cost[number * steps : (number + 1) * steps]
        random = 2 * done < layers
        batches = rng.permutation(steps) if random else np.argsort(total_cost, kind="stable")
        batch_of[layer] = batches[: len(layer)]
        total_cost[batches[: len(layer)]] += cost[layer]
    # Shuffle the batches, but keep the larger ones first, as `even_slice` expects them.
    size = np.bincount(batch_of, minlength=steps)
    turn = rng.permutation(steps)
    place = np.empty(steps, dtype=np.int64)
    place[turn[np.argsort(-size[turn], kind="stable")]] = np.arange(steps)
    return rows[np.argsort(place[batch_of], kind="stable")]
