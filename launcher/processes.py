"""Programs on PATH, and those that the launcher runs to their end, such as `podman info`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from subprocess import CompletedProcess


def which(name: str, search: str) -> str | None:
    """Return the path of a program on the search path, relative folders of which do not count."""
    folders = (folder for folder in search.split(os.pathsep) if folder.startswith("/"))
    paths = (os.path.join(folder, name) for folder in folders)
    return next((p for p in paths if os.path.isfile(p) and os.access(p, os.X_OK)), None)


def run(
    argv: Sequence[str],
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
    text: str = "",
) -> CompletedProcess[str]:
    """Run a program and return its exit status and output.

    Args:
        argv: the program and its arguments.
        timeout: seconds after which it is killed.
        environment: its variables; by default those of this process.
        text: its input.
    """
    # A start that runs no program saves the 2 ms of this import.
    import subprocess

    try:
        return subprocess.run(
            argv, input=text, capture_output=True, text=True, errors="replace",
            timeout=timeout, env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"no result in {timeout:g} s") from error
