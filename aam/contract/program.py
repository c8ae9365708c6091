"""Entry point of both programs: standard streams, exit statuses of errors and signals."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable
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
"""Texts of out-of-memory errors of the dynamic loader, C++ and PyTorch."""


class Stopped(BaseException):
    """Signal that ends a command without a checkpoint; `str` is its name."""


def run(program: str, command: Callable[[], int]) -> int:
    """Run a command and return its exit status; each error becomes one sentence.

    A command goes on if its output fails (a closed pipe, a full disk), so that no result is lost.
    The status is an error if standard output failed for another reason than a closed pipe.
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
        problem = system_error(error) if isinstance(error, OSError) else None
        if problem is None:
            # The dynamic loader, C++ and PyTorch raise their own out-of-memory errors.
            no_memory = isinstance(error, MemoryError) or getattr(error, "errno", 0) == errno.ENOMEM
            if not no_memory and not any(text in str(error) for text in _MEMORY):
                raise
            reason = reason_of(error) if str(error) else "no memory is left"
            remedy = "use more memory, or less input"
            problem = DataError("The input does not fit in memory", reason, remedy)
        return _end(program, str(problem), problem.status)
    except Stopped as stopped:
        return _end(program, f"Stopped by {stopped}; start the command again.", STOPPED)
    except KeyboardInterrupt:
        return _end(program, "Interrupted.", INTERRUPTED)


class _Output(io.FileIO):
    """File of a standard stream: after the first failure, output is discarded."""

    failure: OSError | None = None
    replaced: TextIO | None = None
    """Former stream: its garbage collection could close the descriptor."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = error
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)  # bytes, or a memoryview of bytes


def _open_streams() -> _Output | None:
    """Prepare the standard streams of this process; return the file of standard output."""
    # A closed stream is None in Python, and the next file would get its number.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))
    sys.stdout, stdout = _lasting(sys.stdout, 1)
    sys.stderr, _ = _lasting(sys.stderr, 2)
    # File names that the locale cannot decode are printed as their bytes; an ASCII terminal gets
    # escapes of characters such as "²".
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            utf8 = codecs.lookup(stream.encoding).name == "utf-8"
            stream.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")
    return stdout


def _lasting(stream: TextIO, number: int) -> tuple[TextIO, _Output | None]:
    """Return a standard stream that outlives its reader; other streams (tests) unchanged."""
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
