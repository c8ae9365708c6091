"""Training pipeline: the steps that `aam pretrain` and `aam train` share."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from aam.contract.errors import UsageError
from aam.contract.options.commands import Pretrain, Train
from aam.contract.options.groups import DeviceOptions, ModelOptions, ScaleOptions
from aam.data.splits import Split
from aam.data.study import Study
from aam.distributed.environment import read_environment
from aam.memory import memory_available, shown_size
from aam.model.network import Encoder, Predictor
from aam.model.shape import least_weights
from aam.numerics.device import choose_device, is_gpu
from aam.training import checkpoints, fit
from aam.training.data_loader import FixedBatches, TrainingBatches
from aam.training.inference import apply_network
from aam.training.lightning_module import TrainingModule
from aam.training.model_config import ModelConfig
from aam.training.output_tables import write_embeddings
from aam.training.run_folder import RunRecord
from aam.training.runtime import Runtime
from aam.training.sample_selection import reading_plan

_FP32 = 4
"""Bytes of a number."""


def check_network_size(model: ModelOptions, device: DeviceOptions, scale: ScaleOptions) -> None:
    """Refuse a network that cannot be built, before anything is read or allocated.

    Raises:
        UsageError: the heads do not divide the width, or the weights, their gradients and the two
            moments of Adam exceed the memory of the device.
    """
    if model.embedding_dim % model.attention_heads:
        raise UsageError(
            "The heads do not divide the width",
            f"--embedding-dim {model.embedding_dim} --attention-heads {model.attention_heads}",
            "choose a width that is a multiple of the heads",
        )
    chosen = choose_device(device)
    if is_gpu(chosen):
        memory, where = torch.cuda.get_device_properties(chosen).total_memory, "of the GPU"
    else:
        memory, where = memory_available(), "available"
    weights = least_weights(model.embedding_dim, model.attention_layers)
    needed = 4 * _FP32 * weights // (read_environment(os.environ).world_size if scale.fsdp else 1)
    if needed > memory:
        raise UsageError(
            "The network does not fit into memory",
            f"--embedding-dim {model.embedding_dim} --attention-layers {model.attention_layers}: "
            f"{weights:,} weights, which need {shown_size(needed)} with gradients and optimiser; "
            f"{shown_size(memory)} {where}",
            "choose a smaller width or fewer layers",
        )


def fit_split(
    options: Pretrain | Train,
    config: ModelConfig,
    task: TrainingModule,
    study: Study,
    split: Split,
    folder: Path,
    record: RunRecord,
    runtime: Runtime,
    best_metric: str = "val_loss",
    fold: int = 1,
    folds: int = 1,
) -> fit.FitResult:
    """Train a module on the training samples of a split, with its validation samples."""
    loop, plan = options.loop, config.plan
    fresh_reads = options.sample.rarefy_each_epoch
    training = TrainingBatches(
        study, plan, split.train, loop.batch_size, fresh_reads, loop.even_batches
    )
    validation = (
        FixedBatches(study, plan, split.validation, loop.batch_size)
        if len(split.validation)
        else None
    )
    settings = fit.FitConfig(
        config,
        loop,
        options.speed,
        options.run,
        folder,
        runtime,
        options.scale,
        best_metric,
        record.note,
        fold,
        folds,
    )
    return fit.run(settings, task, training, validation)


def load_trained(
    config: ModelConfig, result: fit.FitResult, runtime: Runtime
) -> Encoder | Predictor:
    """Build the network of a fit with the weights of its chosen checkpoint."""
    network = config.network(runtime.backends)
    _, content = checkpoints.read(result.checkpoint)
    checkpoints.load_weights(network, content)
    return network


def write_study_embeddings(
    folder: Path,
    config: ModelConfig,
    network: Encoder | Predictor,
    study: Study,
    batch_size: int,
    device: torch.device,
    asv_vectors_FD: Tensor,
) -> None:
    """Write embeddings.tsv of every sample of the study, from the vectors of its ASVs."""
    encoder = network if isinstance(network, Encoder) else network.encoder
    rows = np.arange(len(study.table.sample_ids))
    plan = reading_plan(config.plan)
    output = apply_network(encoder, study, plan, rows, batch_size, device, asv_vectors_FD)
    write_embeddings(folder / "embeddings.tsv", study.table.sample_ids, output.embeddings_ND)
