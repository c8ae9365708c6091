"""Process group of a run: rendezvous, device of each rank, heartbeats, and shutdown.

    with process_group(options.scale, options.device, batch_size) as communicator: ...

The backend is NCCL (RCCL on AMD) for GPUs and gloo for CPUs. Only rank 0 prints.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from aam.console import console, info
from aam.contract.errors import AamError, Interrupted, Unavailable, UsageError
from aam.contract.options.groups import DeviceOptions, RankOptions, ScaleOptions
from aam.environment import Ranks, check_options, read_environment
from aam.network.distributed.collectives import Communicator
from aam.network.numerics.device import (
    CONTROL_BACKEND,
    choose_device,
    collective_backend,
    is_gpu,
    print_device,
    select_gpu,
)

_FAMILIES = ("NCCL_", "RCCL_", "FI_", "GLOO_", "OFI_", "HSA_FORCE_FINE_GRAIN_PCIE")
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_PLUGINS = ("NCCL_NET_PLUGIN", "RCCL_NET_PLUGIN")


def check_interfaces(variables: Mapping[str, str], existing: Sequence[str]) -> None:
    """Refuse settings that name network interfaces that do not exist."""
    for name in _INTERFACES:
        value = variables.get(name, "")
        # "^a,b" excludes names, "=a" is an exact name; without these marks a name is a prefix.
        if not value or value.startswith("^") or not existing:
            continue
        # NCCL matches prefixes, gloo complete names.
        exact = value.startswith("=") or name.startswith("GLOO")
        prefixes = value.lstrip("=").split(",")
        missing = [
            prefix
            for prefix in prefixes
            if not any(i == prefix if exact else i.startswith(prefix) for i in existing)
        ]
        if len(missing) == len(prefixes):
            raise UsageError(
                "The network interface does not exist",
                f"{name}={value}; this node has {', '.join(existing)}",
                "correct the site file or --env",
            )


def describe_network(
    variables: Mapping[str, str], device: str, existing: Sequence[str]
) -> list[str]:
    """Return lines about the network: backend, settings, interfaces and plugin."""
    if device == "cpu":
        chosen = variables.get("GLOO_SOCKET_IFNAME", "chosen by gloo")
        return [f"Network: gloo over TCP, interface {chosen}; this node has {', '.join(existing)}."]
    settings = [f"{n}={v}" for n, v in sorted(variables.items()) if n.startswith(_FAMILIES)]
    lines = [
        f"Network: {', '.join(settings) or 'no settings'}; this node has {', '.join(existing)}."
    ]
    plugin = next((variables[name] for name in _PLUGINS if variables.get(name)), None)
    if plugin in (None, "none"):
        return lines
    status = "not found; traffic goes over sockets"
    for library in (plugin, f"libnccl-net-{plugin}.so", f"librccl-net-{plugin}.so"):
        with suppress(OSError):
            ctypes.CDLL(library)  # as NCCL and RCCL do
            status = "found"
    return [*lines, f"Network plugin '{plugin}': {status}."]


_INTERVAL = 1.0  # seconds between two heartbeats

_SHORT_TIMEOUT = 5.0
"""Seconds without a heartbeat after which a rank counts as failed if a connection was closed."""

_GRACE = 10.0
"""Minimum number of seconds for the main thread to raise the error before the process is ended."""

_CONNECTION_ERRORS = ("connection", "gloo", "nccl", "broken pipe", "socket", "timed out")
"""Words in the messages of errors that the failure of another rank causes."""

_DONE = "left"


class RankFailure(AamError):
    """Failure of another rank: it ends this rank too."""


@dataclass(frozen=True)
class _Peer:
    """Last message of another rank, the time at which it was read, and the rank's last step."""

    message: str
    time: float
    step: str = "0"


class Heartbeat:
    """Heartbeats: each rank publishes one per second and detects ranks that fail.

    The message of a rank is "COUNT STEP" while it works, "left" when it is done, "failed SENTENCE"
    after its own error, and "lost SENTENCE" if it stops because another rank failed.

    PyTorch's store ends with rank 0. A rank counts as failed after `timeout` seconds without a
    heartbeat.
    """

    def __init__(self, store: Store, ranks: Ranks, timeout: float) -> None:
        self._store, self._ranks, self._timeout = store, ranks, timeout
        self._stop = threading.Event()
        self._lock = threading.Lock()
        now = time.monotonic()
        self._peers = {r: _Peer("", now) for r in range(ranks.world_size) if r != ranks.rank}
        self._step = self._count = 0

    def publish_step(self, step: int) -> None:
        """Set the step that the next heartbeats of this rank report."""
        self._step = step

    @contextmanager
    def monitor(self) -> Iterator[None]:
        """Publish heartbeats and detect failures while the block runs."""
        thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
            self._finish(thread)
        except Interrupted:  # all ranks stop together
            self._finish(thread)
            raise
        except Exception as error:
            # A closed connection is a consequence; the cause to report is the rank that failed.
            failure = self._await_failure() if _is_connection_error(error) else None
            self._stop.set()
            thread.join()
            first, *_ = (str(error).strip() or type(error).__name__).splitlines()
            self._publish(f"lost {failure}" if failure else f"failed {first}")
            # The store ends with this process; the other ranks read the message within an interval.
            if self._ranks.is_main and self._peers:
                time.sleep(3 * _INTERVAL)
            if failure:
                raise failure from error
            raise
        finally:
            self._stop.set()
            thread.join()

    def _finish(self, thread: threading.Thread) -> None:
        """Wait until rank 0 has applied the trained network; as rank 0, wait for all others."""
        while 0 in self._peers and self._peers[0].message != _DONE:
            failure = self._exchange(self._timeout)
            if failure:
                raise failure
            time.sleep(_INTERVAL / 5)
        self._stop.set()
        thread.join()
        self._publish(_DONE)
        until = time.monotonic() + self._timeout
        while self._ranks.is_main and time.monotonic() < until:
            if all(peer.message == _DONE for peer in self._peers.values()):
                return
            time.sleep(_INTERVAL / 5)
            self._read_peers()

    def _run(self) -> None:
        """Exchange heartbeats until the block ends; end the process if the main thread hangs."""
        while not self._stop.wait(_INTERVAL):
            failure = self._exchange(self._timeout)
            # The main thread's error has more detail, but the thread may be blocked in a kernel.
            if failure and not self._stop.wait(max(self._timeout, _GRACE)):
                self._publish(f"lost {failure}")
                print(f"aam: rank {self._ranks.rank}: {failure}", file=sys.stderr, flush=True)
                # `sys.exit` would end this thread alone, and the main thread may never return to
                # Python.
                os._exit(failure.status)

    def _await_failure(self) -> RankFailure | None:
        """Return the failure of a rank after a connection was closed; None without one."""
        until = time.monotonic() + self._timeout + _SHORT_TIMEOUT
        while time.monotonic() < until:
            failure = self._exchange(min(_SHORT_TIMEOUT, self._timeout))
            if failure:
                return failure
            time.sleep(_INTERVAL / 5)
        return None

    def _exchange(self, timeout: float) -> RankFailure | None:
        """Publish a heartbeat and read the messages of other ranks; return the first failure."""
        with self._lock:
            try:
                # The count makes each message unique: ranks compare messages, so they need no
                # common clock.
                self._count += 1
                self._store.set(f"heartbeat/{self._ranks.rank}", f"{self._count} {self._step}")
                self._read_peers()
            except (RuntimeError, OSError):  # the store ends with rank 0
                return self._failure(0, "cannot be reached any more") if self._peers else None
            for rank, peer in self._peers.items():
                state, _, sentence = peer.message.partition(" ")
                if state == "lost":
                    return RankFailure(sentence.rstrip("."))
                if state == "failed":
                    return self._failure(rank, f"stopped: {sentence}")
                if state != _DONE and time.monotonic() - peer.time > timeout:
                    return self._failure(rank, f"sent no heartbeat for {timeout:.0f} s")
        return None

    def _read_peers(self) -> None:
        for rank, peer in self._peers.items():
            # `get` of a missing key would block until the timeout of the store.
            if self._store.check([f"heartbeat/{rank}"]):
                message = self._store.get(f"heartbeat/{rank}").decode()
                if message != peer.message:
                    count, _, step = message.partition(" ")
                    step = step if count.isdecimal() else peer.step
                    self._peers[rank] = _Peer(message, time.monotonic(), step)

    def _failure(self, rank: int, event: str) -> RankFailure:
        step = self._peers[rank].step
        return RankFailure(
            f"Rank {rank} {event}", f"its last step was {step}", "read its output for the reason"
        )

    def _publish(self, message: str) -> None:
        with suppress(RuntimeError, OSError):  # the store may have ended
            self._store.set(f"heartbeat/{self._ranks.rank}", message)


def _is_connection_error(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes is a closed connection."""
    while error is not None:
        text = str(error).lower() if isinstance(error, RuntimeError | OSError) else ""
        if isinstance(error, dist.DistError) or any(word in text for word in _CONNECTION_ERRORS):
            return True
        error = error.__cause__ or error.__context__
    return False


_RENDEZVOUS_TIMEOUT = timedelta(minutes=10)
"""Time that ranks wait for each other at the start: a queue may start them minutes apart."""

_REMIND = 5.0  # seconds after which the first rank prints that it waits for other ranks

_COLLECTIVE_TIMEOUT = timedelta(hours=2)
"""Timeout of a collective. Heartbeats detect a failed rank long before."""


@contextmanager
def process_group(
    scale: RankOptions, device: DeviceOptions, batch_size: int | None = None
) -> Iterator[Communicator]:
    """Join the process group of the run, and leave it at the end of the block."""
    ranks = read_environment(os.environ)
    check_options(scale, ranks, batch_size)
    if not ranks.is_main:
        console.quiet = True
    torch_device = choose_device(device)
    if ranks.world_size > 1 and is_gpu(torch_device):
        number = torch.cuda.device_count()
        # Slurm may make only one GPU visible to each process.
        if ranks.local_world_size > number and not (number == 1 and ranks.launcher == "srun"):
            raise UsageError(
                "More processes than GPUs",
                f"{ranks.local_world_size} processes on this node, {number} GPUs",
                "start one process for each GPU",
            )
        torch_device = select_gpu(ranks.local_rank % number)
    print_device(torch_device)
    training = scale if isinstance(scale, ScaleOptions) else ScaleOptions()
    if training.fsdp_sharded_checkpoint:
        info("--fsdp-sharded-checkpoint: no longer needed; every checkpoint is one file.")
    if ranks.world_size == 1 and not training.fsdp:
        if training.distributed or training.data_parallel:
            info("One process: torchrun, srun or `aam-launch --gpus` start several.")
        yield Communicator()
        return
    interfaces = sorted(name for _, name in socket.if_nameindex())
    if is_gpu(torch_device):
        check_interfaces(os.environ, interfaces)
    # Before the process group: heartbeats then cover its initialization too.
    store = _rendezvous(ranks)
    beat = Heartbeat(store, ranks, scale.rank_timeout)
    try:
        with beat.monitor():
            dist.init_process_group(
                collective_backend(torch_device),
                # A separate prefix, so that keys of PyTorch and of heartbeats never collide.
                store=PrefixStore("group", store),
                rank=ranks.rank,
                world_size=ranks.world_size,
                timeout=_COLLECTIVE_TIMEOUT,
            )
            if batch_size is None:
                info(f"{ranks.world_size} processes, {torch_device.type}.")
            else:
                strategy = "FSDP" if training.fsdp else "DDP"
                low, remainder = divmod(batch_size, ranks.world_size)
                info(
                    f"{ranks.world_size} processes ({strategy}), {torch_device.type}, batches of "
                    f"{batch_size} samples: {f'{low} to {low + 1}' if remainder else low} each."
                )
            for line in describe_network(os.environ, torch_device.type, interfaces):
                info(line)
            yield Communicator(ranks, beat.publish_step, dist.new_group(backend=CONTROL_BACKEND))
    finally:
        console.quiet = False
        if dist.is_initialized():
            dist.destroy_process_group()


def _rendezvous(ranks: Ranks) -> Store:
    """Set the variables of torchrun, meet the other ranks and return the common store."""
    # `env://` reads the variables of torchrun; srun does not set them.
    os.environ |= {
        "RANK": str(ranks.rank),
        "WORLD_SIZE": str(ranks.world_size),
        "LOCAL_RANK": str(ranks.local_rank),
        "MASTER_ADDR": ranks.main_address,
        "MASTER_PORT": str(ranks.main_port),
    }
    if ranks.world_size == 1:
        # FSDP needs a process group even for one rank; a store in memory needs no port.
        return dist.HashStore()  # type: ignore[attr-defined]
    try:
        # Without this PyTorch would try for ten minutes to resolve a name that does not exist.
        socket.getaddrinfo(ranks.main_address, ranks.main_port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(
            "The host name of the first rank's node cannot be resolved",
            f"'{ranks.main_address}' on {socket.gethostname()}, {error.strerror}",
            "set MASTER_ADDR to an address of that node",
        ) from error
    address = f"{ranks.main_address}, port {ranks.main_port}"
    waiting = f"Waiting for {ranks.world_size} ranks to meet at {address}."
    reminder = threading.Timer(_REMIND, info, [waiting])
    reminder.daemon = True
    reminder.start()
    try:
        store, _, _ = next(rendezvous("env://", timeout=_RENDEZVOUS_TIMEOUT))
    except dist.DistError as error:
        reason = str(error).splitlines()[0]
        raise RankFailure(
            "Not all ranks started", f"{address}, {reason}", "read the output of the other ranks"
        ) from error
    finally:
        reminder.cancel()
    return store
