"""SIF files, read without an engine: completeness, ID and labels.

A SIF is a header, a table of descriptors and what they point to (sylabs/sif, pkg/sif/sif.go). The
builder leaves the outcome of `inspect` in it as a JSON object called inspect-metadata.json, labels
among it.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from aam.contract.errors import MissingInput

MAGIC, MAGIC_AT = b"SIF_MAGIC", 32
HEADER = struct.Struct("<32s10s3s3s16sqqqqqqqq")
"""SIF header: launch script, magic, version, arch, id, created, modified, descriptors free and in
all, their offset and length, offset and length of the data."""
DESCRIPTOR = struct.Struct("<iBIIIqqq")
"""Start of a descriptor: type, used, id, group, link, offset, size, size with padding."""
DESCRIPTOR_SIZE = 585
NAME = slice(73, 201)
"""The name in a descriptor, after its four times and owners."""
METADATA = "inspect-metadata.json"
MOST = 1 << 20  # bytes of metadata that are read


def check_sif(path: str) -> None:
    """Check that a file is a complete SIF: the data of every descriptor lies within it.

    Raises:
        MissingInput: it is not, or a part is missing.
    """
    with open(path, "rb") as stream:
        _parts(path, stream)


def id_of(path: str | Path) -> str | None:
    """Return "sif:UUID", the id that a build gives to a SIF, or None if the file is none."""
    try:
        with open(path, "rb") as stream:
            head = stream.read(HEADER.size)
    except OSError:
        return None
    if len(head) < HEADER.size or not head[MAGIC_AT:].startswith(MAGIC):
        return None
    given: bytes = HEADER.unpack(head)[4]
    return f"sif:{given.hex()}" if any(given) else None


def labels_of(path: str | Path) -> dict[str, str]:
    """Return the labels of a SIF; none if it keeps them elsewhere or is damaged."""
    try:
        with open(path, "rb") as stream:
            for _, name, offset, size in _parts(str(path), stream):
                if name == METADATA and size <= MOST:
                    stream.seek(offset)
                    metadata = json.loads(stream.read(size))
                    labels = metadata["data"]["attributes"]["labels"]
                    return {str(key): str(value) for key, value in labels.items()}
    except (OSError, MissingInput, ValueError, KeyError, TypeError, AttributeError):
        pass
    return {}


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that this project gives, without those of the engine."""
    return {key: value for key, value in labels.items()
            if key.startswith(("org.aam.", "org.opencontainers."))}  # fmt: skip


def _parts(path: str, stream: BinaryIO) -> list[tuple[int, str, int, int]]:
    """Return type, name, offset and size of the data of each used descriptor."""
    head = stream.read(HEADER.size)
    if len(head) < HEADER.size or not head[MAGIC_AT:].startswith(MAGIC):
        raise _broken(path, "it has no SIF header", "is it really an image?")
    total, start = HEADER.unpack(head)[8:10]
    size = os.fstat(stream.fileno()).st_size
    if not 0 < total <= 4096 or start + total * DESCRIPTOR_SIZE > size:
        raise _broken(path, f"it ends after {size} bytes", "build or copy it again")
    stream.seek(start)
    table = stream.read(total * DESCRIPTOR_SIZE)
    parts = []
    for number in range(total):
        entry = table[number * DESCRIPTOR_SIZE : (number + 1) * DESCRIPTOR_SIZE]
        data_type, used, _, _, _, offset, length, _ = DESCRIPTOR.unpack_from(entry)
        if used and offset + length > size:
            evidence = f"it has {size} bytes and needs {offset + length}"
            raise _broken(path, evidence, "build or copy it again")
        if used:
            name = entry[NAME].rstrip(b"\0").decode(errors="replace")
            parts.append((data_type, name, offset, length))
    return parts


def _broken(path: str, evidence: str, remedy: str) -> MissingInput:
    return MissingInput("Not a complete SIF", f"'{path}', {evidence}", remedy)
