"""Runtime of a run: device, precision, attention backends, data-loading workers and ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import torch

from aam.console import warn
from aam.contract.options.commands import Pretrain, Train
from aam.contract.options.groups import DeviceOptions, ModelOptions
from aam.contract.precision import Precision, choose_precision, dtypes_of
from aam.distributed.communicator import SINGLE_PROCESS, Communicator
from aam.model.attention import AUTO, Backends
from aam.model.shape import NetworkShape
from aam.numerics.backend_selection import (
    AttentionNeed,
    BackendPolicy,
    SelectedBackends,
    choose_backends,
)
from aam.numerics.device import arch_of, choose_device


@dataclass(frozen=True)
class Runtime:
    """Where and how a run computes, chosen once from its options.

    Attributes:
        device: of this rank.
        precision: of training.
        backends: of attention.
        attention: entry of the run record about the backends.
        workers: data-loading processes of this rank.
        communicator: the ranks of the run.
    """

    device: torch.device
    precision: Precision = "none"
    backends: Backends = AUTO
    attention: dict[str, Any] = field(default_factory=dict)
    workers: int = 0
    communicator: Communicator = SINGLE_PROCESS


CPU_RUNTIME = Runtime(torch.device("cpu"))
"""One process on the CPU in fp32."""


def make_runtime(
    options: Pretrain | Train,
    sizes: NetworkShape | ModelOptions,
    policy: BackendPolicy,
    communicator: Communicator,
) -> Runtime:
    """Choose the runtime of a training run.

    Args:
        options: of the command.
        sizes: of the network.
        policy: selects the attention backends.
        communicator: the ranks of the run.

    Raises:
        UsageError: the device does not support the precision.
        Unavailable: the device does not work, or no attention backend computes correctly on it.
    """
    device = choose_device(options.device)
    precision = choose_precision(options.speed.mixed_precision, arch_of(device))
    recomputed = options.speed.gradient_checkpointing
    chosen = choose_attention(options.device, device, sizes, policy, precision, recomputed)
    workers = choose_workers(options.device, device)
    return Runtime(device, precision, chosen.backends, chosen.record, workers, communicator)


def choose_attention(
    options: DeviceOptions,
    device: torch.device,
    sizes: NetworkShape | ModelOptions,
    policy: BackendPolicy,
    precision: Precision = "none",
    recomputed: bool = False,
) -> SelectedBackends:
    """Choose attention backends that compute correctly: those of the options, or the next ones.

    Args:
        options: of the device.
        device: of the computation.
        sizes: of the network.
        policy: selects the attention backends.
        precision: of training; inference uses fp32.
        recomputed: under gradient checkpointing.

    Raises:
        Unavailable: no backend computes correctly, or the GPU does not work.
    """
    need = AttentionNeed(
        options.attn_implementation,
        options.check,
        dtypes_of(precision),
        recomputed,
        sizes.attention_heads,
        sizes.embedding_dim // sizes.attention_heads,
    )
    chosen = choose_backends(need, device, os.environ, policy)
    for sentence in chosen.warnings:
        warn(sentence)
    return chosen


def choose_workers(options: DeviceOptions, device: torch.device) -> int:
    """Return the number of data-loading processes.

    On a CPU the network uses all cores by itself; a GPU needs processes that prepare batches.
    """
    if options.num_workers != "auto":
        return options.num_workers
    return 0 if device.type == "cpu" else min(4, len(os.sched_getaffinity(0)))
