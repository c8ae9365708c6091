"""With which attention to compute, and with how many helpers."""

from __future__ import annotations

import os

import torch

from aam.console import warn
from aam.contract.options.groups import DeviceOptions, ModelOptions
from aam.contract.precision import Precision, dtypes_of
from aam.model.shape import NetworkShape
from aam.numerics.backend_selection import AttentionNeed, Guard, Guarded, guarded


def choose_attention(
    options: DeviceOptions,
    device: torch.device,
    sizes: NetworkShape | ModelOptions,
    guard: Guard,
    precision: Precision = "none",
    recomputed: bool = False,
) -> Guarded:
    """Choose attention backends that compute right here: those asked for, or the next ones.

    Args:
        sizes: of the network that will compute.
        guard: what there is to choose from.
        precision: of training; what comes after it computes in fp32.
        recomputed: under gradient checkpointing.

    Raises:
        Unavailable: none computes right, or the GPU does not answer.
    """
    need = AttentionNeed(
        options.attn_implementation,
        options.check,
        dtypes_of(precision),
        recomputed,
        sizes.attention_heads,
        sizes.embedding_dim // sizes.attention_heads,
    )
    found = guarded(need, device, os.environ, guard)
    for sentence in found.warnings:
        warn(sentence)
    return found


def choose_workers(options: DeviceOptions, device: torch.device) -> int:
    """Return the number of processes that prepare batches.

    On a CPU the network keeps all cores busy by itself; a GPU waits for batches without help.
    """
    if options.num_workers != "auto":
        return options.num_workers
    return 0 if device.type == "cpu" else min(4, len(os.sched_getaffinity(0)))
