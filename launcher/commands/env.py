"""`aam-launch env NAME FOLDER`: a virtual environment from the lock of an image.

uv makes it where it is installed and brings the Python of the lock; else venv and pip do.
Every package is installed by its hash, so it does not matter which index has it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aam import __version__
from aam.contract.errors import CannotCreate, Unavailable, UsageError
from aam.contract.installation import DISTRIBUTION, requirement
from launcher.commands import parse_own
from launcher.engines.base import GIB, SpaceRequirement, which
from launcher.engines.build_log import BuildLog
from launcher.findings import warn
from launcher.images.build import require_space, require_wheels, stoppable
from launcher.images.definitions import lock_of, sources
from launcher.images.verify import WRONG
from launcher.options.images import Env
from launcher.plan.catalog import Image
from launcher.plan.decision import decide_stack
from launcher.plan.request import Request
from launcher.planning import gather

OFFLINE = (
    "the packages come from a network; without one give a folder of wheels with --wheels, which "
    "`pip download --no-deps --require-hashes -r LOCK` fills elsewhere"
)


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Make the environment and run `aam check` in it, or print how that is done."""
    options = parse_own(Env, argv, "env")
    if len(options.place) != 2:
        evidence, remedy = " ".join(options.place), "give both: `aam-launch env auto FOLDER`"
        raise UsageError("env takes a stack and a folder", evidence, remedy)
    name, folder = options.place[0], Path(options.place[1]).expanduser().absolute()
    flags = {**launcher_options, **({"--image": name} if name != "auto" else {})}
    inputs = gather(Request("check", {}, flags), flags.get("--host") or Path("/"))
    stack, choice = decide_stack(inputs)
    warn(choice.findings)
    lock = lock_of(sources(), stack.name)
    steps = list(commands(stack, lock, folder, options, "--dry-run" in flags))
    here = bool(choice.gpus) and inputs.host.live
    check = (str(folder / "bin/python"), "-I", "-m", "launcher.cli", "--runtime", "native",
             "check", "--quick", *(() if here else ("--device", "cpu")))  # fmt: skip
    if "--dry-run" in flags:
        for decision in choice.decisions:
            print(f"# {decision.subject} {decision.value}: {decision.why} [{decision.source}]")
        print("\n".join(map(shlex.join, (*steps, check))))
        return 0
    images = Path(inputs.settings.image_dir.value).expanduser().absolute()
    log = BuildLog(images / "logs" / f"environment-{stack.name}.log",
                   "The environment was not made", OFFLINE)  # fmt: skip
    log.step(f"{stack.title}, lock {lock}; log {log.path}")
    _make(stack, folder, steps, log)
    sys.stdout.flush()
    status = subprocess.run(check, check=False, cwd="/").returncode
    if status not in (0, WRONG):
        evidence = f"aam check ended with status {status} in '{folder}'"
        remedy = f"see its output above; on another node repeat `{shlex.join(check)}`"
        raise Unavailable("The environment does not work here", evidence, remedy)
    print(f"{folder / 'bin/aam-launch'} runs aam with {stack.title}")
    return 0


def commands(
    stack: Image, lock: Path, folder: Path, options: Env, named: bool
) -> Iterator[tuple[str, ...]]:
    """Yield the commands that make an environment.

    Args:
        named: the Python may be named by its version, without being here.

    Raises:
        Unavailable: there is neither uv nor the Python of the lock.
        MissingInput: the folder of --wheels has none.
    """
    wheels, python = require_wheels(options.wheels), str(folder / "bin/python")
    version, search = stack.pins["python"], os.environ.get("PATH", os.defpath)
    uv = which("uv", search)
    if uv:
        yield (uv, "venv", "--no-project", "--python", options.python or version, str(folder))
        install: tuple[str, ...] = (uv, "pip", "install", "--python", python)
        install += ("--index-strategy", "unsafe-best-match")
    else:
        own = f"{sys.version_info[0]}.{sys.version_info[1]}" == version
        found = options.python or which(f"python{version}", search) or (own and sys.executable)
        if not found and not named:
            evidence = f"no uv and no Python {version}, for which the lock of {stack.name} is"
            remedy = "install uv, which brings its own, or name that Python with --python"
            raise Unavailable("Nothing to make an environment with", evidence, remedy)
        yield (found or f"python{version}", "-I", "-m", "venv", str(folder))
        install = (python, "-I", "-m", "pip", "--disable-pip-version-check", "install")
    index = stack.arguments["TORCH_INDEX"]
    offline = ("--no-index", "--find-links", str(wheels)) if wheels else ()
    of_torch = () if offline or index == "pypi" else ("--extra-index-url", index)
    yield (*install, "--no-deps", "--only-binary", ":all:", "--require-hashes",
           *(offline or of_torch), "--requirement", str(lock))  # fmt: skip
    source = requirement()
    name = f"{DISTRIBUTION}=={__version__}" if source == DISTRIBUTION else source
    # The lock has setuptools, which builds it.
    yield (*install, "--no-deps", "--no-build-isolation", *offline[:1], name)


def _make(stack: Image, folder: Path, steps: Sequence[Sequence[str]], log: BuildLog) -> None:
    """Make an environment; nothing but the log is left of one that fails.

    Raises:
        CannotCreate: the folder exists, there is no room, or a command fails.
    """
    building, image = stack.room
    size = int((building - image) * GIB)
    require_space([SpaceRequirement("packages", folder, size, "give another folder")])
    try:
        folder.mkdir(parents=True)  # of two processes one makes it
    except OSError as error:
        evidence, remedy = f"'{folder}', {error.strerror}", "choose another folder, or remove it"
        raise CannotCreate("The folder cannot be made", evidence, remedy) from error
    complete = False
    try:
        with stoppable():
            for step, argv in zip(("virtual environment", "packages", "aam"), steps, strict=True):
                log.step(step)
                log.run(argv, folder)
        complete = True
    finally:
        if not complete:
            shutil.rmtree(folder, ignore_errors=True)
