"""`aam-launch trust`: trust the settings file of a folder in its current state, or revoke it."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from aam.contract.errors import MissingInput
from launcher import config, trust
from launcher.commands import parse_own
from launcher.options.launches import Trust


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Print what a settings file does and record the user's trust in it, or remove that record."""
    options = parse_own(Trust, argv, "trust")
    path = options.file
    path = path / config.PROJECT if path.is_dir() else path
    content = config.content(path)
    if content is None:
        remedy = f"name a folder with {config.PROJECT}"
        raise MissingInput("No settings to trust", f"no '{path}'", remedy)
    given = config.entries(path, content)
    file_digest = config.project_digest(path, content, given)
    if options.revoke:
        removed = trust.revoke(file_digest, os.environ)
        print(f"{path} {'is no longer trusted' if removed else 'was not trusted'}")
        return 0
    for key, entry in given.items():
        print(f"{entry.where:<24} {key}: {reprlib.repr(entry.value)}")
    trust.accept(file_digest, os.environ)
    print(f"{path} is trusted until it changes; `aam-launch trust --revoke` takes that back")
    return 0
