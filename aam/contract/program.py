"""Entry of both programs: standard streams, and errors and signals as exit statuses."""

from __future__ import annotations

import codecs
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

from aam.contract.errors import (
    AamError,
    CannotCreate,
    ConfigurationError,
    DataError,
    MissingInput,
    reason_of,
)
from aam.contract.files import system_error

INTERRUPTED = 130
STOPPED = 75

_MEMORY = ("allocate memory", "not enough memory", "bad_alloc", "failed to map segment",
           "can't start new thread", "std::length_error", "Unable to allocate")  # fmt: skip
"""Texts of errors of the dynamic loader, of C++ and of PyTorch when no memory is left."""


_AGAIN = 0.5  # seconds after which a stop signal that had no effect is handled again


class Stopped(BaseException):
    """A signal that ends a command which has no checkpoint to write; `str` is its name."""


def run(program: str, command: Callable[[], int]) -> int:
    """Run a command and return its exit status; each error becomes one sentence.

    Results are never lost to the terminal: output that fails (a closed pipe, a full disk) is
    dropped and the command goes on. Only where standard output failed for another reason than that
    its reader ended, the status says so at the end.
    """
    stdout = _open_streams()
    try:
        try:
            os.getcwd()
        except FileNotFoundError:
            cause = "The current folder is gone"
            raise MissingInput(cause, "it was removed", "change to another one with `cd`") from None
        if sys.flags.optimize > 1:
            cause = "Python runs without docstrings, but its libraries need them"
            raise ConfigurationError(cause, "PYTHONOPTIMIZE=2 or -OO", "unset it")
        status = command()
        sys.stdout.flush()
        failure = stdout.failure if stdout else None
        if failure is not None and failure.errno != errno.EPIPE and status == 0:
            refused = system_error(failure, "standard output")
            raise refused or CannotCreate("Standard output failed", str(failure))
        return status
    except AamError as error:
        return _end(program, str(error), error.status)
    except (MemoryError, OSError, ImportError, RuntimeError, SystemError) as error:
        known = system_error(error) if isinstance(error, OSError) else None
        if known is None:
            # The dynamic loader, C++ and PyTorch have errors of their own where no memory is left.
            no_memory = isinstance(error, MemoryError) or getattr(error, "errno", 0) == errno.ENOMEM
            if not no_memory and not any(text in str(error) for text in _MEMORY):
                raise
            reason = reason_of(error) if str(error) else "no memory is left"
            remedy = "use more memory, or less input"
            known = DataError("The input does not fit in memory", reason, remedy)
        return _end(program, str(known), known.status)
    except Stopped as stopped:
        return _end(program, f"Stopped by {stopped}; start the command again.", STOPPED)
    except KeyboardInterrupt:
        return _end(program, "Interrupted.", INTERRUPTED)


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """End the block with status 75 on SIGTERM and SIGHUP, of a scheduler or a terminal.

    The handler raises `Stopped` wherever the main thread is. Python drops an exception that is
    raised in a callback of a weak reference or in `__del__`, and a library may catch it or raise
    another one instead. So the handler repeats itself until `Stopped` is on its way, and any error
    after a signal counts as the stop. A training of the transformer replaces the handler by one
    that saves a checkpoint.
    """
    process = os.getpid()
    before: dict[int, Any] = {}
    received: list[signal.Signals] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a worker; its parent ends it
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if not received:
            received.append(signal.Signals(number))
            before[signal.SIGALRM] = signal.signal(signal.SIGALRM, stop) or signal.SIG_DFL
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        # While it unwinds, a second one would interrupt the removal of temporary files.
        if not _is_stopping(sys.exc_info()[1]):
            raise Stopped(received[0].name)

    if threading.current_thread() is threading.main_thread():
        # nohup starts a program with SIGHUP ignored.
        unset = [number for number in (signal.SIGTERM, signal.SIGHUP)
                 if signal.getsignal(number) == signal.SIG_DFL]  # fmt: skip
        before |= {number: signal.signal(number, stop) for number in unset}
    try:
        yield
    except Exception as error:
        if received:
            raise Stopped(received[0].name) from error
        raise
    finally:
        if received:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_stopping(error: BaseException | None) -> bool:
    """Return whether an exception is `Stopped`, or one was raised while it was handled."""
    while error is not None and not isinstance(error, Stopped):
        error = error.__context__
    return error is not None


class _Output(io.FileIO):
    """File of a standard stream: the first failure is kept, and later output goes nowhere."""

    failure: OSError | None = None
    replaced: TextIO | None = None
    """Kept, since a stream that is collected may close its descriptor."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = error
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)  # of bytes, or of the memoryview of bytes of a buffered writer


def _open_streams() -> _Output | None:
    """Prepare the standard streams of this process; return the file of standard output."""
    # Python has None in place of a closed stream, and the next file would get its number.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))
    sys.stdout, stdout = _lasting(sys.stdout, 1)
    sys.stderr, _ = _lasting(sys.stderr, 2)
    # File names that the locale cannot decode are printed as their original bytes, characters that
    # an ASCII terminal lacks, such as "²", as escapes.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            utf8 = codecs.lookup(stream.encoding).name == "utf-8"
            stream.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")
    return stdout


def _lasting(stream: TextIO, number: int) -> tuple[TextIO, _Output | None]:
    """Return a standard stream that outlives its reader; another one, as in tests, unchanged."""
    buffer = getattr(stream, "buffer", None)
    file = getattr(buffer, "raw", buffer)  # no buffer with PYTHONUNBUFFERED
    if isinstance(file, _Output):
        return stream, file
    if not isinstance(file, io.FileIO) or file.fileno() != number:
        return stream, None
    assert isinstance(stream, io.TextIOWrapper)
    stream.flush()
    lasting, lines = _Output(number, "w", closefd=False), stream.line_buffering
    lasting.replaced = stream
    through = buffer is file
    opened: Any = lasting if through else io.BufferedWriter(lasting)
    text = io.TextIOWrapper(opened, stream.encoding, line_buffering=lines, write_through=through)
    return text, lasting


def _end(program: str, sentence: str, status: int) -> int:
    rank = os.environ.get("RANK", "0")
    print(f"{program}: {f'rank {rank}: ' if rank != '0' else ''}{sentence}", file=sys.stderr)
    return status
