"""Protocols of an engine, and of one that builds images, with its log; a module for each engine.

To add an engine, write a module whose `ENGINE` has the members of `Engine` and enter it in
`launcher.engines.ENGINES`, and in `BUILDERS` if it has those of `Builder`. No other module names an
engine: the choices of --runtime and --engine, detection, `explain`, `doctor`, plans and command
lines come from these registries.

An engine that runs images has an `image_format`, under which images.json records its images ("sif"
for a file in the image folder, else the engine's own storage).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from aam.contract.errors import CannotCreate
from launcher import system
from launcher.host.facts import EngineFact, EngineTraits
from launcher.host.tree import HostTree
from launcher.plan.plan import Plan

GIB = 1 << 30
WHEELS = "/mnt"
"""Mount point of a folder of wheels in a build; containers/install.sh reads it."""
PYTHON = "/opt/aam/bin/python"
LIBRARIES = "/opt/aam/torch-lib"
"""LD_LIBRARY_PATH of an image (containers/environment.sh)."""
SMOKE = "/opt/aam/containers/smoke.py"
"""The test of an image, inside of it."""
LABELS = "/opt/aam/labels.json"
"""What was measured in the image when it was built (containers/measure.py)."""
ENV = "/usr/bin/env"
NAMESPACE_SETTINGS = {
    "/proc/sys/user/max_user_namespaces": "0",
    "/proc/sys/kernel/unprivileged_userns_clone": "0",  # Debian's and Arch's kernels
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",  # Ubuntu 23.10 and later
}
"""Kernel settings with the value that forbids user namespaces (user_namespaces(7))."""
PATIENCE = 15  # seconds
TAIL = 12  # lines of the log that a failure shows
NETWORK = (
    "temporary failure in name resolution",
    "no such host",
    "could not resolve",
    "network is unreachable",
    "connection refused",
    "newconnectionerror",
    "i/o timeout",
    "failed to establish a new connection",
    "connection timed out",
)
FULL = "the disk is full; set TMPDIR, AAM_IMAGE_DIR and what the log names to folders with room"
OFFLINE = (
    "a build needs a network for its base, Debian's packages and the wheels; without one, build "
    "elsewhere, and bring the image: `aam-launch images build NAME --from FILE`"
)


def user_namespaces(tree: HostTree) -> str | None:
    """Return the kernel setting that forbids user namespaces, or None."""
    found = (path for path, value in NAMESPACE_SETTINGS.items() if tree.read(path) == value)
    return next((f"{path} is {NAMESPACE_SETTINGS[path]}" for path in found), None)


def program(plan: Plan) -> tuple[str, ...]:
    """Return the argv inside the container: `env` sets the variables, so no engine interprets them.

    Apptainer splits the values of its own --env at commas and has a shell evaluate them. Those that
    a user sets may be secrets, which `ps` would show: the engine takes them from its environment.
    """
    named = (f"{name}={value}" for name, value in plan.variables.items() if name not in plan.unseen)
    return (ENV, *named, "aam", *plan.argv)


def labels(argv: Sequence[str], name: str) -> dict[str, str]:
    """Return what was measured in an image when it was built, and check that it is image `name`."""
    done = system.run(argv)
    try:
        found: dict[str, str] = msgspec.json.decode(done.stdout, type=dict[str, str])
    except msgspec.DecodeError as error:
        evidence = f"{LABELS} of {name}: {(done.stderr or str(error)).strip()[-300:]}"
        raise CannotCreate("Not an image of this project", evidence,
                           "start it by its path: --image FILE.sif") from error  # fmt: skip
    if (label := found.get("org.aam.name")) != name:
        evidence, remedy = f"it is labelled {label}, not {name}", f"name it {label}"
        raise CannotCreate("Another image", evidence, remedy)
    return found


class SpaceRequirement(msgspec.Struct, frozen=True):
    """Bytes that a step of a build takes in a folder, and how to move that step elsewhere."""

    what: str
    folder: Path
    size: int
    remedy: str


class Engine(Protocol):
    """What starts the program of a plan: detection and command line."""

    name: str  # as --runtime takes it
    traits: EngineTraits  # properties that decisions depend on

    def detect(
        self, path: str, tree: HostTree, environment: Mapping[str, str], user_id: int
    ) -> EngineFact:
        """Return the facts of the engine whose program is `path`, without starting it."""

    def command(self, plan: Plan) -> tuple[str, ...]:
        """Return the command line that runs a plan; it starts with an absolute path."""


class Builder(Protocol):
    """An engine that also builds and inspects images."""

    name: str  # as --engine takes it
    traits: EngineTraits  # properties that decisions depend on
    least: tuple[int, int]  # the oldest version that can build images

    def needs(
        self, program: str, room: tuple[float, float], folder: Path, variables: Mapping[str, str]
    ) -> list[SpaceRequirement]:
        """Return the disk space that a build needs; `room`: GiB of building and of the image."""

    def build(self, build: ImageBuild, log: BuildLog) -> dict[str, Any]:
        """Build, test and label an image, install it, and return its record."""

    def pull(self, build: ImageBuild, reference: str, log: BuildLog) -> dict[str, Any]:
        """Pull an image from a registry, install it, and return its record."""

    def exec_argv(self, program: str, place: str, argv: Sequence[str]) -> list[str]:
        """Return the argv that runs a program in an image without anything of the host."""

    def exists(self, program: str, recorded: Mapping[str, Any], place: Path) -> bool:
        """Return whether the recorded image still exists, by a check that takes no time."""

    def verify(self, program: str, name: str, recorded: Mapping[str, Any], place: Path) -> str:
        """Compare an image byte for byte with its record; return the engine's name for it."""


class ImageBuild(msgspec.Struct, frozen=True):
    """Inputs of an image build."""

    program: str  # absolute path of the engine
    name: str  # of the image
    arguments: Mapping[str, str]  # build arguments by name
    context: Path  # folder with `containers` and `aam`, from which definitions copy
    scratch: Path  # folder for temporary files, removed afterwards
    epoch: int  # date of every file that the build adds, in seconds since 1970
    wheels: Path | None  # folder of wheels to install instead of those of an index
    # an image to convert instead of building a definition: a SIF or a Docker archive
    archive: Path | None
    test: bool  # run the image's own test before it replaces another
    place: Path  # file to write, for an engine whose images are files


class BuildLog:
    """Log of a build: steps on the terminal, complete output of commands in a file."""

    def __init__(self, path: Path, cause: str = "The image was not built") -> None:
        self.path, self.cause = path, cause  # the file, and the error of a failed command
        self.started = time.monotonic()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # that of another user may not be writable
            path.write_text("")
        except OSError as error:
            evidence, remedy = f"'{path}', {error.strerror}", "let its owner remove it"
            raise CannotCreate("The log cannot be written", evidence, remedy) from error

    def step(self, text: str) -> None:
        """Print a line with the time since the start, and log it."""
        passed = int(time.monotonic() - self.started)
        print(f"{passed // 60:3d}:{passed % 60:02d}  {text}", file=sys.stderr, flush=True)
        with self.path.open("a") as stream:
            stream.write(f"== {text}\n")

    def run(
        self, argv: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Run a command; lines that begin with "== " or "ok " are shown."""
        import subprocess  # a start that builds nothing saves 2 ms

        with self.path.open("a") as stream:
            stream.write("$ " + " ".join(argv) + "\n")
        process = subprocess.Popen(
            argv, cwd=folder, env=environment, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            umask=0o022,  # files in an image, whatever the access of the image folder is
        )  # fmt: skip
        assert process.stdout is not None
        last: list[str] = []
        try:
            with self.path.open("a") as stream:
                for line in process.stdout:
                    stream.write(line)
                    last = [*last, line.rstrip()][-200:]
                    if line.startswith(("== ", "ok ", "FAILED ")):
                        self.step(line.strip("= \n"))
            status = process.wait()
        finally:
            if process.poll() is None:  # an engine ignores SIGTERM while it copies
                process.terminate()
                try:
                    process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        if status == 0:
            return
        shown = [f"    {line[:300]}" for line in last if line.strip()]
        print("\n".join(shown[-TAIL:]), file=sys.stderr)
        text, remedy = "\n".join(last).lower(), "correct the error in its last lines and repeat it"
        if "no space left on device" in text:
            remedy = FULL
        elif any(phrase in text for phrase in NETWORK):
            remedy = OFFLINE
        evidence = f"`{' '.join(argv[:2])}` ended with status {status}"
        raise CannotCreate(self.cause, f"{evidence}; its output is in '{self.path}'", remedy)
