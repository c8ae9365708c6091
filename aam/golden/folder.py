"""Golden folders: tensors as safetensors files, described by golden.json.

golden.json is written last and holds the SHA-256 of the others, so an incomplete folder has none.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from aam import __version__
from aam.contract import schema
from aam.contract.errors import DataError, MissingInput
from aam.contract.files import atomic_write, refuse_existing, require, sha256
from aam.contract.options.field import ABOVE_ZERO, ZERO_OR_MORE
from aam.data.batches import Batch
from aam.data.sequences import PAD
from aam.golden import case as golden_case
from aam.golden.measure import GoldenResult, first_not_finite
from aam.numerics.device import Precision, arch_of, is_gpu

FORMAT = 1
"""Version of the folder and of the case; folders of another one cannot be compared."""

RECORD = "golden.json"
TENSORS = ("weights", "inputs", "outputs", "gradients")
_LARGEST = 1 << 26
_REMEDY = "create it again with `aam golden generate`"


@dataclass(frozen=True)
class Stack:
    """The stack that computed a golden run."""

    version: str
    pytorch: str
    rocm: str | None
    cuda: str | None
    arch: str
    device: str
    precision: Precision
    attention: tuple[str, str]

    @classmethod
    def here(cls, device: torch.device, precision: Precision, attention: tuple[str, str]) -> Stack:
        """Return the stack of this process."""
        name = torch.cuda.get_device_name(device) if is_gpu(device) else platform.machine()
        return cls(
            __version__,
            str(torch.__version__),
            torch.version.hip,
            torch.version.cuda,
            arch_of(device),
            name,
            precision,
            attention,
        )

    def __str__(self) -> str:
        plain, masked = self.attention
        attention = plain if plain == masked else f"{plain}, {masked} with masks"
        precision = "fp32" if self.precision == "none" else self.precision
        where = self.arch if self.arch == "cpu" else f"{self.device} ({self.arch})"
        return (
            f"aam {self.version}, torch {self.pytorch}, {where}, {precision}, attention {attention}"
        )


@dataclass(frozen=True)
class Golden:
    """The content of a golden folder."""

    stack: Stack
    weights: dict[str, Tensor]
    batches: dict[str, Batch]
    measured: GoldenResult


def refuse(folder: Path, overwrite: bool) -> None:
    """Refuse to replace a golden folder without --overwrite.

    Args:
        folder: folder to write.
        overwrite: value of --overwrite.

    Raises:
        CannotCreate: the folder holds a golden run and `overwrite` is false.
    """
    refuse_existing(folder / RECORD, overwrite)


def write(folder: Path, golden: Golden) -> None:
    """Write a golden folder; golden.json is removed first, so no mix of two runs is complete.

    Args:
        folder: folder to write, which exists.
        golden: content of the folder.
    """
    measured = golden.measured
    files = {
        "weights": golden.weights,
        "inputs": {
            f"{name}/{field}": value
            for name, batch in golden.batches.items()
            for field, value in _arrays(batch).items()
        },
        "outputs": measured.stages,
        "gradients": measured.gradients,
    }
    # Its absence marks the folder as incomplete until all files are those of one run.
    (folder / RECORD).unlink(missing_ok=True)
    for name, tensors in files.items():
        with atomic_write(folder / f"{name}.safetensors") as temporary:
            # Through memory: safetensors' own writer makes files that only their owner may read.
            temporary.write_bytes(save({key: value.contiguous() for key, value in tensors.items()}))
    content = {
        "format": FORMAT,
        "stack": dataclasses.asdict(golden.stack),
        "sha256": {name: sha256(folder / f"{name}.safetensors") for name in TENSORS},
        "products": measured.products,
        "losses": measured.losses,
    }
    with atomic_write(folder / RECORD) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


def read(folder: Path) -> Golden:
    """Read a golden folder.

    Raises:
        MissingInput: it is not there, or holds no golden run.
        DataError: it is damaged, of another version, or of another model.
    """
    record = _record(folder)
    tensors = {name: _tensors(folder, name, record) for name in TENSORS}
    _check_model(folder, tensors["weights"])
    try:
        # The files keep their tensors in the order of names; the record keeps the other one.
        stages = {key: tensors["outputs"][key] for key in record["products"]}
        measured = GoldenResult(stages, record["products"], tensors["gradients"], record["losses"])
        batches = {name: _batch(name, tensors["inputs"]) for name in golden_case.CASES}
    except KeyError as error:
        reason = f"'{folder}' has no {error}"
        raise DataError("The golden folder is damaged", reason, _REMEDY) from error
    wrong = first_not_finite(measured)
    if wrong is not None:
        reason = f"'{folder}', {wrong}"
        raise DataError("The golden folder holds values that are not finite", reason, _REMEDY)
    return Golden(record["stack"], tensors["weights"], batches, measured)


_RECORD = {
    "format": int,
    "stack": Stack,
    "sha256": dict[str, str],
    "products": dict[str, Annotated[int, ZERO_OR_MORE]],
    "losses": list[Annotated[float, ABOVE_ZERO]],
}


def _record(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise MissingInput("No golden folder", f"'{folder}' is not there", "check the path")
    file = require(folder / RECORD, "golden run")
    try:
        content = json.loads(_bytes(file))
        if isinstance(content, dict) and content.get("format") != FORMAT:
            raise DataError(
                "The golden folder is of another version",
                f"'{folder}' has format {content.get('format')}, "
                f"aam {__version__} compares format {FORMAT}",
                "make it with the same aam on both sides",
            )
        record: dict[str, Any] = schema.parse(_RECORD, content, RECORD)
        if len(record["losses"]) != golden_case.STEPS or not record["products"]:
            raise schema.Mismatch(f"{RECORD} has {len(record['losses'])} losses")
    except (ValueError, RecursionError) as error:
        reason = f"'{file}' is not what was written ({error})"
        raise DataError("The golden folder is damaged", reason, _REMEDY) from error
    return record


def _tensors(folder: Path, name: str, record: dict[str, Any]) -> dict[str, Tensor]:
    file = require(folder / f"{name}.safetensors", "file of the golden folder")
    damaged = DataError(
        "The golden folder is damaged", f"'{file}' is not what was written", _REMEDY
    )
    data = _bytes(file)
    if record["sha256"].get(name) != hashlib.sha256(data).hexdigest():
        raise damaged
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise damaged from error
    if name != "inputs" and not all(v.is_floating_point() and v.numel() for v in tensors.values()):
        raise damaged
    return tensors


def _bytes(file: Path) -> bytes:
    """Read a file of the folder; together they have 0.3 MB."""
    with file.open("rb") as stream:
        data = stream.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        reason = f"'{file}' has more than {_LARGEST >> 20} MiB"
        raise DataError("The golden folder is damaged", reason, _REMEDY)
    return data


def _check_model(folder: Path, weights: dict[str, Tensor]) -> None:
    """Refuse weights that the network of this version does not have."""
    here = {name: tuple(value.shape) for name, value in golden_case.network().state_dict().items()}
    there = {name: tuple(value.shape) for name, value in weights.items()}
    if here == there:
        return
    name = min(n for n in here.keys() | there.keys() if here.get(n) != there.get(n))
    sides = f"{there.get(name, 'absent')} there, {here.get(name, 'absent')} here"
    raise DataError(
        "The golden folder is of another model",
        f"'{folder}', {name} is {sides}",
        "make it with the same aam on both sides",
    )


def _arrays(batch: Batch) -> dict[str, Tensor]:
    """Return the stored tensors of a batch; of the labels, where they are and their values."""
    arrays = {field: value for field, value in vars(batch).items() if isinstance(value, Tensor)}
    labels_UL = arrays.pop("labels_UL")
    scored_UL = labels_UL != PAD
    return arrays | {"scored_UL": scored_UL, "hidden": labels_UL[scored_UL]}


def _batch(case: str, inputs: dict[str, Tensor]) -> Batch:
    """Return the stored batch of a case; its integers index others, so they have to be the same."""
    expected = golden_case.batch(case)
    found: dict[str, Any] = {}
    for field, own in _arrays(expected).items():
        value = found[field] = inputs[f"{case}/{field}"]
        alike = value.shape == own.shape and value.dtype == own.dtype
        if not alike or not (own.is_floating_point() or torch.equal(value, own)):
            reason = f"input {case}/{field} is not that of this version"
            raise DataError("The golden folder is damaged", reason, _REMEDY)
    del found["scored_UL"], found["hidden"]  # equal to those of `expected`
    return dataclasses.replace(expected, **found)
