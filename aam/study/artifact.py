"""QIIME 2 artifacts (.qza): a zip with one folder, named by a UUID, around the file one wants.

    <uuid>/VERSION         <uuid>/metadata.yaml       <uuid>/data/feature-table.biom
           "QIIME 2"              uuid, type, format

Read only, and only the payload: provenance and checksums are QIIME 2's own affair.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from pathlib import Path
from typing import IO

from aam.errors import DataError, first_few
from aam.files import require

_ZIP_MAGIC = b"PK\x03\x04"
_GZIP_MAGIC = b"\x1f\x8b"
_SUFFIXES = (".qza", ".qzv")

DAMAGE = (
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    RuntimeError,
    NotImplementedError,
)
"""What reading a broken archive raises."""


def is_artifact(path: Path) -> bool:
    """Tell whether a file is an artifact: a zip that is called .qza or holds a VERSION entry.

    A broken zip called .qza counts, so that `payload` can say what is wrong with it.

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
    except zipfile.BadZipFile:
        return False


def payload(path: Path, name: str, semantic: str) -> bytes:
    """Return the bytes of `data/<name>` of an artifact whose type begins with `semantic`.

    Args:
        path: the artifact.
        name: the file to read in its data folder, such as `feature-table.biom`.
        semantic: the beginning of the type, such as `FeatureTable` or `FeatureData[Sequence`.

    Raises:
        MissingInput: there is no such file.
        DataError: the zip is broken, it is no artifact, of another type, or lacks the file.
    """
    require(path, "artifact")
    try:
        with zipfile.ZipFile(path) as archive:
            return _checked(archive, path, name, semantic)
    except DAMAGE as error:
        raise damaged(path, error) from error


def opened(path: Path, name: str, semantic: str) -> IO[bytes] | gzip.GzipFile | None:
    """Open what an artifact or a gzip file holds, to be read piece by piece; None for other files.

    Raises:
        MissingInput: there is no such file.
        DataError: as `payload`; reading on may raise one of `DAMAGE`.
    """
    if is_artifact(path):
        try:
            with zipfile.ZipFile(path) as archive:
                return archive.open(_member(archive, path, name, semantic))
        except DAMAGE as error:
            raise damaged(path, error) from error
    with path.open("rb") as stream:
        return gzip.open(path) if stream.read(2) == _GZIP_MAGIC else None


def damaged(path: Path, error: Exception) -> DataError:
    """Say that an artifact or a gzip file is damaged."""
    what = "QIIME 2 artifact" if is_artifact(path) else "gzip file"
    return DataError(
        f"The {what} is damaged", f"'{path}', {error}", "copy it again and compare the sizes"
    )


def contents(path: Path, name: str, semantic: str) -> bytes:
    """Return what a file holds: the payload of an artifact, else its bytes, gunzipped if need be.

    Raises:
        MissingInput: there is no such file.
        DataError: as `payload`, or the gzip stream is damaged.
    """
    if is_artifact(path):
        return payload(path, name, semantic)
    data = path.read_bytes()
    if not data.startswith(_GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from error


def _checked(archive: zipfile.ZipFile, path: Path, name: str, semantic: str) -> bytes:
    return archive.read(_member(archive, path, name, semantic))


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
        text = archive.read(f"{root}/metadata.yaml").decode("utf-8", "replace")
    except KeyError:
        return ""
    found = (line.partition(":")[2] for line in text.splitlines() if line.startswith("type:"))
    return next(found, "").strip().strip("'\"")
