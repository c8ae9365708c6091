"""Stop requests of a rank, by a signal or a file: the run stops after a step, with a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from aam.console import console
from aam.contract import stop_file

SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Stop requests. One that the process was started to ignore stays ignored (SIGHUP under nohup)."""

_AT_ONCE = b"aam: stopping after this step with a checkpoint; Ctrl-C again stops without.\n"
_AGAIN = 1.0
"""Seconds after which another Ctrl-C is a second one, and not the first through a parent."""

_CHECK_SECONDS = 1.0  # how often the file is looked for; it may be on a network file system


class StopRequests:
    """Signal handler that remembers the first stop request, and the file of another.

    The existence of the file requests a stop; by default it is the one that AAM_STOP_FILE names.
    """

    def __init__(self, file: Path | None = None) -> None:
        path = os.environ.get(stop_file.VARIABLE)
        self.received: signal.Signals | None = None
        self.file = file or (Path(path) if path else None)
        self._when = 0.0
        self._checked = float("-inf")
        self._found = False

    @property
    def pending(self) -> bool:
        """Whether a stop is requested."""
        now = time.monotonic()
        if self.file and not self._found and now - self._checked >= _CHECK_SECONDS:
            self._checked = now
            self._found = self.file.exists()
        return self._found or self.received is not None

    @property
    def by_signal(self) -> str:
        """The signal that was received, for a message; empty without one."""
        return f" by {self.received.name}" if self.received else ""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Remember a signal; a second Ctrl-C ends the process."""
        if self.received is None:
            self.received, self._when = signal.Signals(number), time.monotonic()
            if number == signal.SIGINT and not console.quiet:
                os.write(2, _AT_ONCE)  # the console may be in the middle of a line of its own
        elif number == signal.SIGINT and time.monotonic() > self._when + _AGAIN:
            # The default action: the exit status of a process that SIGINT killed.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    @contextmanager
    def handled(self) -> Iterator[StopRequests]:
        """Handle the signals while the block runs; only the main thread of Python can."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        self.install()
        try:
            yield self
        finally:
            for number, handler in handlers.items():
                if handler is not None:
                    signal.signal(number, handler)
        # A request after the last check of the block is one to what follows it.
        if self.received is not None and handlers[self.received] != self:
            signal.raise_signal(self.received)

    def install(self) -> None:
        """Install the handlers in place of those that are there, in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            # nohup starts a program with SIGHUP ignored, and a run under it survives the terminal.
            # A handler in C, such as one of R around this Python, is None and cannot be restored.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                signal.signal(number, self)
