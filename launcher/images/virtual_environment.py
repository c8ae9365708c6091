"""Virtual environments: a stack of the catalog without a container, from the lock of its image.

uv makes them where it is installed, else Python's venv and pip. Every package is installed by its
hash. The wheel of PyTorch is locked for one Python where its index is PyTorch's, and for those of
the lock where it is PyPI.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aam import __version__
from aam.contract.errors import CannotCreate, Unavailable
from aam.contract.installation import DISTRIBUTION, requirement
from launcher import processes
from launcher.engines.base import GIB, SpaceRequirement, which
from launcher.engines.build_log import BuildLog
from launcher.images.build import require_space, stoppable
from launcher.images.verify import WRONG
from launcher.plan.catalog import Image

Argv = tuple[str, ...]
LOCKED_FOR = re.compile(r"^# Python (.+) on ", re.MULTILINE)
IMPORTED = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
OFFLINE = (
    "the packages come from a network; without one give a folder of wheels with --wheels, which "
    "`pip download --no-deps --require-hashes -r LOCK` fills elsewhere"
)


@dataclass(frozen=True)
class Installer:
    """uv or pip: its program (of pip the Python), and the version of Python that it installs."""

    name: str
    program: str
    python: str


@dataclass(frozen=True)
class Environment:
    """A virtual environment to make.

    Attributes:
        stack: image of the catalog.
        folder: absolute path.
        lock: packages with their hashes.
        wheels: folder of wheels to install from instead of an index.
    """

    stack: Image
    folder: Path
    lock: Path
    installer: Installer
    wheels: Path | None

    @property
    def python(self) -> str:
        """The interpreter of the environment."""
        return str(self.folder / "bin/python")


def pythons(stack: Image, lock: str) -> tuple[str, ...]:
    """Return the versions of Python for which a lock has PyTorch's wheel, the image's own first.

    >>> pythons(Image("x", "x", None, {"python": "3.12"}, arguments={"TORCH_INDEX": "pypi"}),
    ...         "# Python 3.11 and 3.12 on x86_64")
    ('3.12', '3.11')
    """
    of_image = stack.pins["python"]
    found = LOCKED_FOR.search(lock) if stack.arguments["TORCH_INDEX"] == "pypi" else None
    others = found[1].split(" and ") if found else []
    return tuple(dict.fromkeys((of_image, *others)))


def find_installer(
    stack: Image, lock: str, variables: Mapping[str, str], name: str | None, python: str | None
) -> Installer:
    """Return uv where it is installed, else the Python of a version that the lock has wheels for.

    Args:
        name: "uv" or "pip"; None: the first that is there.
        python: path of an interpreter to use.

    Raises:
        Unavailable: there is neither, or the named interpreter is of another version.
    """
    versions, search = pythons(stack, lock), variables.get("PATH", os.defpath)
    known = " or ".join(versions)
    if python is not None:
        found = _version(python)
        if found not in versions:
            evidence = f"'{python}' is {f'Python {found}' if found else 'no Python with venv'}"
            remedy = (
                f"PyTorch {stack.pins['torch']} is locked for Python {known}; name one of these"
            )
            raise Unavailable(f"Stack {stack.name} needs another Python", evidence, remedy)
        versions = (found,)
    uv = which("uv", search) if name != "pip" else None
    if uv is not None:
        return Installer("uv", uv, python or versions[0])
    candidates = [python] if python else [sys.executable]
    candidates += [path for v in versions if (path := which(f"python{v}", search))]
    for path in () if name == "uv" else candidates:
        version = _version(path)
        if version in versions:
            return Installer("pip", path, version)
    what = "no uv" if name == "uv" else f"no uv and no Python {known} with venv"
    remedy = f"install uv, which brings its own Python, or Python {known}, or name it with --python"
    raise Unavailable("Nothing to make an environment with", f"{what} on PATH", remedy)


def _version(python: str) -> str | None:
    """Return the version of an interpreter that has venv and pip, or None."""
    argv = [python, "-I", "-c", IMPORTED]
    try:
        done = processes.run(argv)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def commands(environment: Environment) -> tuple[Argv, ...]:
    """Return the commands that make an environment.

    The lock is divided, so that PyTorch's index, which has builds of other packages too, is
    queried for PyTorch alone.
    """
    folder, installer = environment.folder, environment.installer
    packages, pytorch = folder / "packages.txt", folder / "pytorch.txt"
    parts = ("-e", f"1,/^# torch: /w {packages}", "-e", f"/^# torch: /,$w {pytorch}")
    index = environment.stack.arguments["TORCH_INDEX"]
    pypi: Argv = ()
    pytorchs: Argv = () if index == "pypi" else ("--index-url", index)
    if environment.wheels:
        pypi = pytorchs = ("--no-index", "--find-links", str(environment.wheels))
    make, install = INSTALLERS[installer.name](environment)
    locked = (*install, "--no-deps", "--only-binary", ":all:", "--require-hashes")
    return (
        make,
        ("sed", "-n", *parts, str(environment.lock)),
        (*locked, *pypi, "--requirement", str(packages)),
        (*locked, *pytorchs, "--requirement", str(pytorch)),
        (*install, *_aam(environment)),
    )


def _with_pip(environment: Environment) -> tuple[Argv, Argv]:
    options = ("--disable-pip-version-check", "install", "--progress-bar", "off")
    return (
        (environment.installer.program, "-I", "-m", "venv", str(environment.folder)),
        (environment.python, "-I", "-m", "pip", *options),
    )


def _with_uv(environment: Environment) -> tuple[Argv, Argv]:
    uv, python = environment.installer.program, environment.installer.python
    return (
        (uv, "venv", "--no-project", "--python", python, str(environment.folder)),
        (uv, "pip", "install", "--python", environment.python),
    )


INSTALLERS: dict[str, Callable[[Environment], tuple[Argv, Argv]]] = {
    "uv": _with_uv,
    "pip": _with_pip,
}
"""Commands that make the folder and that install packages, by installer in order of preference."""


def _aam(environment: Environment) -> Argv:
    """Return the arguments that install aam itself; the lock has setuptools, which builds it."""
    source = requirement()
    name = f"{DISTRIBUTION}=={__version__}" if source == DISTRIBUTION else source
    offline = ("--no-index",) if environment.wheels else ()
    return ("--no-deps", "--no-build-isolation", *offline, name)


def check_command(environment: Environment, gpu: bool) -> Argv:
    """Return the command that runs `aam check` in an environment, on its GPUs or the processor."""
    device = () if gpu else ("--device", "cpu")
    launch = ("-I", "-m", "launcher.cli", "--runtime", "native")
    return (environment.python, *launch, "check", "--quick", *device)


def make(environment: Environment, log: BuildLog) -> None:
    """Make an environment; nothing but the log is left of one that fails.

    Raises:
        CannotCreate: the folder exists, there is no room, or a command fails.
    """
    folder, stack = environment.folder, environment.stack
    building, image = stack.room
    size = int((building - image) * GIB)
    require_space([SpaceRequirement("packages", folder, size, "give another --folder")])
    try:
        folder.mkdir(parents=True)  # of two processes one makes it
    except FileExistsError as error:
        remedy = f"choose another --folder, or remove it: `rm -r {folder}`"
        raise CannotCreate("The folder exists", f"'{folder}'", remedy) from error
    except OSError as error:
        evidence = f"'{folder}', {error.strerror}"
        raise CannotCreate(
            "The folder cannot be made", evidence, "choose another --folder"
        ) from error
    steps = ("virtual environment", f"lock {environment.lock}", "packages", "PyTorch", "aam")
    complete = False
    try:
        with stoppable():
            for step, argv in zip(steps, commands(environment), strict=True):
                log.step(step)
                log.run(argv, folder)
        complete = True
    finally:
        if not complete:
            shutil.rmtree(folder, ignore_errors=True)


def check(environment: Environment, gpu: bool) -> int:
    """Run `aam check` in an environment and return its exit status, 0 or 1 (a backend is wrong).

    Raises:
        Unavailable: it fails; the environment stays.
    """
    argv = check_command(environment, gpu)
    sys.stdout.flush()
    done: subprocess.CompletedProcess[bytes] = subprocess.run(argv, check=False, cwd="/")
    if done.returncode not in (0, WRONG):
        evidence = f"aam check ended with status {done.returncode} in '{environment.folder}'"
        remedy = f"see its output above; on another node repeat `{shlex.join(argv)}`"
        raise Unavailable("The environment does not work here", evidence, remedy)
    return done.returncode
