"""Process group of a run: rendezvous, device of each rank, heartbeats, and shutdown.

    with process_group(options.scale, options.device, batch_size) as communicator: ...

The backend is NCCL (RCCL on AMD) for GPUs and gloo for CPUs. Only rank 0 prints.
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

from aam.console import console, info
from aam.contract.errors import Unavailable, UsageError
from aam.contract.options.device import DeviceOptions, ScaleOptions
from aam.distributed import heartbeat, network_settings
from aam.distributed.communicator import Communicator
from aam.distributed.environment import Ranks, check_options, read_environment
from aam.numerics.device import (
    CONTROL_BACKEND,
    choose_device,
    collective_backend,
    is_gpu,
    print_device,
    select_gpu,
)

_RENDEZVOUS_TIMEOUT = timedelta(minutes=10)
"""How long ranks wait for each other at the start: a queue may start them minutes apart."""

_REMIND = 5.0
"""Seconds after which the first rank prints that it waits for others."""

_COLLECTIVE_TIMEOUT = timedelta(hours=2)
"""How long a collective may take. Heartbeats detect a failed rank long before."""


@contextmanager
def process_group(
    scale: ScaleOptions, device: DeviceOptions, batch_size: int
) -> Iterator[Communicator]:
    """Join the process group of the run, and leave it at the end of the block.

    Args:
        scale: --distributed, --data-parallel, --fsdp and --rank-timeout.
        device: device options of this rank.
        batch_size: samples of a batch over all ranks; at least one for each rank.

    Yields:
        The communicator of the ranks; for a single process one that has itself alone.

    Raises:
        UsageError: options and variables of the environment contradict each other, or a network
            interface does not exist.
        RankFailure: another rank has failed.
    """
    ranks = read_environment(os.environ)
    check_options(scale, ranks, batch_size)
    if not ranks.is_main:
        console.quiet = True
    place = choose_device(device)
    if ranks.world_size > 1 and is_gpu(place):
        place = _select_gpu(ranks)
    print_device(place)
    if scale.fsdp_sharded_checkpoint:
        info("--fsdp-sharded-checkpoint: no longer needed; every checkpoint is one file.")
    if ranks.world_size == 1 and not scale.fsdp:
        if scale.distributed or scale.data_parallel:
            info("One process: torchrun, srun or `aam-launch --gpus` start several.")
        yield Communicator()
        return
    if is_gpu(place):
        network_settings.check_interfaces(os.environ)
    # Before the process group: heartbeats then cover its initialization too.
    store = _rendezvous(ranks)
    beat = heartbeat.Heartbeat(store, ranks, scale.rank_timeout)
    try:
        with beat.monitor():
            dist.init_process_group(
                collective_backend(place),
                # A prefix of its own, so that keys of PyTorch and of the heartbeats never collide.
                store=PrefixStore("group", store),
                rank=ranks.rank,
                world_size=ranks.world_size,
                timeout=_COLLECTIVE_TIMEOUT,
            )
            how = "FSDP" if scale.fsdp else "DDP"
            info(
                f"{ranks.world_size} processes ({how}), {place.type}, batches of {batch_size} "
                f"samples: {_each(batch_size, ranks.world_size)} each."
            )
            for line in network_settings.describe(os.environ, place.type):
                info(line)
            yield Communicator(ranks, beat, dist.new_group(backend=CONTROL_BACKEND))
    finally:
        console.quiet = False
        if dist.is_initialized():
            dist.destroy_process_group()


def _select_gpu(ranks: Ranks) -> torch.device:
    """Make the GPU of the local rank the current one, and return it.

    Raises:
        UsageError: there are more processes than GPUs.
    """
    number = torch.cuda.device_count()
    # Slurm may show each process its own GPU only.
    if ranks.local_world_size > number and not (number == 1 and ranks.launcher == "srun"):
        raise UsageError(
            "More processes than GPUs",
            f"{ranks.local_world_size} processes on this node, {number} GPUs",
            "start one process for each GPU",
        )
    return select_gpu(ranks.local_rank % number)


def _each(number: int, size: int) -> str:
    low, rest = divmod(number, size)
    return f"{low} to {low + 1}" if rest else str(low)


def _rendezvous(ranks: Ranks) -> Store:
    """Set the variables of torchrun, meet the other ranks and return the common store."""
    # `env://` reads the variables of torchrun, which srun does not set.
    os.environ |= {
        "RANK": str(ranks.rank),
        "WORLD_SIZE": str(ranks.world_size),
        "LOCAL_RANK": str(ranks.local_rank),
        "MASTER_ADDR": ranks.main_address,
        "MASTER_PORT": str(ranks.main_port),
    }
    if ranks.world_size == 1:
        # FSDP needs a process group also for one rank, and a store in memory needs no port.
        return dist.HashStore()  # type: ignore[attr-defined]
    _require_resolvable(ranks)
    place = f"{ranks.main_address}, port {ranks.main_port}"
    waiting = f"Waiting for {ranks.world_size} ranks to meet at {place}."
    reminder = threading.Timer(_REMIND, info, [waiting])
    reminder.daemon = True
    reminder.start()
    try:
        store, _, _ = next(rendezvous("env://", timeout=_RENDEZVOUS_TIMEOUT))
    except dist.DistError as error:
        reason = str(error).splitlines()[0]
        raise heartbeat.RankFailure(
            "Not all ranks started",
            f"{place}, {reason}",
            "read the output of the other ranks",
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
        socket.getaddrinfo(ranks.main_address, ranks.main_port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(
            "The name of the first rank's node cannot be resolved",
            f"'{ranks.main_address}' on {socket.gethostname()}, {error.strerror}",
            "set MASTER_ADDR to an address of that node",
        ) from error
