"""A run of several processes begins and ends here: who takes part, where, and what was agreed.

    with joined(options.scale, options.device, options.loop.batch_size) as team: ...

Inside, torch's process group is there (NCCL, which is RCCL on AMD, for GPUs; gloo for CPUs), every
process watches the others (`aam.distributed.heartbeat`), and only the first one speaks.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from aam.console import console, say
from aam.contract.errors import Unavailable, UsageError
from aam.contract.options.groups import DeviceOptions, ScaleOptions
from aam.distributed import heartbeat, network_settings
from aam.distributed.consensus import Team
from aam.distributed.environment import Ranks, check, found
from aam.numerics.device import choose_device, print_device

_MEET = timedelta(minutes=10)
"""How long processes wait for each other at the start: a queue may start them minutes apart."""

_REMIND = 5.0
"""Seconds after which the first rank prints that it waits for others."""

_LONGEST = timedelta(hours=2)
"""How long any message may take. Death is noticed by the watcher, long before."""


@contextmanager
def joined(scale: ScaleOptions, device: DeviceOptions, batch_size: int) -> Iterator[Team]:
    """Let this process take part in its run, and leave it at the end.

    Raises:
        UsageError: see `check` and `aam.distributed.network_settings.check`.
        Lost: another process died; `aam.distributed.heartbeat` says which.
    """
    ranks = found(os.environ)
    check(scale, ranks, batch_size)
    if not ranks.first:
        console.quiet = True
    place = choose_device(device)
    if ranks.size > 1 and place.type == "cuda":
        place = _take_gpu(ranks)
    print_device(place)
    if scale.sync_batchnorm:
        say("--sync-batchnorm: there is no batch norm in the network; nothing to synchronise.")
    if ranks.size == 1 and not scale.fsdp:
        if scale.distributed or scale.data_parallel:
            say("One process: nothing to share. torchrun, srun or `aam-launch --gpus` start more.")
        yield Team()
        return
    if place.type == "cuda":
        network_settings.check(os.environ)
    store = _meet(ranks)
    watcher = heartbeat.Watcher(store, ranks, scale.rank_timeout)
    try:
        with watcher.watching():
            dist.init_process_group(
                "nccl" if place.type == "cuda" else "gloo",
                store=PrefixStore("group", store),
                rank=ranks.rank,
                world_size=ranks.size,
                timeout=_LONGEST,
            )
            how = "FSDP" if scale.fsdp else "DDP"
            say(f"{ranks.size} processes ({how}), {place.type}, batches of {batch_size} samples: "
                f"{_each(batch_size, ranks.size)} each.")  # fmt: skip
            for line in network_settings.found(os.environ, place.type):
                say(line)
            yield Team(ranks, watcher, dist.new_group(backend="gloo"))
    finally:
        console.quiet = False
        if dist.is_initialized():
            dist.destroy_process_group()


def _take_gpu(ranks: Ranks) -> torch.device:
    """Make another GPU the current one in each process of this machine, and return it.

    Raises:
        UsageError: there are more processes than GPUs.
    """
    number = torch.cuda.device_count()
    # Slurm may show each process its own GPU only.
    if ranks.local_size > number and not (number == 1 and ranks.started_by == "srun"):
        raise UsageError(
            "More processes than GPUs",
            f"{ranks.local_size} processes on this machine, {number} GPUs",
            "start one process for each GPU",
        )
    device = torch.device("cuda", ranks.local_rank % number)
    torch.cuda.set_device(device)
    return device


def _each(number: int, size: int) -> str:
    low, rest = divmod(number, size)
    return f"{low} to {low + 1}" if rest else str(low)


def _meet(ranks: Ranks) -> Store:
    """Return the store in which the processes find each other."""
    os.environ |= {
        "RANK": str(ranks.rank),
        "WORLD_SIZE": str(ranks.size),
        "LOCAL_RANK": str(ranks.local_rank),
        "MASTER_ADDR": ranks.address,
        "MASTER_PORT": str(ranks.port),
    }
    if ranks.size == 1:
        return dist.HashStore()  # type: ignore[attr-defined]
    _require_resolvable(ranks)
    waiting = f"Waiting for {ranks.size} ranks to meet at {ranks.address}, port {ranks.port}."
    reminder = threading.Timer(_REMIND, say, [waiting])
    reminder.daemon = True
    reminder.start()
    try:
        store, _, _ = next(rendezvous("env://", timeout=_MEET))
    except dist.DistError as error:
        reason = str(error).splitlines()[0]
        raise heartbeat.Lost(
            "The processes did not meet",
            f"{ranks.address}, port {ranks.port}, {reason}",
            "see what the others printed",
        ) from error
    finally:
        reminder.cancel()
    return store


def _require_resolvable(ranks: Ranks) -> None:
    """Check that the address of the first rank can be resolved: PyTorch tries for ten minutes.

    Raises:
        Unavailable: it cannot.
    """
    try:
        socket.getaddrinfo(ranks.address, ranks.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(
            "The name of the first rank's node cannot be resolved",
            f"'{ranks.address}' on {socket.gethostname()}, {error.strerror}",
            "set MASTER_ADDR to an address of that node",
        ) from error
