"""Origin of this installation, the pip command that installs an extra, and the error without it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from aam.contract.errors import Unavailable

DISTRIBUTION = "attention-all-microbes"  # name on the package index, where `aam` is another project


def origin() -> str:
    """Return what `pip install` installs this program from."""
    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file():
        return str(checkout)
    # Together 16 ms, spent only on the message that names the origin.
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
    """Return the requirement by which `pip install` installs this program, with an extra."""
    source, extras = origin(), f"[{extra}]" if extra else ""
    return f"{DISTRIBUTION}{extras} @ {source}" if "://" in source else f"{source}{extras}"


def install_command(extra: str = "model", python: str | None = None) -> str:
    """Return the command that installs an extra of this installation."""
    program = shlex.quote(python or sys.executable)
    return f"{program} -m pip install {shlex.quote(requirement(extra))}"


NETWORK_LIBRARIES = ("torch", "tensorboard")
"""Modules of the extra `model` that the extra `study` does not have."""


def not_installed(
    what: str, error: ImportError, extra: str = "", alternative: str = ""
) -> Unavailable:
    """Return the error about a missing package, with the command that installs it."""
    module = (error.name or "").partition(".")[0]
    extra = extra or ("model" if module in NETWORK_LIBRARIES else "study")
    remedy = f"install it with `{install_command(extra)}`{alternative and f', or {alternative}'}"
    return Unavailable(what, f"no module '{error.name}'", remedy)
