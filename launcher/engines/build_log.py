"""Log of an image build: steps on the terminal, complete output of commands in a file."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from aam.contract.errors import CannotCreate

PATIENCE = 15  # seconds
TAIL = 12  # lines of the log that a failure shows
NETWORK = (
    "temporary failure in name resolution",
    "no such host",
    "could not resolve",
    "network is unreachable",
    "connection refused",
    "newconnectionerror",
    "i/o timeout",
    "failed to establish a new connection",
    "connection timed out",
)
FULL = "the disk is full; set TMPDIR, AAM_IMAGE_DIR and what the log names to folders with room"
OFFLINE = (
    "a build needs a network for its base, Debian's packages and the wheels; without one, build "
    "elsewhere, and bring the image: `aam-launch images build NAME --from FILE`"
)


class BuildLog:
    """Log file of a build, whose steps are printed on the terminal.

    Args:
        path: the file.
        cause: the error of a failed command.
    """

    def __init__(self, path: Path, cause: str = "The image was not built") -> None:
        self.path, self.cause = path, cause
        self.started = time.monotonic()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # that of another user may not be writable
            path.write_text("")
        except OSError as error:
            evidence, remedy = f"'{path}', {error.strerror}", "let its owner remove it"
            raise CannotCreate("The log cannot be written", evidence, remedy) from error

    def step(self, text: str) -> None:
        """Print a line with the time since the start, and log it."""
        passed = int(time.monotonic() - self.started)
        print(f"{passed // 60:3d}:{passed % 60:02d}  {text}", file=sys.stderr, flush=True)
        with self.path.open("a") as stream:
            stream.write(f"== {text}\n")

    def run(
        self, argv: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Run a command; lines that begin with "== " or "ok " are shown."""
        with self.path.open("a") as stream:
            stream.write("$ " + " ".join(argv) + "\n")
        process = subprocess.Popen(
            argv, cwd=folder, env=environment, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            umask=0o022,  # files in an image, whatever the access of the image folder is
        )  # fmt: skip
        assert process.stdout is not None
        last: list[str] = []
        try:
            with self.path.open("a") as stream:
                for line in process.stdout:
                    stream.write(line)
                    last = [*last, line.rstrip()][-200:]
                    if line.startswith(("== ", "ok ", "FAILED ")):
                        self.step(line.strip("= \n"))
            status = process.wait()
        finally:
            _end(process)
        if status:
            raise self._failed(argv, status, last)

    def _failed(self, argv: Sequence[str], status: int, last: Sequence[str]) -> CannotCreate:
        shown = [f"    {line[:300]}" for line in last if line.strip()]
        print("\n".join(shown[-TAIL:]), file=sys.stderr)
        text = "\n".join(last).lower()
        evidence = (
            f"`{' '.join(argv[:2])}` ended with status {status}; its output is in '{self.path}'"
        )
        if "no space left on device" in text:
            remedy = FULL
        elif any(phrase in text for phrase in NETWORK):
            remedy = OFFLINE
        else:
            remedy = "correct the error in its last lines and repeat the command"
        return CannotCreate(self.cause, evidence, remedy)


def _end(process: subprocess.Popen[str]) -> None:
    """End a command that is still running; an engine ignores SIGTERM while it copies."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
