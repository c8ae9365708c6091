"""Versions of the engines: the one thing about a host that takes starting programs.

Not a part of `detect`, which starts none; for `doctor` and captures.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

from launcher.host.facts import Host

PATIENCE = 10  # seconds
NUMBER = re.compile(r"\d+(?:\.\d+)+[^\s,]*")


def with_versions(host: Host) -> Host:
    """Return the host with the version of every engine that tells it."""
    known = tuple(replace(engine, version=version(engine.path)) for engine in host.engines)
    return replace(host, engines=known)


def version(program: str) -> str | None:
    """Return what `program --version` says, as a number; None if it says none in time."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = NUMBER.search(done.stdout)
    return found[0] if found else None
