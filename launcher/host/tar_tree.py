"""Capture of a host in a tar, which is never unpacked to disk.

The names of its members can therefore do no harm. Their size is bounded, and so is the size to
which the tar decompresses.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from pathlib import Path
from typing import Any

from launcher import system
from launcher.host.tree import MANIFEST, HostTree, Manifest, natural, parse_manifest, unreadable

TOPS = ("sys", "proc", "dev", "etc", "opt", MANIFEST)
LARGEST_TAR = 64 << 20
LONGEST_PATH = 4096  # PATH_MAX of Linux
COMPRESSED: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open
}  # fmt: skip
"""Opener of a compressed file by its first bytes."""


class TarTree(HostTree):
    """A host in a tar, compressed or not, read into memory within bounds."""

    def __init__(self, file: Path) -> None:
        self.name = str(file)
        self.files: dict[str, str | None] = {}
        self.folders: dict[str, set[str]] = {}
        try:
            with tarfile.open(fileobj=io.BytesIO(_unpacked(file)), mode="r:") as archive:
                for member in archive:
                    path = _below_root(member.name)
                    if path is None or member.size > system.LARGEST:
                        continue
                    self._enter(path)
                    if member.isreg():
                        stream = archive.extractfile(member)
                        content = stream.read().decode(errors="replace") if stream else ""
                        self.files[path] = content if member.mode & 0o444 else None
                    elif not member.isdir():
                        self.files[path] = ""  # a device node or a link has no content
        except tarfile.ReadError as error:
            raise unreadable(file, "it is no tar, or only the beginning of one") from error
        except (OSError, tarfile.TarError, EOFError, ValueError, zlib.error) as error:
            raise unreadable(file, str(error)) from error
        manifest_text = self.files.get(f"/{MANIFEST}")
        self.manifest = parse_manifest(manifest_text) if manifest_text else Manifest()

    def _enter(self, path: str) -> None:
        while path != "/":
            parent, _, name = path.rpartition("/")
            self.folders.setdefault(parent or "/", set()).add(name)
            path = parent or "/"

    def text(self, path: str) -> str:
        if path not in self.files:
            raise FileNotFoundError(path)
        content = self.files[path]
        if content is None:
            raise PermissionError(path)
        return content

    def names(self, path: str) -> list[str]:
        return natural(self.folders.get(path.rstrip("/"), set()))

    def has(self, path: str) -> bool:
        return path in self.files or path in self.folders


def _unpacked(file: Path) -> bytes:
    """Return the bytes of a tar, which may be compressed.

    A few kilobytes can decompress to any size, so no more than LARGEST_TAR bytes are taken.
    """
    packed = system.regular(file, LARGEST_TAR)
    for magic, opener in COMPRESSED.items():
        if packed.startswith(magic):
            with opener(io.BytesIO(packed)) as stream:
                content: bytes = stream.read(LARGEST_TAR + 1)
            if len(content) > LARGEST_TAR:
                raise ValueError(f"it unpacks to more than {LARGEST_TAR >> 20} MiB")
            return content
    return packed


def _below_root(name: str) -> str | None:
    """Return the path of a tar's member on its host; what lies above sys/ or proc/ is dropped."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or len(name) > LONGEST_PATH:
        return None
    for start, part in enumerate(parts):
        if part in TOPS:
            return "/" + "/".join(parts[start:])
    return None
