"""Bytes of an input file: of a QIIME 2 artifact's payload, of a gzip stream, or as they are.

An artifact (.qza) is a zip with one folder, named by a UUID, around the file one wants.

    <uuid>/VERSION         <uuid>/metadata.yaml       <uuid>/data/feature-table.biom
           "QIIME 2"              uuid, type, format

Read only, and only the payload: provenance and checksums are QIIME 2's own affair. What is unpacked
is counted, so that a small file cannot fill the memory.
"""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from aam.contract.errors import DataError, first_few
from aam.contract.files import require
from aam.memory import memory_budget, shown_size

_ZIP_MAGIC = b"PK\x03\x04"
_GZIP_MAGIC = b"\x1f\x8b"
_SUFFIXES = (".qza", ".qzv")
_MOST_METADATA = 1 << 20

DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,  # gzip and bz2 raise it for damaged streams
    RuntimeError,
    ValueError,
    LookupError,
    OverflowError,
)
"""What reading a broken archive raises."""


def is_artifact(path: Path) -> bool:
    """Tell whether a file is an artifact: a zip that is called .qza or holds a VERSION entry.

    A broken zip called .qza counts, so that `open_payload` can say what is wrong with it.

    Raises:
        MissingInput: there is no such file.
    """
    with require(path, "file").open("rb") as stream:
        if stream.read(len(_ZIP_MAGIC)) != _ZIP_MAGIC:
            return False
    if path.suffix.lower() in _SUFFIXES:
        return True
    try:
        with zipfile.ZipFile(path) as archive:
            return _root(archive) is not None
    except DAMAGE:
        return False


def is_packed(path: Path) -> bool:
    """Return whether the content of a file has to be unpacked: an artifact or a gzip file.

    Raises:
        MissingInput: there is no such file.
    """
    with require(path, "file").open("rb") as stream:
        return stream.read(2) == _GZIP_MAGIC or is_artifact(path)


def read_payload(path: Path, name: str, semantic: str, max_bytes: int | None = None) -> bytes:
    """Return what a file holds: the payload of an artifact, else its bytes, gunzipped if need be.

    Args:
        path: the file.
        name: the file to read in the data folder of an artifact, such as `feature-table.biom`.
        semantic: the beginning of an artifact's type, such as `FeatureTable` or
            `FeatureData[Sequence`.
        max_bytes: most bytes to return; None for half of the available memory.

    Raises:
        MissingInput: there is no such file.
        DataError: it holds more than `max_bytes`; the archive is damaged, is no artifact, is of
            another type, or lacks the file.
    """
    with open_payload(path, name, semantic, max_bytes) as stream:
        return stream.read()


def open_payload(
    path: Path, name: str, semantic: str, max_bytes: int | None = None
) -> io.BufferedReader:
    """Open what a file holds, to be read from its start piece by piece; see `read_payload`.

    Raises:
        MissingInput, DataError: as `read_payload`; reading raises the latter too.
    """
    limit = memory_budget() if max_bytes is None else max_bytes
    if is_artifact(path):
        with _damage_named(path), zipfile.ZipFile(path) as archive:
            source: IO[bytes] = archive.open(_member(archive, path, name, semantic))
    else:
        plain = path.open("rb")
        packed = plain.peek(2)[:2] == _GZIP_MAGIC
        source = gzip.GzipFile(fileobj=plain) if packed else plain  # type: ignore[assignment]
    return io.BufferedReader(_Bounded(source, path, limit), 1 << 16)


class _Bounded(io.RawIOBase):
    """A stream that refuses to give more than so many bytes, and names its file if damaged."""

    def __init__(self, source: IO[bytes], path: Path, limit: int) -> None:
        self._source, self._path, self._limit = source, path, limit
        self._given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        with _damage_named(self._path):
            data = self._source.read(min(len(view), 1 << 20))
        view[: len(data)] = data
        self._given += len(data)
        if self._given > self._limit:
            size = self._path.stat().st_size
            raise DataError(
                "The file holds more than the memory for it",
                f"'{self._path}' of {shown_size(size)} has more than {shown_size(self._limit)} "
                "of content",
                "if it is what you mean, raise --max-memory-gb",
            )
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Turn the errors of reading an archive into one sentence.

    Raises:
        DataError: the archive is damaged.
    """
    try:
        yield
    except DAMAGE as error:
        what = "QIIME 2 artifact" if is_artifact(path) else "gzip file"
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(
            f"The {what} is damaged", f"'{path}', {reason}", "copy it again and compare the sizes"
        ) from error


def _member(archive: zipfile.ZipFile, path: Path, name: str, semantic: str) -> str:
    """Return the entry of `data/<name>`."""
    root = _root(archive)
    if root is None:
        raise DataError(
            "The zip file is not a QIIME 2 artifact",
            f"'{path}' has no VERSION entry",
            f"give a {semantic.split('[')[0]} artifact, or unpack it and give the file inside",
        )
    kind = _semantic_type(archive, root)
    if not kind.startswith(semantic):
        raise DataError(
            "The QIIME 2 artifact is of another type",
            f"'{path}' is {kind or 'without a type'}",
            f"a {semantic.split('[')[0]} is needed here (the type must begin with '{semantic}')",
        )
    start = f"{root}/data/"
    if f"{start}{name}" not in archive.namelist():
        held = [entry[len(start) :] for entry in archive.namelist() if entry.startswith(start)]
        raise DataError(
            f"The QIIME 2 artifact does not hold '{name}'",
            f"the files of '{path}' are {first_few(held)}",
            f"a {kind} is expected to hold it; export it again",
        )
    return f"{start}{name}"


def _root(archive: zipfile.ZipFile) -> str | None:
    """Name the one folder of the zip that has a VERSION entry."""
    for entry in archive.namelist():
        folder, _, rest = entry.partition("/")
        if rest == "VERSION":
            return folder
    return None


def _semantic_type(archive: zipfile.ZipFile, root: str) -> str:
    """Read `type` of metadata.yaml, which QIIME 2 writes as one plain scalar a line."""
    try:
        with archive.open(f"{root}/metadata.yaml") as stream:
            text = stream.read(_MOST_METADATA).decode("utf-8", "replace")
    except KeyError:
        return ""
    found = (line.partition(":")[2] for line in text.splitlines() if line.startswith("type:"))
    return next(found, "").strip().strip("'\"")
