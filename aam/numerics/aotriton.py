"""Version of aotriton, AMD's attention kernels, read from its library.

Since 0.9 the library carries "AOTriton 0.9.2" in its ELF section `.comment` (ROCm/aotriton PR 74);
0.9.1 states 0.9.0 (pytorch PR 148615). Older ones state nothing, and the version of torch does
not imply it: AMD's own builds of one torch version hold different ones. It is then "unknown".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

LIBRARY = "libaotriton_v2.so"
STATED = re.compile(rb"AOTriton (\d+(?:\.\d+)+)")
_HEADER = struct.Struct("<4sBB10xHHIQQQIHHHHHH")
"""ELF64 header: magic, class, byte order, ..., offset of the section table, ..., size and number of
its entries, index of the section of names (elf(5))."""
_SECTION = struct.Struct("<IIQQQQIIQQ")
_LONGEST = 1 << 20


def version(folder: Path) -> str | None:
    """Return the version of the aotriton library in `folder` (torch/lib).

    Returns:
        "0.9.2"; "unknown" for a library without a version; None without a library.
    """
    libraries = sorted(folder.glob(f"{LIBRARY}*")) if folder.is_dir() else []
    for library in libraries:
        try:
            found = STATED.search(comment(library))
        except OSError:
            continue
        if found:
            return found[1].decode()
    return "unknown" if libraries else None


def comment(library: Path) -> bytes:
    """Return the section `.comment` of an ELF file; empty if it has none or is no ELF64 file."""
    with library.open("rb") as stream:
        head = stream.read(_HEADER.size)
        if len(head) < _HEADER.size:
            return b""
        fields = _HEADER.unpack(head)
        if fields[:3] != (b"\x7fELF", 2, 1):
            return b""
        table, size, number, names_at = fields[8], fields[13], fields[14], fields[15]
        sections = list(_sections(stream, table, size, number))
        if names_at >= len(sections):
            return b""
        names = _content(stream, sections[names_at])
        for section in sections:
            name = names[section[0] :].partition(b"\0")[0]
            if name == b".comment":
                return _content(stream, section)
    return b""


def _sections(stream: BinaryIO, table: int, size: int, number: int) -> Iterator[tuple[int, ...]]:
    if size < _SECTION.size:
        return
    for place in range(number):
        stream.seek(table + place * size)
        entry = stream.read(_SECTION.size)
        if len(entry) < _SECTION.size:
            return
        yield _SECTION.unpack(entry)


def _content(stream: BinaryIO, section: tuple[int, ...]) -> bytes:
    stream.seek(section[4])
    # Bounded, since the size is a number in a file that may be damaged.
    return stream.read(min(section[5], _LONGEST))
