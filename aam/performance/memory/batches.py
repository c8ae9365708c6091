"""Largest batches: shapes of the batches of the samples with most ASVs, for any batch size.

The reads of the samples are drawn once. Batches have no values, except for the rows.
Shape suffixes: see `aam.data.batches`; N samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from aam.data.batch_shards import BatchShard
from aam.data.batches import Batch, BatchPlan, draw_asvs
from aam.data.sequences import PAD
from aam.data.study import Study
from aam.distributed.environment import shard_sizes

MOST_SAMPLES = 4096
"""Largest batch size that is considered."""


class LargestBatches:
    """Batches of the samples with most ASVs of a study.

    Attributes:
        samples: largest batch size.
    """

    def __init__(self, study: Study, plan: BatchPlan) -> None:
        self.plan = plan
        # In this order the largest batch of any size is the first samples, so that its sizes are
        # prefix maxima of arrays that are computed once.
        self.rows_N = np.argsort(-study.table.richness, kind="stable")[:MOST_SAMPLES]
        self.rows_N = self.rows_N.astype(np.int64)
        self.samples = len(self.rows_N)
        self.by_matrix = study.distances is not None
        self.by_tree = study.phylogeny is not None
        _, kept = draw_asvs(study, plan, self.rows_N)
        sizes_N = np.diff(kept.indptr)
        self.widest_N = np.maximum.accumulate(np.maximum(sizes_N, 1))
        self.narrowest_N = np.minimum.accumulate(sizes_N)
        row_of_entry = np.repeat(np.arange(self.samples), sizes_N)
        asvs, first = np.unique(kept.indices, return_index=True)
        # By the first sample that has the ASV: the distinct ASVs of a batch are then a prefix.
        by_row = np.argsort(row_of_entry[first], kind="stable")
        self.first_rows = row_of_entry[first][by_row]
        lengths = (study.tokens_FL[asvs[by_row]] != PAD).sum(axis=1)
        self.longest = np.maximum.accumulate(lengths)
        self.shortest = np.minimum.accumulate(lengths)

    def asvs(self, size: int) -> int:
        """Return the number of distinct ASVs of the `size` samples with most ASVs."""
        return int(np.searchsorted(self.first_rows, size))

    def batch(self, size: int, ranks: int = 1, sequences: bool = False) -> Batch:
        """Return the batch of `size` samples, or the shard of the first of several ranks.

        Args:
            sequences: the shard has the sequences of its samples, which a target needs.
        """
        distinct, samples = self.asvs(size), shard_sizes(size, ranks)[0]
        asvs = shard_sizes(distinct, ranks)[0]
        length = max(int(self.longest[distinct - 1]), 1)
        widest = int(self.widest_N[samples - 1])
        shape = (samples, widest)
        by_diversity = self.plan.metric == "faith_pd" and not self.by_matrix
        related = self.plan.metric is not None and (self.by_matrix or self.by_tree)
        values: dict[str, Any] = {
            "rows_B": torch.from_numpy(self.rows_N[:samples]),
            "asvs_U": torch.empty(distinct, dtype=torch.int64),
            "tokens_UL": torch.empty(asvs, length, dtype=torch.uint8),
            "labels_UL": torch.empty(asvs, length, dtype=torch.uint8)
            if self.plan.mask_ratio
            else None,
            "shortest": int(self.shortest[distinct - 1]),
            "slots_BS": torch.empty(shape, dtype=torch.int64),
            "counts_BS": torch.empty(shape),
            "attend_BS": torch.empty(shape, dtype=torch.bool)
            if self.narrowest_N[samples - 1] < widest
            else None,
            "distances_BB": torch.empty(samples, size) if related and not by_diversity else None,
            "diversity_B": torch.empty(samples) if related and by_diversity else None,
            "hidden_BS": torch.empty(shape, dtype=torch.bool) if self.plan.hidden_ratio else None,
        }
        if ranks == 1:
            return Batch(**values)
        if sequences:
            sequences_VL = torch.empty(self.asvs(samples), length, dtype=torch.uint8)
            values |= {"sequences_VL": sequences_VL, "sequence_slots_BS": values["slots_BS"]}
        return BatchShard(**values, samples=size)
