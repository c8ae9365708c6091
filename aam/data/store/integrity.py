"""Integrity of a store: comparison of its files with the recorded SHA-256 checksums.

The first time that a store is opened, every byte is compared with the SHA-256 of `store.json`. A
note in the user's cache then records device, inode, size and times of change of each file, so that
opening the store again costs a few calls of stat; a file that was written to, replaced or copied is
compared again. Only `aam prepare --verify`, which always reads everything, detects a decaying disk.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from aam.console import info, track
from aam.contract.errors import AamError
from aam.contract.files import sha256, user_cache, write_text
from aam.data.store.files import Header, damaged, unreadable

MESSAGE_FROM = 1 << 30
"""Size in bytes from which on a message explains why opening takes time."""


def check_files(path: Path, header: Header) -> None:
    """Compare sizes, and all bytes unless these very files were compared before.

    Args:
        path: folder of the store.
        header: its header, with the sizes and checksums.

    Raises:
        MissingInput: a file cannot be read.
        DataError: a file is absent, has another size or another checksum.
    """
    note = user_cache() / f"store-{_identity(path, header)}"
    if note.exists():
        return
    total = sum(array.bytes for array in header.arrays.values())
    if total >= MESSAGE_FROM:
        info(f"Comparing the checksums of '{path}' ({total / 2**30:.1f} GiB), once.")
    verify(path, header)
    # A cache that cannot be written, as on many clusters, only costs time.
    with suppress(OSError, AamError):
        write_text(note, f"{path.resolve()}\n")


def verify(path: Path, header: Header) -> None:
    """Read every byte and compare the checksums.

    Args:
        path: folder of the store.
        header: its header, with the sizes and checksums.

    Raises:
        MissingInput: a file cannot be read.
        DataError: a file is absent, has another size or another checksum.
    """
    _identity(path, header)
    for name, array in track(header.arrays.items(), "Checksums", len(header.arrays), "files"):
        file = path / f"{name}.npy"
        try:
            found = sha256(file)
        except OSError as error:
            raise unreadable(file, error) from error
        if found != array.sha256:
            raise damaged(f"'{file}' has another checksum")


def _identity(path: Path, header: Header) -> str:
    """Return a digest of the header and of all that tells a changed file; check the sizes."""
    digest = hashlib.sha256(header.checksum.encode())
    for name, array in header.arrays.items():
        file = path / f"{name}.npy"
        try:
            found = file.stat()
        except FileNotFoundError as error:
            raise damaged(f"'{file}' is absent") from error
        except OSError as error:
            raise unreadable(file, error) from error
        if found.st_size != array.bytes:
            raise damaged(f"'{file}' has {found.st_size} bytes of {array.bytes}")
        # With the time of change, which no program can set: `cp -p` and `rsync -t` set that of
        # modification.
        identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        digest.update(repr(identity).encode())
    return digest.hexdigest()
