"""Payload of an input file: content of a QIIME 2 artifact, a gzip file or a plain file.

An artifact (.qza) is a zip with one folder, named by a UUID, that contains the payload.

    <uuid>/VERSION         <uuid>/metadata.yaml       <uuid>/data/feature-table.biom
           "QIIME 2"              uuid, type, format

Only the payload is read, not QIIME 2's provenance and checksums. Unpacked bytes are counted, so a
small file cannot fill the memory.
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

from aam.contract.errors import DataError, first_few, reason_of
from aam.contract.files import require
from aam.memory import check_memory, memory_budget

_ZIP_MAGIC = b"PK\x03\x04"
_GZIP_MAGIC = b"\x1f\x8b"
_SUFFIXES = (".qza", ".qzv")
_MAX_METADATA_BYTES = 1 << 20

DAMAGE = (ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError,
          ValueError, lzma.LZMAError, struct.error, zipfile.BadZipFile, zlib.error)  # fmt: skip
"""Exceptions raised while reading damaged content."""


def is_artifact(path: Path) -> bool:
    """Return whether a file is an artifact: a zip named .qza or with a VERSION entry.

    A damaged zip named .qza counts, so that `open_payload` can report the damage.
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


def type_of(path: Path) -> str:
    """Return the semantic type of an artifact, such as `FeatureTable[Frequency]`; "" otherwise."""
    if not is_artifact(path):
        return ""
    with _report_damage(path), zipfile.ZipFile(path) as archive:
        return _type(archive, _root(archive))


def is_compressed(path: Path) -> bool:
    """Return whether a file is compressed: an artifact or a gzip file."""
    with require(path, "file").open("rb") as stream:
        return stream.read(2) == _GZIP_MAGIC or is_artifact(path)


def read_payload(path: Path, name: str, semantic: str, max_bytes: int | None = None) -> bytes:
    """Read the payload of an artifact, the content of a gzip file, or a plain file."""
    with open_payload(path, name, semantic, max_bytes) as stream:
        return stream.read()


def open_payload(
    path: Path, name: str, semantic: str, max_bytes: int | None = None
) -> io.BufferedReader:
    """Open the payload of an artifact, the content of a gzip file, or a plain file."""
    if is_artifact(path):
        with _report_damage(path), zipfile.ZipFile(path) as archive:
            root, wanted = _root(archive), semantic.split("[")[0]
            if root is None:
                raise DataError(
                    "The zip file is not a QIIME 2 artifact",
                    f"'{path}' has no VERSION entry",
                    f"give a {wanted} artifact, or unpack it and give the file inside",
                )
            artifact_type, entries = _type(archive, root), archive.namelist()
            if not artifact_type.startswith(semantic):
                raise DataError(
                    "The QIIME 2 artifact has another type",
                    f"'{path}' is {artifact_type or 'without a type'}",
                    f"a {wanted} is needed here (the type must begin with '{semantic}')",
                )
            start = f"{root}/data/"
            if f"{start}{name}" not in entries:
                files = [entry[len(start) :] for entry in entries if entry.startswith(start)]
                raise DataError(
                    f"The QIIME 2 artifact does not hold '{name}'",
                    f"the files of '{path}' are {first_few(files)}",
                    f"a {artifact_type} is expected to hold it; export it again",
                )
            source: IO[bytes] = archive.open(f"{start}{name}")
    else:
        plain = path.open("rb")
        is_gzip = plain.peek(2)[:2] == _GZIP_MAGIC
        source = gzip.GzipFile(fileobj=plain) if is_gzip else plain  # type: ignore[assignment]
    return io.BufferedReader(_Bounded(source, path, max_bytes or memory_budget()), 1 << 16)


class _Bounded(io.RawIOBase):
    """Stream with a limit on its size, whose errors name the file."""

    def __init__(self, source: IO[bytes], path: Path, limit: int) -> None:
        self._source, self._path, self._limit = source, path, limit
        self._bytes_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        with _report_damage(self._path):
            data = self._source.read(min(len(view), 1 << 20))
        view[: len(data)] = data
        # The size in the header of an archive may be wrong, so the unpacked bytes are counted.
        self._bytes_read += len(data)
        remedy = "if the file is the right one, raise --max-memory-gb"
        source = f"'{self._path}', unpacked,"
        check_memory("content of the file", source, self._bytes_read, self._limit, remedy)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


@contextmanager
def _report_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        file_type = "QIIME 2 artifact" if is_artifact(path) else "gzip file"
        evidence, remedy = f"'{path}', {reason_of(error)}", "copy it again and compare the sizes"
        raise DataError(f"The {file_type} is damaged", evidence, remedy) from error


def _type(archive: zipfile.ZipFile, root: str | None) -> str:
    """Read the semantic type from the metadata of an artifact; "" without one."""
    if f"{root}/metadata.yaml" not in archive.namelist():
        return ""
    with archive.open(f"{root}/metadata.yaml") as stream:
        text = stream.read(_MAX_METADATA_BYTES).decode("utf-8", "replace")
    # `type` is a plain scalar on a line of its own.
    types = [line.removeprefix("type:") for line in text.splitlines() if line[:5] == "type:"]
    return types[0].strip().strip("'\"") if types else ""


def _root(archive: zipfile.ZipFile) -> str | None:
    """Return the folder of the zip that has a VERSION entry; None without one."""
    entries = (entry.partition("/") for entry in archive.namelist())
    return next((folder for folder, _, name in entries if name == "VERSION"), None)
