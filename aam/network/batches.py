"""Batches: rarefied reads, distinct ASVs once, masked nucleotides and UniFrac of some samples.

A batch is a pure function of the study, the plan, the rows, the epoch and the step: workers, ranks
and resumed runs make the same batches. Shape suffixes: U distinct ASVs, L nucleotides, B samples,
S ASVs of the largest sample.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.utils.data import Dataset

from aam.arrays import Rows
from aam.contract.options.groups import Metric
from aam.contract.records import BelowOne, Count, Fraction, Positive, Seed
from aam.data.study import Study
from aam.data.table import rarefy, take_strings
from aam.network.unifrac import faith_pd, pairwise
from aam.nucleotide_codes import MASK, PAD

BASE_TOKENS = (1, 4)
"""First and last token of a base (A to T); no other token is masked or predicted."""

FIXED_DRAW = 1 << 40
"""First number of the fixed draws of validation and prediction, above all epoch numbers."""

ALIGNMENT = 64
"""Bytes to which the tensors of a packed batch are aligned, as PyTorch allocates them on a CPU."""

_MASKS, _HIDDEN = 1, 3
"""Second elements of seeds, so that each choice uses independent random numbers."""


@dataclass(frozen=True)
class Batch:
    """Samples as input tensors of the network."""

    rows_B: Tensor  # int64, row of each sample in the study
    asvs_U: Tensor  # int64, distinct ASVs of the batch (columns of the study)
    tokens_UL: Tensor  # uint8, their sequences; masked nucleotides hold the mask token
    # uint8, the tokens that the mask replaced, 0 (pad) where nothing is masked; None without the
    # nucleotide task. Dense, so that no shape depends on the masks: a GPU would wait for it in each
    # step
    labels_UL: Tensor | None
    shortest: int  # nucleotides of its shortest sequence
    slots_BS: Tensor  # int64, row of `asvs_U` of each ASV of each sample
    counts_BS: Tensor  # float32, its reads, 0 where the sample has fewer ASVs
    # bool, True where a sample has an ASV; None if all samples have S ASVs
    attend_BS: Tensor | None
    # float32, UniFrac of the reads drawn; None without a phylogeny
    distances_BB: Tensor | None = None
    diversity_B: Tensor | None = None  # float32, Faith PD; None unless that is the metric
    # bool, True where the network must not read the abundance of an ASV but predicts it; None
    # without that task
    hidden_BS: Tensor | None = None

    def ragged(self, patch: int) -> bool:
        """Return whether any sequence has fewer patches of `patch` nucleotides than `tokens_UL`."""
        return -(-self.shortest // patch) < -(-self.tokens_UL.shape[1] // patch)

    def to(self, device: torch.device) -> Batch:
        """Copy every tensor to `device`."""
        copies: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if torch.is_tensor(value)
        }
        return dataclasses.replace(self, **copies)


@dataclass(frozen=True)
class PackedBatch:
    """A batch whose tensors are one: a worker sends it, and a GPU gets it, in one piece.

    Each tensor that a worker sends is a file that the loop opens, by a message to the worker and
    its answer, which takes half a millisecond of the loop.
    """

    bytes_N: Tensor  # uint8, the tensors one behind the other, each at a multiple of `ALIGNMENT`
    # offset, type and shape of each tensor by its name
    places: dict[str, tuple[int, torch.dtype, torch.Size]]
    batch: Batch  # the batch without its tensors

    @classmethod
    def of(cls, batch: Batch) -> PackedBatch:
        """Pack a batch."""
        tensors = {name: value for name, value in vars(batch).items() if torch.is_tensor(value)}
        places, end = {}, 0
        for name, value in tensors.items():
            places[name] = end, value.dtype, value.shape
            end += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
        bytes_N = torch.zeros(end, dtype=torch.uint8)
        none: dict[str, Any] = dict.fromkeys(tensors)
        packed = cls(bytes_N, places, dataclasses.replace(batch, **none))
        for name, view in packed._views(bytes_N).items():
            view.copy_(tensors[name])
        return packed

    def pin_memory(self) -> PackedBatch:
        """Copy the batch to page-locked memory (the data loader calls this)."""
        return dataclasses.replace(self, bytes_N=self.bytes_N.pin_memory())

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to `device`; on the CPU its tensors are views."""
        # From page-locked memory the copy runs while the CPU goes on.
        views: dict[str, Any] = self._views(self.bytes_N.to(device, non_blocking=True))
        return dataclasses.replace(self.batch, **views)

    def _views(self, bytes_N: Tensor) -> dict[str, Tensor]:
        return {
            name: bytes_N[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)
            for name, (start, dtype, shape) in self.places.items()
        }


@dataclass(frozen=True)
class BatchPlan:
    """Settings of batches; `rarefy_depth` is a number, never "auto"."""

    seed: Seed
    rarefy_depth: Count
    token_limit: Positive
    mask_ratio: BelowOne = 0.0  # fraction of nucleotides masked; 0 leaves the nucleotide task out
    metric: Metric | None = None  # phylogenetic measure to compute; None for none
    alpha: Fraction = 0.5
    hidden_ratio: BelowOne = 0.0  # fraction of abundances hidden; 0 leaves their prediction out


def shortest(tokens_UL: Tensor) -> int:
    """Return the number of nucleotides of the shortest sequence; L if there is no sequence.

    >>> shortest(torch.tensor([[1, 2, 3, 4], [1, 2, 0, 0]]))
    2
    """
    # Padding is on the right: the shortest sequence ends at the first column that has any.
    if not len(tokens_UL):
        return tokens_UL.shape[1]
    return int((tokens_UL.amin(dim=0) != PAD).sum())


def make_batch(
    study: Study,
    plan: BatchPlan,
    rows: npt.NDArray[np.int64],  # int64 [B], positions of the samples in the study
    reads_draw: int = FIXED_DRAW,
    masks: int | npt.NDArray[np.bool_] = 0,
) -> Batch:
    """Make the batch of `rows` of the study's table.

    Each `reads_draw`, such as the epoch, gives other reads. `masks` is the number of a draw, or the
    masks [F, L] of the ASVs of the study.
    """
    drawn, kept = draw_asvs(study, plan, rows, reads_draw)
    asvs_U, slots = np.unique(kept.indices, return_inverse=True)
    # The ragged rows of `kept`, padded to the S ASVs of the largest sample.
    sizes = np.diff(kept.indptr)
    row = np.repeat(np.arange(len(rows)), sizes)
    column = np.arange(kept.nnz) - np.repeat(kept.indptr[:-1], sizes)
    slots_BS = np.zeros((len(rows), max(int(sizes.max(initial=0)), 1)), dtype=np.int64)
    counts_BS = np.zeros(slots_BS.shape, dtype=np.float32)
    slots_BS[row, column] = slots
    counts_BS[row, column] = kept.data
    present_BS = counts_BS > 0

    tokens_UL = study.tokens_FL[asvs_U]
    longest = int((tokens_UL.max(axis=0, initial=PAD) != PAD).sum())
    # Columns that are padding in all sequences of the batch would be encoded as patches.
    tokens_UL = tokens_UL[:, : max(longest, 1)]
    masked_UL, labels_UL = tokens_UL, None
    if plan.mask_ratio:
        if isinstance(masks, int):
            rng = np.random.default_rng([plan.seed, _MASKS, masks])
            chosen_UL = choose_masked(tokens_UL, plan.mask_ratio, rng)
        else:
            chosen_UL = masks[asvs_U, : tokens_UL.shape[1]]
        labels_UL = tokens_UL * chosen_UL  # PAD, which is 0, where nothing is masked.
        masked_UL = tokens_UL - labels_UL + np.uint8(MASK) * chosen_UL
    hidden_BS = None
    if plan.hidden_ratio:
        number = masks if isinstance(masks, int) else FIXED_DRAW
        drawn_BS = np.empty(present_BS.shape)
        for place, name in enumerate(take_strings(study.table.sample_ids, rows)):
            # Seeded by the sample, so that its hidden abundances do not depend on the samples
            # beside it.
            rng = np.random.default_rng([plan.seed, _HIDDEN, number, *name.encode()])
            drawn_BS[place] = rng.random(present_BS.shape[1])
        hidden_BS = (drawn_BS < plan.hidden_ratio) & present_BS
    distances_BB = diversity_B = None
    if plan.metric is not None and study.distances is not None:
        distances_BB = torch.from_numpy(study.distances.values[np.ix_(rows, rows)])
    elif plan.metric == "faith_pd" and study.phylogeny is not None:
        diversity_B = torch.from_numpy(faith_pd(drawn, study.phylogeny)).float()
    elif plan.metric is not None and study.phylogeny is not None:
        distances = pairwise(drawn, study.phylogeny, plan.metric, plan.alpha)
        distances_BB = torch.from_numpy(distances).float()
    return Batch(
        rows_B=torch.from_numpy(rows),
        asvs_U=torch.from_numpy(asvs_U.astype(np.int64)),
        tokens_UL=torch.from_numpy(masked_UL),
        labels_UL=None if labels_UL is None else torch.from_numpy(labels_UL),
        shortest=shortest(torch.from_numpy(tokens_UL)),
        slots_BS=torch.from_numpy(slots_BS),
        counts_BS=torch.from_numpy(counts_BS),
        attend_BS=None if present_BS.all() else torch.from_numpy(present_BS),
        distances_BB=distances_BB,
        diversity_B=diversity_B,
        hidden_BS=None if hidden_BS is None else torch.from_numpy(hidden_BS),
    )


def draw_asvs(
    study: Study, plan: BatchPlan, rows: npt.NDArray[np.int64], reads_draw: int = FIXED_DRAW
) -> tuple[csr_array, csr_array]:
    """Return the rarefied counts [B, F] of `rows`, and those of the ASVs that the model reads."""
    sample_ids = list(take_strings(study.table.sample_ids, rows))
    drawn = study.counts(rows)
    ends = drawn.indptr.tolist()
    drawn.data = np.concatenate(
        [
            rarefy(drawn.data[low:high], plan.rarefy_depth, name, plan.seed, reads_draw)
            for name, low, high in zip(sample_ids, ends, ends[1:], strict=False)
        ]
    )
    drawn.eliminate_zeros()
    sizes = np.diff(drawn.indptr)
    if sizes.max(initial=0) <= plan.token_limit:
        return drawn, drawn
    kept = drawn.copy()
    for row in np.flatnonzero(sizes > plan.token_limit):
        low, high = drawn.indptr[row], drawn.indptr[row + 1]
        # Stable: of equally abundant ASVs the first by id stay, since columns are ordered by id.
        order = np.argsort(-drawn.data[low:high], kind="stable")
        kept.data[low + order[plan.token_limit :]] = 0
    kept.eliminate_zeros()
    return drawn, kept


def choose_masked(
    tokens_UL: npt.NDArray[np.uint8], ratio: float, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Choose nucleotides to mask.

    >>> tokens_UL = np.array([[1, 2, 3, 4, 5, 0]], dtype=np.uint8)
    >>> choose_masked(tokens_UL, 0.9999, np.random.default_rng(0)).tolist()
    [[True, True, True, True, False, False]]
    """
    # To 1 in 65,536: 16-bit numbers take half the time of 32-bit ones.
    drawn_UL = rng.integers(1 << 16, size=tokens_UL.shape, dtype=np.uint16)
    low, high = BASE_TOKENS
    return (drawn_UL < round(ratio * (1 << 16))) & (tokens_UL >= low) & (tokens_UL <= high)


def reading_plan(plan: BatchPlan) -> BatchPlan:
    """Return the plan for inference: without masks, hidden abundances and phylogeny."""
    return dataclasses.replace(plan, mask_ratio=0.0, metric=None, hidden_ratio=0.0)


class FixedBatches(Dataset[Batch]):
    """Batches of at most `batch_size` samples in the order of `rows`, all of one draw of reads."""

    def __init__(
        self,
        study: Study,
        plan: BatchPlan,
        rows: npt.NDArray[np.int64],
        batch_size: int,
        draw: int = FIXED_DRAW,
    ) -> None:
        self.study, self.plan, self.rows, self.draw = study, plan, rows, draw
        self.batch_size = batch_size
        self.masks: int | npt.NDArray[np.bool_] = 0
        if plan.mask_ratio:
            # One for each ASV of the study, and not for each batch: an ASV is scored in the same
            # places in any batch.
            rng = np.random.default_rng([plan.seed, _MASKS])
            self.masks = choose_masked(study.tokens_FL, plan.mask_ratio, rng)

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __getitem__(self, step: int) -> Batch:
        rows = self.rows[step * self.batch_size : (step + 1) * self.batch_size]
        return make_batch(self.study, self.plan, rows, self.draw, self.masks)


def balanced_order(
    rows: Rows, cost: npt.NDArray[np.int64], steps: int, rng: np.random.Generator
) -> Rows:
    """Order the samples of an epoch so that consecutive batches cost alike.

    Samples are divided into layers of equal cost, and every batch gets one of each layer: a
    stratified draw. The first half of the layers is assigned at random; in the others the most
    expensive sample goes to the batch with the lowest cost so far (longest processing time first,
    Graham 1969).

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


@dataclass(frozen=True)
class BatchShard(Batch):
    """The part of a batch that one rank computes.

    `rows_B`, `slots_BS`, `counts_BS`, `attend_BS`, `diversity_B` and `hidden_BS` are of the shard's
    samples; `tokens_UL` and `labels_UL` of the ASVs that the rank encodes. `asvs_U` is of the
    complete batch, and `slots_BS` are indices into it. `distances_BB` has a row for each sample of
    the shard and a column for each sample of the batch.
    """

    samples: int = 0  # number of samples of the complete batch
    first_sample: int = 0  # index of the shard's first sample in the complete batch
    first_asv: int = 0  # index of the first ASV that the rank encodes
    # uint8, sequences of the ASVs of the shard's samples, not masked
    sequences_VL: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0, 0))
    # row of `sequences_VL` of each ASV of each sample of the shard
    sequence_slots_BS: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0, 0))


def shard_batch(batch: Batch, samples: slice, asvs: slice, sequences: bool) -> BatchShard:
    """Return the shard of one rank; `sequences`: with those that the k-mer profile needs."""
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
