"""Data loader of training and validation batches, and the sampler of a run.

A training batch depends only on its epoch and step, not on the number of workers or on the step at
which a run was stopped and resumed.
"""

from __future__ import annotations

import atexit
import multiprocessing
from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from aam.arrays import Rows
from aam.data.study import Study
from aam.environment import SINGLE_RANK, Ranks, even_slice
from aam.network.batches import (
    FIXED_DRAW,
    Batch,
    BatchPlan,
    PackedBatch,
    make_batch,
    shard_batch,
)
from aam.pipeline.stop_requests import ignore_signals

StepKey = tuple[int, int]

_ORDER = 3  # second element of the seed of the order of samples


def balanced_order(
    rows: Rows, cost: npt.NDArray[np.int64], steps: int, rng: np.random.Generator
) -> Rows:
    """Order the samples of an epoch so that its batches have similar costs.

    Samples are divided into layers of similar cost, and every batch gets one sample of each layer:
    a stratified draw. Half of the layers are assigned at random; then in each other layer the most
    expensive sample goes to the batch with the lowest cost so far (longest processing time first,
    Graham 1969).

    >>> cost = np.array([9, 1, 1, 9])
    >>> order = balanced_order(np.arange(4), cost, 2, np.random.default_rng(0))
    >>> cost[order].reshape(2, 2).sum(axis=1).tolist()
    [10, 10]
    """
    shuffled = rng.permutation(len(rows))
    # A stable sort of shuffled samples leaves samples of equal cost in random order.
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
    # Shuffle the batches, but with larger batches first, as `even_slice` expects.
    size = np.bincount(batch_of, minlength=steps)
    shuffled_batches = rng.permutation(steps)
    rank = np.empty(steps, dtype=np.int64)
    by_size = np.argsort(-size[shuffled_batches], kind="stable")
    rank[shuffled_batches[by_size]] = np.arange(steps)
    return rows[np.argsort(rank[batch_of], kind="stable")]


class TrainingBatches(Dataset[Batch]):
    """Shuffled training batches of nearly equal size; an epoch contains every sample once."""

    def __init__(
        self,
        study: Study,
        plan: BatchPlan,
        rows: Rows,
        batch_size: int,  # largest number of samples of a batch, over all ranks
        fresh_reads: bool,  # whether each epoch draws new reads (--rarefy-each-epoch)
        even: bool = False,  # whether the batches of an epoch have about equally many ASVs
    ) -> None:
        self.study, self.plan, self.rows = study, plan, rows
        self.fresh_reads, self.even = fresh_reads, even
        self.steps = -(-len(rows) // batch_size)
        self._order: tuple[int, Rows] = (-1, rows)

    def __getitem__(self, key: StepKey) -> Batch:
        epoch, step = key
        # Only one order is kept: workers load all steps of an epoch before the next epoch.
        if self._order[0] != epoch:
            rng = np.random.default_rng([self.plan.seed, _ORDER, epoch])
            if self.even:
                richness = self.study.table.richness[self.rows]
                cost = np.minimum(richness, self.plan.token_limit)
                self._order = (epoch, balanced_order(self.rows, cost, self.steps, rng))
            else:
                self._order = (epoch, rng.permutation(self.rows))
        rows = self._order[1][even_slice(len(self.rows), self.steps, step)]
        reads_draw = epoch if self.fresh_reads else FIXED_DRAW
        masks = epoch * self.steps + step
        return make_batch(self.study, self.plan, rows, reads_draw, masks)


def packed_shard(batch: Batch, ranks: Ranks, sequences: bool) -> PackedBatch:
    """Return a rank's shard of a batch, packed."""
    return PackedBatch.of(shard_of(batch, ranks, sequences))


def shard_of(batch: Batch, ranks: Ranks, sequences: bool) -> Batch:
    """Return a rank's shard of a batch; the batch itself if there is one rank."""
    if ranks.world_size == 1:
        return batch
    samples, asvs = ranks.shard(len(batch.rows_B)), ranks.shard(len(batch.asvs_U))
    return shard_batch(batch, samples, asvs, sequences)


class RunSampler(Sampler[StepKey]):
    """Sampler of the keys (epoch, step) of a run, from the batch at which it starts or resumes.

    It covers all epochs, so that workers prefetch batches of the next epoch during the validation
    and while a checkpoint is written.
    """

    def __init__(self, steps: int, epochs: int, first: StepKey = (0, 0)) -> None:
        self.steps, self.epochs, self.first = steps, epochs, first

    def __len__(self) -> int:
        epoch, step = self.first
        return (self.epochs - epoch) * self.steps - step

    def __iter__(self) -> Iterator[StepKey]:
        epoch, step = self.first
        begin, end = epoch * self.steps + step, self.epochs * self.steps
        return (divmod(number, self.steps) for number in range(begin, end))


@atexit.register
def kill_workers() -> None:
    """Kill the workers of data loaders that exist when the program exits."""
    # An exception may hold a loader until the exit. Workers ignore SIGTERM, so `multiprocessing`
    # would wait for them.
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()


def loader(
    batches: Dataset[Batch],
    sampler: Sampler[StepKey] | None,
    workers: int,
    pin: bool,
    prefetch: int = 2,
    ranks: Ranks = SINGLE_RANK,
    sequences: bool = False,
) -> DataLoader[PackedBatch]:
    """Build the data loader of a rank's shards of batches; see `shard_batch` for `sequences`."""
    # Automatic batching is off: `make_batch` needs all samples of a batch, to hold each distinct
    # ASV once. The batch of a step is the same for any number of ranks.
    return DataLoader[PackedBatch](
        batches,  # type: ignore[arg-type]  # which `collate_fn` packs
        batch_size=None,
        sampler=sampler,
        collate_fn=partial(packed_shard, ranks=ranks, sequences=sequences),
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        persistent_workers=workers > 0,
        # A signal to the process group must not end the workers before the checkpoint is written.
        worker_init_fn=ignore_signals,
        pin_memory=pin,
        # A separate generator: a new loader must not advance the generator that dropout uses.
        generator=torch.Generator().manual_seed(0),
    )
