"""File trees of a host: the host itself, or a capture as a folder or a tar.

A capture may hold a manifest (`launcher.host.manifest`). A tar is never unpacked to disk, so the
names of its members can do no harm. Everything read is bounded: regular files alone, their size,
the number of names in a folder, and the size that a tar decompresses to.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import zlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from aam.contract.errors import MissingInput
from launcher import documents
from launcher.host import manifest
from launcher.host.manifest import Manifest

TOPS = ("sys", "proc", "dev", "etc", "opt", manifest.FILE)
LARGEST_TAR = 64 << 20
MOST_NAMES = 10_000
LONGEST_PATH = 4096  # PATH_MAX of Linux
COMPRESSED: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open
}  # fmt: skip
"""Opener of a compressed file by its first bytes."""


class HostTree(Protocol):
    """Files of a host by absolute path."""

    name: str
    manifest: Manifest

    def text(self, path: str) -> str:
        """Return the content; raises FileNotFoundError, or PermissionError if it is unreadable."""
        ...

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, numbers in numeric order; nothing if there is no folder."""
        ...

    def has(self, path: str) -> bool:
        """Return whether `path` exists."""
        ...

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
        captured = self.root and self.has(f"/{manifest.FILE}")
        self.manifest = manifest.parse(self.text(f"/{manifest.FILE}")) if captured else Manifest()

    def text(self, path: str) -> str:
        """Return the content; a file of mode 000 in a capture stands for an unreadable one."""
        place = self.root + path
        try:
            if self.root and not os.stat(place).st_mode & 0o444:
                raise PermissionError(path)
            # As bytes: text files of sysfs are small, and a codec's set-up costs more than they do.
            return documents.regular(place).decode(errors="replace")
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:  # EPERM of a device cgroup, EIO of a sleeping device
            raise PermissionError(path) from error

    def names(self, path: str) -> list[str]:
        """Return the names in a folder."""
        try:
            with os.scandir(self.root + path) as entries:
                return natural(entry.name for entry in islice(entries, MOST_NAMES))
        except OSError:
            return []

    def has(self, path: str) -> bool:
        """Return whether `path` exists."""
        return os.path.lexists(self.root + path)


class TarTree(HostTree):
    """A host in a tar, compressed or not, read into memory within bounds."""

    def __init__(self, file: Path) -> None:
        import tarfile

        self.name = str(file)
        self.files: dict[str, str | None] = {}
        self.folders: dict[str, set[str]] = {}
        try:
            with tarfile.open(fileobj=io.BytesIO(_unpacked(file)), mode="r:") as archive:
                for member in archive:
                    path = _below_root(member.name)
                    if path is None or member.size > documents.LARGEST:
                        continue
                    self._enter(path)
                    if member.isreg():
                        stream = archive.extractfile(member)
                        content = stream.read().decode(errors="replace") if stream else ""
                        self.files[path] = content if member.mode & 0o444 else None
                    elif not member.isdir():
                        self.files[path] = ""  # a device node or a link has no content
        except tarfile.ReadError as error:
            raise _unreadable(file, "it is no tar, or only the beginning of one") from error
        except (OSError, tarfile.TarError, EOFError, ValueError, zlib.error) as error:
            raise _unreadable(file, str(error)) from error
        manifest_text = self.files.get(f"/{manifest.FILE}")
        self.manifest = manifest.parse(manifest_text) if manifest_text else Manifest()

    def _enter(self, path: str) -> None:
        while path != "/":
            parent, _, name = path.rpartition("/")
            self.folders.setdefault(parent or "/", set()).add(name)
            path = parent or "/"

    def text(self, path: str) -> str:
        """Return the content; a member of mode 000 stands for an unreadable file."""
        if path not in self.files:
            raise FileNotFoundError(path)
        content = self.files[path]
        if content is None:
            raise PermissionError(path)
        return content

    def names(self, path: str) -> list[str]:
        """Return the names in a folder."""
        return natural(self.folders.get(path.rstrip("/"), set()))

    def has(self, path: str) -> bool:
        """Return whether `path` exists."""
        return path in self.files or path in self.folders


def _unpacked(file: Path) -> bytes:
    """Return the bytes of a tar, which may be compressed.

    A few kilobytes can decompress to any size, so no more than LARGEST_TAR bytes are taken.

    Raises:
        OSError, EOFError, ValueError: it cannot be read, is damaged, or is too large.
    """
    packed = documents.regular(file, LARGEST_TAR)
    for magic, opener in COMPRESSED.items():
        if packed.startswith(magic):
            with opener(io.BytesIO(packed)) as stream:
                content: bytes = stream.read(LARGEST_TAR + 1)
            if len(content) > LARGEST_TAR:
                raise ValueError(f"it unpacks to more than {LARGEST_TAR >> 20} MiB")
            return content
    return packed


def open_tree(root: Path) -> HostTree:
    """Return the tree at `root`.

    Raises:
        MissingInput: it is neither a folder nor a file, or it holds neither sys/ nor proc/.
    """
    if not root.exists():
        raise MissingInput("No such capture", f"'{root}'", "name a tar or a folder with sys/")
    tree: HostTree = FolderTree(root) if root.is_dir() else TarTree(root)
    if not (tree.has("/sys") or tree.has("/proc")):
        raise _unreadable(root, "it holds neither sys/ nor proc/")
    return tree


def natural(names: Iterable[str]) -> list[str]:
    """Sort names so that 10 comes after 9."""
    return sorted(names, key=lambda name: [p.zfill(20) for p in re.split(r"(\d+)", name)])


def _below_root(name: str) -> str | None:
    """Return the path of a tar's member on its host; what lies above sys/ or proc/ is dropped."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or len(name) > LONGEST_PATH:
        return None
    for start, part in enumerate(parts):
        if part in TOPS:
            return "/" + "/".join(parts[start:])
    return None


def _unreadable(root: Path, evidence: str) -> MissingInput:
    remedy = "make one with `aam-launch doctor --capture host.tar`"
    return MissingInput("A capture that cannot be read", f"'{root}', {evidence}", remedy)
