"""`aam-launch trust`: trust the settings file of a folder in its current state, or revoke it."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Sequence
from pathlib import Path

from aam.contract.errors import MissingInput, UsageError
from launcher import config, trust

REVOKE = "--revoke"


def run(argv: Sequence[str]) -> int:
    """Print what a settings file does and record the user's trust in it, or remove that record."""
    files = [argument for argument in argv if argument != REVOKE]
    if len(files) > 1 or any(argument.startswith("-") for argument in files):
        remedy = "see `aam-launch trust --help`"
        raise UsageError("`trust` takes one file", " ".join(files), remedy)
    path = Path(files[0] if files else config.PROJECT)
    path = path / config.PROJECT if path.is_dir() else path
    content = config.content(path)
    if content is None:
        remedy = f"name a folder with {config.PROJECT}"
        raise MissingInput("No settings to trust", f"no '{path}'", remedy)
    given = config.entries(path, content)
    file_digest = config.project_digest(path, content, given)
    if REVOKE in argv:
        removed = trust.revoke(file_digest, os.environ)
        print(f"{path} {'is no longer trusted' if removed else 'was not trusted'}")
        return 0
    for key, entry in given.items():
        print(f"{entry.where:<24} {key}: {reprlib.repr(entry.value)}")
    trust.accept(file_digest, os.environ)
    print(f"{path} is trusted until it changes; `aam-launch trust --revoke` takes that back")
    return 0
