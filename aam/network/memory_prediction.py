"""Peak memory of training and inference, predicted without a GPU; the settings that fit in memory.

A step runs on fake tensors (shapes without values), while `LiveStorages` counts the bytes of all
tensors. Gradients and optimizer states exist before the step, as in any step but the first. With
several ranks the memory of the first rank is predicted, because it has the largest shard of a
batch; its process group has one process, and collectives move no data.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import warnings
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from resource import RUSAGE_SELF, getrusage
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aam.console import info, warn
from aam.contract.errors import Unavailable, UsageError
from aam.contract.options import from_plain
from aam.contract.options.commands.measure import Memory
from aam.contract.options.commands.train import Pretrain, Train
from aam.contract.options.commands.use import Embed, Predict
from aam.contract.options.groups import DeviceOptions, LoopOptions, SpeedOptions
from aam.data.metadata import read_metadata
from aam.data.study import Study, load_study
from aam.environment import Ranks, read_environment, shard_sizes
from aam.memory import GIB, memory_available, shown_size
from aam.network.batches import Batch, BatchPlan, BatchShard, draw_asvs
from aam.network.distributed.collectives import FSDP_ON_CPU, DTensor, local_tensor, shard
from aam.network.inference.outputs import CHUNK, apply_to_batch
from aam.network.inference.stored_networks import ModelConfig, read_networks
from aam.network.model.attention import AUTO, Backends, named
from aam.network.model.covariate_embedding import CovariateInputs
from aam.network.model.network import PROFILE_HIDDEN, Predictor
from aam.network.numerics.device import Precision, choose_device, is_gpu
from aam.network.numerics.report import measured_overhead
from aam.network.training import checkpoints
from aam.network.training.configuration import (
    choose_length,
    choose_shape,
    configure_model,
    load_pretraining_study,
    numbers_of_host,
    read_pretrained_encoder,
)
from aam.network.training.fit import freeze_unused, make_optimizer
from aam.network.training.module import LossWeights, TrainingModule
from aam.nucleotide_codes import PAD
from aam.pipeline import run_folder
from aam.pipeline.labelled_study import LabelledStudy, classes_of_words, label_study, read_study

BLOCK = 512  # bytes to which PyTorch's GPU allocator rounds every tensor up


@contextmanager
def fake_process_group(ranks: int, fsdp: bool) -> Iterator[DeviceMesh | None]:
    """Make a process group of `ranks` without their processes; yield its mesh for FSDP."""
    if ranks == 1:
        yield None
        return
    if not FSDP_ON_CPU:
        raise Unavailable(
            "The memory of several ranks cannot be predicted with this PyTorch",
            f"PyTorch {torch.__version__}",
            "use PyTorch 2.6 or later",
        )
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # PyTorch 2.7 needs this module for collectives of fake tensors; 2.13 does not.
    importlib.import_module("torch.distributed._tools.fake_collectives")
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (ranks,)) if fsdp else None
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True)
class StepMemory:
    """Memory of a training step of one rank, in bytes, as the allocator counts them."""

    parameters: int  # and buffers
    optimizer: int
    gradients: int
    activations: int  # stored by the forward pass for the backward pass
    peak: int  # including the batch and temporary tensors


def predict_step(
    make: Callable[[], TrainingModule],
    batch: Batch,
    precision: Precision,
    block: int = BLOCK,
    fused: bool = True,
    ranks: int = 1,
    fsdp: bool = False,
) -> StepMemory:
    """Predict the memory of a training step of the module that `make` builds, on a batch."""
    with (
        fake_process_group(ranks, fsdp) as mesh,
        FakeTensorMode(allow_non_fake_inputs=True),
        LiveStorages(block) as storages,
    ):
        task = make().train()
        trained = [p for p in task.parameters() if p.requires_grad]
        if mesh is not None:
            shard(task, mesh)
            trained = [p for p in task.parameters() if p.requires_grad]
        elif ranks > 1:
            # DDP allocates one tensor for all gradients at the start, and gradients are views of it
            # (`gradient_as_bucket_view`); each gradient is copied into its view when complete.
            sizes = [p.numel() for p in trained]
            buckets = torch.split(torch.empty(sum(sizes)), sizes)
            views: dict[Tensor, Tensor] = {
                p: bucket.view_as(p) for p, bucket in zip(trained, buckets, strict=True)
            }

            def keep(weight: Tensor) -> None:
                if weight.grad is not None and weight.grad is not views[weight]:
                    weight.grad = views[weight].copy_(weight.grad)

            for parameter in trained:
                parameter.register_post_accumulate_grad_hook(keep)  # type: ignore[no-untyped-call]
        steps = TrainingSteps(task, fake(batch), precision, fused)
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter)
        steps.optimizer.step()
        # Weights, gradients and optimizer states now exist, as in any step but the first.
        persistent = storages.live
        storages.peak = persistent
        stored = steps.run(lambda: storages.live - persistent)
        states = steps.optimizer.state.values()
        return StepMemory(
            parameters=size_of([*task.parameters(), *task.buffers()], block),
            optimizer=size_of((value for state in states for value in state.values()), block),
            gradients=size_of(trained, block),
            activations=stored,
            peak=storages.peak,
        )


class TrainingSteps:
    """Training steps as in `network.training.loop`; `forward` may replace the module to call."""

    def __init__(
        self,
        task: TrainingModule,
        batch: Batch,
        precision: Precision,
        fused: bool,
        forward: nn.Module | None = None,
    ) -> None:
        self.task, self.batch, self.forward = task, batch, forward or task
        self.dtype = torch.float16 if precision == "fp16" else torch.bfloat16
        self.mixed = precision != "none"
        self.optimizer = make_optimizer(task, task.loop)
        for group in self.optimizer.param_groups:
            group["fused"] = fused

    def run(self, after_forward: Callable[[], int] = lambda: 0) -> int:
        """Run one step and return the value of `after_forward`."""
        with warnings.catch_warnings():
            # PyTorch 2.13 deprecates the name of its reduce-scatter.
            warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
            # With gradient accumulation the peak is larger: gradients of an earlier batch exist
            # beside the activations.
            if self.task.loop.gradient_accumulation_steps == 1:
                self.optimizer.zero_grad()
            with torch.autocast("cpu", self.dtype, enabled=self.mixed):
                loss = self.forward(self.batch)
            stored = after_forward()
            torch.autograd.backward(loss)
        self.task.clip_gradients(self.task.gradient_norm())
        self.optimizer.step()
        return stored


def fake(batch: Batch) -> Batch:
    """Return a batch with the same shapes, without values."""
    shapes = {
        name: torch.empty(value.shape, dtype=value.dtype)
        for name, value in vars(batch).items()
        if isinstance(value, Tensor)
    }
    return dataclasses.replace(batch, **shapes)  # type: ignore[arg-type]


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count of the bytes of all live tensor storages, and its peak."""

    def __init__(self, block: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.block = block
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> LiveStorages:
        # FSDP empties and refills the storages of gathered parameters with `resize_`, but this mode
        # does not intercept `resize_`.
        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            resized = self._resize(storage, size)
            if storage._cdata in self._sizes:
                self._set(storage._cdata, size)
            return resized

        torch.UntypedStorage.resize_ = resize  # type: ignore[assignment,method-assign]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise PyTorch wraps each operation for its compiler: a tenth of the time

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # operations on its local tensors follow
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                # Counted by storage, not by tensor: views share a storage, and it lives as long as
                # any of them.
                if (key := storage._cdata) not in self._sizes:
                    weakref.finalize(storage, self._free, key)
                    self._set(key, storage.nbytes())
        return result

    def _set(self, key: int, size: int) -> None:
        size = -(-size // self.block) * self.block
        self.live += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self.live)

    def _free(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


def size_of(values: Iterable[Any], block: int) -> int:
    """Return the bytes of all tensors in `values`; of sharded tensors, the bytes on this rank."""
    sizes = [local_tensor(v).untyped_storage().nbytes() for v in values if isinstance(v, Tensor)]
    return sum(-(-size // block) * block for size in sizes)


MAX_SAMPLES = 4096  # largest batch size that is considered


class LargestBatches:
    """Largest batches: batches of any size of the samples with most ASVs, without values."""

    def __init__(self, study: Study, plan: BatchPlan) -> None:
        self.plan = plan
        # In this order the largest batch of a size has the first samples, so its dimensions are
        # prefix maxima of arrays that are computed once.
        self.rows_N = np.argsort(-study.table.richness, kind="stable")[:MAX_SAMPLES]
        self.rows_N = self.rows_N.astype(np.int64)
        self.samples = len(self.rows_N)
        self.by_matrix = study.distances is not None
        self.by_tree = study.phylogeny is not None
        _, read = draw_asvs(study, plan, self.rows_N)
        sizes_N = np.diff(read.indptr)
        self.widest_N = np.maximum.accumulate(np.maximum(sizes_N, 1))
        self.narrowest_N = np.minimum.accumulate(sizes_N)
        row_of_entry = np.repeat(np.arange(self.samples), sizes_N)
        asvs, first = np.unique(read.indices, return_index=True)
        # Ordered by the first sample that has the ASV, so that the ASVs of a batch are a prefix.
        by_row = np.argsort(row_of_entry[first], kind="stable")
        self.first_rows = row_of_entry[first][by_row]
        lengths = (study.tokens_FL[asvs[by_row]] != PAD).sum(axis=1)
        self.longest = np.maximum.accumulate(lengths)
        self.shortest = np.minimum.accumulate(lengths)

    def asvs(self, size: int) -> int:
        """Return the number of distinct ASVs of the `size` samples with most ASVs."""
        return int(np.searchsorted(self.first_rows, size))

    def batch(self, size: int, ranks: int = 1, sequences: bool = False) -> Batch:
        """Return the largest batch of `size` samples; with several ranks the first rank's shard."""
        distinct, samples = self.asvs(size), shard_sizes(size, ranks)[0]
        asvs = shard_sizes(distinct, ranks)[0]
        length = max(int(self.longest[distinct - 1]), 1)
        widest = int(self.widest_N[samples - 1])
        shape = (samples, widest)
        values: dict[str, Any] = {
            "rows_B": torch.from_numpy(self.rows_N[:samples]),
            "asvs_U": torch.empty(distinct, dtype=torch.int64),
            "tokens_UL": torch.empty(asvs, length, dtype=torch.uint8),
            "labels_UL": None,
            "shortest": int(self.shortest[distinct - 1]),
            "slots_BS": torch.empty(shape, dtype=torch.int64),
            "counts_BS": torch.empty(shape),
            "attend_BS": None,
            "distances_BB": None,
        }
        if self.plan.mask_ratio:
            values["labels_UL"] = torch.empty(asvs, length, dtype=torch.uint8)
        if self.plan.hidden_ratio:
            values["hidden_BS"] = torch.empty(shape, dtype=torch.bool)
        if self.narrowest_N[samples - 1] < widest:
            values["attend_BS"] = torch.empty(shape, dtype=torch.bool)
        if self.plan.metric == "faith_pd" and not self.by_matrix and self.by_tree:
            values["diversity_B"] = torch.empty(samples)
        elif self.plan.metric is not None and (self.by_matrix or self.by_tree):
            values["distances_BB"] = torch.empty(samples, size)
        if ranks == 1:
            return Batch(**values)
        if sequences:
            sequences_VL = torch.empty(self.asvs(samples), length, dtype=torch.uint8)
            values |= {"sequences_VL": sequences_VL, "sequence_slots_BS": values["slots_BS"]}
        return BatchShard(**values, samples=size)


@dataclass(frozen=True)
class StepSettings:
    """Settings of a step that change its memory but not the network."""

    batch_size: int
    speed: SpeedOptions
    ranks: int = 1
    fsdp: bool = False  # whether ranks shard the network (FSDP) or copy it (DDP)

    @property
    def precision(self) -> Precision:
        """Precision of the step; "auto" counts as bf16."""
        requested = self.speed.mixed_precision
        return "bf16" if requested == "auto" else requested


@dataclass(frozen=True)
class TrainingRun:
    """Training run whose memory is predicted: its network, losses and batches."""

    config: ModelConfig
    study: Study
    weights: LossWeights
    loop: LoopOptions
    batches: LargestBatches
    backends: Backends
    values: npt.NDArray[np.float64] | None = None  # label of each row; None in pretraining
    frozen: bool = False  # whether the encoder is frozen, so that every ASV is encoded once
    covariates: CovariateInputs | None = None

    def memory(self, settings: StepSettings) -> StepMemory:
        """Predict the memory of the first rank in a step on its largest batch."""
        ranks, fsdp = settings.ranks, settings.fsdp
        batch = self.batches.batch(settings.batch_size, ranks, self.values is not None)
        make = partial(self.module, settings.speed)
        memory = predict_step(make, batch, settings.precision, ranks=ranks, fsdp=fsdp)
        if not self.frozen:
            return memory
        encoding = predict_inference(self.config, self.study).peak
        return dataclasses.replace(memory, peak=max(memory.peak, encoding))

    def module(self, speed: SpeedOptions) -> TrainingModule:
        """Return the training module, with random weights."""
        network = self.config.network(self.backends, speed.gradient_checkpointing)
        vectors_FD = None
        if self.frozen:
            assert isinstance(network, Predictor)
            network.encoder.requires_grad_(False)
            width = self.config.shape.embedding_dim
            vectors_FD = torch.empty(len(self.study.tokens_FL), width)
        task = TrainingModule(
            network, self.weights, self.loop, 2, self.config.target, self.values, vectors_FD,
            standard=self.config.standard, asv_chunk=speed.chunk_size, covariates=self.covariates,
        )  # fmt: skip
        freeze_unused(task, self.config.plan, self.study)
        return task


@dataclass(frozen=True)
class InferenceMemory:
    """Memory of inference, in bytes."""

    parameters: int  # parameters and buffers of all networks
    vectors: int  # vectors of all ASVs of the table
    peak: int


def pretraining_run(options: Pretrain) -> TrainingRun:
    """Read the study of a pretraining run, to predict its memory."""
    base = read_pretrained_encoder(options)
    study, metric, plan = load_pretraining_study(options, base)
    rows = np.arange(len(study.table.sample_ids))
    shape, standard = choose_shape(base, study, options.model, plan, rows)
    config = ModelConfig("pretrain", shape, metric, plan, standard, None, {})
    weights, batches = LossWeights.of(options.task), LargestBatches(study, plan)
    return TrainingRun(config, study, weights, options.loop, batches, _backends(options))


def training_run(options: Train, labelled: LabelledStudy | None = None) -> TrainingRun:
    """Read the study and labels of a training run, to predict the memory of its first fold."""
    # `auto` is 1 fold for a transformer, as in the run, because its training takes long.
    options = dataclasses.replace(options, folds=1 if options.folds == "auto" else options.folds)
    base = read_pretrained_encoder(options)
    if labelled is None:
        metadata = read_metadata(options.target.metadata)
        options = classes_of_words(options, metadata)
        study = read_study(options, choose_length(base, options.sample))
        labelled = label_study(options, study, metadata)
    split = labelled.splits[0]
    config = configure_model(options, labelled, base, split)
    weights = LossWeights.of(options.task, options.target_penalty)
    study, batches = labelled.study, LargestBatches(labelled.study, config.plan)
    return TrainingRun(
        config, study, weights, options.loop, batches, _backends(options), labelled.values,
        options.freeze_base, config.inputs(labelled.covariates),
    )  # fmt: skip


def _backends(options: Pretrain | Train) -> Backends:
    """Return the backend `math` if it is requested; all fused kernels need the same memory."""
    math = options.device.attn_implementation == "math"
    return Backends(named("math"), named("math")) if math else AUTO


def predict_inference(
    config: ModelConfig, study: Study, batch_size: int = 0, networks: int = 1
) -> InferenceMemory:
    """Predict the memory of encoding all ASVs and, with `batch_size`, of reading the samples."""
    number, longest = study.tokens_FL.shape
    batch = None
    if batch_size:
        largest = LargestBatches(study, config.plan.for_inference)
        batch = largest.batch(min(batch_size, largest.samples))
    with FakeTensorMode(), LiveStorages(BLOCK) as storages, torch.no_grad():
        models = [config.network().eval() for _ in range(networks)]
        network = models[-1]
        vectors_FD = torch.empty(number, config.shape.embedding_dim)
        network.encoder.nucleotides(torch.empty(CHUNK, longest, dtype=torch.uint8), True)
        if batch is not None:
            profile = config.shape.profile_features
            terms_FW = torch.empty(number, PROFILE_HIDDEN) if profile else None
            apply_to_batch(network, fake(batch), vectors_FD, terms_FW)
        values = [value for model in models for value in (*model.parameters(), *model.buffers())]
        return InferenceMemory(size_of(values, BLOCK), size_of([vectors_FD], BLOCK), storages.peak)


FRAGMENTATION = 0.2
"""Memory that the allocator reserves but does not use, relative to the memory that it uses. In a
replay of its rules the ratio of reserved to used memory was 1.19, with the largest batch first."""

ASSUMED = GIB
"""Bytes of a GPU that driver, kernels and BLAS workspace are assumed to take if not measured."""

MIN_CHUNK = 64  # smallest chunk that is considered: smaller chunks take time and save little
DEVICES = (16, 24, 32, 64, 80, 128, 192)  # memory of common GPUs in GiB

NO_FACTS: Mapping[str, int] = {}

Learn = TypeVar("Learn", Pretrain, Train)


@dataclass(frozen=True)
class MemoryLimit:
    """Memory limit of a device, in bytes, of which driver and libraries take the overhead."""

    total: int
    overhead: int = ASSUMED
    description: str = "on the GPU"

    def holds(self, peak: int) -> bool:
        """Return whether a step with this predicted peak, in bytes, fits."""
        return needed(peak, self.overhead) <= self.total

    def __str__(self) -> str:
        return f"{shown_size(self.total)} {self.description}"


def needed(peak: int, overhead: int) -> int:
    """Return the memory of the device that a predicted peak needs, in bytes.

    >>> needed(10 * GIB, GIB) // GIB
    13
    """
    return round(peak * (1 + FRAGMENTATION)) + overhead


def automatic(options: Learn, read: Callable[[Learn], TrainingRun]) -> Learn:
    """Replace --batch-size auto and --asv-chunk auto by the largest that fit into memory.

    Before a run begins, so that its record, its checkpoints and a resumed run have numbers.
    """
    if "auto" not in (options.loop.batch_size, options.speed.asv_chunk):
        return options
    loop, speed = options.loop, options.speed
    groups: dict[str, Any] = {"loop": loop, "speed": speed}
    resumed = None
    if loop.batch_size == "auto":
        resumed = run_folder.resumed_checkpoint(options.run.output_dir, options.run.resume_from)
    if resumed is not None:
        stored_loop = from_plain(type(options), checkpoints.read(resumed).config.options).loop
        batch, steps = stored_loop.batch_size, stored_loop.gradient_accumulation_steps
        loop = dataclasses.replace(loop, batch_size=batch, gradient_accumulation_steps=steps)
        groups["loop"] = loop
        options = dataclasses.replace(options, **groups)
    divide = loop.batch_size == "auto"
    if not divide and speed.asv_chunk != "auto":
        return options
    ranks = read_environment(os.environ)
    limit = limit_of(options.device, ranks)
    settings = StepSettings(
        loop.batch_samples,
        # With the precision of this host, since the prediction takes `auto` for bf16.
        numbers_of_host(options).speed,
        ranks.world_size,
        options.scale.fsdp,
    )
    run = read(options)
    chosen, steps = choose(run, settings, limit, divide)
    size, chunk = chosen.batch_size, chosen.speed.chunk_size
    text = f"--batch-size {size} --asv-chunk {chunk}"
    if divide:
        text += f" --gradient-accumulation-steps {steps}"
    if ranks.is_main:
        info(f"Largest settings that fit into {limit}: {text}.")
        if divide and steps > 1 and run.config.plan.metric is not None and run.weights.unifrac:
            warn(f"The UniFrac loss compares the samples of a batch: {size} samples instead of "
                 f"{size * steps}. --gradient-checkpointing allows larger batches.")  # fmt: skip
    groups["loop"] = dataclasses.replace(loop, batch_size=size, gradient_accumulation_steps=steps)
    groups["speed"] = dataclasses.replace(speed, asv_chunk=chunk)
    return dataclasses.replace(options, **groups)


def limit_of(device: DeviceOptions, ranks: Ranks) -> MemoryLimit:
    """Return the memory limit of the device of a run: all memory of a GPU, free memory of a CPU."""
    chosen = choose_device(device)
    if is_gpu(chosen):
        # Not the free memory: other processes change it, and a run would get another batch size.
        total = torch.cuda.get_device_properties(chosen).total_memory
        return MemoryLimit(total, measured_overhead(None) or ASSUMED)
    if ranks.world_size > 1:
        raise UsageError(
            "Settings cannot be chosen for memory that several ranks share",
            f"{ranks.world_size} ranks on a CPU",
            "give numbers instead of auto; `aam memory` predicts the memory that they need",
        )
    return MemoryLimit(memory_available(), 0, "available")


def choose(
    run: TrainingRun, settings: StepSettings, limit: MemoryLimit, divide: bool
) -> tuple[StepSettings, int]:
    """Return the largest settings that fit, and the number of batches of an optimizer step."""
    # Batches of equal size, so that accumulated gradients equal the gradient of the whole batch,
    # with at least one sample for every rank.
    samples, least = settings.batch_size, settings.ranks
    sizes = [size for size in range(samples, least - 1, -1) if samples % size == 0]
    if not sizes:
        raise UsageError(
            "A batch has fewer samples than ranks",
            f"{samples} samples, {least} ranks",
            "give a larger --global-batch-size, or fewer ranks",
        )
    for size in sizes if divide else sizes[:1]:
        batch = dataclasses.replace(settings, batch_size=min(size, run.batches.samples))
        steps = max(samples // size, run.loop.gradient_accumulation_steps)
        loop = dataclasses.replace(run.loop, gradient_accumulation_steps=steps)
        chunk = largest_chunk(dataclasses.replace(run, loop=loop), batch, limit)
        if chunk is not None:
            return dataclasses.replace(with_chunk(settings, chunk), batch_size=size), steps
    raise UsageError(
        "No settings fit into memory",
        f"--batch-size {sizes[-1] if divide else samples}, {limit}",
        "give --gradient-checkpointing, --asv-chunk auto or a smaller --embedding-dim",
    )


def largest_chunk(run: TrainingRun, settings: StepSettings, limit: MemoryLimit) -> int | None:
    """Return the largest --asv-chunk that fits: 0 (all) or a power of two; None if none fits."""

    def fits(chunk: int) -> bool:
        return limit.holds(run.memory(with_chunk(settings, chunk)).peak)

    chosen = settings.speed.asv_chunk
    if chosen != "auto":
        return chosen if fits(chosen) else None
    if fits(0):
        return 0
    if run.frozen:
        return None
    asvs = run.batches.asvs(settings.batch_size)
    # Bisection of powers of two, since each trial predicts a complete step.
    return largest([2**k for k in range(MIN_CHUNK.bit_length() - 1, (asvs - 1).bit_length())], fits)


def with_chunk(settings: StepSettings, chunk: int | Literal["auto"]) -> StepSettings:
    """Return settings with another --asv-chunk."""
    return dataclasses.replace(settings, speed=dataclasses.replace(settings.speed, asv_chunk=chunk))


def largest(candidates: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Return the largest of ascending numbers that fits, by bisection.

    >>> largest(range(1, 100), lambda n: n <= 37)
    37
    """
    if not candidates or fits(candidates[-1]):
        return candidates[-1] if candidates else None
    end = len(candidates) - 1
    fitting = bisect_left(candidates, True, hi=end, key=lambda number: not fits(number))
    return candidates[fitting - 1] if fitting else None


def show_training(run: TrainingRun, options: Pretrain | Train, gpu: Memory) -> None:
    """Print the memory of a training step, the GPUs that fit, and the largest settings for one."""
    settings = StepSettings(
        min(options.loop.batch_samples, run.batches.samples),
        options.speed,
        max(1, options.scale.processes),
        options.scale.fsdp,
    )
    # Measured before the prediction, so that the process has the same memory as in training.
    host = getrusage(RUSAGE_SELF).ru_maxrss * 1024
    memory, size = run.memory(settings), settings.batch_size
    facts = {"host": host, "batch_size": size}
    title = "memory of a step" + (" on each GPU" if settings.ranks > 1 else "")
    overhead = show_step(memory, f"A batch of {size} samples", gpu, title, facts)
    if gpu.json:
        return
    console, study, phylogeny = Console(highlight=False), options.input, options.phylogeny
    # The page cache holds the input files, and all files of a store of `aam prepare`.
    paths = (study.table, study.sequences, phylogeny.tree, phylogeny.unifrac_matrix)
    cache = sum(
        file.stat().st_size
        for path in paths if path is not None
        for file in (path, *path.rglob("*")) if file.is_file()
    )  # fmt: skip
    console.print(
        "An APU (MI300A), whose GPU shares the memory of the host, needs "
        f"{shown_size(needed(memory.peak, overhead) + host + cache)}, with {shown_size(host)} of "
        f"the process and {shown_size(cache)} of page cache."
    )
    if gpu.device_memory is None:
        return
    limit, gib = MemoryLimit(round(gpu.device_memory * GIB), overhead), f"{gpu.device_memory:g} GiB"

    def holds(size: int) -> bool:
        return limit.holds(run.memory(dataclasses.replace(settings, batch_size=size)).peak)

    text = f"No --batch-size fits on {gib}: try --gradient-checkpointing or --asv-chunk."
    if most := largest(range(settings.ranks, run.batches.samples + 1), holds):
        text = f"Largest --batch-size on {gib}: {most} of {run.batches.samples}."
    console.print(text)
    if run.frozen:
        return
    chunk = largest_chunk(run, with_chunk(settings, "auto"), limit)
    if chunk is None:
        text = f"No --asv-chunk makes a batch of {size} fit on {gib}."
    elif chunk:
        text = f"Largest --asv-chunk on {gib} (a power of two): {chunk}."
    else:
        asvs = run.batches.asvs(size)
        text = f"All {asvs} ASVs of a batch fit at once on {gib}: no --asv-chunk is needed."
    console.print(text)


def show_step(
    memory: StepMemory | InferenceMemory,
    subject: str,
    gpu: Memory,
    title: str = "memory",
    facts: Mapping[str, int] = NO_FACTS,
) -> int:
    """Print the memory, and the GPUs that fit; return the memory of a GPU besides tensors."""
    measured, console = measured_overhead(gpu.check_report), Console(highlight=False)
    overhead, origin = (ASSUMED, "assumed") if measured is None else (measured, "measured")
    total = needed(memory.peak, overhead)
    if gpu.json:
        print(json.dumps(vars(memory) | {"overhead": overhead, "needed": total} | dict(facts)))
        return overhead
    table = Table(title, "", box=None, pad_edge=False)
    rows = vars(memory) | {
        f"fragmentation, {FRAGMENTATION:.0%}": round(memory.peak * FRAGMENTATION),
        f"driver and libraries, {origin}": overhead,
        "memory of the GPU": total,
    }
    for name, value in rows.items():
        table.add_row(name, shown_size(value))
    console.print(table)
    fitting = [f"{gib}" for gib in DEVICES if total <= gib * GIB]
    gpus = f"GPUs of {', '.join(fitting)}" if fitting else f"no GPU of up to {DEVICES[-1]}"
    console.print(f"{subject} fits on {gpus} GiB.")
    return overhead


def run_memory(options: Memory, measured: Pretrain | Train | Predict | Embed) -> None:
    """Run `aam memory`: print the memory for the samples with most ASVs, and the GPUs that fit."""
    if isinstance(measured, Pretrain):
        show_training(pretraining_run(measured), measured, options)
        return
    if isinstance(measured, Train):
        show_training(training_run(measured), measured, options)
        return
    # Inference encodes all ASVs, then reads the samples with most ASVs.
    if options.device_memory is not None:
        raise UsageError(
            "--device-memory finds the settings of a training",
            f"--device-memory {options.device_memory:g}",
            "omit it: the GPUs on which the batch fits are printed",
        )
    configs = [network.config for network in read_networks(measured.model)]
    study = load_study(measured.input, max_bp=configs[0].shape.max_bp)
    memory = predict_inference(configs[0], study, measured.batch_size, len(configs))
    show_step(memory, f"--batch-size {measured.batch_size}", options)
