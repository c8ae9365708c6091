"""Batch shards: the samples and the distinct ASVs of a batch that one rank computes.

Samples and ASVs are divided separately. Exactly one rank encodes each distinct ASV of the batch,
whichever samples contain it; then the ranks gather the vectors. So the work of encoding, which
dominates, is even for any samples and does not grow with the number of ranks. Every rank makes the
same complete batch and takes its shard of it, so reads, masks and distances do not depend on the
number of ranks. Shape suffixes: see `aam.data.batches`; V ASVs of the shard's samples.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aam.data.batches import Batch, shortest
from aam.data.sequences import PAD


@dataclass(frozen=True)
class BatchShard(Batch):
    """The part of a batch that one rank computes.

    `rows_B`, `slots_BS`, `counts_BS`, `attend_BS`, `diversity_B` and `hidden_BS` are of the shard's
    samples; `tokens_UL` and `labels_UL` of the ASVs that the rank encodes. `asvs_U` is of the
    complete batch, and `slots_BS` are indices into it. `distances_BB` has a row for each sample of
    the shard and a column for each sample of the batch.

    Attributes:
        samples: number of samples of the complete batch.
        first_sample: index of the shard's first sample in the complete batch.
        first_asv: index of the first ASV that the rank encodes.
        sequences_VL: uint8, sequences of the ASVs of the shard's samples, not masked.
        sequence_slots_BS: row of `sequences_VL` of each ASV of each sample of the shard.
    """

    samples: int = 0
    first_sample: int = 0
    first_asv: int = 0
    sequences_VL: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0, 0))
    sequence_slots_BS: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0, 0))


def shard_batch(batch: Batch, samples: slice, asvs: slice, sequences: bool) -> BatchShard:
    """Return the shard of one rank.

    Args:
        batch: the complete batch.
        samples: the samples of the rank; may be empty.
        asvs: the distinct ASVs that the rank encodes; may be empty.
        sequences: whether to add `sequences_VL`, which the k-mer profile of the samples needs.
    """
    local = {name: value[samples] for name in ("rows_B", "slots_BS", "counts_BS", "hidden_BS")
           if (value := getattr(batch, name)) is not None}  # fmt: skip
    present_BS = local["counts_BS"] > 0
    # As wide as the largest sample of this rank: columns for those of other ranks would be padding.
    widest = max(int(present_BS.sum(dim=1).max()) if len(present_BS) else 0, 1)
    local = {name: value[:, :widest] if value.ndim > 1 else value for name, value in local.items()}
    present_BS = present_BS[:, :widest]
    distances_BB, diversity_B = batch.distances_BB, batch.diversity_B
    complete: dict[str, Any] = {f.name: getattr(batch, f.name) for f in dataclasses.fields(Batch)}
    shard = BatchShard(
        **complete
        | local
        | {
            "tokens_UL": batch.tokens_UL[asvs],
            "labels_UL": None if batch.labels_UL is None else batch.labels_UL[asvs],
            "shortest": shortest(batch.tokens_UL[asvs]),
            "attend_BS": None if bool(present_BS.all()) else present_BS,
            "distances_BB": None if distances_BB is None else distances_BB[samples],
            "diversity_B": None if diversity_B is None else diversity_B[samples],
        },
        samples=len(batch.rows_B),
        first_sample=samples.start,
        first_asv=asvs.start,
    )
    if not sequences:
        return shard
    # The profile of a sample reads all of its ASVs, most of which other ranks encode.
    members_V, slots = torch.unique(local["slots_BS"][present_BS], return_inverse=True)
    sequence_slots_BS = torch.zeros_like(local["slots_BS"])
    sequence_slots_BS[present_BS] = slots
    return dataclasses.replace(
        shard, sequences_VL=unmasked(batch)[members_V], sequence_slots_BS=sequence_slots_BS
    )


def unmasked(batch: Batch) -> Tensor:
    """Return the tokens [U, L] of a batch as they were before masking."""
    if batch.labels_UL is None:
        return batch.tokens_UL
    return torch.where(batch.labels_UL == PAD, batch.tokens_UL, batch.labels_UL)
