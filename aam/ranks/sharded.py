"""Sharded checkpoints: a folder to which every rank writes what it holds.

The tensors are written by torch.distributed.checkpoint. Everything else lies beside them in one
file that is read without running code; so is the index of the tensors, which is a pickle: only the
classes that describe tensors are let in. The folder is made aside; the checkpoint's name is a link
to it that is replaced at once, so a run killed at any moment leaves the last whole one.
"""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from aam.errors import DataError
from aam.ranks.portable import tensors

_REST = "rest.pt"
_INDEX = ".metadata"

_CHECKPOINT = "torch.distributed.checkpoint"
_DESCRIBES = {
    "builtins": {"set", "frozenset"},
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath"},
    "pathlib._local": {"Path", "PosixPath"},  # Python 3.13
    "torch": {"Size", "device"},
    "torch.serialization": {"_get_layout"},
    f"{_CHECKPOINT}.filesystem": {"_StorageInfo", "_StoragePrefix"},
    f"{_CHECKPOINT}.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
}
"""Module -> the classes in it that an index is made of."""


def is_sharded(path: Path) -> bool:
    """Whether `path` is a sharded checkpoint."""
    return (path / _INDEX).is_file()


def write(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint at `path`; all ranks call this, each with its shards.

    Args:
        content: the rest of the first rank is written, and the tensors of all in "state_dict" and
            "optimizer_states".
        path: the checkpoint's name, which becomes a link to a folder beside it.
    """
    step = content["global_step"]
    place = path.with_name(f".{path.stem}-{content['epoch']}-{step}.shards")
    first = dist.get_rank() == 0
    if first:
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in path.parent.glob(f".{path.stem}-*.shards"):  # a killed run's, or the last
            if other.name != os.path.basename(os.path.realpath(path)):
                shutil.rmtree(other)
        if place.exists():  # the same step again: never touch the one that counts
            place = place.with_name(f".{path.stem}-{content['epoch']}-{step}-b.shards")
    chosen = [place.name]
    dist.broadcast_object_list(chosen)
    place = path.with_name(chosen[0])
    sharded = {key: content.pop(key) for key in ("state_dict", "optimizer_states")}
    sharded["optimizer_states"] = dict(enumerate(sharded["optimizer_states"]))
    kept = {name: holder.pop(key) for name, holder, key in list(tensors(sharded))}
    writer = FileSystemWriter(place, sync_files=True)
    save(kept, storage_writer=writer)
    if first:
        with (place / _REST).open("wb") as stream:
            torch.save({**content, "sharded": sharded}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        _replace(path, place)
    dist.barrier()


def _replace(path: Path, place: Path) -> None:
    """Let `path` be a link to `place`, at once, and remove what it was."""
    before = path.resolve() if path.is_symlink() else None
    aside = path.with_name(f".{path.name}.link")
    aside.unlink(missing_ok=True)
    aside.symlink_to(place.name)
    os.replace(aside, path)
    if before is not None and before != place.resolve():
        shutil.rmtree(before, ignore_errors=True)


def read(path: Path) -> dict[str, Any]:
    """Read a whole checkpoint from the shards of all ranks, on the CPU of this process alone.

    Raises:
        DataError: it is damaged or not of this program.
    """
    try:
        content: dict[str, Any] = torch.load(path / _REST, map_location="cpu", weights_only=True)
        reader = _Reader(path)
        index = reader.read_metadata().state_dict_metadata
        found = {
            name: torch.empty(at.size, dtype=at.properties.dtype)
            for name, at in index.items()
            if isinstance(at, TensorStorageMetadata)
        }
        if len(found) != len(index):
            raise ValueError("it holds more than tensors")
        load(found, storage_reader=reader, no_dist=True)
    except Exception as error:  # a foreign or damaged file makes its readers raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            "The checkpoint cannot be read", f"'{path}', {reason}", "choose another"
        ) from error
    sharded = content.pop("sharded")
    for name, value in found.items():
        *above, key = name.split("/")
        holder = sharded
        for part in above:
            holder = holder[int(part) if part.isdecimal() and part not in holder else part]
        holder[key] = value
    content["state_dict"] = sharded["state_dict"]
    content["optimizer_states"] = list(sharded["optimizer_states"].values())
    return content


class _Reader(FileSystemReader):
    """Reads the index without running what a stranger may have put there."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / _INDEX).open("rb") as stream:
            found: Metadata = _Unpickler(stream).load()
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _Unpickler(pickle.Unpickler):
    """Knows the classes of an index, and nothing that does anything."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _DESCRIBES.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"'{module}.{name}' has no place in an index")
