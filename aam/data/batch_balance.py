"""Batches of even cost: how the samples of an epoch are dealt out.

What a batch costs is the number of distinct ASVs in it, for each of them goes through the
nucleotide encoder once, and memory has to hold the largest batch. How the work of a batch is
divided among ranks is even by itself (`aam.data.batch_shards`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


def even_slice(samples: int, steps: int, step: int) -> slice:
    """Return where batch `step` of `steps` lies: sizes differ by one at most, larger ones first."""
    size, larger = divmod(samples, steps)
    start = step * size + min(step, larger)
    return slice(start, start + size + (step < larger))


def balanced_order(
    rows: Rows, cost: npt.NDArray[np.int64], steps: int, rng: np.random.Generator
) -> Rows:
    """Order the samples of an epoch so that consecutive batches cost alike.

    Samples are dealt in layers of equal cost, one of each layer to every batch: a stratified draw.
    Chance deals the first half of the layers; in the others the dearest of a layer goes to the
    batch that has least so far (longest processing time first, Graham 1969).

    Args:
        rows: the samples, int64 [n], n at least `steps`.
        cost: of each of `rows`, [n]: the ASVs it holds.
        steps: number of batches.
        rng: decides between samples of equal cost, and in which order batches come.

    Returns:
        `rows` in another order, [n]; cut at `even_slice(n, steps, step)` it gives the batches.
    """
    shuffled = rng.permutation(len(rows))
    dearest_first = shuffled[np.argsort(-cost[shuffled], kind="stable")]
    owner = np.empty(len(rows), dtype=np.int64)
    held = np.zeros(steps, dtype=np.int64)
    whole = len(rows) // steps
    for done, number in enumerate([*rng.permutation(whole).tolist(), whole]):
        layer = dearest_first[number * steps : (number + 1) * steps]
        takes = rng.permutation(steps) if 2 * done < whole else np.argsort(held, kind="stable")
        owner[layer] = takes[: len(layer)]
        held[takes[: len(layer)]] += cost[layer]
    # Batches in an order of chance, the larger ones first, as `even_slice` expects them.
    size = np.bincount(owner, minlength=steps)
    turn = rng.permutation(steps)
    place = np.empty(steps, dtype=np.int64)
    place[turn[np.argsort(-size[turn], kind="stable")]] = np.arange(steps)
    return rows[np.argsort(place[owner], kind="stable")]
