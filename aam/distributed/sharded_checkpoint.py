"""Sharded checkpoints: a folder to which each rank writes its shards of the tensors.

The tensors are written by torch.distributed.checkpoint: each part of a tensor is an archive of
torch.save in `__RANK_N.distcp`, and `.metadata`, a pickle, has its place. Everything else is
in `rest.pt`, with the SHA-256 of that index. `aam.serialization` reads all of it. The
folder is written under another name; the checkpoint's name is a link to it that is replaced at
once, so a run that is killed at any moment leaves the last whole one.
"""

from __future__ import annotations

import io
import math
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from aam.contract.files import sha256
from aam.serialization import archive, unpickle
from aam.serialization.unpickle import Damaged, Name, Record

_REST = "rest.pt"
_INDEX = ".metadata"

_CHECKPOINT = "torch.distributed.checkpoint"
_DESCRIBES = (
    "pathlib.Path",
    "pathlib.PosixPath",
    "pathlib._local.Path",  # Python 3.13
    "pathlib._local.PosixPath",
    "torch.serialization._get_layout",
    f"{_CHECKPOINT}.filesystem._StorageInfo",
    f"{_CHECKPOINT}.filesystem._StoragePrefix",
    f"{_CHECKPOINT}.metadata.ChunkStorageMetadata",
    f"{_CHECKPOINT}.metadata.Metadata",
    f"{_CHECKPOINT}.metadata.MetadataIndex",
    f"{_CHECKPOINT}.metadata.StorageMeta",
    f"{_CHECKPOINT}.metadata.TensorProperties",
    f"{_CHECKPOINT}.metadata.TensorStorageMetadata",
    f"{_CHECKPOINT}.metadata._MEM_FORMAT_ENCODING",
)
"""Names in an index; none of them is imported."""


def is_sharded(path: Path) -> bool:
    """Whether `path` is a sharded checkpoint."""
    return (path / _INDEX).is_file()


def rest(path: Path) -> Path:
    """Return the file of everything but the tensors of the network and the optimizer."""
    return path.resolve() / _REST


def write(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint; all ranks call this, each with its shards.

    Args:
        content: of a checkpoint. Of "state_dict" and "optimizer_states" the tensors of all ranks
            are written, of everything else that of rank 0.
        path: the checkpoint's name, which becomes a link to a folder beside it.
    """
    # They take 0.8 CPU-seconds to import; every reader of a checkpoint imports this module.
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    step = content["global_step"]
    place = path.with_name(f".{path.stem}-{content['epoch']}-{step}.shards")
    first = dist.get_rank() == 0
    if first:
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in path.parent.glob(f".{path.stem}-*.shards"):  # of a killed run, or the last one
            if other.name != os.path.basename(os.path.realpath(path)):
                shutil.rmtree(other)
        if place.exists():  # the same step again: leave the current checkpoint
            place = place.with_name(f".{path.stem}-{content['epoch']}-{step}-b.shards")
    chosen = [place.name]
    dist.broadcast_object_list(chosen)
    place = path.with_name(chosen[0])
    sharded = {key: content.pop(key) for key in ("state_dict", "optimizer_states")}
    sharded["optimizer_states"] = dict(enumerate(sharded["optimizer_states"]))
    found: dict[str, Tensor] = {}
    sharded = _take_tensors(sharded, found)
    save(found, storage_writer=FileSystemWriter(place, sync_files=True))
    if first:
        with (place / _REST).open("wb") as stream:
            rest = {**content, "sharded": sharded, "index": sha256(place / _INDEX)}
            torch.save(rest, stream)
            stream.flush()
            os.fsync(stream.fileno())
        _replace(path, place)
    dist.barrier()


def _take_tensors(
    state: dict[str, Any], found: dict[str, Tensor], prefix: str = ""
) -> dict[str, Any]:
    """Put the tensors of nested dictionaries into `found`, by path, and return a copy of the rest.

    A copy: the dictionaries of an optimizer's state are those that it works with.
    """
    rest: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Tensor):
            found[f"{prefix}{key}"] = value
        elif isinstance(value, dict):
            rest[key] = _take_tensors(value, found, f"{prefix}{key}/")
        else:
            rest[key] = value
    return rest


def _replace(path: Path, place: Path) -> None:
    """Let `path` be a link to `place`, at once, and remove what it was."""
    before = path.resolve() if path.is_symlink() else None
    temporary = path.with_name(f".{path.name}.link")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(place.name)
    os.replace(temporary, path)
    if before is not None and before != place.resolve():
        shutil.rmtree(before, ignore_errors=True)


def read(path: Path) -> dict[str, Any]:
    """Read a whole checkpoint from the shards of all ranks, on the CPU of this process alone.

    Raises:
        MissingInput: a file of it may not be read.
        DataError: it is damaged or not of this program.
    """
    content = archive.read(path / _REST)
    with archive.refused(path):
        if not isinstance(content, dict):
            raise Damaged(f"its {_REST} holds no dictionary")
        if content.pop("index", None) != sha256(path / _INDEX):
            raise Damaged(f"the SHA-256 of its {_INDEX} is another one")
        sharded = content.pop("sharded")
        for name, value in _tensors(path).items():
            *above, key = name.split("/")
            holder = sharded
            for part in above:
                holder = holder[int(part) if part.isdecimal() and part not in holder else part]
            holder[key] = value
        content["state_dict"] = sharded["state_dict"]
        states = sharded["optimizer_states"]
        content["optimizer_states"] = [states[number] for number in range(len(states))]
    return content


@dataclass(frozen=True)
class _Part:
    """A part of a tensor, and where it lies."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    begin: int
    length: int


def _tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors, whole."""
    index = _read_index(folder)
    held = sum(path.stat().st_size for path in folder.glob("*.distcp"))
    if sum(part.length for _, parts in index.values() for part in parts) > held:
        raise Damaged("its tensors are larger than its files")
    return {name: _whole(folder, size, parts) for name, (size, parts) in index.items()}


def _read_index(folder: Path) -> dict[str, tuple[tuple[int, ...], list[_Part]]]:
    """Read the size and the parts of every tensor from the index."""
    with archive.opened(folder / _INDEX) as stream:
        data = stream.read(archive.LARGEST_PICKLE + 1)
    if len(data) > archive.LARGEST_PICKLE:
        raise Damaged(f"its {_INDEX} has more than {archive.LARGEST_PICKLE >> 20} MiB")
    described = {name: lambda *arguments: Record(arguments) for name in _DESCRIBES}
    found = _state(unpickle.load(data, {**described, "torch.Size": tuple}, _is_type))
    places = {}
    for key, place in found["storage_data"].items():
        part = _state(key)
        places[part["fqn"], part["offset"]] = _state(place)
    index = {}
    for name, stored in found["state_dict_metadata"].items():
        tensor = _state(stored)
        parts = []
        for stored_part in tensor["chunks"]:
            part = _state(stored_part)
            place = places[name, part["offsets"]]
            if place.get("transform_descriptors"):
                raise Damaged("its tensors are compressed")
            where = (place["relative_path"], place["offset"], place["length"])
            parts.append(_Part(_sizes(part["offsets"]), _sizes(part["sizes"]), *where))
        index[name] = (_sizes(tensor["size"]), parts)
    return index


def _state(record: Any) -> dict[str, Any]:
    if not isinstance(record, Record) or not isinstance(record.state, dict):
        raise Damaged(f"its {_INDEX} is damaged")
    return record.state


def _sizes(given: Any) -> tuple[int, ...]:
    if not isinstance(given, tuple) or any(type(n) is not int or n < 0 for n in given):
        raise Damaged(f"its {_INDEX} has a size that is none")
    return given


def _is_type(name: Name) -> bool:
    return name.module == "torch" and isinstance(getattr(torch, name.name, None), torch.dtype)


def _whole(folder: Path, size: tuple[int, ...], parts: Iterable[_Part]) -> Tensor:
    """Put a tensor together; its parts have to cover it, each element once."""
    read = [(part, _read_part(folder, part)) for part in parts]
    if sum(value.numel() for _, value in read) != math.prod(size) or not read:
        raise Damaged("parts of a tensor are missing")
    complete = torch.empty(size, dtype=read[0][1].dtype)
    missing = torch.ones(size, dtype=torch.bool)
    for part, value in read:
        place = tuple(slice(a, a + n) for a, n in zip(part.offsets, part.sizes, strict=True))
        complete[place] = value
        missing[place] = False
    if bool(missing.any()):
        raise Damaged("parts of a tensor overlap")
    return complete


def _read_part(folder: Path, part: _Part) -> Tensor:
    if not re.fullmatch(r"__\d+_\d+\.distcp", part.file):
        raise Damaged("a tensor lies in a file of another name")
    with archive.opened(folder / part.file) as stream:
        stream.seek(part.begin)
        data = stream.read(part.length)
    value = archive.load(io.BytesIO(data))
    if not isinstance(value, Tensor) or tuple(value.shape) != part.sizes:
        raise Damaged("a part of a tensor has another shape than in its index")
    return value
