"""Versions of container engines, read by `--version` and cached.

Not a part of `detect`, which starts none. Versions are cached in the user's cache folder
by the program's time and size, so a launch starts an engine once; `explain` reads the cache only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from aam.contract.errors import CannotCreate
from aam.contract.files import atomic_write
from launcher import documents, processes
from launcher.host.facts import Host

PATIENCE = 10  # seconds
NUMBER = re.compile(r"\d+(?:\.\d+)+[^\s,]*")


def with_versions(host: Host, startable: Container[str]) -> Host:
    """Return the host with the versions of its engines.

    Args:
        startable: names of the engines that may be started to read their version.
    """
    cache = documents.user_folder("XDG_CACHE_HOME", os.environ) / "engines"
    known = [
        replace(engine, version=_version(engine.path, cache, engine.name in startable))
        for engine in host.engines
    ]
    return replace(host, engines=tuple(known))


def _version(program: str, cache: Path, may_start: bool) -> str | None:
    """Return the version that `program --version` prints or printed before, or None."""
    facts = os.stat(program)
    name = f"{facts.st_dev:x}-{facts.st_ino:x}-{facts.st_mtime_ns:x}-{facts.st_size:x}"
    place = cache / f"version-{name}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = documents.parsed(documents.regular(place))
        if stored["program"] == program:
            return str(stored["version"])
    if not may_start:
        return None
    try:
        found = NUMBER.search(processes.run([program, "--version"], PATIENCE).stdout)
    except OSError:  # a TimeoutError among them
        return None
    if found is None:
        return None
    # The version is determined again next time where the cache cannot be written.
    with suppress(OSError, CannotCreate), atomic_write(place) as temporary:
        temporary.write_text(json.dumps({"program": program, "version": found[0]}))
    return found[0]
