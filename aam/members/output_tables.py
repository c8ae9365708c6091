"""Inference settings, samples of each rank, and checks of outputs; without PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aam import wings
from aam.contract.errors import NotFinite, UsageError, first_few
from aam.contract.options.groups import AsvVectorOptions, DeviceOptions, RankOptions
from aam.data.study import Study
from aam.environment import SINGLE_RANK, Ranks, read_environment

NO_VECTORS = AsvVectorOptions()  # no folder: every ASV is encoded


@dataclass(frozen=True)
class InferenceSettings:
    """Settings of inference; only networks read them."""

    batch_size: int = 32  # samples at a time; the outputs depend on it by rounding alone
    passes: int = 1  # number of rarefactions
    vectors: AsvVectorOptions = NO_VECTORS  # folder of ASV vectors


@dataclass(frozen=True)
class RankShare:
    """Samples that this rank predicts."""

    ranks: Ranks = SINGLE_RANK  # rank of this process, and the number of all
    gather: Callable[[Any], list[Any]] = lambda value: [value]  # values of all ranks, in order

    def take(self, study: Study, batch_size: int) -> Study:
        """Return the samples of this rank: whole batches, so that all products have one shape."""
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
        shard = self.ranks.shard(batches)
        return study.part(range(shard.start * batch_size, min(shard.stop * batch_size, samples)))


ALONE = RankShare()  # share of a single process: all samples


@contextmanager
def rank_share(scale: RankOptions, device: DeviceOptions) -> Iterator[RankShare]:
    """Join the other ranks, if a launcher has started any, until the block ends."""
    if read_environment(os.environ).world_size == 1:
        yield ALONE
        return
    with wings.network().process_group(scale, device) as communicator:
        yield RankShare(communicator.ranks, communicator.all_gather)


def require_finite(
    quantity: str, sample_ids: Sequence[str], values_BC: npt.NDArray[np.floating[Any]]
) -> None:
    """Refuse NaN and infinite values: a table would show them as empty cells."""
    invalid = np.flatnonzero(~np.isfinite(values_BC).all(axis=1))
    if len(invalid):
        ids = (sample_ids[row] for row in invalid.tolist())
        evidence = f"samples {first_few(ids)} of {len(sample_ids)}"
        remedy = "run `aam check` on this device, or use another checkpoint"
        raise NotFinite(f"The model's {quantity} are not finite numbers", evidence, remedy)
