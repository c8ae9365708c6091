"""Mounts of a container by the roles of the paths: inputs read-only, outputs read-write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from aam.contract.errors import ConfigurationError, UsageError
from launcher.findings import REQUESTED, Decision

IMAGE_FOLDERS = frozenset(
    ["/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/opt", "/proc", "/run",
     "/sbin", "/sys", "/usr", "/var"]
)  # fmt: skip
"""Folders without which an image does not work; nothing may be mounted over them."""
MODES = frozenset(("ro", "rw", "z", "Z"))
"""Modes of --bind; z and Z of podman and docker have no effect: containers run without labels."""


class PathFact(msgspec.Struct, frozen=True):
    """A path of the command line and its state on disk."""

    flag: str  # its option, or the file that names it
    role: str  # "input" or "output"
    absolute: str  # the path that the program opens
    real: str  # without symbolic links
    file_type: Literal["file", "folder", "nothing"]  # its type on disk
    folder: bool  # it is a folder, or will be one
    links: tuple[str, ...] = ()  # where symbolic links inside a folder lead to, outside of it


class Mount(msgspec.Struct, frozen=True):
    """A folder or file of the host in the container, with its reason and source."""

    source: str
    target: str
    writable: bool
    why: str
    origin: str
    # for `fold`: "own" is a mount of the launcher, "placed" has a target that a user gave
    kind: Literal["own", "path", "output", "placed"] = "path"

    @property
    def decision(self) -> Decision:
        """The decision to mount it."""
        source = f" from {self.source}" if self.source != self.target else ""
        value = f"{self.target} {'rw' if self.writable else 'ro'}{source}"
        return Decision("mount", value, self.why, self.origin)


def of_paths(facts: Iterable[PathFact]) -> list[Mount]:
    """Return the mounts that the paths of a command line need."""
    mounts = []
    for fact in facts:
        if fact.role == "input":
            mounts.append(Mount(fact.real, fact.absolute, False, "input", fact.flag))
            if fact.file_type == "folder" and fact.real != fact.absolute:
                why = "input, the target of a link"
                mounts.append(Mount(fact.real, fact.real, False, why, fact.flag))
            why = "a link inside the input leads there"
            mounts += [Mount(link, link, False, why, fact.flag) for link in fact.links]
        elif fact.folder:
            why = "output folder"
            mounts.append(Mount(fact.real, fact.absolute, True, why, fact.flag, "output"))
        else:
            # An output is written to a temporary file and renamed, so its folder must be writable.
            parent = os.path.dirname(fact.absolute)
            why = "folder of an output file"
            mounts.append(Mount(os.path.dirname(fact.real), parent, True, why, fact.flag))
    return mounts


def parse_bind(text: str, exists: Callable[[str], bool], origin: str) -> Mount:
    """Read a --bind: the longest PATH that exists, colons and all, then :TARGET and :MODE."""
    colons = [position for position, mark in enumerate(text) if mark == ":"]
    ends = [end for end in (len(text), *reversed(colons)) if exists(text[:end])]
    end = [*ends, *colons, len(text)][0]
    source, fields = text[:end], text[end:].split(":")[1:]
    moved = bool(fields) and not MODES.issuperset(fields[0].split(","))
    target = fields.pop(0) if moved else source
    modes = {mode for word in fields for mode in word.split(",")}
    if not source or not target:
        evidence = f"{text!r}, {origin}"
        raise UsageError("Nothing to mount", evidence, "write PATH, PATH:TARGET or PATH:TARGET:rw")
    if moved and not target.startswith("/"):
        evidence = f"'{target}' of {text!r}, {origin}"
        cause = "The path in the container is not absolute"
        raise UsageError(cause, evidence, "begin it with /")
    if wrong := sorted(modes - MODES):
        evidence = f"'{wrong[0]}' of {text!r}, {origin}"
        raise UsageError("No such mode of a mount", evidence, "write ro or rw")
    return Mount(normal(source), normal(target), "rw" in modes, REQUESTED, origin, "placed")


def mount_option(source: str, target: str, writable: bool) -> tuple[str, str]:
    """Return the option that mounts a path.

    Every engine reads its value as CSV (RFC 4180), so quotes are doubled, and knows these names of
    the fields.

    >>> mount_option("/a,b", "/c", writable=False)
    ('--mount', 'type=bind,"source=/a,b",destination=/c,ro')
    """
    values = ["type=bind", f"source={source}", f"destination={target}", "ro"][: 3 + (not writable)]
    odd = [value.startswith(" ") or bool({*',"\r\n'} & {*value}) for value in values]
    quoted = ('"' + value.replace('"', '""') + '"' for value in values)
    return "--mount", ",".join(q if o else v for o, q, v in zip(odd, quoted, values, strict=True))


def normal(path: str) -> str:
    """Return an absolute path in the one form in which paths are compared.

    >>> normal("//etc/../usr/")
    '/usr'
    """
    # Python keeps two leading slashes; POSIX leaves their meaning to the system.
    return "/" + os.path.abspath(path).lstrip("/")


def fold(mounts: Sequence[Mount]) -> tuple[Mount, ...]:
    """Drop what is covered by another mount, parents first.

    Of two mounts at one place the writable one stays, else the last. What lies in an output folder
    (not: in the folder of an output file) or in a read-only input is already visible there. A link
    that is visible there leads on, so what it leads to is mounted where that is.
    """
    mounts = [replace(mount, target=normal(mount.target)) for mount in mounts]
    chosen: dict[str, Mount] = {}
    for mount in mounts:
        # An engine may be unable to mount onto a symbolic link that another mount shows, so this
        # one is mounted at the place the link leads to.
        if mount.target != mount.source and mount.kind != "placed":
            for parent in mounts:
                moved = parent.kind == "placed" and parent.source != parent.target
                visible = _shown(parent, mount)
                if parent.kind != "own" and not moved and visible not in (None, mount.source):
                    mount = replace(mount, target=mount.source)
                    break
        if mount.target in IMAGE_FOLDERS:
            cause = "A folder that cannot be mounted"
            evidence = f"'{mount.target}' ({mount.origin}) belongs to the image"
            raise ConfigurationError(cause, evidence, "use a folder below it")
        present = chosen.get(mount.target)
        # One place that is input and output is mounted once, writable.
        if present is None or mount.writable or not present.writable:
            chosen[mount.target] = mount
    mounts_left: list[Mount] = []
    # Parents first. What a mount shows is decided by the nearest one around it: one further out may
    # be hidden there by another.
    for mount in sorted(chosen.values(), key=lambda mount: mount.target.count("/")):
        parents = [parent for parent in mounts_left if _shown(parent, mount) is not None]
        nearest = max(parents, key=lambda parent: len(parent.target), default=None)
        enough = nearest and (nearest.writable == mount.writable or nearest.kind == "output")
        if not (nearest and enough and _shown(nearest, mount) == mount.source):
            mounts_left.append(mount)
    return tuple(sorted(mounts_left, key=lambda mount: mount.target))


def _shown(parent: Mount, mount: Mount) -> str | None:
    """Return the source that `parent` shows at the target of `mount`; None if it is outside."""
    below = mount.target.startswith(parent.target + "/")
    return parent.source + mount.target[len(parent.target) :] if below else None


def require_passable(mounts: Iterable[Mount], argv: Iterable[str]) -> None:
    """Check that engines take every name: as JSON (arguments), and as CSV (--mount)."""
    faults = [(name, "it is not UTF-8") for name in argv
             if any("\udc80" <= mark <= "\udcff" for mark in name)]  # fmt: skip
    paths = (path for mount in mounts for path in (mount.source, mount.target))
    faults += [(path, "it has a line end of two characters") for path in paths if "\r\n" in path]
    for name, why in faults:
        cause, remedy = "No container engine accepts this name", "rename it, or run natively"
        raise UsageError(cause, f"{name!a}, {why}", remedy)
