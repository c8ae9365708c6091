"""Files within bounds, the folders of a user, and programs that run to their end."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aam.contract.errors import printable

if TYPE_CHECKING:
    from subprocess import CompletedProcess, Popen

XDG = {
    "XDG_CACHE_HOME": ".cache", "XDG_CONFIG_HOME": ".config", "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
}  # fmt: skip
"""Variable of the XDG Base Directory Specification -> its default below the home folder."""
LARGEST = 1 << 20  # bytes of a document; the launcher's have a few kilobytes
LONGEST = 600  # seconds that a program may take, the first start of an image included
MOST = 16 << 20  # bytes of the output of a program that are read
PATIENCE = 15  # seconds from SIGTERM to SIGKILL


def regular(path: str | os.PathLike[str], largest: int = LARGEST) -> bytes:
    """Return the content of a regular file; a device or a FIFO could be read for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("it is not a regular file")
        content = stream.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"it has more than {largest >> 20} MiB")
    return content


def quoted(word: str) -> str:
    r"""Return a word for a shell; one with control characters in `$'...'` (POSIX.1-2024, 2.2.4).

    >>> print(quoted("a b"), quoted("a\x1b'b"))
    'a b' $'a\x1b\'b'
    """
    if printable(word, 10 * len(word)) == word:
        return shlex.quote(word)
    escaped = (
        f"\\{mark}" if mark in "\\'" else mark if printable(mark) == mark
        else "".join(f"\\x{byte:02x}" for byte in mark.encode(errors="surrogateescape"))
        for mark in word
    )  # fmt: skip
    return f"$'{''.join(escaped)}'"


def user_folder(name: str, variables: Mapping[str, str]) -> Path:
    """Return this program's folder below a base folder of XDG, by the name of its variable."""
    home = Path(variables.get("HOME", "/"))
    return Path(variables.get(name) or home / XDG[name]) / "aam"


def which(name: str, search: str) -> str | None:
    """Return the path of a program on the search path, relative folders of which do not count."""
    folders = (folder for folder in search.split(os.pathsep) if folder.startswith("/"))
    paths = (os.path.join(folder, name) for folder in folders)
    return next((p for p in paths if os.path.isfile(p) and os.access(p, os.X_OK)), None)


def run(
    argv: Sequence[str], timeout: float = LONGEST, environment: Mapping[str, str] | None = None,
    text: str = "",
) -> CompletedProcess[str]:  # fmt: skip
    """Run a program with `text` as its input, output to files; end it after `timeout` seconds."""
    # A start that runs no program saves the 5 ms of these imports.
    import subprocess
    import tempfile

    with ExitStack() as stack:
        stdin, output, errors = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        stdin.write(text.encode(errors="surrogateescape"))
        stdin.seek(0)
        with started(argv, env=environment, stdin=stdin, stdout=output, stderr=errors) as process:
            status = _ended(process, timeout, f"no result in {timeout:g} s", argv[0])
        output.seek(0)
        errors.seek(0)
        texts = [stream.read(MOST).decode(errors="replace") for stream in (output, errors)]
    return subprocess.CompletedProcess(argv, status, *texts)


def show(argv: Sequence[str], timeout: float, environment: Mapping[str, str]) -> int:
    """Run a program on the terminal, end it after `timeout` seconds; return its exit status."""
    sys.stdout.flush()
    with started(argv, env=environment) as process:
        return _ended(process, timeout, f"no end in {timeout:g} s", argv[0])


def _ended(process: Popen[bytes], timeout: float, reason: str, program: str) -> int:
    from subprocess import TimeoutExpired

    try:
        return process.wait(timeout)
    except TimeoutExpired:
        raise TimeoutError(errno.ETIMEDOUT, reason, program) from None


@contextmanager
def started(argv: Sequence[str], **options: Any) -> Iterator[Popen[bytes]]:
    """Start a program; end it, with its children, if the block ends before it does."""
    import subprocess

    process = subprocess.Popen(argv, start_new_session=True, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            # Engines ignore SIGTERM while they copy, and children may do so.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
