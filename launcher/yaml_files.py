"""Read YAML files once: importing a YAML parser takes longer than everything else before a start.

What a file says is kept as JSON in the user's cache folder, under the file's identity, time and
size. A cache that cannot be read or written is no matter: the file itself is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aam import __version__
from launcher.plan.layers import Entry


def cache_folder(variables: Mapping[str, str]) -> Path:
    """Return the folder for what was read before."""
    base = variables.get("XDG_CACHE_HOME") or Path(variables.get("HOME", "/")) / ".cache"
    return Path(base) / "aam" / "yaml"


def document(path: Path, cache: Path) -> Any:
    """Return the content of a YAML file of this package."""

    def parse(text: str) -> Any:
        from launcher.plan.document import load

        return load(text)

    return _through(path, cache, parse)


def entries(path: Path, known: tuple[str, ...], cache: Path) -> dict[str, Entry]:
    """Return the top-level entries of a configuration; see `launcher.plan.document.entries`.

    Raises:
        ConfigurationError: what is wrong with it, and where.
    """

    def parse(text: str) -> Any:
        from launcher.plan.document import entries

        found = entries(text, str(path), known)
        return {key: [entry.value, entry.where] for key, entry in found.items()}

    held = _through(path, cache, parse)
    return {key: Entry(value, where) for key, (value, where) in held.items()}


def _through(path: Path, cache: Path, parse: Any) -> Any:
    facts = os.stat(path)
    name = f"{facts.st_dev:x}-{facts.st_ino:x}-{facts.st_mtime_ns:x}-{facts.st_size:x}"
    place = cache / f"{name}-{__version__}.json"
    try:
        with open(place, "rb") as stream:
            held = json.loads(stream.read())
        if held["path"] == str(path):
            return held["content"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    content = parse(path.read_text())
    try:
        text = json.dumps({"path": str(path), "content": content})
        # Keys that are no words, dates and the like would come back as something else.
        if json.loads(text)["content"] == content:
            cache.mkdir(parents=True, exist_ok=True)
            aside = place.with_name(f".{place.name}.{os.getpid()}")
            aside.write_text(text)
            os.replace(aside, place)
    except (OSError, ValueError, TypeError):
        pass
    return content
