"""Singularity from Python (spython), where it is installed: a second reader of SIFs, instances.

Nothing that starts `aam` imports this module: `spython.main` takes 130 ms to import and starts the
engine for its version. The client calls the program `singularity`, which Apptainer installs too.
It returns the output of a program that fails as a mapping instead of raising an error; the
functions here raise one.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from aam.contract.errors import Unavailable
from launcher.engines.base import which

PROGRAM = "singularity"


def available() -> bool:
    """Return whether spython and its program are installed."""
    found = which(PROGRAM, os.environ.get("PATH", ""))
    return found is not None and importlib.util.find_spec("spython") is not None


def labels(place: str) -> dict[str, str]:
    """Return the labels of a SIF as the engine reports them.

    Raises:
        Unavailable: the engine cannot read it.
    """
    from spython.main import Client

    result = Client.inspect(place)
    if "return_code" in result:
        raise _failed("inspect", result)
    found: dict[str, str] = result["attributes"]["labels"]
    return found


def instances() -> list[str]:
    """Return the running instances of this user, "NAME (IMAGE)"."""
    from spython.main import Client

    return [f"{each.name} ({each._image})" for each in Client.instances(quiet=True)]


def execute(place: str, argv: list[str]) -> str:
    """Run a program in a SIF and return its output.

    Raises:
        Unavailable: it fails.
    """
    from spython.main import Client

    result = Client.execute(place, argv, options=["--contain", "--cleanenv"], return_result=True)
    if result["return_code"] != 0:
        raise _failed(argv[0], result)
    message = result["message"]
    return message if isinstance(message, str) else "".join(message)


def _failed(action: str, result: Any) -> Unavailable:
    evidence = f"{action} ended with status {result['return_code']}: {result['message']}"
    return Unavailable("The engine failed under spython", evidence, "run it without spython")
