"""File trees of a host: the host itself, or a capture as a folder or a tar.

A capture may hold a manifest from `aam-launch doctor --capture`: the user, the variables that
matter, device nodes, engines, and facts from libraries of drivers. Everything read is bounded:
regular files alone, their size, and the number of names in a folder. A tar is never unpacked to
disk, so the names of its members can do no harm.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from aam.contract.errors import DataError, MissingInput
from aam.contract.records import decode_json
from launcher import system
from launcher.host.facts import DeviceNode, EngineFact, NativeStack, User

MAX_NAMES = 10_000
LARGEST_TAR = 64 << 20  # packed, and unpacked
LONGEST_PATH = 4096  # PATH_MAX of Linux
MANIFEST = "aam-capture.json"  # file of a capture with what no file of sysfs or procfs holds
TOPS = ("sys", "proc", "dev", "etc", "opt", MANIFEST)
"""Folders of a capture; in a tar, what lies above them is dropped."""


class Manifest(msgspec.Struct, frozen=True):
    """Facts of a capture beside its files."""

    complete: bool = False  # the capture has a manifest
    machine: str = "x86_64"  # of the processor, as `uname -m` prints it
    user: User | None = None  # the user who made the capture, or None
    environment: dict[str, str] = {}  # the variables that decisions read
    nodes: dict[str, DeviceNode] = {}  # by path
    engines: tuple[EngineFact, ...] = ()  # container engines on PATH
    archs: dict[str, str] = {}  # of GPUs by PCI address; they may not follow from files
    native: NativeStack | None = None  # Python environment of the launcher


class HostTree(Protocol):
    """Files of a host by absolute path."""

    name: str
    manifest: Manifest = Manifest()

    def text(self, path: str) -> str:
        """Return the content; raises FileNotFoundError, or PermissionError if it is unreadable."""

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, numbers in numeric order; nothing if there is no folder."""

    def has(self, path: str) -> bool:
        """Return whether `path` exists."""

    def read(self, path: str) -> str | None:
        """Return the content without white space around it; None if absent or unreadable."""
        try:
            return self.text(path).strip()
        except OSError:
            return None


class FolderTree(HostTree):
    """A host below a folder; "/" is the host itself."""

    def __init__(self, root: Path) -> None:
        self.name = str(root)
        self.root = "" if self.name == "/" else self.name

    def text(self, path: str) -> str:
        file = self.root + path
        try:
            if self.root and not os.stat(file).st_mode & 0o444:
                raise PermissionError(path)
            # As bytes: text files of sysfs are small, and a codec's set-up costs more than they do.
            return system.regular(file).decode(errors="replace")
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:  # EPERM of a device cgroup, EIO of a sleeping device
            raise PermissionError(path) from error

    def names(self, path: str) -> list[str]:
        try:
            with os.scandir(self.root + path) as entries:
                return natural(entry.name for entry in islice(entries, MAX_NAMES))
        except OSError:
            return []

    def has(self, path: str) -> bool:
        return os.path.lexists(self.root + path)


class TarTree(HostTree):
    """A host in a tar, compressed or not, read into memory within bounds."""

    def __init__(self, file: Path) -> None:
        # With compression: 2 ms that a tar costs.
        import bz2
        import gzip
        import lzma
        import tarfile
        import zlib

        openers: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7z": lzma.open}
        self.name, self.files = str(file), dict[str, str | None]()
        self.folders: dict[str, set[str]] = {}
        try:
            content = system.regular(file, LARGEST_TAR)
            if opener := openers.get(content[:3], openers.get(content[:2])):
                with opener(io.BytesIO(content)) as stream:
                    content = stream.read(LARGEST_TAR + 1)
                if len(content) > LARGEST_TAR:  # a few kilobytes can decompress to any size
                    raise ValueError(f"it unpacks to more than {LARGEST_TAR >> 20} MiB")
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
                for member in archive:
                    names = [name for name in member.name.split("/") if name not in ("", ".")]
                    start = next((n for n, name in enumerate(names) if name in TOPS), None)
                    too_long = len(member.name) > LONGEST_PATH or member.size > system.LARGEST
                    if start is None or ".." in names or too_long:
                        continue
                    path = "/" + "/".join(names[start:])
                    for depth in range(start, len(names)):
                        folder = "/" + "/".join(names[start:depth])
                        self.folders.setdefault(folder, set()).add(names[depth])
                    if member.isreg():
                        member_file = archive.extractfile(member)
                        text = member_file.read().decode(errors="replace") if member_file else ""
                        self.files[path] = text if member.mode & 0o444 else None
                    elif not member.isdir():
                        self.files[path] = ""  # a device node or a link has no content
        except tarfile.ReadError as error:
            raise unreadable(file, "it is no tar, or only the beginning of one") from error
        except (OSError, tarfile.TarError, EOFError, ValueError, zlib.error) as error:
            raise unreadable(file, str(error)) from error

    def text(self, path: str) -> str:
        if path not in self.files:
            raise FileNotFoundError(path)
        if (content := self.files[path]) is None:
            raise PermissionError(path)
        return content

    def names(self, path: str) -> list[str]:
        return natural(self.folders.get(path.rstrip("/"), set()))

    def has(self, path: str) -> bool:
        return path in self.files or path in self.folders


def open_tree(root: Path) -> HostTree:
    """Return the tree at `root`."""
    if not root.exists():
        raise MissingInput("No such capture", f"'{root}'", "name a tar or a folder with sys/")
    tree: HostTree = FolderTree(root) if root.is_dir() else TarTree(root)
    if not (tree.has("/sys") or tree.has("/proc")):
        raise unreadable(root, "it holds neither sys/ nor proc/")
    if tree.name != "/" and tree.has(f"/{MANIFEST}"):
        try:
            manifest = decode_json(tree.text(f"/{MANIFEST}"), Manifest, "capture", MANIFEST)
        except (DataError, PermissionError) as error:
            evidence = error.evidence if isinstance(error, DataError) else "it may not be read"
            remedy = "make it again with `aam-launch doctor --capture`"
            raise MissingInput("A damaged capture", evidence, remedy) from error
        tree.manifest = replace(manifest, complete=True)
    return tree


def natural(names: Iterable[str]) -> list[str]:
    """Sort names so that 10 comes after 9."""
    return sorted(names, key=lambda name: [p.zfill(20) for p in re.split(r"(\d+)", name)])


def unreadable(root: Path, evidence: str) -> MissingInput:
    """Return the error for a capture that cannot be read."""
    remedy = "make one with `aam-launch doctor --capture host.tar`"
    return MissingInput("A capture that cannot be read", f"'{root}', {evidence}", remedy)
