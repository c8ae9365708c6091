"""Batches of samples (rarefied reads, distinct ASVs, masks, UniFrac distances), and their loading.

A batch is a pure function of the study, the plan, the rows, the epoch and the step: workers, ranks
and resumed runs make the same batches. Shape suffixes: U distinct ASVs, L nucleotides, B samples,
S ASVs of the largest sample.
"""

from __future__ import annotations

import atexit
import dataclasses
import multiprocessing
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from aam.arrays import Rows
from aam.contract.options.groups import Metric
from aam.contract.records import BelowOne, Count, Fraction, Positive, Seed
from aam.data.study import Study
from aam.data.table import rarefy, take_strings
from aam.environment import SINGLE_RANK, Ranks, even_slice
from aam.network.unifrac import faith_pd, pairwise
from aam.nucleotide_codes import MASK, PAD
from aam.pipeline.stop_requests import SIGNALS

BASE_TOKENS = (1, 4)
"""First and last token of a base (A to T); other tokens are neither masked nor predicted."""

FIXED_DRAW = 1 << 40
"""Number of the first fixed draw of validation and prediction; larger than any epoch number."""

ALIGNMENT = 64
"""Bytes to which the tensors of a packed batch are aligned, as PyTorch allocates them on a CPU."""

StepKey = tuple[int, int]  # epoch, and number of the batch in the epoch

_MASKS, _ORDER, _HIDDEN = 1, 3, 3  # a seed with _HIDDEN has further elements
"""Second elements of seeds, so that each choice has independent random numbers."""


@dataclass(frozen=True)
class Batch:
    """Batch: samples as input tensors of the network."""

    rows_B: Tensor  # int64, row of each sample in the study
    asvs_U: Tensor  # int64, distinct ASVs of the batch (columns of the study)
    tokens_UL: Tensor  # uint8, sequences of these ASVs; masked nucleotides have the mask token
    # uint8, the tokens that the mask replaced, 0 (pad) for unmasked nucleotides; None without the
    # nucleotide task. Dense, because a GPU would wait for a shape that depends on masks
    labels_UL: Tensor | None
    shortest: int  # nucleotides of the shortest sequence
    slots_BS: Tensor  # int64, row in `asvs_U` of each ASV of each sample
    counts_BS: Tensor  # float32, reads of each ASV of each sample, 0 for padding
    attend_BS: Tensor | None  # bool, False for padding; None if all samples have S ASVs
    distances_BB: Tensor | None = None  # float32, UniFrac of the drawn reads; None without it
    diversity_B: Tensor | None = None  # float32, Faith PD; None for other metrics
    # bool, True for abundances that are hidden from the network, which predicts them; None without
    # this task
    hidden_BS: Tensor | None = None

    def ragged(self, patch: int) -> bool:
        """Return whether any sequence has fewer patches of `patch` nucleotides than the longest."""
        return -(-self.shortest // patch) < -(-self.tokens_UL.shape[1] // patch)

    def to(self, device: torch.device) -> Batch:
        """Copy every tensor to `device`."""
        copies: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if torch.is_tensor(value)
        }
        return dataclasses.replace(self, **copies)

    def unmasked(self) -> Tensor:
        """Return the tokens [U, L] as they were before masking."""
        if self.labels_UL is None:
            return self.tokens_UL
        return torch.where(self.labels_UL == PAD, self.tokens_UL, self.labels_UL)


@dataclass(frozen=True)
class PackedBatch:
    """Batch whose tensors are packed in one: workers send it, and GPUs receive it, in one piece.

    To receive a tensor from a worker, the training loop exchanges messages with the worker and
    opens a file, which takes half a millisecond for each tensor.
    """

    bytes_N: Tensor  # uint8, the tensors one after the other, each at a multiple of `ALIGNMENT`
    # offset, type and shape of each tensor by its name
    layout: dict[str, tuple[int, torch.dtype, torch.Size]]
    batch: Batch  # the batch without its tensors

    @classmethod
    def of(cls, batch: Batch) -> PackedBatch:
        """Pack a batch."""
        tensors = {name: value for name, value in vars(batch).items() if torch.is_tensor(value)}
        layout, end = {}, 0
        for name, value in tensors.items():
            layout[name] = end, value.dtype, value.shape
            end += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
        bytes_N = torch.zeros(end, dtype=torch.uint8)
        none: dict[str, Any] = dict.fromkeys(tensors)
        packed = cls(bytes_N, layout, dataclasses.replace(batch, **none))
        for name, view in packed._views(bytes_N).items():
            view.copy_(tensors[name])
        return packed

    def pin_memory(self) -> PackedBatch:
        """Copy the batch to page-locked memory (the data loader calls this)."""
        return dataclasses.replace(self, bytes_N=self.bytes_N.pin_memory())

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to `device`; on the CPU its tensors are views."""
        # From page-locked memory the copy is asynchronous.
        views: dict[str, Any] = self._views(self.bytes_N.to(device, non_blocking=True))
        return dataclasses.replace(self.batch, **views)

    def _views(self, bytes_N: Tensor) -> dict[str, Tensor]:
        return {
            name: bytes_N[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)
            for name, (start, dtype, shape) in self.layout.items()
        }


@dataclass(frozen=True)
class BatchPlan:
    """Settings that determine the batches of a run."""

    seed: Seed
    rarefy_depth: Count  # reads to draw from each sample; 0 for all
    token_limit: Positive  # largest number of ASVs of a sample; the most abundant are read
    mask_ratio: BelowOne = 0.0  # fraction of nucleotides to mask; 0 omits the nucleotide task
    metric: Metric | None = None  # phylogenetic metric to compute; None for none
    alpha: Fraction = 0.5  # exponent of generalized UniFrac
    hidden_ratio: BelowOne = 0.0  # fraction of abundances to hide; 0 omits their prediction

    @property
    def for_inference(self) -> BatchPlan:
        """The plan for inference: without masks, hidden abundances and phylogeny."""
        return dataclasses.replace(self, mask_ratio=0.0, metric=None, hidden_ratio=0.0)


def shortest(tokens_UL: Tensor) -> int:
    """Return the number of nucleotides of the shortest sequence; L without sequences.

    >>> shortest(torch.tensor([[1, 2, 3, 4], [1, 2, 0, 0]]))
    2
    """
    # Padding is on the right: the shortest sequence ends before the first column with padding.
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
    """Make the batch of the samples at `rows` of the study.

    Each `reads_draw`, such as the epoch, gives different reads. `masks` is the number of a draw of
    masks, or the masks [F, L] of the ASVs of the study.
    """
    rarefied, read = draw_asvs(study, plan, rows, reads_draw)
    asvs_U, slots = np.unique(read.indices, return_inverse=True)
    # The ragged rows of `read`, padded to the S ASVs of the largest sample.
    sizes = np.diff(read.indptr)
    row = np.repeat(np.arange(len(rows)), sizes)
    column = np.arange(read.nnz) - np.repeat(read.indptr[:-1], sizes)
    slots_BS = np.zeros((len(rows), max(int(sizes.max(initial=0)), 1)), dtype=np.int64)
    counts_BS = np.zeros(slots_BS.shape, dtype=np.float32)
    slots_BS[row, column] = slots
    counts_BS[row, column] = read.data
    present_BS = counts_BS > 0

    tokens_UL = study.tokens_FL[asvs_U]
    longest = int((tokens_UL.max(axis=0, initial=PAD) != PAD).sum())
    # Without columns that are padding in all sequences, which would be encoded as patches.
    tokens_UL = tokens_UL[:, : max(longest, 1)]
    masked_UL, labels_UL = tokens_UL, None
    if plan.mask_ratio:
        if isinstance(masks, int):
            rng = np.random.default_rng([plan.seed, _MASKS, masks])
            chosen_UL = choose_masked(tokens_UL, plan.mask_ratio, rng)
        else:
            chosen_UL = masks[asvs_U, : tokens_UL.shape[1]]
        labels_UL = tokens_UL * chosen_UL  # PAD (0) for unmasked nucleotides
        masked_UL = tokens_UL - labels_UL + np.uint8(MASK) * chosen_UL
    hidden_BS = None
    if plan.hidden_ratio:
        number = masks if isinstance(masks, int) else FIXED_DRAW
        uniform_BS = np.empty(present_BS.shape)
        for uniform_S, name in zip(
            uniform_BS, take_strings(study.table.sample_ids, rows), strict=True
        ):
            # Seeded by the sample, so that its hidden abundances do not depend on other samples.
            rng = np.random.default_rng([plan.seed, _HIDDEN, number, *name.encode()])
            uniform_S[:] = rng.random(present_BS.shape[1])
        hidden_BS = (uniform_BS < plan.hidden_ratio) & present_BS
    distances_BB = diversity_B = None
    if plan.metric is not None and study.distances is not None:
        distances_BB = torch.from_numpy(study.distances.values[np.ix_(rows, rows)])
    elif plan.metric == "faith_pd" and study.phylogeny is not None:
        diversity_B = torch.from_numpy(faith_pd(rarefied, study.phylogeny)).float()
    elif plan.metric is not None and study.phylogeny is not None:
        distances = pairwise(rarefied, study.phylogeny, plan.metric, plan.alpha)
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
    """Return the rarefied counts [B, F] of samples, of all ASVs and of the ASVs that are read."""
    sample_ids = list(take_strings(study.table.sample_ids, rows))
    rarefied = study.counts(rows)
    ends = rarefied.indptr.tolist()
    rarefied.data = np.concatenate(
        [
            rarefy(rarefied.data[low:high], plan.rarefy_depth, name, plan.seed, reads_draw)
            for name, low, high in zip(sample_ids, ends, ends[1:], strict=False)
        ]
    )
    rarefied.eliminate_zeros()
    sizes = np.diff(rarefied.indptr)
    if sizes.max(initial=0) <= plan.token_limit:
        return rarefied, rarefied
    read = rarefied.copy()
    for row in np.flatnonzero(sizes > plan.token_limit):
        low, high = rarefied.indptr[row], rarefied.indptr[row + 1]
        # A stable sort of columns in the order of ids: of equally abundant ASVs the first are read.
        order = np.argsort(-rarefied.data[low:high], kind="stable")
        read.data[low + order[plan.token_limit :]] = 0
    read.eliminate_zeros()
    return rarefied, read


def choose_masked(
    tokens_UL: npt.NDArray[np.uint8], ratio: float, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Choose nucleotides to mask at random, a fraction `ratio` of the bases.

    >>> tokens_UL = np.array([[1, 2, 3, 4, 5, 0]], dtype=np.uint8)
    >>> choose_masked(tokens_UL, 0.9999, np.random.default_rng(0)).tolist()
    [[True, True, True, True, False, False]]
    """
    # 16-bit numbers give a precision of 1 in 65,536 and take half the time of 32-bit numbers.
    random_UL = rng.integers(1 << 16, size=tokens_UL.shape, dtype=np.uint16)
    low, high = BASE_TOKENS
    return (random_UL < round(ratio * (1 << 16))) & (tokens_UL >= low) & (tokens_UL <= high)


class FixedBatches(Dataset[Batch]):
    """Fixed batches of at most `batch_size` samples, in the order of `rows` and with one draw."""

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
            # A mask for each ASV of the study, so that the same nucleotides of an ASV are masked in
            # any batch.
            rng = np.random.default_rng([plan.seed, _MASKS])
            self.masks = choose_masked(study.tokens_FL, plan.mask_ratio, rng)

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __getitem__(self, step: int) -> Batch:
        rows = self.rows[step * self.batch_size : (step + 1) * self.batch_size]
        return make_batch(self.study, self.plan, rows, self.draw, self.masks)


@dataclass(frozen=True)
class BatchShard(Batch):
    """Batch shard: the samples and ASVs of a batch that one rank computes.

    `asvs_U` has the ASVs of the complete batch, and `slots_BS` has indices into it; `tokens_UL` and
    `labels_UL` have the ASVs that the rank encodes. `distances_BB` has a row for each sample of the
    shard and a column for each sample of the batch. All other tensors have the shard's samples.
    """

    samples: int = 0  # number of samples in the complete batch
    first_sample: int = 0  # index of the shard's first sample in the complete batch
    first_asv: int = 0  # index of the first ASV that the rank encodes
    # uint8, unmasked sequences of the ASVs of the shard's samples
    sequences_VL: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0, 0))
    # row in `sequences_VL` of each ASV of each sample of the shard
    sequence_slots_BS: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0, 0))


def shard_batch(batch: Batch, samples: slice, asvs: slice, sequences: bool) -> BatchShard:
    """Return the shard of one rank; with `sequences`, if the community profile needs them."""
    local = {name: value[samples] for name in ("rows_B", "slots_BS", "counts_BS", "hidden_BS")
           if (value := getattr(batch, name)) is not None}  # fmt: skip
    present_BS = local["counts_BS"] > 0
    # As wide as the largest sample of this rank: more columns would be padding.
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
    # The profile of a sample reads all its ASVs, but other ranks encode most of them.
    members_V, slots = torch.unique(local["slots_BS"][present_BS], return_inverse=True)
    sequence_slots_BS = torch.zeros_like(local["slots_BS"])
    sequence_slots_BS[present_BS] = slots
    return dataclasses.replace(
        shard, sequences_VL=batch.unmasked()[members_V], sequence_slots_BS=sequence_slots_BS
    )


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
        worker_init_fn=_ignore_signals,
        pin_memory=pin,
        # A separate generator: a new loader must not advance the generator that dropout uses.
        generator=torch.Generator().manual_seed(0),
    )


def _ignore_signals(worker: int) -> None:
    """Ignore stop requests in a data-loader worker: its parent ends it, after the checkpoint."""
    # A terminal and Slurm send a signal to all processes, and a run that writes its checkpoint
    # cannot do without its workers.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
