"""Batches of even cost: how samples are dealt out to batches, and a batch to ranks.

What samples cost is the number of distinct ASVs among them, for each of them goes through the
nucleotide encoder once. Memory has to hold the largest batch, and ranks wait for the slowest of
them, so what counts is the spread as much as the mean.

    epoch -> batches   `order`: even, while chance still decides who meets whom, for that is what a
                       network learns from
    batch -> ranks     `parts`: samples that share ASVs go together; a global batch gives the same
                       loss however it is divided, so here chance has no say

Neither changes which samples an epoch sees, nor how many a batch has.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

Rows = npt.NDArray[np.int64]


def bounds(samples: int, steps: int, step: int) -> slice:
    """Return where batch `step` of `steps` lies: sizes differ by one at most, larger ones first."""
    size, larger = divmod(samples, steps)
    start = step * size + min(step, larger)
    return slice(start, start + size + (step < larger))


def order(rows: Rows, cost: npt.NDArray[np.int64], steps: int, rng: np.random.Generator) -> Rows:
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
        `rows` in another order, [n]; cut at `bounds(n, steps, step)` it gives the batches.
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
    # Batches in an order of chance, the larger ones first, as `bounds` expects them.
    size = np.bincount(owner, minlength=steps)
    turn = rng.permutation(steps)
    place = np.empty(steps, dtype=np.int64)
    place[turn[np.argsort(-size[turn], kind="stable")]] = np.arange(steps)
    return rows[np.argsort(place[owner], kind="stable")]


def parts(rows: Rows, members: csr_array, ranks: int) -> list[Rows]:
    """Divide a global batch among ranks: every sample to one of them, sizes and costs alike.

    The richest sample comes first; each goes to the rank where half of what that rank has and what
    the sample adds are least (of 0 to 1, a half made the slowest rank fastest on three studies). A
    pure function: every rank finds the same parts without asking another.

    Args:
        rows: samples of the global batch, int64 [n], n at least `ranks`.
        members: their ASVs, [n, F], as `table.counts[rows]` gives them.
        ranks: number of processes.

    Returns:
        Rows of each rank, in the order of `rows`; sizes differ by one at most, larger ones first.
    """
    present, slots = np.unique(members.indices, return_inverse=True)
    samples = np.split(slots, members.indptr[1:-1])
    held = np.zeros((ranks, len(present)), dtype=np.bool_)
    cost = np.zeros(ranks, dtype=np.int64)
    room = np.array([bounds(len(rows), ranks, k).stop for k in range(ranks)])
    room = np.diff(room, prepend=0)
    owner = np.empty(len(rows), dtype=np.int64)
    full = 3 * len(present) + 1
    for row in np.argsort(-np.diff(members.indptr), kind="stable"):
        added = (~held[:, samples[row]]).sum(axis=1)
        rank = int(np.where(room > 0, cost + 2 * added, full).argmin())
        owner[row] = rank
        cost[rank] += added[rank]
        held[rank, samples[row]] = True
        room[rank] -= 1
    return [rows[owner == rank] for rank in range(ranks)]
