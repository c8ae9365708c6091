"""A whole pretraining run, from files to a run folder."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from aam.console import say
from aam.contract.errors import UsageError
from aam.contract.options import to_plain
from aam.contract.options.commands import Pretrain
from aam.contract.options.groups import DeviceOptions, Metric, ModelOptions, ScaleOptions
from aam.contract.precision import choose_precision
from aam.data.batches import BatchPlan
from aam.data.labels import split_samples
from aam.data.metadata import read_metadata
from aam.data.splits import Split, write_splits
from aam.data.store.files import is_store
from aam.data.study import Study, has_phylogeny, load_study
from aam.distributed import state_dict
from aam.distributed.communicator import Communicator, identity
from aam.distributed.environment import read_environment
from aam.distributed.process_group import process_group
from aam.memory import memory_available, shown_size
from aam.model.attention import Backends
from aam.model.network import Encoder, Predictor
from aam.model.shape import least_weights
from aam.numerics.backend_selection import GUARD, Guard
from aam.numerics.device import arch_of, choose_device
from aam.training import checkpoints, fit, run_folder
from aam.training.data_loader import FixedBatches, TrainingBatches
from aam.training.inference import apply_network, encode_asvs
from aam.training.lightning_module import LossWeights, TrainingModule
from aam.training.model_config import ModelConfig
from aam.training.output_tables import write_embeddings
from aam.training.pretrained import (
    PretrainedEncoder,
    choose_length,
    choose_metric,
    choose_shape,
    read_pretrained_encoder,
)
from aam.training.runtime import choose_attention
from aam.training.sample_selection import batch_plan, choose_depth, deep_enough, reading_plan

_FP32 = 4
"""Bytes of a number."""


def pretrain(options: Pretrain, guard: Guard = GUARD) -> None:
    """Learn an encoder and write its run folder.

    `guard` holds the attention backends that may compute.

    Raises:
        AamError: see the readers; UsageError without a tree or matrix and with a UniFrac loss.
    """
    check_phylogeny(options)
    if options.pretrained_encoder is None:
        check_shape(options.model, options.device, options.scale)
    with process_group(options.scale, options.device, options.loop.batch_size) as communicator:
        _pretrain(options, guard, communicator)


def _pretrain(options: Pretrain, guard: Guard, communicator: Communicator) -> None:
    """Do what `pretrain` says, as one of several processes."""
    communicator.require_equal_options(options)
    device = choose_device(options.device)
    precision = choose_precision(options.speed.mixed_precision, arch_of(device))
    prepared = run_folder.prepare("pretrain", options, communicator.ranks)
    base = read_pretrained_encoder(options.pretrained_encoder)
    study = load_study(options.input, options.phylogeny, choose_length(base, options.sample))
    depth = choose_depth(study, options.sample)
    study = study.take_samples(deep_enough(study, depth))
    metric = choose_metric(base, options.phylogeny.unifrac_metric)
    alpha = options.phylogeny.unifrac_alpha
    plan = batch_plan(depth, options.sample, options.loop, options.task, study, metric, alpha)
    metadata = None if options.metadata is None else read_metadata(options.metadata)
    decided = options.split
    if prepared.splits is not None:
        decided = dataclasses.replace(decided, splits=prepared.splits)
    (split, *_), labels = split_samples(
        decided, 1, options.loop.seed, study.table.sample_ids, metadata
    )
    fit.check_split(split, options.loop)
    recompute = options.speed.gradient_checkpointing
    sizes = base.config.shape if base else options.model
    chosen = choose_attention(options.device, device, sizes, guard, precision, recompute)
    with run_folder.begin(prepared, communicator.ranks, attention=chosen.record) as record:
        if communicator.ranks.is_main:
            write_splits(prepared.folder / "splits.tsv", study.table.sample_ids, [split], labels)
        _learn(options, study, split, plan, metric, base, record, chosen.backends, communicator)


def _learn(
    options: Pretrain,
    study: Study,
    split: Split,
    plan: BatchPlan,
    metric: Metric,
    base: PretrainedEncoder | None,
    record: run_folder.RunRecord,
    backends: Backends,
    communicator: Communicator,
) -> None:
    """Train the encoder, and apply it to the study."""
    folder, device = options.run.output_dir, choose_device(options.device)
    torch.manual_seed(options.loop.seed)
    shape, standard = choose_shape(base, study, options.model, plan, split.train)
    config = ModelConfig("pretrain", shape, metric, plan, standard, None, to_plain(options))
    network = config.network(backends, options.speed.gradient_checkpointing)
    assert isinstance(network, Encoder)
    if base is not None:
        state_dict.load_model(network, base.weights)
    communicator.require_equal_data(
        study=identity(study), split=split, plan=plan, weights=network.state_dict()
    )
    steps = fit.optimizer_steps(len(split.train), options.loop)
    task = TrainingModule(
        network, LossWeights.of(options.task), options.loop, steps, standard=standard
    )
    batch_size = options.loop.batch_size
    outcome = fit.run(
        fit.FitConfig(
            config,
            options.loop,
            options.speed,
            options.device,
            options.run,
            folder,
            note=record.note,
            scale=options.scale,
            communicator=communicator,
        ),
        task,
        TrainingBatches(
            study,
            plan,
            split.train,
            batch_size,
            options.sample.rarefy_each_epoch,
            options.loop.even_batches,
        ),
        FixedBatches(study, plan, split.validation, batch_size) if len(split.validation) else None,
    )
    if not communicator.ranks.is_main:
        return
    network = config.network(backends)
    assert isinstance(network, Encoder)
    _, content = checkpoints.read(outcome.checkpoint)
    checkpoints.load_weights(network, content)
    asv_vectors_FD = encode_asvs(network, study, device)
    write_all_embeddings(folder, config, network, study, batch_size, device, asv_vectors_FD)
    record.finish(
        samples={"training": len(split.train), "validation": len(split.validation)},
        asvs=len(study.table.feature_ids),
        rarefy_depth=plan.rarefy_depth,
        parameters=sum(p.numel() for p in network.parameters()),
        epochs=outcome.epochs,
        steps=outcome.steps,
        best=outcome.best,
    )
    say(f"Encoder: {outcome.checkpoint}")


def check_phylogeny(options: Pretrain) -> None:
    """Refuse to pretrain on nothing."""
    if options.task.penalty and not has_phylogeny(options.input, options.phylogeny):
        made = " and the store has no tree" if is_store(options.input.table) else ""
        raise UsageError(
            "UniFrac needs a phylogeny",
            f"neither --tree nor --unifrac-matrix was given{made}",
            "give one, or --penalty 0 to learn from nucleotides alone",
        )
    if not (options.task.penalty or options.task.nuc_penalty):
        raise UsageError("Nothing to learn", "--penalty 0 --nuc-penalty 0", "raise one of them")


def check_shape(model: ModelOptions, device: DeviceOptions, scale: ScaleOptions) -> None:
    """Refuse a network that cannot be built: before anything is read or allocated.

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
    place = choose_device(device)
    if place.type == "cuda":
        memory, where = torch.cuda.get_device_properties(place).total_memory, "of the GPU"
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


def write_all_embeddings(
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
    plain = reading_plan(config.plan)
    found = apply_network(encoder, study, plain, rows, batch_size, device, asv_vectors_FD)
    write_embeddings(folder / "embeddings.tsv", study.table.sample_ids, found.embeddings_ND)
