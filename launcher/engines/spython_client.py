"""Singularity from Python (spython), if spython is installed: a second reader.

Nothing that starts `aam` imports this module: `spython.main` takes 130 ms to import and starts
`singularity` for its version.
"""

from __future__ import annotations

import importlib.util
import os

from aam.contract.errors import Unavailable
from launcher.system import which


def available() -> bool:
    """Return whether spython and its program are installed."""
    program = which("singularity", os.environ.get("PATH", ""))
    return program is not None and importlib.util.find_spec("spython") is not None


def labels(sif: str) -> dict[str, str]:
    """Return the labels of a SIF as the engine reports them."""
    from spython.main import Client

    result = Client.inspect(sif)
    # Its client returns the output of a program that fails as a mapping, and raises no error.
    if "return_code" in result:
        evidence = f"inspect ended with status {result['return_code']}: {result['message']}"
        raise Unavailable("The engine failed under spython", evidence, "run it without spython")
    stored: dict[str, str] = result["attributes"]["labels"]
    return stored


def instances() -> list[str]:
    """Return the running instances of this user, "NAME (IMAGE)"."""
    from spython.main import Client

    return [f"{instance.name} ({instance._image})" for instance in Client.instances(quiet=True)]
