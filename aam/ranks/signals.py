"""Stop requests: the signals that end a run with a checkpoint, and who handles them.

Slurm sends a signal before the time is up, another scheduler when it needs the node, a user with
Ctrl-C or by closing the terminal. A signal that arrives before the handler is installed ends the
process: the variable AAM_HEARS may name a file that exists while it is. The run itself stops in
`aam.ranks.interruption`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from aam.console import console

SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Stop requests. One that the process was started to ignore stays ignored (SIGHUP under nohup)."""

_AT_ONCE = b"aam: stopping after this step with a checkpoint; Ctrl-C again stops without.\n"
_AGAIN = 1.0
"""Seconds after which another Ctrl-C is a second one, and not the first through a parent."""


class Requests:
    """Signal handler that remembers the first stop request.

    Args:
        marker: a file that exists while the handlers are installed, for those who send signals.
    """

    def __init__(self, marker: Path | None = None) -> None:
        self.received: signal.Signals | None = None
        self._marker = marker
        self._when = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Remember a signal; a second Ctrl-C ends the process."""
        if self.received is None:
            self.received, self._when = signal.Signals(number), time.monotonic()
            if number == signal.SIGINT and not console.quiet:
                os.write(2, _AT_ONCE)  # the console may be in the middle of a line of its own
        elif number == signal.SIGINT and time.monotonic() > self._when + _AGAIN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    @contextmanager
    def heard(self) -> Iterator[Requests]:
        """Handle the signals while the block runs."""
        before = {number: signal.getsignal(number) for number in SIGNALS}
        self.hear()
        try:
            yield self
        finally:
            if self._marker:
                self._marker.unlink(missing_ok=True)
            for number, handler in before.items():
                signal.signal(number, handler)

    def hear(self) -> None:
        """Install the handlers in place of those that are there, and make the marker."""
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self)
        if self._marker:
            self._marker.touch()


def ignore_signals(worker: int) -> None:
    """Ignore stop requests in a data-loader worker: its parent ends it, after the checkpoint.

    A terminal and Slurm send a signal to all processes, and a run cannot go on without its workers.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
