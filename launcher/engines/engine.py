"""Protocols of an engine, and of one that builds images, with its log; a module for each engine.

To add an engine, write a module whose `ENGINE` has the members of `Engine` and enter it in
`launcher.engines.ENGINES`, and in `BUILDERS` if it implements `Builder`: no other module names an
engine. Its `image_format` is the key of its images in images.json.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from aam.contract.errors import CannotCreate, MissingInput, Unavailable, UsageError, printable
from launcher import system
from launcher.host.facts import EngineFact, EngineTraits
from launcher.host.tree import HostTree
from launcher.plan.assembly import Plan
from launcher.plan.catalog import StoredName

GIB = 1 << 30
WHEELS = "/mnt"  # mount point of a folder of wheels in a build; containers/install.sh reads it
PYTHON = "/opt/aam/bin/python"
LIBRARIES = "/opt/aam/torch-lib"  # LD_LIBRARY_PATH of an image (containers/environment.sh)
SMOKE = "/opt/aam/containers/smoke.py"  # the test of an image, inside of it
LABELS = "/opt/aam/labels.json"
"""What was measured in the image when it was built (containers/measure.py)."""
TEST, SHOW_LABELS = (PYTHON, SMOKE), ("cat", LABELS)
"""Command lines inside of an image."""
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
    "temporary failure in name resolution", "no such host", "could not resolve",
    "network is unreachable", "connection refused", "newconnectionerror", "i/o timeout",
    "failed to establish a new connection", "connection timed out",
)  # fmt: skip
FULL = "the disk is full; set TMPDIR, AAM_IMAGE_DIR and what the log names to folders with room"
OFFLINE = (
    "a build needs a network for its base, Debian's packages and the wheels; without one, build "
    "elsewhere, and bring the image: `aam-launch images build NAME --from FILE`"
)


def user_namespaces(tree: HostTree) -> str | None:
    """Return the kernel setting that forbids user namespaces, or None."""
    forbidding = (path for path, value in NAMESPACE_SETTINGS.items() if tree.read(path) == value)
    return next((f"{path} is {NAMESPACE_SETTINGS[path]}" for path in forbidding), None)


def program(plan: Plan) -> tuple[str, ...]:
    """Return the argv inside the container: `env` sets the variables, so no engine interprets them.

    Those that a user sets may be secrets: the engine takes them from its environment.
    """
    pairs = (f"{name}={value}" for name, value in plan.variables.items() if name not in plan.unseen)
    return (ENV, *pairs, "aam", *plan.argv)


def labels(argv: Sequence[str], name: str) -> dict[str, str]:
    """Return what was measured in an image when it was built, and check that it is image `name`."""
    done = system.run(argv)
    try:
        measured: dict[str, str] = msgspec.json.decode(done.stdout, type=dict[str, str])
    except msgspec.DecodeError as error:
        evidence = f"{LABELS} of {name}: {(done.stderr or str(error)).strip()[-300:]}"
        remedy = "start it by its path: --image FILE.sif"
        raise CannotCreate("Not an image of this project", evidence, remedy) from error
    if (label := measured.get("org.aam.name")) != name:
        evidence, remedy = f"it is labelled {label}, not {name}", f"name it {label}"
        raise CannotCreate("Another image", evidence, remedy)
    return measured


def require_room(needs: Sequence[tuple[str, Path, int, str]]) -> None:
    """Check the disk space of steps (name, folder, bytes, remedy), summed over file systems."""
    taken: dict[int, int] = {}
    for step, wanted, size, remedy in needs:
        existing = next(folder for folder in (wanted, *wanted.parents) if folder.exists())
        facts, device = os.statvfs(existing), os.stat(existing).st_dev
        taken[device] = taken.get(device, 0) + size
        free = facts.f_bavail * facts.f_frsize
        if free < taken[device]:
            needed = f"{taken[device] / GIB:.1f} needed"
            evidence = f"{free / GIB:.1f} GiB free at '{wanted}' ({step}), {needed}"
            raise CannotCreate("No room to build", evidence, remedy)


def require_same(name: str, path: str, now: str, recorded: str | None) -> None:
    """Check that an image is the recorded one, by its digest or id."""
    if now != recorded:
        evidence = f"'{path}' is {now}, recorded was {recorded}"
        remedy = f"build it again: `aam-launch images build {name} --rebuild`"
        raise MissingInput("The image is another one", evidence, remedy)


def run_test(argv: Sequence[str], minutes: int, environment: Mapping[str, str]) -> None:
    """Run the own test of an image on the terminal."""
    if status := system.show(argv, minutes * 60, environment):
        evidence = f"its own test ended with status {status}"
        raise Unavailable("The image does not work here", evidence, "see its output above")


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
    """An engine that also builds images."""

    name: str  # as --engine takes it
    traits: EngineTraits  # properties that decisions depend on
    least: tuple[int, int]  # the oldest version that can build images

    def build(self, build: ImageBuild, log: BuildLog) -> ImageRecord:
        """Build, test and label an image, install it, and return its record."""

    def pull(self, build: ImageBuild, reference: ImageReference, log: BuildLog) -> ImageRecord:
        """Pull an image from a registry, install it, and return its record."""

    def verify(self, build: ImageBuild, recorded: ImageRecord) -> None:
        """Compare an image byte for byte with its record, and run its own test."""


class ImageRecord(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"from_": "from"}
):
    """An image of one format, as images.json has it."""

    sha256: str | None = None  # of a file
    mtime_ns: int | None = None  # of a file
    reference: StoredName | None = None  # tag in the storage of an engine
    id: StoredName | None = None  # in that storage; no later tag changes it
    digest: str | None = None  # in a storage or a registry
    bytes: int | None = None
    labels: dict[str, str] = {}  # what was measured in the image
    from_: str | None = None  # file or reference that it comes from, if it was not built
    inputs: str | None = None  # digest of all that it was built from
    arguments: dict[str, str] = {}  # of its build
    engine: str | None = None  # that built it, with its version
    built: int | None = None  # when, in seconds since 1970
    verified: str | None = None  # day of the last verification

    @property
    def known_digest(self) -> str | None:
        """Digest of the image, for plans and run records."""
        return f"sha256:{self.sha256}" if self.sha256 else self.digest


REFERENCE = re.compile(
    r"(?P<repository>[a-z0-9][a-z0-9._-]*(:[0-9]+(?=/))?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*)"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)
"""Grammar of github.com/distribution/reference: a host has no scheme, a path no tag."""


class ImageReference(msgspec.Struct, frozen=True):
    """An image in a registry.

    >>> str(ImageReference.parse("127.0.0.1:5000/aam/base:tag"))
    '127.0.0.1:5000/aam/base:tag'
    """

    repository: str  # with the host of the registry
    tag: str | None = None
    digest: str | None = None
    sif: bool = False  # the tag names the file of a SIF, whose SHA-256 is the digest

    @staticmethod
    def parse(text: str) -> ImageReference:
        """Return the image that a text names."""
        match = REFERENCE.fullmatch(text)
        if not match:
            remedy = "write it as ghcr.io/owner/aam:TAG or ghcr.io/owner/aam@sha256:..."
            raise UsageError("Not an image in a registry", ascii(text), remedy)
        return ImageReference(match["repository"], match["tag"], match["digest"])

    def __str__(self) -> str:
        # Not every engine reads a tag beside a digest; each compares the digest with what it gets.
        if self.digest and not self.sif:
            return f"{self.repository}@{self.digest}"
        return f"{self.repository}:{self.tag}" if self.tag else self.repository


class ImageBuild(msgspec.Struct, frozen=True):
    """Inputs of an image build."""

    program: str  # absolute path of the engine
    name: str  # of the image
    place: Path  # file of the image, for an engine whose images are files
    test: bool  # run the image's own test
    minutes: int = 240  # time limit
    scratch: Path = Path("/")  # folder for temporary files, removed afterwards
    context: Path = Path("/")  # folder with `containers` and `aam`, from which definitions copy
    arguments: Mapping[str, str] = {}  # build arguments by name
    room: tuple[float, float] = (0, 0)  # GiB that building takes, and GiB of the image
    epoch: int = 0  # date of every file that the build adds, in seconds since 1970
    wheels: Path | None = None  # folder of wheels to install instead of a package index
    archive: Path | None = None  # a SIF or a Docker archive to convert instead of building


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
            path.unlink(missing_ok=True)  # another user's file may not be writable
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
        minutes, seconds = divmod(int(time.monotonic() - self.started), 60)
        line = f"{minutes:3d}:{seconds:02d}  {printable(text, 300)}"
        print(line, file=sys.stderr, flush=True)

    def run(
        self, argv: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Run a command, its output to the log; lines that begin with "== " or "ok " are shown."""
        from subprocess import DEVNULL, STDOUT, TimeoutExpired  # a start without builds saves 2 ms

        with self.path.open("a") as stream:
            stream.write("$ " + " ".join(argv) + "\n")
        status, block, incomplete, program_name = None, b"", b"", f"`{' '.join(argv[:2])}`"
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
                        evidence = f"no end of {program_name} in {self.limit / 60:g} minutes"
                        remedy = f"see '{self.path}'; repeat it, or give more --minutes"
                        raise CannotCreate(self.cause, evidence, remedy)
                    block = log.read(BLOCK)
                    complete, _, incomplete = (incomplete + block).rpartition(b"\n")
                    incomplete = incomplete[-LAST:]
                    for line in SHOWN.findall(complete):
                        self.show(line.decode(errors="replace").strip("= "))
            log.seek(max(begin, log.tell() - LAST))
            last = log.read().decode(errors="replace").splitlines()
        if status == 0:
            return
        last_lines = [f"    {printable(line, 300)}" for line in last if line.strip()]
        print("\n".join(last_lines[-TAIL:]), file=sys.stderr)
        text, remedy = "\n".join(last).lower(), "correct the error in its last lines and repeat it"
        if "no space left on device" in text:
            remedy = FULL
        elif any(phrase in text for phrase in NETWORK):
            remedy = OFFLINE
        evidence = f"{program_name} ended with status {status}; its output is in '{self.path}'"
        raise CannotCreate(self.cause, evidence, remedy)
