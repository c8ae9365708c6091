"""Configuration of a run of the network, fixed before its first step.

The runtime: device, precision, attention backends, workers and ranks. The network: sizes, batch
plan and target, fitted to the training samples of a split.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from aam.console import info, warn
from aam.contract.errors import UsageError
from aam.contract.options import to_plain
from aam.contract.options.commands.train import Pretrain, Train
from aam.contract.options.groups import (
    MaskOptions,
    Metric,
    ModelOptions,
    PhylogenyOptions,
    SampleOptions,
)
from aam.contract.version import __version__
from aam.data.covariates import CovariateEncoder
from aam.data.study import Study, load_study
from aam.data.targets import OutputRange
from aam.environment import read_environment
from aam.evaluation.splits import Split
from aam.memory import memory_available, shown_size
from aam.network.batches import BatchPlan
from aam.network.distributed.collectives import SINGLE_PROCESS, Communicator
from aam.network.inference.stored_networks import (
    DiversityScale,
    ModelConfig,
    StoredNetwork,
    Target,
    read_networks,
)
from aam.network.model.attention import AUTO, Backends
from aam.network.model.shape import CovariateShape, NetworkShape
from aam.network.numerics.backends import BackendPolicy
from aam.network.numerics.device import (
    Precision,
    arch_of,
    choose_device,
    choose_precision,
    hardware_name,
    is_gpu,
)
from aam.network.unifrac import faith_pd
from aam.pipeline.labelled_study import LabelledStudy, choose_depth, deep_enough
from aam.pipeline.stop_requests import StopRequests
from aam.run_record import input_file

Learn = TypeVar("Learn", Pretrain, Train)

_SEPARATOR = "; "  # separator in the value of --tuned-for

_TRAINING_BYTES = 4 * 4
"""Bytes of a weight in training: the weight, its gradient and two moments of Adam in fp32."""


@dataclass(frozen=True)
class Runtime:
    """Runtime of a run: device, precision, attention backends, workers and ranks."""

    device: torch.device
    precision: Precision = "none"  # precision of training; inference uses fp32
    backends: Backends = AUTO
    # entry of the run record about the attention backends
    attention: dict[str, Any] = field(default_factory=dict)
    workers: int = 0  # number of data-loading processes of this rank; 0: no separate process
    communicator: Communicator = SINGLE_PROCESS
    stop: StopRequests = field(default_factory=StopRequests)

    @classmethod
    def choose(
        cls,
        options: Learn,
        sizes: NetworkShape | ModelOptions,
        policy: BackendPolicy | None,
        communicator: Communicator,
    ) -> Runtime:
        """Choose the runtime for options without `auto`; attention is measured with these sizes."""
        device, precision = choose_device(options.device), options.speed.mixed_precision
        assert precision != "auto"
        backends, record = (policy or BackendPolicy()).choose_attention(
            options.device, device, sizes, precision, options.speed.recomputes
        )
        workers = int(options.device.num_workers)
        return cls(device, precision, backends, record, workers, communicator)


def check_resources(options: Learn) -> Learn:
    """Replace `auto` for this host; refuse options tuned elsewhere, and too large a network."""
    options = numbers_of_host(options)
    device, model = choose_device(options.device), options.model
    if (stated := options.speed.tuned_for) is not None:
        current = tuned_for(options.input.table, torch.__version__, hardware_name(device))
        tuned = stated.split(_SEPARATOR)
        if differing := [fact for fact in current.split(_SEPARATOR) if fact not in tuned]:
            raise UsageError(
                "The settings of `aam tune` are for another study, device or version",
                f"they are for {stated}; this run has {', '.join(differing)}",
                "run `aam tune` again, or remove `tuned_for` from the file to use them anyway",
            )
    # The sizes of a pretrained encoder do not follow from the options.
    if options.pretrained_encoder is not None:
        return options
    if is_gpu(device):
        memory, kind = torch.cuda.get_device_properties(device).total_memory, "on the GPU"
    else:
        memory, kind = memory_available(), "available"
    # Only the transformer layers, without activations: only what cannot be built is refused.
    weights = least_weights(model.embedding_dim, model.attention_layers)
    # With DDP each rank holds the whole state; FSDP divides weights, gradients and moments.
    shards = read_environment(os.environ).world_size if options.scale.fsdp else 1
    needed = _TRAINING_BYTES * weights // shards
    if needed > memory:
        raise UsageError(
            "The network does not fit into memory",
            f"--embedding-dim {model.embedding_dim} --attention-layers {model.attention_layers}: "
            f"{weights:,} weights need {shown_size(needed)} with gradients and optimizer; "
            f"{shown_size(memory)} {kind}",
            "choose a smaller width or fewer layers",
        )
    return options


def least_weights(embedding_dim: int, attention_layers: int) -> int:
    """Return the number of weights in the transformer layers of both encoders, a lower bound.

    A layer of width D has 3 D^2 weights for queries, keys and values, D^2 for the output of the
    attention, 8 D^2 for the feed-forward network, and 13 D for biases and norms.

    >>> least_weights(embedding_dim=128, attention_layers=4)
    1586176
    """
    return 2 * attention_layers * embedding_dim * (12 * embedding_dim + 13)


def numbers_of_host(options: Learn) -> Learn:
    """Replace `auto` in the options by the numbers of this host, for the run record too."""
    device, speed = choose_device(options.device), options.speed
    gpu, host = is_gpu(device), options.device
    if host.num_workers == "auto":
        # On a CPU the network itself uses all cores; a GPU needs processes that prepare batches.
        workers = min(4, len(os.sched_getaffinity(0))) if gpu else 0
        host = dataclasses.replace(host, num_workers=workers)
    if host.cpu_threads == "auto":
        host = dataclasses.replace(host, cpu_threads=torch.get_num_threads())
    precision = choose_precision(speed.mixed_precision, arch_of(device))
    groups: dict[str, Any] = {
        "device": dataclasses.replace(host, device="cuda" if gpu else "cpu"),
        "speed": dataclasses.replace(speed, mixed_precision=precision),
    }
    return dataclasses.replace(options, **groups)


def tuned_for(table: Path, torch_version: str, hardware: str) -> str:
    """Return the value of --tuned-for: versions, hardware and table of a run of `aam tune`."""
    facts = [f"aam {__version__}", f"PyTorch {torch_version}", hardware]
    if file := input_file(table):  # a missing table is reported when it is read
        facts.append(f"table {file['sha256'][:12]}")
    return _SEPARATOR.join(facts)


HIDDEN_RATIO = 0.15  # fraction of the abundances that --count-penalty hides

_FAITH_SAMPLES = 256
"""Samples whose Faith PD is computed together: their tree branches are dense in memory."""


def load_pretraining_study(
    options: Pretrain, base: StoredNetwork | None
) -> tuple[Study, Metric, BatchPlan]:
    """Read the study of a pretraining without shallow samples; return its metric and batch plan."""
    length = choose_length(base, options.sample)
    study = load_study(options.input, options.phylogeny, length).sorted_by_id()
    depth = choose_depth(study, options.sample.rarefy_depth)
    study = study.take_samples(deep_enough(study, depth))
    metric = choose_metric(base, options.phylogeny)
    return study, metric, batch_plan(options, options.task, study, depth, metric)


def batch_plan(
    options: Pretrain | Train, task: MaskOptions, study: Study, depth: int, metric: Metric
) -> BatchPlan:
    """Build the batch plan of a run; data of loss terms with weight 0 in `task` is omitted."""
    related = study.phylogeny is not None or study.distances is not None
    return BatchPlan(
        seed=options.loop.seed,
        rarefy_depth=depth,
        token_limit=options.sample.token_limit,
        mask_ratio=task.nuc_mask_ratio if task.nuc_penalty else 0.0,
        metric=metric if related and task.penalty else None,
        alpha=options.phylogeny.unifrac_alpha,
        hidden_ratio=HIDDEN_RATIO if task.count_penalty else 0.0,
    )


def diversity_scale(study: Study, plan: BatchPlan, rows: npt.NDArray[np.int64]) -> DiversityScale:
    """Return the scale of Faith PD in the training samples; the default for other metrics."""
    if plan.metric != "faith_pd" or study.phylogeny is None:
        return DiversityScale()
    chunks = (rows[start : start + _FAITH_SAMPLES] for start in range(0, len(rows), _FAITH_SAMPLES))
    diversities = [faith_pd(study.table.counts[chunk], study.phylogeny) for chunk in chunks]
    values = torch.from_numpy(np.concatenate(diversities))
    return DiversityScale(float(values.mean()), float(values.std()) or 1.0)


def read_pretrained_encoder(options: Pretrain | Train) -> StoredNetwork | None:
    """Read the encoder of a model (of its first fold); None for a network of these options.

    Refuse a number of attention heads that does not divide the width of a new network.
    """
    path, model = options.pretrained_encoder, options.model
    if path is None:
        if model.embedding_dim % model.attention_heads:
            raise UsageError(
                "The heads do not divide the width",
                f"--embedding-dim {model.embedding_dim} --attention-heads {model.attention_heads}",
                "choose a width that is a multiple of the heads",
            )
        return None
    stored = read_networks(path)[0]
    shape = stored.config.shape
    info(
        f"Pretrained encoder: width {shape.embedding_dim}, {shape.attention_layers} layers, patch "
        f"{shape.nucleotide_patch}, from '{path}'."
    )
    return stored


def choose_length(base: StoredNetwork | None, options: SampleOptions) -> int | None:
    """Return the length to which sequences are cut; None for the longest sequence of the table."""
    if base is not None:
        return base.config.shape.max_bp
    return None if options.max_bp == "auto" else options.max_bp


def choose_metric(base: StoredNetwork | None, options: PhylogenyOptions) -> Metric:
    """Return the phylogenetic metric of a run; a pretrained encoder keeps its own metric."""
    requested = options.unifrac_metric
    metric: Metric = "unweighted" if requested == "unifrac" else requested  # an alias
    if base is not None and base.config.metric != metric:
        warn(f"The pretrained encoder keeps its UniFrac metric: {base.config.metric}.")
        return base.config.metric
    return metric


def choose_shape(
    base: StoredNetwork | None,
    study: Study,
    model: ModelOptions,
    plan: BatchPlan,
    rows: npt.NDArray[np.int64],
) -> tuple[NetworkShape, DiversityScale]:
    """Return the sizes of the encoder and the scale of Faith PD; a pretrained encoder has both."""
    if base is None:
        sizes = {
            name: getattr(model, name)
            for name in ("embedding_dim", "attention_heads", "attention_layers", "nucleotide_patch")
        }
        length, counts = study.tokens_FL.shape[1], plan.hidden_ratio > 0
        shape = NetworkShape(length, **sizes, dropout=model.dropout, predicts_counts=counts)
        return shape, diversity_scale(study, plan, rows)
    if plan.hidden_ratio and not base.config.shape.predicts_counts:
        raise UsageError(
            "The pretrained encoder cannot predict abundances",
            "it was pretrained without --count-penalty",
            "omit --count-penalty, or pretrain with it",
        )
    # Without the target heads of the pretrained model; `configure_model` adds new heads.
    shape = dataclasses.replace(
        base.config.shape,
        dropout=model.dropout,
        outputs=0,
        profile_features=0,
        profile_dropout=NetworkShape.profile_dropout,
        covariates=None,
    )
    return shape, base.config.standard


def fit_target(options: Train, labelled: LabelledStudy, split: Split) -> Target:
    """Build the target, with class weights or a transform fitted to the training samples."""
    weights, transform = labelled.fit_labels(split, options.target_transform, options.class_weights)
    column = labelled.column
    if labelled.classes:
        return Target(column, labelled.classes, weights)
    return Target(
        column,
        transform=transform,
        loss_type=options.loss_type,
        quantiles=tuple(sorted(options.quantiles)) if options.loss_type == "quantile" else (),
        over_penalty=options.over_penalty,
        under_penalty=options.under_penalty,
        range=OutputRange.of(labelled.levels, options.output_min, options.output_max),
        levels=labelled.levels,
    )


def configure_model(
    options: Train,
    labelled: LabelledStudy,
    base: StoredNetwork | None,
    split: Split,
) -> ModelConfig:
    """Return the configuration of the network of one split, fitted to its training samples."""
    target = fit_target(options, labelled, split)
    metric = choose_metric(base, options.phylogeny)
    task = options.task
    if options.freeze_base:
        # A frozen encoder does not learn from its pretraining tasks.
        task = dataclasses.replace(task, penalty=0.0, nuc_penalty=0.0, count_penalty=0.0)
    plan = batch_plan(options, task, labelled.study, labelled.depth, metric)
    encoder = covariates = None
    if labelled.covariates is not None:
        encoder = CovariateEncoder.fit(labelled.covariates.take(split.train))
    if encoder is not None:
        covariates = CovariateShape(
            tuple(len(names) + 1 for names in encoder.categories.values()),
            2 * len(encoder.numbers),
            options.covariates.categorical_embed_dim,
            options.covariates.categorical_fusion,
        )
    shape, standard = choose_shape(base, labelled.study, options.model, plan, split.train)
    shape = dataclasses.replace(
        shape,
        outputs=target.outputs,
        profile_features=options.profile_features,
        profile_dropout=options.profile_dropout,
        covariates=covariates,
    )
    return ModelConfig("train", shape, metric, plan, standard, target, to_plain(options), encoder)
