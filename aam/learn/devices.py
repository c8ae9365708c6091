"""Where to compute, and with how many helpers."""

from __future__ import annotations

import os

import torch

from aam.console import warn
from aam.errors import Unavailable
from aam.model.attention import TORCH, Backend, Backends, runs
from aam.options.groups import DeviceOptions
from aam.stack.choice import Standing, Use, choose


def choose_device(options: DeviceOptions) -> torch.device:
    """Return the device that the options mean here.

    Raises:
        Unavailable: a GPU was asked for and there is none.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise Unavailable("No GPU", "--device cuda", "use --device auto or cpu")
    there = options.device != "cpu" and torch.cuda.is_available()
    return torch.device("cuda", 0) if there else torch.device("cpu")


def choose_attention(options: DeviceOptions, device: torch.device) -> Backends:
    """Return the attention backends that were asked for, or others where those cannot run."""

    def known(backend: Backend, use: Use) -> Standing:
        return "right" if runs(backend, device, masked=use == "masked") else "absent"

    found = choose(options.attn_implementation, TORCH, known, device.type)
    for sentence in found.said:
        warn(sentence)
    return found.backends


def choose_workers(options: DeviceOptions, device: torch.device) -> int:
    """Return the number of processes that prepare batches.

    On a CPU the network keeps all cores busy by itself; a GPU waits for batches without help.
    """
    if options.num_workers != "auto":
        return options.num_workers
    return 0 if device.type == "cpu" else min(4, len(os.sched_getaffinity(0)))
