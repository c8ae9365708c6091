"""Runtime of a run: device, precision, attention backends, data-loading workers and ranks."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from aam.contract.errors import UsageError
from aam.contract.options.commands.train import Pretrain, Train
from aam.contract.options.groups import ModelOptions
from aam.contract.version import __version__
from aam.environment import read_environment
from aam.memory import memory_available, shown_size
from aam.network.distributed.collectives import SINGLE_PROCESS, Communicator
from aam.network.model.attention import AUTO, Backends
from aam.network.model.shape import NetworkShape
from aam.network.numerics.backends import BackendPolicy
from aam.network.numerics.device import (
    Precision,
    arch_of,
    choose_device,
    choose_precision,
    hardware_name,
    is_gpu,
)
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
    check_heads(model)
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


def check_heads(model: ModelOptions) -> None:
    """Refuse a number of attention heads that does not divide the embedding width."""
    if model.embedding_dim % model.attention_heads:
        raise UsageError(
            "The heads do not divide the width",
            f"--embedding-dim {model.embedding_dim} --attention-heads {model.attention_heads}",
            "choose a width that is a multiple of the heads",
        )


def tuned_for(table: Path, torch_version: str, hardware: str) -> str:
    """Return the value of --tuned-for: versions, hardware and table of a run of `aam tune`."""
    facts = [f"aam {__version__}", f"PyTorch {torch_version}", hardware]
    if file := input_file(table):  # a missing table is reported when it is read
        facts.append(f"table {file['sha256'][:12]}")
    return _SEPARATOR.join(facts)
