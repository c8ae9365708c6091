"""Attention check in a child process, which survives a GPU that hangs or crashes its process.

A hanging call cannot be interrupted from within (it may hold the interpreter lock), so the parent
has a timeout. A child that crashes is followed by another without the backend that crashed it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from multiprocessing.connection import Connection

import torch

from aam.contract.errors import Unavailable
from aam.model.attention import Backend
from aam.numerics.check import Begin, CheckPlan, Event, case_for, measure
from aam.numerics.device import is_gpu

PATIENCE = 120.0
"""Seconds without an event after which a GPU counts as hanging; its first kernel takes a few."""

_KILL_TIMEOUT = 5
"""Seconds to wait for a killed process."""


def measure_in_child(
    backends: tuple[Backend, ...], plan: CheckPlan, device: torch.device, patience: float = PATIENCE
) -> Iterator[Event]:
    """Run all probes in a child process.

    Args:
        backends: implementations of attention, whose functions must be picklable.
        plan: probes of the check.
        device: device on which they run.
        patience: seconds to wait for each event.

    Yields:
        The events of `aam.numerics.check.measure`, and a case "crashed" for each backend that ended
        its process.

    Raises:
        Unavailable: no event comes in time, or the GPU cannot be initialized.
    """
    left = backends
    while left:
        crashed = yield from _round(left, plan, device, patience)
        if crashed is None:
            return
        names = [backend.name for backend in left]
        left = left[names.index(crashed) + 1 :]


def _round(
    backends: tuple[Backend, ...], plan: CheckPlan, device: torch.device, patience: float
) -> Generator[Event, None, str | None]:
    """Yield the events of one child; return the backend that crashed it, if others are left."""
    reading, writing = os.pipe()
    # The path comes first, so that no module of the current folder is imported.
    boot = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from aam.numerics.child_process import work; work({writing})"
    )
    arguments = [sys.executable, "-c", boot]
    # No `multiprocessing.Process`: Python waits at its end for a child, even for one that is stuck
    # in the driver.
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, pass_fds=(writing,))
    # The parent's copy: with it open, the end of the child would not be an end of file.
    os.close(writing)
    begun = Begin()
    with contextlib.closing(Connection(reading, writable=False)) as events:
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as stream:
                pickle.dump((backends, plan, device), stream)
            while True:
                event = _next(events, patience, begun, device)
                if event is None:
                    return None
                if isinstance(event, Begin):
                    begun = event
                yield event
        except EOFError:
            cause = _exit_cause(process)
            if begun.probe is None:
                raise Unavailable(
                    "The GPU cannot be started", f"the process that tried {cause}", _REMEDY
                ) from None
            yield case_for(begun.backend, begun.probe, "crashed", cause)
            return None if begun.timing else begun.backend
        finally:
            process.kill()
            # A process in an uninterruptible call of the driver does not end even by SIGKILL.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_TIMEOUT)


_REMEDY = "look at the kernel log (`dmesg`), use another node, or --device cpu"


def _next(events: Connection, patience: float, begun: Begin, device: torch.device) -> Event | None:
    """Return the next event, None at the end.

    Raises:
        EOFError: the process ended.
        Unavailable: no event comes in time, or the process reports that it cannot start.
    """
    if not events.poll(patience):
        raise Unavailable(
            "The GPU responds but computes nothing",
            f"no result for {patience:g} s since {begun}",
            _REMEDY,
        )
    event = events.recv()
    if isinstance(event, str):
        raise Unavailable("The GPU cannot be used", event, _REMEDY)
    return event  # type: ignore[no-any-return]


def _exit_cause(process: subprocess.Popen[bytes]) -> str:
    status = process.wait()
    if status >= 0:
        return f"ended with status {status}"
    return f"was killed by {signal.Signals(-status).name}"


def work(writing: int) -> None:
    """Run the child: read the probes from standard input, send events to `writing`."""
    events = Connection(writing, readable=False)
    backends, plan, device = pickle.load(sys.stdin.buffer)
    try:
        if is_gpu(device):
            torch.cuda.set_device(device)
        for event in measure(backends, plan, device):
            events.send(event)
    except RuntimeError as error:
        events.send((str(error).splitlines() or [type(error).__name__])[0])
    events.send(None)
