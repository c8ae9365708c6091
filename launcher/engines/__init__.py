"""Registry of container engines; command line and start of the program of a plan.

`ENGINES` is the registry, in order of preference, and `BUILDERS` that of the engines that build;
`launcher.engines.base` has their Protocols.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

from msgspec.structs import replace

from aam.contract.errors import Unavailable
from launcher.engines import docker, native, podman, sif
from launcher.engines.base import Builder, Engine
from launcher.engines.folders import make_folders
from launcher.host.facts import EngineFact
from launcher.host.tree import HostTree
from launcher.plan.plan import Plan
from launcher.system import which

T = TypeVar("T")

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (sif.APPTAINER, sif.SINGULARITY, podman.ENGINE, docker.ENGINE, native.ENGINE)
}


BUILDERS: dict[str, Builder] = {
    engine.name: engine for engine in (sif.APPTAINER, sif.SINGULARITY, podman.ENGINE, docker.ENGINE)
}
"""The engines that build images."""


def containers() -> tuple[Engine, ...]:
    """Return the engines that run images, in order of preference."""
    return tuple(engine for engine in ENGINES.values() if engine.traits.image_format)


def of_format(image_format: str) -> tuple[Engine, ...]:
    """Return the engines that run images of a format."""
    return tuple(e for e in containers() if e.traits.image_format == image_format)


def builders(image_format: str) -> tuple[Builder, ...]:
    """Return the engines that build and inspect images of a format."""
    known = tuple(e for e in BUILDERS.values() if e.traits.image_format == image_format)
    if not known:
        remedy = "remove its entry from images.json"
        raise Unavailable("No engine for images of this format", f"'{image_format}'", remedy)
    return known


def found(
    tree: HostTree, environment: Mapping[str, str], user_id: int, live: bool
) -> tuple[EngineFact, ...]:
    """Return the engines of a host: detected on this one, as a capture recorded them on another."""
    if live:
        search = environment.get("PATH", os.defpath)
        paths = ((engine, which(engine.name, search)) for engine in containers())
        return tuple(e.detect(path, tree, environment, user_id) for e, path in paths if path)
    return tuple(
        replace(fact, traits=ENGINES[fact.name].traits)
        for fact in tree.manifest.engines
        if fact.name in ENGINES
    )


def absent(host_engines: tuple[EngineFact, ...]) -> tuple[EngineFact, ...]:
    """Return the engines that run images and that a host does not have."""
    names = {fact.name for fact in host_engines}
    return tuple(
        EngineFact(engine.name, engine.name, traits=engine.traits)
        for engine in containers() if engine.name not in names
    )  # fmt: skip


def command(plan: Plan) -> tuple[str, ...]:
    """Return the command line that runs a plan."""
    return ENGINES[plan.engine].command(plan)


def shell_line(plan: Plan) -> str:
    """Return the shell command line that is equivalent to `exec_plan`."""
    parts = []
    if plan.folders:
        outer = plan.folders[0]
        parts.append(shlex.join(["mkdir", "-m", "700", "-p", *plan.folders]))
        # A folder or a link that another user made first is no private folder.
        parts.append(f"[ -O {shlex.quote(outer)} ] && [ ! -L {shlex.quote(outer)} ]")
    if plan.outputs:
        parts.append(shlex.join(["mkdir", "-p", *plan.outputs]))
    settings = [argument for name in plan.unset for argument in ("-u", name)]
    settings += [f"{name}={value}" for name, value in plan.own_environment.items()]
    argv = command(plan)
    parts.append(shlex.join(["env", *settings, *argv] if settings else argv))
    return " && ".join(parts)


def exec_plan(plan: Plan) -> NoReturn:
    """Replace this process by the program of a plan."""
    start_plan(plan, lambda argv, variables: os.execve(argv[0], argv, variables))
    raise AssertionError("execve(2) does not return")


def start_plan(plan: Plan, start: Callable[[tuple[str, ...], dict[str, str]], T]) -> T:
    """Make the folders that a plan needs, and start its program.

    Args:
        start: starts a command line with an environment.
    """
    make_folders(plan)
    argv = command(plan)
    try:
        return start(argv, plan.environment(os.environ))
    except OSError as error:  # E2BIG: thousands of mounts; ENOEXEC, ENOENT: a broken program
        evidence = f"'{argv[0]}', {error.strerror}"
        raise Unavailable("The program cannot be started", evidence, "try --dry-run") from error
