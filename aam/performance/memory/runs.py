"""Memory of a run of `aam pretrain`, `aam train` or `aam predict`, from options and study."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.commands.train import Train
from aam.contract.options.device import SpeedOptions
from aam.contract.options.training import LoopOptions
from aam.data.batches import Batch, BatchPlan, BatchShard, draw_asvs, reading_plan
from aam.data.sequences import PAD
from aam.data.study import Study
from aam.distributed.environment import shard_sizes
from aam.inference.outputs import CHUNK, apply_to_batch
from aam.inference.stored_networks import ModelConfig
from aam.model.attention import AUTO, Backends, named
from aam.model.covariates import CovariateInputs
from aam.model.network import PROFILE_HIDDEN, Predictor
from aam.numerics.device import Precision
from aam.performance.memory.step import (
    BLOCK,
    ONE_RANK,
    LiveStorages,
    Parallel,
    StepMemory,
    fake,
    predict_step,
    size_of,
    training_workload,
)
from aam.training.fit import freeze_unused
from aam.training.labelled_study import LabelledStudy, load_labelled_study, transformer_folds
from aam.training.module import LossWeights, TrainingModule
from aam.training.pretrain import load_pretraining_study
from aam.training.pretrained import (
    PretrainedEncoder,
    choose_length,
    choose_shape,
    read_pretrained_encoder,
)
from aam.training.runtime import check_heads
from aam.training.train import configure_model, fit_target

MAX_SAMPLES = 4096
"""Largest batch size that is considered."""


class LargestBatches:
    """Batches of the samples with most ASVs of a study, of any size, with shapes and no values.

    The reads of the samples are drawn once. Shape suffixes: see `aam.data.batches`; N samples.

    Attributes:
        samples: largest batch size.
    """

    def __init__(self, study: Study, plan: BatchPlan) -> None:
        self.plan = plan
        # In this order the largest batch of any size is the first samples, so that its sizes are
        # prefix maxima of arrays that are computed once.
        self.rows_N = np.argsort(-study.table.richness, kind="stable")[:MAX_SAMPLES]
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
        """Return the batch of `size` samples, or the shard of the first of several ranks."""
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


@dataclass(frozen=True)
class StepSettings:
    """Settings that change the memory of a step and not the network."""

    batch_size: int
    speed: SpeedOptions
    parallel: Parallel = ONE_RANK

    @property
    def precision(self) -> Precision:
        """Precision of the step; "auto" is bf16."""
        requested = self.speed.mixed_precision
        return "bf16" if requested == "auto" else requested


@dataclass(frozen=True)
class TrainingRun:
    """The network, losses and batches of a training run.

    Attributes:
        config: configuration of the model.
        study: study of the run.
        weights: weights of the loss terms.
        loop: options of the training loop.
        batches: largest batches of the study.
        backends: attention backends, whose activations are counted.
        values: the target of each row of the study; None in pretraining.
        frozen: whether the encoder is frozen, and every ASV of the study is encoded once.
        covariates: covariates of every sample of the study; None: the network reads none.
    """

    config: ModelConfig
    study: Study
    weights: LossWeights
    loop: LoopOptions
    batches: LargestBatches
    backends: Backends = AUTO
    values: npt.NDArray[np.float64] | None = None
    frozen: bool = False
    covariates: CovariateInputs | None = None

    def memory(self, settings: StepSettings) -> StepMemory:
        """Return the memory of the first rank in a step on its largest batch.

        A frozen encoder reads all ASVs before the first step; the peak is that of both.
        """
        sequences, parallel = self.values is not None, settings.parallel
        batch = self.batches.batch(settings.batch_size, parallel.ranks, sequences)
        memory = predict_step(
            lambda: training_workload(self.module(settings.speed), fake(batch)),
            settings.precision,
            parallel=parallel,
        )
        if not self.frozen:
            return memory
        first = predict_inference(self.config, self.study).peak
        return dataclasses.replace(memory, peak=max(memory.peak, first))

    def module(self, speed: SpeedOptions) -> TrainingModule:
        """Return the module that is trained, its weights not those of a pretrained encoder."""
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
    """Bytes of inference.

    Attributes:
        parameters: bytes of the parameters and buffers of all networks.
        vectors: bytes of the vectors of all ASVs of the table.
        peak: largest number of bytes at any time.
    """

    parameters: int
    vectors: int
    peak: int


def _read_encoder(options: Pretrain | Train) -> PretrainedEncoder | None:
    """Read the pretrained encoder; without one the sizes of the options are checked."""
    base = read_pretrained_encoder(options.pretrained_encoder)
    if base is None:
        check_heads(options.model)
    return base


def pretraining_run(options: Pretrain) -> TrainingRun:
    """Read the study of a pretraining run.

    Raises:
        AamError: see the readers.
        UsageError: the heads do not divide the width.
    """
    base = _read_encoder(options)
    study, metric, plan = load_pretraining_study(options, base)
    rows = np.arange(len(study.table.sample_ids))
    shape, standard = choose_shape(base, study, options.model, plan, rows)
    config = ModelConfig("pretrain", shape, metric, plan, standard, None, {})
    weights, batches = LossWeights.of(options.task), LargestBatches(study, plan)
    return TrainingRun(config, study, weights, options.loop, batches, _backends(options))


def training_run(options: Train, labelled: LabelledStudy | None = None) -> TrainingRun:
    """Read the study and the labels of a training run; of several folds, the first is taken.

    Args:
        options: options of the run.
        labelled: the study, if it is read already.

    Raises:
        AamError: see the readers.
        UsageError: the heads do not divide the width.
    """
    options = dataclasses.replace(options, folds=transformer_folds(options))
    base = _read_encoder(options)
    if labelled is None:
        length = choose_length(base, options.sample)
        labelled = load_labelled_study(options, length, options.split)
    split = labelled.splits[0]
    target = fit_target(options, labelled, split)
    config = configure_model(options, labelled, base, split, target)
    weights = LossWeights.of(options.task, options.target_penalty)
    study, batches = labelled.study, LargestBatches(labelled.study, config.plan)
    return TrainingRun(
        config, study, weights, options.loop, batches, _backends(options), labelled.values,
        options.freeze_base, config.inputs(labelled.covariates),
    )  # fmt: skip


def _backends(options: Pretrain | Train) -> Backends:
    """Return `math` where the options name it; fused kernels need the same memory as each other."""
    math = options.device.attn_implementation == "math"
    return Backends(named("math"), named("math")) if math else AUTO


def predict_inference(
    config: ModelConfig, study: Study, batch_size: int = 0, networks: int = 1, block: int = BLOCK
) -> InferenceMemory:
    """Return the memory of encoding all ASVs of a study, and of reading its samples in batches.

    Args:
        config: configuration of the model.
        study: study whose samples are read.
        batch_size: samples at a time; 0: the ASVs are encoded alone.
        networks: number of networks, such as those of the folds, which are used in turn.
        block: bytes to which the allocator rounds up.
    """
    number, longest = study.tokens_FL.shape
    batch = None
    if batch_size:
        largest = LargestBatches(study, reading_plan(config.plan))
        batch = largest.batch(min(batch_size, largest.samples))
    with FakeTensorMode(), LiveStorages(block) as storages, torch.no_grad():
        models = [config.network().eval() for _ in range(networks)]
        network = models[-1]
        vectors_FD = torch.empty(number, config.shape.embedding_dim)
        network.encoder.nucleotides(torch.empty(CHUNK, longest, dtype=torch.uint8), True)
        if batch is not None:
            profile = config.shape.profile_features
            terms_FW = torch.empty(number, PROFILE_HIDDEN) if profile else None
            apply_to_batch(network, fake(batch), vectors_FD, terms_FW)
        values = [value for model in models for value in (*model.parameters(), *model.buffers())]
        return InferenceMemory(size_of(values, block), size_of([vectors_FD], block), storages.peak)
