"""Data loading: training and validation batches, the sampler of a run, the data loader.

A training batch depends on (epoch, step) alone, not on the number of workers or on where a run was
stopped and resumed.
"""

from __future__ import annotations

import atexit
import multiprocessing
from collections.abc import Iterator
from functools import partial

import numpy as np
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
    balanced_order,
    make_batch,
    shard_batch,
)
from aam.pipeline.stop_requests import ignore_signals

StepKey = tuple[int, int]

_ORDER = 3  # second word of the seed of the order of samples (`aam.network.batches` has 1 and 2)


class TrainingBatches(Dataset[Batch]):
    """Shuffled training batches of nearly equal size; an epoch contains every sample once."""

    def __init__(
        self,
        study: Study,
        plan: BatchPlan,
        rows: Rows,
        batch_size: int,  # largest number of samples of a batch over all ranks
        fresh_reads: bool,  # whether each epoch draws other reads (--rarefy-each-epoch)
        even: bool = False,  # whether the batches of an epoch have about as many distinct ASVs each
    ) -> None:
        self.study, self.plan, self.rows = study, plan, rows
        self.fresh_reads, self.even = fresh_reads, even
        self.steps = -(-len(rows) // batch_size)
        self._order: tuple[int, Rows] = (-1, rows)

    def __getitem__(self, key: StepKey) -> Batch:
        epoch, step = key
        # One order is kept: workers load the steps of an epoch before those of the next.
        if self._order[0] != epoch:
            rng = np.random.default_rng([self.plan.seed, _ORDER, epoch])
            if self.even:
                # Batches then hold about as many distinct ASVs each.
                richness = self.study.table.richness[self.rows]
                cost = np.minimum(richness, self.plan.token_limit)
                self._order = (epoch, balanced_order(self.rows, cost, self.steps, rng))
            else:
                self._order = (epoch, rng.permutation(self.rows))
        rows = self._order[1][even_slice(len(self.rows), self.steps, step)]
        reads_draw = epoch if self.fresh_reads else FIXED_DRAW
        masks = epoch * self.steps + step
        return make_batch(self.study, self.plan, rows, reads_draw, masks)


def packed_share(batch: Batch, ranks: Ranks, sequences: bool) -> PackedBatch:
    """Return a rank's share of a batch in one piece."""
    return PackedBatch.of(share_of(batch, ranks, sequences))


def share_of(batch: Batch, ranks: Ranks, sequences: bool) -> Batch:
    """Return a rank's share of a batch; the batch itself where there is one rank."""
    if ranks.world_size == 1:
        return batch
    samples, asvs = ranks.shard(len(batch.rows_B)), ranks.shard(len(batch.asvs_U))
    return shard_batch(batch, samples, asvs, sequences)


class RunSampler(Sampler[StepKey]):
    """Sampler of the keys (epoch, step) of a run, from the batch at which it goes on.

    Of all epochs at once: workers then prefetch the batches of the next one while a validation
    runs and a checkpoint is written.
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
    """End the workers of loaders that exist when the program exits."""
    # Its last exception may hold a loader. `multiprocessing` would send SIGTERM, which workers
    # ignore, and wait for their end.
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
    """Build the data loader of a rank's share of batches; see `shard_batch` for `sequences`."""
    # Automatic batching is off, since `make_batch` collects the samples: it needs all of them to
    # hold each distinct ASV once. The batch of a step is the same on any number of ranks.
    return DataLoader[PackedBatch](
        batches,  # type: ignore[arg-type]  # which `collate_fn` packs
        batch_size=None,
        sampler=sampler,
        collate_fn=partial(packed_share, ranks=ranks, sequences=sequences),
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        persistent_workers=workers > 0,
        # A signal to the whole process group must not end the workers before the checkpoint.
        worker_init_fn=ignore_signals,
        pin_memory=pin,
        # A separate generator: a new loader must not advance the one that dropout uses.
        generator=torch.Generator().manual_seed(0),
    )
