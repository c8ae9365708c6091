"""Registry of container engines, in order of preference; start of the program of a plan."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from aam.contract.errors import CannotCreate, NotPermitted, Unavailable
from launcher import system
from launcher.engines import docker, native, podman, sif
from launcher.engines.engine import Builder, Engine
from launcher.plan.assembly import Plan
from launcher.system import quoted

_WITH_IMAGES = (sif.APPTAINER, sif.SINGULARITY, podman.ENGINE, docker.ENGINE)
BUILDERS: dict[str, Builder] = {engine.name: engine for engine in _WITH_IMAGES}
"""The engines that build images."""
ENGINES: dict[str, Engine] = {engine.name: engine for engine in (*_WITH_IMAGES, native.ENGINE)}


def containers() -> tuple[Engine, ...]:
    """Return the engines that run images, in order of preference."""
    return tuple(engine for engine in ENGINES.values() if engine.traits.image_format)


def command(plan: Plan) -> tuple[str, ...]:
    """Return the command line that runs a plan."""
    return ENGINES[plan.engine].command(plan)


def shell_line(plan: Plan) -> str:
    """Return the shell command line that is equivalent to `exec_plan`, without values of --env."""
    groups: list[Sequence[str]] = []
    if plan.folders:
        groups.append(["mkdir", "-m", "700", "-p", *plan.folders])
        # A folder or a link that another user made first is no private folder.
        groups += [["[", "-O", plan.folders[0], "]"], ["[", "!", "-L", plan.folders[0], "]"]]
    if plan.outputs:
        groups.append(["mkdir", "-p", *plan.outputs])
    settings = [argument for name in plan.unset for argument in ("-u", name)]
    secret = {f"{plan.inside}{name}" for name in plan.unseen}
    settings += [f"{name}={'...' if name in secret else value}"
                 for name, value in plan.own_environment.items()]  # fmt: skip
    groups.append([*(["env", *settings] if settings else []), *command(plan)])
    return " && ".join(" ".join(word if word in ("[", "!", "]") else quoted(word) for word in group)
                       for group in groups)  # fmt: skip


def run_plan(plan: Plan, timeout: float) -> int:
    """Run the program of a plan beside this process; return its exit status."""
    _make_folders(plan)
    return system.show(command(plan), timeout, plan.environment(os.environ))


def exec_plan(plan: Plan) -> NoReturn:
    """Make the folders that a plan needs, and replace this process by its program."""
    _make_folders(plan)
    argv = command(plan)
    try:
        os.execve(argv[0], argv, plan.environment(os.environ))
    except OSError as error:  # E2BIG: thousands of mounts; ENOEXEC, ENOENT: a broken program
        evidence = f"'{argv[0]}', {error.strerror}"
        raise Unavailable("The program cannot be started", evidence, "try --dry-run") from error


def _make_folders(plan: Plan) -> None:
    make_private(plan.folders)
    for folder in plan.outputs:  # a container finds them as mounts
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot(folder, error) from error


def make_private(folders: Sequence[str]) -> None:
    """Make folders that only this user may enter, the outermost first, where others may write."""
    me = os.geteuid()
    for number, folder in enumerate(folders):
        try:
            if number == 0:
                Path(os.path.dirname(folder)).mkdir(parents=True, exist_ok=True)
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise _cannot(folder, error) from error
        facts, evidence = os.lstat(folder), ""
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != me:
            evidence = f"'{folder}' is not a folder of yours"
        elif facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            evidence = f"others may write to '{folder}' (mode {stat.S_IMODE(facts.st_mode):o})"
        if evidence:
            cause = "The private folder of the job is not safe to use"
            raise NotPermitted(cause, evidence, "remove it or choose another --scratch")


def _cannot(folder: str, error: OSError) -> CannotCreate:
    evidence = f"'{folder}', {error.strerror}"
    return CannotCreate("A folder cannot be made", evidence, "choose another place")
