"""Reader of torch.save archives without torch.load.

An archive is a zip file of stored (not compressed) members: `data.pkl` describes the content, and
`data/KEY` holds the bytes of a tensor. The reader verifies the CRC of every member that it uses,
compares sizes with the file before it allocates memory, and parses the pickle by `unpickle`:
damaged and hostile files are refused.
"""

from __future__ import annotations

import io
import math
import struct
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from aam.contract.errors import DataError
from aam.contract.files import require
from aam.memory import memory_available, shown_size
from aam.serialization import unpickle
from aam.serialization.unpickle import Damaged

_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
_BLOCK = 1 << 20
_DIMENSIONS = 16
LARGEST_PICKLE = 1 << 26
"""Largest `data.pkl` in bytes; the bytes of tensors are in other members."""


_ERRORS = (
    *(zipfile.BadZipFile, struct.error, EOFError, OSError),
    *(RuntimeError, ValueError, LookupError, TypeError, OverflowError, MemoryError),
)
"""Exceptions of `zipfile` on damaged archives, of torch without memory, and `Damaged`."""


def read(path: Path) -> Any:
    """Read an archive on the CPU: tensors, numbers, strings and containers of them.

    Raises:
        MissingInput: the file does not exist, or may not be read.
        DataError: it is no archive of torch.save, is damaged, or holds other objects.
    """
    with refused(path), opened(path) as stream:
        return load(stream)


@contextmanager
def refused(path: Path) -> Iterator[None]:
    """Raise the exceptions of readers on a damaged checkpoint as a DataError."""
    try:
        yield
    except _ERRORS as error:
        lines = str(error).splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise DataError(
            "The checkpoint cannot be read",
            f"'{path}', {reason}",
            "copy it again or choose another one",
        ) from error


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file that fits into the free memory.

    Raises:
        Damaged: it does not fit.
        MissingInput: it does not exist, is not a regular file, or may not be read.
    """
    size, free = require(path, "checkpoint").stat().st_size, memory_available()
    if size > free:
        raise Damaged(f"it has {shown_size(size)}, and {shown_size(free)} of memory are free")
    with path.open("rb") as stream:
        yield stream


def load(stream: IO[bytes]) -> Any:
    """Read the archive that fills a stream.

    Raises:
        Damaged: it is no archive of torch.save, is incomplete, or holds more than plain values.
        BadZipFile: it is no zip file, or the CRC of a member differs.
    """
    size = stream.seek(0, io.SEEK_END)
    with zipfile.ZipFile(stream) as archive:
        reader = _Archive(archive, size)
        content = unpickle.load(
            reader.pickle(),
            {"torch._utils._rebuild_tensor_v2": reader.tensor, "collections.OrderedDict": dict},
            lambda name: name.module == "torch" and name.name in _STORAGES,
            reader.storage,
        )
        return content


@dataclass(frozen=True)
class _Storage:
    """Elements of one member."""

    values: Tensor


class _Archive:
    """Members of a zip file, validated against its size."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        members = archive.infolist()
        if any(m.compress_type != zipfile.ZIP_STORED or m.flag_bits & 1 for m in members):
            raise Damaged("its members are compressed, which torch.save never does")
        if any(m.file_size != m.compress_size for m in members):
            raise Damaged("the sizes in its directory contradict each other")
        if sum(member.file_size for member in members) > size:
            raise Damaged("its members are larger than the file")
        self.members = {member.filename.partition("/")[2]: member for member in members}
        if len(self.members) != len(members) or "data.pkl" not in self.members:
            raise Damaged("it is not an archive of torch.save")
        self.archive, self.size = archive, size
        self.storages: dict[str, _Storage] = {}
        self.used = 0
        order = self.members.get("byteorder")
        if order is not None and archive.read(order) != sys.byteorder.encode():
            raise Damaged("it has the byte order of another processor")

    def pickle(self) -> bytes:
        """Return `data.pkl`."""
        member = self.members["data.pkl"]
        if member.file_size > LARGEST_PICKLE:
            raise Damaged(f"it describes its content in more than {LARGEST_PICKLE >> 20} MiB")
        return self.archive.read(member)

    def storage(self, persistent_id: Any) -> _Storage:
        """Read the storage of a persistent id, once."""
        _, name, key, _, number = persistent_id
        dtype = _STORAGES[name.name]
        member = self.members[f"data/{key}"]
        if type(number) is not int or member.file_size != number * dtype.itemsize:
            raise Damaged(f"tensor {key} has {member.file_size} bytes, not {number} elements")
        if key not in self.storages:
            values = torch.empty(number, dtype=dtype)
            self._fill(values.view(torch.uint8).numpy().data, member)
            self.storages[key] = _Storage(values)
        stored = self.storages[key]
        if stored.values.dtype != dtype:
            raise Damaged(f"tensor {key} has two types")
        return stored

    def _fill(self, view: memoryview, member: zipfile.ZipInfo) -> None:
        """Read a member; `zipfile` verifies its CRC at the last block."""
        with self.archive.open(member) as stream:
            done = 0
            while done < len(view):
                block = stream.read(_BLOCK)
                if not block:
                    raise Damaged("it is cut short")
                view[done : done + len(block)] = block
                done += len(block)

    def tensor(
        self,
        storage: Any,
        offset: Any,
        size: Any,
        stride: Any,
        requires_grad: Any,
        hooks: Any,
        metadata: Any = None,
    ) -> Tensor:
        """Return a tensor as a view of its storage, as `torch._utils._rebuild_tensor_v2`."""
        numbers = (offset, *size, *stride)
        if not isinstance(storage, _Storage) or any(type(n) is not int or n < 0 for n in numbers):
            raise Damaged("a tensor has no valid shape")
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        elements = math.prod(size)
        available = storage.values.numel()
        if (elements and last >= available) or elements > available or len(size) > _DIMENSIONS:
            raise Damaged(f"a tensor of shape {size} lies in a storage of {available} elements")
        self.used += elements * storage.values.itemsize
        if self.used > self.size:
            raise Damaged("its tensors are larger than the file")
        return storage.values.as_strided(size, stride, offset)
