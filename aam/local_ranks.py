"""Launcher of ranks on this node: starts processes, forwards signals, returns an exit status.

The parent does nothing else and imports no PyTorch. Its exit status equals the status of the first
process that failed, for example 75 (stopped, can be resumed), or 128 + N for a process killed by
signal N. The other ranks have time to report the failed rank (the heartbeat of the process group)
before they are terminated. torchrun would turn each failure into status 1.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from aam import wings
from aam.contract.errors import Unavailable
from aam.contract.gpus import GPU
from aam.contract.options.groups import DeviceOptions, RankOptions, ScaleOptions
from aam.environment import Ranks, check_options, is_started_with_ranks

STARTED_BY = "AAM_STARTED_BY"  # variable with the name of a rank's launcher

_FORWARDED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PDEATHSIG = 1  # PR_SET_PDEATHSIG of prctl(2): the signal that a process gets when its parent ends


def ranks_to_start(scale: RankOptions, device: DeviceOptions, batch_size: int | None) -> int:
    """Return the number of ranks to start; 0 if this process does the work itself."""
    if is_started_with_ranks(os.environ):
        return 0
    number = scale.processes
    parallel = isinstance(scale, ScaleOptions) and scale.data_parallel
    if parallel and not number and device.device != "cpu":
        number = wings.network().visible_gpus()
        if number == 0 and device.device == GPU:
            raise Unavailable(
                "No GPU", f"--data-parallel --device {GPU}", "use --device auto or cpu"
            )
    if number < 2:
        return 0
    ranks = Ranks(world_size=number, local_world_size=number, launcher="--processes")
    check_options(scale, ranks, batch_size)
    return number


def launch(number: int, arguments: Sequence[str], grace: float) -> int:
    """Run `aam` in several ranks; terminate all `grace` seconds after the first failure."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cores = len(os.sched_getaffinity(0))
    # `python -m` would import modules of the current folder.
    boot = f"import sys; sys.path[:] = {sys.path!r}; from aam.cli import main; sys.exit(main())"

    def end_with_parent() -> None:
        # A parent that is killed by SIGKILL cannot forward the signal to its children.
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)

    children = []
    for rank in range(number):
        variables = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(number),
            "LOCAL_WORLD_SIZE": str(number),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            STARTED_BY: "--processes",
        }
        # By default PyTorch starts a thread for each core in every rank.
        variables.setdefault("OMP_NUM_THREADS", str(max(1, cores // number)))
        children.append(
            subprocess.Popen(
                [sys.executable, "-c", boot, *arguments],
                env=variables,
                stdin=None if rank == 0 else subprocess.DEVNULL,
                preexec_fn=end_with_parent,
            )
        )

    def forward(number: int, frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    handlers = {number: signal.signal(number, forward) for number in _FORWARDED}
    status, until = 0, float("inf")
    try:
        # A list: `any` would poll no child after the first running one.
        while None in [child.poll() for child in children]:
            bad = [c.returncode for c in children if c.returncode]
            if bad and not status:
                status, until = bad[0], time.monotonic() + grace
                for rank, child in enumerate(children):
                    if child.returncode is not None and child.returncode < 0:
                        name = signal.Signals(-child.returncode).name
                        line = f"aam: rank {rank} was killed by {name}."
                        print(line, file=sys.stderr, flush=True)
            if time.monotonic() > until:
                for child in children:
                    child.terminate()
                ends = time.monotonic() + 10
                for child in children:
                    with suppress(subprocess.TimeoutExpired):
                        child.wait(max(0.0, ends - time.monotonic()))
                    child.kill()
            time.sleep(0.1)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    status = status or next((c.returncode for c in children if c.returncode), 0)
    # `subprocess` returns -N for signal N, shells 128 + N.
    return 128 - status if status < 0 else status
