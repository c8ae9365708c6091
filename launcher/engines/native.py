"""The native engine: no container, the Python environment that the launcher itself runs in."""

from __future__ import annotations

import importlib.util
import os
import site
import sys
from collections.abc import Sequence

from launcher.errors import Unavailable
from launcher.plan.plan import Plan
from launcher.plan.request import Request

LIBRARIES = ("torch", "lightning", "tyro", "rich", "biom", "skbio", "sklearn", "h5py")
"""Modules that the extra `model` brings and that no plain install has."""


def missing(libraries: Sequence[str] = LIBRARIES) -> tuple[str, ...]:
    """Return those `libraries` that are not installed; looks for them without importing any."""
    return tuple(name for name in libraries if importlib.util.find_spec(name) is None)


def plan(request: Request, python: str, absent: Sequence[str], in_user_site: bool) -> Plan:
    """Decide how to run `request` with the interpreter `python`.

    Args:
        request: what to run.
        python: absolute path of an interpreter that has `aam`.
        absent: libraries of the model that it lacks.
        in_user_site: `aam` itself is installed in the user's site folder, which must then stay on.

    Raises:
        Unavailable: a library is absent.
    """
    if absent:
        raise Unavailable(
            "The libraries of the model are not installed",
            f"{python} has no {', '.join(absent)}",
            f"install them with `{python} -m pip install 'aam[model]'`",
        )
    # Modules in the current folder must not replace those of the environment (Python >= 3.11).
    variables = [("PYTHONSAFEPATH", "1")]
    if not in_user_site:
        variables.insert(0, ("PYTHONNOUSERSITE", "1"))
    argv = (python, "-m", "aam.cli", request.command, *request.words)
    return Plan(argv=argv, variables=tuple(variables))


def plan_here(request: Request) -> Plan:
    """Decide how to run `request` with the interpreter that is running now."""
    home = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    in_user_site = home is not None and __file__.startswith(home + os.sep)
    return plan(request, sys.executable, missing(), in_user_site)


def become(plan: Plan) -> None:
    """Replace this process by the planned program; does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(plan.argv[0], plan.argv, plan.environment(os.environ))
