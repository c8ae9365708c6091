"""Origin of this installation, the pip command that installs an extra, and the error without it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from aam.contract.errors import Unavailable

DISTRIBUTION = "attention-all-microbes"  # name on PyPI, where `aam` is another project


def origin() -> str:
    """Return the source from which pip installs this program."""
    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file():
        return str(checkout)
    # Imports of 16 ms, only for the message that names the origin.
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:
        text = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return DISTRIBUTION
    if text is None:
        return DISTRIBUTION
    source = json.loads(text)
    url = str(source["url"])
    if url.startswith("file:"):
        return unquote(urlsplit(url).path)
    vcs = source.get("vcs_info", {}).get("vcs")
    return f"{vcs}+{url}" if vcs else url


def requirement(extra: str = "") -> str:
    """Return the pip requirement of this program, with an extra."""
    source, extras = origin(), f"[{extra}]" if extra else ""
    return f"{DISTRIBUTION}{extras} @ {source}" if "://" in source else f"{source}{extras}"


def install_command(extra: str = "model", python: str | None = None) -> str:
    """Return the command that installs an extra of this installation."""
    program = shlex.quote(python or sys.executable)
    return f"{program} -m pip install {shlex.quote(requirement(extra))}"


NETWORK_LIBRARIES = ("torch", "tensorboard")
"""Modules that the extra `model` adds to the extra `study`."""


def not_installed(
    cause: str, error: ImportError, extra: str = "", alternative: str = ""
) -> Unavailable:
    """Return the error about a missing package, with the command that installs it."""
    module = (error.name or "").partition(".")[0]
    extra = extra or ("model" if module in NETWORK_LIBRARIES else "study")
    remedy = f"install it with `{install_command(extra)}`{alternative and f', or {alternative}'}"
    return Unavailable(cause, f"no module '{error.name}'", remedy)
