"""Ranks of a prediction: each computes whole batches of the samples, and rank 0 writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aam.contract.errors import UsageError
from aam.contract.options.device import DeviceOptions, RankOptions
from aam.data.study import Study
from aam.distributed.environment import SINGLE_RANK, Ranks, read_environment


def _alone(value: Any) -> list[Any]:
    return [value]


@dataclass(frozen=True)
class RankShare:
    """Share of this rank in a prediction.

    Attributes:
        ranks: rank of this process, and the number of all.
        gather: returns the values of all ranks, in their order.
    """

    ranks: Ranks = SINGLE_RANK
    gather: Callable[[Any], list[Any]] = _alone

    def take(self, study: Study, batch_size: int) -> Study:
        """Return the samples of this rank: whole batches, so that all products have one shape.

        Raises:
            UsageError: there are more ranks than batches.
        """
        if self.ranks.world_size == 1:
            return study
        samples = len(study.table.sample_ids)
        batches = -(-samples // batch_size)
        if batches < self.ranks.world_size:
            raise UsageError(
                "More processes than batches",
                f"{self.ranks.world_size} processes, {samples} samples, --batch-size {batch_size}",
                f"start {batches} processes, or give a smaller --batch-size",
            )
        part = self.ranks.shard(batches)
        return study.part(range(part.start * batch_size, min(part.stop * batch_size, samples)))


ALONE = RankShare()
"""Share of a single process: all samples."""


@contextmanager
def rank_share(scale: RankOptions, device: DeviceOptions) -> Iterator[RankShare]:
    """Join the other ranks, if a launcher has started any, until the block ends.

    Raises:
        UsageError: variables of the environment contradict each other.
        RankFailure: another rank has failed.
    """
    if read_environment(os.environ).world_size == 1:
        yield ALONE
        return
    # PyTorch takes 2 CPU-seconds to import, which kernel and forest do without.
    from aam.distributed.process_group import process_group

    with process_group(scale, device) as communicator:
        yield RankShare(communicator.ranks, communicator.all_gather)
