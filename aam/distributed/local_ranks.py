"""Several processes of one command on this machine: start them, pass signals on, end with them.

The parent does nothing else and needs no torch. Its exit status is that of the first process that
failed, so that 75 ("try again") arrives at whoever started it; a process killed by a signal counts
128 and the signal's number, as in a shell. When one fails the others get time to find out why and
say so (`aam.distributed.heartbeat`), then they are ended.
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
from types import FrameType

from aam.contract.errors import Unavailable
from aam.contract.options.groups import DeviceOptions, ScaleOptions
from aam.distributed.environment import Ranks, check

STARTED_BY = "AAM_STARTED_BY"
"""Variable that tells the processes who started them."""

_PASSED_ON = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PDEATHSIG = 1
"""PR_SET_PDEATHSIG, prctl(2): a signal for a process whose parent dies."""


def wanted(scale: ScaleOptions, device: DeviceOptions, batch_size: int) -> int:
    """Return how many processes this one has to start; 0 if it is to do the work itself.

    Raises:
        Unavailable: --data-parallel without a GPU.
        UsageError: what no set of processes can do.
    """
    if "RANK" in os.environ or int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1) > 1:
        return 0
    number = scale.processes
    if scale.data_parallel and not number and device.device != "cpu":
        from torch import cuda

        number = cuda.device_count()
        if number == 0 and device.device == "cuda":
            raise Unavailable("No GPU", "--data-parallel --device cuda", "use --device auto or cpu")
    if number < 2:
        return 0
    check(scale, Ranks(size=number, local_size=number, started_by="--processes"), batch_size)
    return number


def run(number: int, words: Sequence[str], patience: float) -> int:
    """Run `aam` with `words` in `number` processes and return the exit status.

    Args:
        number: of processes.
        words: command and options.
        patience: seconds that the others have to end when one has failed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cores = len(os.sched_getaffinity(0))
    # `python -m` would import modules of the current folder.
    boot = f"import sys; sys.path[:] = {sys.path!r}; from aam.cli import main; sys.exit(main())"
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
        variables.setdefault("OMP_NUM_THREADS", str(max(1, cores // number)))
        children.append(
            subprocess.Popen(
                [sys.executable, "-c", boot, *words],
                env=variables,
                stdin=None if rank == 0 else subprocess.DEVNULL,
                preexec_fn=_end_with_parent,
            )
        )
    return _follow(children, patience)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)


def _follow(children: Sequence[subprocess.Popen[bytes]], patience: float) -> int:
    """Pass signals on, wait for all, and return the first bad status, or 0."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    status, until = 0, float("inf")
    try:
        while any(child.poll() is None for child in children):
            bad = [c.returncode for c in children if c.returncode]
            if bad and not status:
                status, until = bad[0], time.monotonic() + patience
                _report(children)
            if time.monotonic() > until:
                _end(children)
            time.sleep(0.1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    status = status or next((c.returncode for c in children if c.returncode), 0)
    return 128 - status if status < 0 else status


def _report(children: Sequence[subprocess.Popen[bytes]]) -> None:
    for rank, child in enumerate(children):
        if child.returncode is not None and child.returncode < 0:
            name = signal.Signals(-child.returncode).name
            print(f"aam: rank {rank} was ended by {name}.", file=sys.stderr, flush=True)


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    for child in children:
        if child.poll() is None:
            child.terminate()
    until = time.monotonic() + 10
    while any(child.poll() is None for child in children) and time.monotonic() < until:
        time.sleep(0.1)
    for child in children:
        if child.poll() is None:
            child.kill()
