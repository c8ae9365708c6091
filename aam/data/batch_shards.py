"""A rank's share of a batch: some of its samples, and some of its distinct ASVs.

Samples and ASVs are shared out apart. Every distinct ASV of the whole batch is encoded by one rank
only, whoever's samples hold it; the vectors are then gathered. So the work of encoding, where the
time goes, is even whatever samples meet, and does not grow with the number of ranks. A share is cut
from the whole batch, which every rank makes alike: reads, masks and distances cannot depend on the
number of ranks. Shape suffixes: see `aam.data.batches`; M ASVs of the share's samples, A all
samples of the batch.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aam.data.batches import Batch, shortest


@dataclass(frozen=True)
class BatchShard(Batch):
    """What one rank does of a batch.

    `rows_B`, `slots_BS`, `counts_BS`, `attend_BS` and `diversity_B` are of its samples,
    `tokens_UL`, `scored_UL` and `hidden` of the ASVs that it encodes; `asvs_U` and what `slots_BS`
    points into are of the whole batch. `distances_BB` has a row for each of its samples and a
    column for each of the batch.

    Attributes:
        samples: of the whole batch.
        first_sample: number of its first sample in the whole batch.
        first_asv: number of the first ASV that it encodes.
        sequences_ML: uint8, sequences of its samples' ASVs, not masked.
        sequence_slots_BS: row of `sequences_ML` of each ASV of each of its samples.
    """

    samples: int = 0
    first_sample: int = 0
    first_asv: int = 0
    sequences_ML: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0, 0))
    sequence_slots_BS: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0, 0))


def shard_batch(batch: Batch, samples: slice, asvs: slice, letters: bool) -> BatchShard:
    """Cut one rank's share from a whole batch.

    Args:
        batch: the whole.
        samples: whose samples are the rank's; may be empty.
        asvs: which distinct ASVs it encodes; may be empty.
        letters: whether what reads the samples needs their sequences as they are.
    """
    own = {name: value[samples] for name in ("rows_B", "slots_BS", "counts_BS")
           if (value := getattr(batch, name)) is not None}  # fmt: skip
    present_BS = own["counts_BS"] > 0
    widest = max(int(present_BS.sum(dim=1).max()) if len(present_BS) else 0, 1)
    own = {name: value[:, :widest] if value.ndim > 1 else value for name, value in own.items()}
    present_BS = present_BS[:, :widest]
    distances_BA, diversity_B = batch.distances_BB, batch.diversity_B
    whole: dict[str, Any] = {f.name: getattr(batch, f.name) for f in dataclasses.fields(Batch)}
    found = BatchShard(
        **whole
        | own
        | _own_asvs(batch, asvs)
        | {
            "shortest": shortest(batch.tokens_UL[asvs]),
            "attend_BS": None if bool(present_BS.all()) else present_BS,
            "distances_BB": None if distances_BA is None else distances_BA[samples],
            "diversity_B": None if diversity_B is None else diversity_B[samples],
        },
        samples=len(batch.rows_B),
        first_sample=samples.start,
        first_asv=asvs.start,
    )
    if not letters:
        return found
    members_M, slots = torch.unique(own["slots_BS"][present_BS], return_inverse=True)
    sequence_slots_BS = torch.zeros_like(own["slots_BS"])
    sequence_slots_BS[present_BS] = slots
    return dataclasses.replace(
        found, sequences_ML=unmasked(batch)[members_M], sequence_slots_BS=sequence_slots_BS
    )


def _own_asvs(batch: Batch, asvs: slice) -> dict[str, Tensor | None]:
    tokens = {"tokens_UL": batch.tokens_UL[asvs]}
    if batch.scored_UL is None or batch.hidden is None:
        return dict(tokens)
    before = int(batch.scored_UL[: asvs.start].sum())
    scored_UL = batch.scored_UL[asvs]
    return {
        **tokens,
        "scored_UL": scored_UL,
        "hidden": batch.hidden[before : before + int(scored_UL.sum())],
    }


def unmasked(batch: Batch) -> Tensor:
    """Return the tokens [U, L] of a batch as they were before masking."""
    if batch.scored_UL is None or batch.hidden is None:
        return batch.tokens_UL
    return batch.tokens_UL.masked_scatter(batch.scored_UL, batch.hidden)
