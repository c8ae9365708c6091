"""Engines act: each module turns a Plan into the words of a command line, nothing else.

    command(plan) -> words, the first of them an absolute path

A new engine is a new module and a line here.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable

from launcher.engines import apptainer, docker, native, podman
from launcher.engines.folders import make_outputs, make_private
from launcher.errors import Unavailable
from launcher.plan.plan import Plan

COMMANDS: dict[str, Callable[[Plan], tuple[str, ...]]] = {
    "apptainer": apptainer.command,
    "singularity": apptainer.command,
    "podman": podman.command,
    "docker": docker.command,
    "native": native.command,
}


def command(plan: Plan) -> tuple[str, ...]:
    """Return the words of the program to become."""
    return COMMANDS[plan.engine](plan)


def shell_line(plan: Plan) -> str:
    """Return a line that does the same when it is pasted into a shell."""
    parts = []
    if plan.folders:
        outer = plan.folders[0]
        parts.append(shlex.join(["mkdir", "-m", "700", "-p", *plan.folders]))
        # A folder or a link that another user made first is no private folder.
        parts.append(f"[ -O {shlex.quote(outer)} ] && [ ! -L {shlex.quote(outer)} ]")
    if plan.outputs:
        parts.append(shlex.join(["mkdir", "-p", *plan.outputs]))
    settings = [word for name in plan.unset for word in ("-u", name)]
    if plan.engine == "native":
        settings += [f"{name}={value}" for name, value in plan.variables]
    words = command(plan)
    parts.append(shlex.join(["env", *settings, *words] if settings else words))
    return " && ".join(parts)


def become(plan: Plan) -> None:
    """Make the folders that the plan needs and replace this process; does not return.

    Raises:
        CannotCreate, NotPermitted: a folder cannot be made, or is somebody else's.
        Unavailable: the program cannot be started.
    """
    make_private(plan.folders)
    make_outputs(plan.outputs)
    words = command(plan)
    try:
        os.execve(words[0], words, plan.environment(os.environ))
    except OSError as error:  # E2BIG: thousands of mounts; ENOEXEC, ENOENT: a broken program
        evidence = f"'{words[0]}', {error.strerror}"
        raise Unavailable("The program cannot be started", evidence, "try --dry-run") from error
