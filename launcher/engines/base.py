"""Protocols of an engine, and of one that builds images, with its log; a module for each engine.

To add an engine, write a module whose `ENGINE` has the members of `Engine` and enter it in
`launcher.engines.ENGINES`, and in `BUILDERS` if it has those of `Builder`. No other module names an
engine: the choices of --runtime and --engine, detection, `explain`, `doctor`, plans and command
lines come from these registries.

An engine that runs images has an `image_format`, under which images.json records its images ("sif"
for a file in the image folder, else the engine's own storage).
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from aam.contract.errors import CannotCreate, printable
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
BLOCK, LAST = 16 << 20, 1 << 16  # bytes of a log that are read at once, and at its end
SHOWN = re.compile(rb"(?m)^(?:== |ok |FAILED ).*$")  # lines of a log that are printed
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

    def __init__(
        self, path: Path, cause: str = "The image was not built", limit: float = 4 * 3600
    ) -> None:
        # The file, the error of a failed command, and the seconds that all commands may take.
        self.path, self.cause, self.limit = path, cause, limit
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
        self.show(text)
        with self.path.open("a") as stream:
            stream.write(f"== {text}\n")

    def show(self, text: str) -> None:
        """Print a line with the time since the start."""
        passed = int(time.monotonic() - self.started)
        line = f"{passed // 60:3d}:{passed % 60:02d}  {printable(text, 300)}"
        print(line, file=sys.stderr, flush=True)

    def run(
        self, argv: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Run a command; lines that begin with "== " or "ok " are shown.

        Its output goes to the log and is read there: a child that it leaves behind could hold a
        pipe open for ever.
        """
        from subprocess import DEVNULL, STDOUT, TimeoutExpired  # a start without builds saves 2 ms

        with self.path.open("a") as stream:
            stream.write("$ " + " ".join(argv) + "\n")
        status, block, rest = None, b"", b""
        with self.path.open("ab") as output, self.path.open("rb") as log:
            begin = log.seek(0, os.SEEK_END)
            with system.started(
                argv, cwd=folder, env=environment, stdin=DEVNULL, stdout=output, stderr=STDOUT,
                umask=0o022,  # files in an image, whatever the access of the image folder is
            ) as process:  # fmt: skip
                while status is None or block:
                    with suppress(TimeoutExpired):
                        status = process.wait(0.5)
                    if status is None and time.monotonic() > self.started + self.limit:
                        evidence = (
                            f"no end of `{' '.join(argv[:2])}` in {self.limit / 60:g} minutes"
                        )
                        remedy = f"see '{self.path}'; repeat it, or give more --minutes"
                        raise CannotCreate(self.cause, evidence, remedy)
                    block = log.read(BLOCK)
                    whole, _, rest = (rest + block).rpartition(b"\n")
                    rest = rest[-LAST:]
                    for line in SHOWN.findall(whole):
                        self.show(line.decode(errors="replace").strip("= "))
            log.seek(max(begin, log.tell() - LAST))
            last = log.read().decode(errors="replace").splitlines()
        if status == 0:
            return
        shown = [f"    {printable(line, 300)}" for line in last if line.strip()]
        print("\n".join(shown[-TAIL:]), file=sys.stderr)
        text, remedy = "\n".join(last).lower(), "correct the error in its last lines and repeat it"
        if "no space left on device" in text:
            remedy = FULL
        elif any(phrase in text for phrase in NETWORK):
            remedy = OFFLINE
        evidence = f"`{' '.join(argv[:2])}` ended with status {status}"
        raise CannotCreate(self.cause, f"{evidence}; its output is in '{self.path}'", remedy)
