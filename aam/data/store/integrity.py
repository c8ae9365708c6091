"""Integrity of a store: comparison of its files with the recorded SHA-256 checksums.

Every byte is read and compared with the SHA-256 of `store.json` the first time that a store is
opened where it lies; that is remembered in the user's cache with what tells a changed file (device,
inode, size, times of change). As long as that stays, opening costs a few calls of stat; a file that
was written to, replaced or copied is compared again. What changes without the file system knowing,
a decaying disk, is found by `aam prepare --verify`, which always reads everything.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from aam.console import say, track
from aam.contract.errors import AamError, DataError, MissingInput
from aam.contract.files import atomic_write, sha256
from aam.data.store.files import Header

MESSAGE_FROM = 1 << 30
"""Size in bytes from which on a message explains why opening takes time."""

_AGAIN = "copy it again and compare the sizes, or make it again with `aam prepare`"


def check_files(path: Path, header: Header) -> None:
    """Compare sizes, and all bytes unless these very files were compared before.

    Raises:
        MissingInput: a file may not be read.
        DataError: a file is absent, has another size or another checksum.
    """
    seen = _identity(path, header)
    note = _cache() / f"store-{seen}"
    if note.exists():
        return
    total = sum(fact.bytes for fact in header.facts.values())
    if total >= MESSAGE_FROM:
        say(f"Comparing the checksums of '{path}' ({total / 2**30:.1f} GiB), once.")
    verify(path, header)
    try:
        with atomic_write(note) as temporary:
            temporary.write_text(f"{path.resolve()}\n", encoding="utf-8")
    except (OSError, AamError):
        return  # A cache that cannot be written, as on many clusters, only costs time.


def verify(path: Path, header: Header) -> None:
    """Read every byte and compare the checksums.

    Raises:
        MissingInput: a file may not be read.
        DataError: a file is absent, has another size or another checksum.
    """
    _identity(path, header)
    for name, fact in track(header.facts.items(), "Checksums", len(header.facts), "files"):
        file = path / f"{name}.npy"
        try:
            found = sha256(file)
        except OSError as error:
            raise _unreadable(file, error) from error
        if found != fact.sha256:
            raise DataError("The store is damaged", f"'{file}' has another checksum", _AGAIN)


def _identity(path: Path, header: Header) -> str:
    """Return a digest of the header and of all that tells a changed file; check the sizes."""
    digest = hashlib.sha256(header.checksum.encode())
    for name, fact in header.facts.items():
        file = path / f"{name}.npy"
        try:
            found = file.stat()
        except FileNotFoundError as error:
            raise DataError("The store is damaged", f"'{file}' is absent", _AGAIN) from error
        except OSError as error:
            raise _unreadable(file, error) from error
        if found.st_size != fact.bytes:
            sizes = f"'{file}' has {found.st_size} bytes of {fact.bytes}"
            raise DataError("The store is damaged", sizes, _AGAIN)
        identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        digest.update(repr(identity).encode())
    return digest.hexdigest()


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "aam"


def _unreadable(file: Path, error: OSError) -> MissingInput:
    reason = f"'{file}', {error.strerror}"
    return MissingInput("The store may not be read", reason, "check its permissions")
