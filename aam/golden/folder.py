"""Golden folders: tensors as safetensors files, described by golden.json.

golden.json is written last and holds the SHA-256 of the others, so an incomplete folder has none.
"""

from __future__ import annotations

import dataclasses
import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from aam import __version__
from aam.contract.precision import Precision
from aam.errors import DataError, MissingInput
from aam.files import refuse_existing, require, sha256, written_aside
from aam.golden import case as golden_case
from aam.golden.measure import Measured, first_not_finite
from aam.stack.device import arch_of
from aam.study.batches import Batch, shortest

FORMAT = 1
"""Version of the folder and of the case; folders of another one cannot be compared."""

RECORD = "golden.json"
TENSORS = ("weights", "inputs", "outputs", "gradients")
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
        gpu = device.type == "cuda"
        name = torch.cuda.get_device_name(device) if gpu else platform.machine()
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
    measured: Measured


def refuse(folder: Path, overwrite: bool) -> None:
    """Refuse to replace a golden folder without --overwrite.

    Raises:
        CannotCreate: it holds a golden run.
    """
    refuse_existing(folder / RECORD, overwrite)


def write(folder: Path, golden: Golden) -> None:
    """Write a golden folder; golden.json is removed first, so no mix of two runs is complete."""
    measured = golden.measured
    files = {
        "weights": golden.weights,
        "inputs": {
            f"{name}/{field}": value
            for name, batch in golden.batches.items()
            for field, value in vars(batch).items()
            if isinstance(value, Tensor)
        },
        "outputs": measured.stages,
        "gradients": measured.gradients,
    }
    (folder / RECORD).unlink(missing_ok=True)
    for name, tensors in files.items():
        with written_aside(folder / f"{name}.safetensors") as aside:
            # Through memory: safetensors' own writer makes files that only their owner may read.
            aside.write_bytes(save({key: value.contiguous() for key, value in tensors.items()}))
    content = {
        "format": FORMAT,
        "stack": dataclasses.asdict(golden.stack),
        "sha256": {name: sha256(folder / f"{name}.safetensors") for name in TENSORS},
        "products": measured.products,
        "losses": measured.losses,
    }
    with written_aside(folder / RECORD) as aside:
        aside.write_text(json.dumps(content, indent=1) + "\n")


def read(folder: Path) -> Golden:
    """Read a golden folder.

    Raises:
        MissingInput: it is not there, or holds no golden run.
        DataError: it is damaged, of another version, or of another model.
    """
    content = _record(folder)
    tensors = {name: _tensors(folder, name, content) for name in TENSORS}
    _check_model(folder, tensors["weights"])
    try:
        stack = Stack(**{**content["stack"], "attention": tuple(content["stack"]["attention"])})
        # The files keep their tensors in the order of names; the record keeps the other one.
        stages = {key: tensors["outputs"][key] for key in content["products"]}
        measured = Measured(
            stages, content["products"], tensors["gradients"], [*map(float, content["losses"])]
        )
        batches = {name: _batch(name, tensors["inputs"]) for name in golden_case.CASES}
    except (KeyError, TypeError, ValueError) as error:
        reason = f"'{folder}', {type(error).__name__} {error}"
        raise DataError("The golden folder is damaged", reason, _REMEDY) from error
    wrong = first_not_finite(measured)
    if wrong is not None:
        reason = f"'{folder}', {wrong}"
        raise DataError("The golden folder holds values that are not finite", reason, _REMEDY)
    return Golden(stack, tensors["weights"], batches, measured)


def _record(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise MissingInput("No golden folder", f"'{folder}' is not there", "check the path")
    file = require(folder / RECORD, "golden run")
    try:
        content = json.loads(file.read_text())
        kind = content["format"]
    except (ValueError, KeyError, TypeError) as error:
        reason = f"'{file}' is not what was written"
        raise DataError("The golden folder is damaged", reason, _REMEDY) from error
    if kind != FORMAT:
        raise DataError(
            "The golden folder is of another version",
            f"'{folder}' has format {kind}, aam {__version__} compares format {FORMAT}",
            "make it with the same aam on both sides",
        )
    assert isinstance(content, dict)
    return content


def _tensors(folder: Path, name: str, content: dict[str, Any]) -> dict[str, Tensor]:
    file = require(folder / f"{name}.safetensors", "file of the golden folder")
    damaged = DataError(
        "The golden folder is damaged", f"'{file}' is not what was written", _REMEDY
    )
    if content.get("sha256", {}).get(name) != sha256(file):
        raise damaged
    try:
        return load(file.read_bytes())
    except (SafetensorError, ValueError) as error:
        raise damaged from error


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


def _batch(case: str, inputs: dict[str, Tensor]) -> Batch:
    own = {
        key.partition("/")[2]: value for key, value in inputs.items() if key.startswith(f"{case}/")
    }
    given: dict[str, Any] = {"attend_BS": None, "shortest": shortest(own["tokens_UL"]), **own}
    return Batch(**given)
