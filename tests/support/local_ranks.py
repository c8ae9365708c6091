"""Ranks on this machine for tests: processes that join a gloo process group as those of a run do.

They are forked from a server that has imported everything once, which makes starting them cheap.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

from aam.contract.options.groups import DeviceOptions, ScaleOptions
from aam.network.distributed.collectives import FSDP_ON_CPU, Communicator
from aam.network.distributed.process_group import process_group

NEEDS_FSDP = pytest.mark.skipif(not FSDP_ON_CPU, reason="PyTorch 2.5 shards on GPUs alone")
CPU = DeviceOptions(device="cpu", num_workers=0)

FAILURE_TIMEOUT = 30
"""Seconds after the end of a killed rank in which the others end."""

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when the server starts
_context = multiprocessing.get_context("forkserver")
# the last two are what an optimizer and a logger import, 0.5 s of processor time in each rank
_context.set_forkserver_preload(
    ["tests.support.rank_steps", "torch._dynamo", "torch.utils.tensorboard"]
)


@dataclass
class RankProcesses:
    """Processes of one process group.

    Attributes:
        processes: by rank.
        ends: pipes on which they send their results.
    """

    processes: list[Any]
    ends: list[Connection]

    def kill(self, rank: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a rank, which may have ended."""
        with suppress(ProcessLookupError):
            os.kill(self.processes[rank].pid, number)

    def results(self, timeout: float = 400) -> list[Any]:
        """Wait for all ranks; return the result of each, or (status, message) of its error.

        A rank that has not joined yet waits ten minutes for the others. Launchers (srun, torchrun,
        `local_ranks`) kill the ranks some time after one was killed, and so does this.
        """
        received: dict[int, Any] = {}
        until, killed = time.monotonic() + timeout, False
        while any(process.is_alive() for process in self.processes):
            self._receive(received)
            if not killed and any((process.exitcode or 0) < 0 for process in self.processes):
                killed, until = True, min(until, time.monotonic() + FAILURE_TIMEOUT)
            if time.monotonic() > until:
                for process in self.processes:
                    process.kill()
                assert killed, f"a process did not end within {timeout} s"
            time.sleep(0.02)
        self._receive(received)
        return [received.get(n, (p.exitcode, "")) for n, p in enumerate(self.processes)]

    def _receive(self, received: dict[int, Any]) -> None:
        """Receive the results that were sent; a killed rank may have sent a part, or nothing."""
        for number, end in enumerate(self.ends):
            with suppress(EOFError, OSError):
                if number not in received and end.poll():
                    received[number] = pickle.loads(end.recv_bytes())


def start(
    size: int, scale: ScaleOptions, function: Callable[..., Any], *args: Any, batch_size: int = 64
) -> RankProcesses:
    """Start `function(communicator, *args)` in `size` processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    crew = RankProcesses([], [])
    for rank in range(size):
        mine, theirs = _context.Pipe(duplex=False)
        variables = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        process = _context.Process(
            target=_one, args=(theirs, variables, scale, batch_size, function, args)
        )
        process.start()
        theirs.close()
        crew.processes.append(process)
        crew.ends.append(mine)
    return crew


def together(size: int, scale: ScaleOptions, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Run `function(communicator, *args)` in `size` processes; return what each returned."""
    return start(size, scale, function, *args).results()


def _one(
    end: Connection,
    variables: dict[str, str],
    scale: ScaleOptions,
    batch_size: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    from aam.contract.errors import AamError

    torch.set_num_threads(1)
    os.environ.update(variables)
    if "AAM_TEST_LOUD" not in os.environ:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        with ExitStack() as stack:
            communicator: Communicator = stack.enter_context(process_group(scale, CPU, batch_size))
            found = function(communicator, *args)
        end.send_bytes(pickle.dumps(found))
    except AamError as error:
        end.send_bytes(pickle.dumps((error.status, str(error))))
        sys.exit(error.status)
