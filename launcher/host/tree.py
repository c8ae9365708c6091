"""Where facts are read: the host itself, a folder that holds sys/, proc/ and dev/, or a tar of one.

A capture may hold `aam-capture.json` (written by `aam-launch doctor --capture`): who asked, the
environment, the device nodes, and which files existed but could not be read. A tar is never
unpacked, so what its members are called can do no harm.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from launcher.errors import MissingInput

MANIFEST = "aam-capture.json"
TOPS = ("sys", "proc", "dev", "etc", "opt", MANIFEST)
LONGEST = 1 << 20


class Tree(Protocol):
    """Files of a host by absolute path; unreadable is not the same as absent."""

    name: str
    manifest: dict[str, Any]

    def text(self, path: str) -> str:
        """Return the content; raises FileNotFoundError or PermissionError."""
        ...

    def names(self, path: str) -> list[str]:
        """Return what a folder holds, numbers in their order; nothing if there is no folder."""
        ...

    def has(self, path: str) -> bool:
        """Tell whether there is anything at `path`."""
        ...


class Folder:
    """A host below a folder; "/" is the host itself."""

    def __init__(self, root: Path) -> None:
        self.name = str(root)
        self.root = "" if self.name == "/" else self.name
        self.manifest = _manifest(self.text(f"/{MANIFEST}")) if self._captured() else {}

    def _captured(self) -> bool:
        return bool(self.root) and self.has(f"/{MANIFEST}")

    def text(self, path: str) -> str:
        """Return the content; a file of mode 000 in a capture stands for an unreadable one."""
        place = self.root + path
        if self.root and os.path.lexists(place) and not os.stat(place).st_mode & 0o444:
            raise PermissionError(path)
        try:
            # As bytes: text files of sysfs are small, and a codec's set-up costs more than they do.
            with open(place, "rb", buffering=0) as stream:
                return stream.read(LONGEST).decode(errors="replace")
        except FileNotFoundError:
            raise
        except OSError as error:  # EPERM of a device cgroup, EIO of a sleeping device
            raise PermissionError(path) from error

    def names(self, path: str) -> list[str]:
        """Return what a folder holds, numbers in their order."""
        try:
            return natural(os.listdir(self.root + path))
        except OSError:
            return []

    def has(self, path: str) -> bool:
        """Tell whether there is anything at `path`."""
        return os.path.lexists(self.root + path)


class Tar:
    """A host in a tar, read into memory."""

    def __init__(self, file: Path) -> None:
        import tarfile

        self.name = str(file)
        self.files: dict[str, str | None] = {}
        self.folders: dict[str, set[str]] = {}
        try:
            with tarfile.open(file) as archive:
                for member in archive:
                    path = _below_root(member.name)
                    if path is None or member.size > LONGEST:
                        continue
                    self._enter(path)
                    if member.isreg():
                        stream = archive.extractfile(member)
                        content = stream.read().decode(errors="replace") if stream else ""
                        self.files[path] = content if member.mode & 0o444 else None
                    elif not member.isdir():
                        self.files[path] = ""  # a device node or a link: there, nothing to read
        except tarfile.ReadError as error:
            raise _unreadable(file, "it is no tar, or only the beginning of one") from error
        except (OSError, tarfile.TarError, EOFError) as error:
            raise _unreadable(file, str(error)) from error
        held = self.files.get(f"/{MANIFEST}")
        self.manifest = _manifest(held) if held else {}

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
        """Return what a folder holds, numbers in their order."""
        return natural(self.folders.get(path.rstrip("/"), set()))

    def has(self, path: str) -> bool:
        """Tell whether there is anything at `path`."""
        return path in self.files or path in self.folders


def open_tree(root: Path) -> Tree:
    """Return the tree at `root`.

    Raises:
        MissingInput: there is nothing, or it holds neither sys/ nor proc/.
    """
    if not root.exists():
        raise MissingInput("No such capture", f"'{root}'", "name a tar or a folder with sys/")
    tree: Tree = Folder(root) if root.is_dir() else Tar(root)
    if not (tree.has("/sys") or tree.has("/proc")):
        raise _unreadable(root, "it holds neither sys/ nor proc/")
    return tree


def natural(names: Iterable[str]) -> list[str]:
    """Sort names so that 10 comes after 9."""
    return sorted(names, key=lambda name: [int(p) if p.isdigit() else p for p in _split(name)])


def _split(name: str) -> list[str]:
    return re.split(r"(\d+)", name)


def _below_root(name: str) -> str | None:
    """Return the path of a tar's member on its host; what lies above sys/ or proc/ is dropped."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        return None
    for start, part in enumerate(parts):
        if part in TOPS:
            return "/" + "/".join(parts[start:])
    return None


def _manifest(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise MissingInput("A damaged capture", f"{MANIFEST} is not JSON", "make it again")
    return content


def _unreadable(root: Path, evidence: str) -> MissingInput:
    remedy = "make one with `aam-launch doctor --capture host.tar`"
    return MissingInput("A capture that cannot be read", f"'{root}', {evidence}", remedy)
