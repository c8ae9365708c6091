"""Model folder: `model.json`, and arrays in safetensors files.

    FOLDER/model.json          format, version, command, members with their settings, facts of the
                               model, size and SHA-256 of each other file, and its own checksum
           NAME.safetensors    arrays of a member, or other arrays

The folder is recognized by its content; it and the run folder around it may have any name. Reading
runs no code of a file and imports no PyTorch. A file is read when its arrays are requested; its
size and SHA-256 are compared before it is parsed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta
from safetensors import SafetensorError
from safetensors.numpy import load, save

from aam.arrays import F64, Arrays, Rows
from aam.contract.errors import DataError, MissingInput
from aam.contract.files import dump_json, require
from aam.contract.records import Count, Mismatch, convert, read_json
from aam.contract.run_files import MODEL, fold_folders, target_folders
from aam.contract.version import __version__
from aam.memory import memory_available, shown_size
from aam.serialization.folders import atomic_folder

FORMAT = 1

HEADER = "model.json"

Command = Literal["pretrain", "train"]

_REMEDY = "copy the model again, or train it again"
_FileName = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,100}$")]
"""Name of a file without its suffix; a slash would lead out of the folder."""


@dataclass(frozen=True)
class State:
    """State of a fitted member: JSON values, and arrays by name."""

    settings: dict[str, Any]
    arrays: Arrays


def numbers(arrays: Arrays, name: str, *shape: int | None) -> F64:
    """Return an array of finite numbers as float64; None in `shape` for any length."""
    array = _of_shape(arrays, name, shape)
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        raise Mismatch(f"the array '{name}' does not hold finite numbers")
    return array.astype(np.float64)


def indices(arrays: Arrays, name: str, below: int, *shape: int | None) -> Rows:
    """Return an array of indices from 0 to `below` - 1 as int64."""
    array = _of_shape(arrays, name, shape)
    if array.dtype.kind != "i" or (array.size and not 0 <= array.min() <= array.max() < below):
        raise Mismatch(f"the array '{name}' does not hold indices from 0 to {below - 1}")
    return array.astype(np.int64)


def _of_shape(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    array = arrays.get(name)
    if array is None:
        raise Mismatch(f"the array '{name}' is missing")
    wrong = len(array.shape) != len(shape) or any(
        expected not in (None, size) for expected, size in zip(shape, array.shape, strict=True)
    )
    if wrong:
        raise Mismatch(f"the array '{name}' has the shape {array.shape}")
    return array


@dataclass(frozen=True)
class StoredFile:
    """Size and SHA-256 of a file."""

    bytes: Count
    sha256: str


class _ModelVersion(msgspec.Struct):
    """Entries of `model.json` that all versions have."""

    format: int
    version: str
    checksum: str


class _Header(msgspec.Struct):
    """Entries of `model.json` besides the version and the facts."""

    command: Command
    members: dict[str, dict[str, Any]]
    files: dict[_FileName, StoredFile]


@dataclass(frozen=True)
class ModelFolder:
    """Path and content of `model.json`; `facts` has its other entries."""

    path: Path
    command: Command
    members: dict[str, dict[str, Any]]
    facts: dict[str, Any]
    files: dict[str, StoredFile]

    def state(self, member: str) -> State:
        """Read the state of a member."""
        return State(self.members[member], self.arrays(member))

    def arrays(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """Read the arrays of a file of the model; DataError if it is damaged."""
        file, expected = self.path / f"{name}.safetensors", self.files.get(name)
        if expected is None:
            raise damaged(f"'{self.path / HEADER}' has no file for '{name}'")
        try:
            size, free = require(file, "file of the model").stat().st_size, memory_available()
            # The size is compared before the file is read into memory.
            if size != expected.bytes:
                raise damaged(f"'{file}' has {size} bytes, of {expected.bytes} that were written")
            if size > free:
                evidence = f"'{file}' has {shown_size(size)}, {shown_size(free)} are free"
                raise DataError("The model does not fit in memory", evidence, "use more memory")
            # Read once, so that the parsed bytes are the verified bytes.
            content = file.read_bytes()
        except (OSError, MissingInput) as error:
            raise damaged(f"'{file}' is missing or may not be read") from error
        if hashlib.sha256(content).hexdigest() != expected.sha256:
            raise damaged(f"'{file}' was changed: its SHA-256 differs")
        try:
            # Sorted: the library's order varies, and messages name the first wrong array.
            return dict(sorted(load(content).items()))
        except (SafetensorError, ValueError, LookupError, TypeError) as error:
            raise damaged(f"'{file}' is no safetensors file, {error}") from error


def damaged(evidence: str) -> DataError:
    """Return the error for a damaged model folder."""
    return DataError("The model is damaged", evidence, _REMEDY)


def write(
    path: Path,
    command: Command,
    members: Mapping[str, State],
    facts: Mapping[str, Any] | None = None,
    more_arrays: Mapping[str, Arrays] | None = None,
) -> None:
    """Write a model folder atomically: the previous folder stays until the new one is complete."""
    arrays_of_file = {name: state.arrays for name, state in members.items()} | dict(
        more_arrays or {}
    )
    with atomic_folder(path, overwrite=True) as folder:
        files = {}
        for name, arrays in arrays_of_file.items():
            data = save({key: np.ascontiguousarray(array) for key, array in arrays.items()})
            (folder / f"{name}.safetensors").write_bytes(data)
            files[name] = StoredFile(len(data), hashlib.sha256(data).hexdigest())
        content = {
            "format": FORMAT,
            "version": __version__,
            "command": command,
            **(facts or {}),
            "members": {name: state.settings for name, state in members.items()},
            "files": {name: asdict(file) for name, file in files.items()},
        }
        content["checksum"] = checksum(content)
        text = dump_json(content, indent=1) + "\n"
        (folder / HEADER).write_text(text, encoding="utf-8")


def find(path: Path) -> Path:
    """Find the model folder of a path: a run folder, its folder `model`, or a copy of it."""
    if not path.exists():
        raise MissingInput("No model", f"'{path}' does not exist", "name a run folder")
    for folder in (path, path / MODEL):
        if (folder / HEADER).is_file():
            return folder
    if not path.is_dir():
        raise MissingInput(
            "No model", f"'{path}' is a file, and a model is a folder", "name the run folder"
        )
    if targets := target_folders(path):
        raise MissingInput(
            "A run of several targets",
            f"'{path}' has {', '.join(folder.name for folder in targets)}",
            "name the folder of one target",
        )
    evidence = f"'{path}' has no {MODEL}/{HEADER}"
    if next(path.glob("checkpoints/*.ckpt"), None) or fold_folders(path):
        remedy = "resume the run if it was stopped, or train again"
        raise MissingInput("The run has no model", evidence, remedy)
    raise MissingInput("No model", evidence, "name the --output-dir of a run")


def read(path: Path) -> ModelFolder:
    """Read `model.json` of a run folder or a model folder."""
    folder = find(path)
    file = folder / HEADER
    content: dict[str, Any] = read_json(file, dict[str, Any], "model", _REMEDY)
    try:
        version = convert(content, _ModelVersion, HEADER)
    except Mismatch as error:
        evidence = f"'{file}', {error}"
        raise DataError("Not a model of this program", evidence, "name a run folder") from error
    check_format("model", version.format, FORMAT, f"'{file}', aam {version.version}")
    if content.pop("checksum") != checksum(content):
        raise damaged(f"'{file}' was changed: its checksum differs")
    try:
        header = convert(content, _Header, HEADER)
    except Mismatch as error:
        raise damaged(f"'{file}', {error}") from error
    other_entries = {*_Header.__struct_fields__, "format", "version"}
    facts = {key: value for key, value in content.items() if key not in other_entries}
    return ModelFolder(folder, header.command, header.members, facts, header.files)


def checksum(content: Mapping[str, Any]) -> str:
    """Compute the checksum of the other entries of `model.json`.

    >>> checksum({"a": 1, "b": 2}) == checksum({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(dump_json(content, sort_keys=True).encode()).hexdigest()


def check_format(kind: str, stored: int, current: int, file: str) -> None:
    """Refuse a file whose format is not the one of this version."""
    if stored != current:
        newer = stored > current
        raise DataError(
            f"The {kind} was written by {'a newer' if newer else 'an earlier'} version",
            f"{file}, format {stored}; this is {__version__}, format {current}",
            "use that version" if newer else "use that version, or train again with this one",
        )
