"""Golden folders: damaged, incomplete and foreign ones are refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from aam.contract.errors import AamError, DataError, MissingInput
from aam.golden.folder import RECORD, read
from tests.support.commands import aam
from tests.support.golden import KEPT


def edited(folder: Path) -> None:
    """Change one kept number, as another stack would have computed it."""
    file = folder / "outputs.safetensors"
    tensors = load(file.read_bytes())
    tensors["even/samples.blocks.1"] *= 1.001
    file.write_bytes(save(tensors))
    record = json.loads((folder / RECORD).read_text())
    record["sha256"]["outputs"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (folder / RECORD).write_text(json.dumps(record))


@pytest.mark.medium
def test_the_exit_status_of_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(KEPT, tmp_path / "golden")
    edited(folder)
    assert aam("golden", "compare", folder, "--device", "cpu") == 1
    printed = capsys.readouterr().out
    assert "They first differ at the output of samples.blocks.1, where no mask is needed" in printed
    assert aam("golden", "compare", folder, "--device", "cpu", "--json") == 1
    first = json.loads(capsys.readouterr().out)["first_difference"]
    assert first == {"kind": "output", "stage": "samples.blocks.1"}


def absent(folder: Path) -> None:
    shutil.rmtree(folder)


def without_record(folder: Path) -> None:
    (folder / RECORD).unlink()


def without_tensors(folder: Path) -> None:
    (folder / "gradients.safetensors").unlink()


def cut_short(folder: Path) -> None:
    file = folder / "outputs.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def no_json(folder: Path) -> None:
    (folder / RECORD).write_text("{")


def lacking(folder: Path) -> None:
    record = json.loads((folder / RECORD).read_text())
    del record["losses"]
    (folder / RECORD).write_text(json.dumps(record))


def other_format(folder: Path) -> None:
    record = json.loads((folder / RECORD).read_text())
    (folder / RECORD).write_text(json.dumps(record | {"format": 99}))


def _rewrite(folder: Path, name: str, tensors: dict[str, Tensor]) -> None:
    file = folder / f"{name}.safetensors"
    file.write_bytes(save(tensors))
    record = json.loads((folder / RECORD).read_text())
    record["sha256"][name] = hashlib.sha256(file.read_bytes()).hexdigest()
    (folder / RECORD).write_text(json.dumps(record))


def other_model(folder: Path) -> None:
    tensors = load((folder / "weights.safetensors").read_bytes())
    tensors["encoder.samples.out.weight"] = torch.zeros(8, 8)
    _rewrite(folder, "weights", tensors)


def not_finite(folder: Path) -> None:
    tensors = load((folder / "outputs.safetensors").read_bytes())
    tensors["ragged/samples"][0, 0] = torch.nan
    _rewrite(folder, "outputs", tensors)


BAD = {
    absent: (MissingInput, "No golden folder: "),
    without_record: (MissingInput, "No golden run: "),
    without_tensors: (MissingInput, "gradients.safetensors' does not exist"),
    cut_short: (
        DataError,
        "damaged: '.*outputs.safetensors' is not what was written; create it again",
    ),
    no_json: (DataError, "damaged: '.*golden.json' is not what was written"),
    lacking: (DataError, "damaged: .*golden.json has no 'losses'"),
    other_format: (DataError, "another version: .* has format 99, aam .* compares format 1; "),
    other_model: (
        DataError,
        r"another model: .*encoder.samples.out.weight is \(8, 8\) there, \(16, 16\) here; ",
    ),
    not_finite: (DataError, "not finite: .*output ragged/samples; create it again"),
}


@pytest.mark.parametrize("spoil", BAD, ids=lambda f: f.__name__)
def test_a_folder_that_cannot_be_compared(
    spoil: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, printed = BAD[spoil]  # type: ignore[index]
    folder = shutil.copytree(KEPT, tmp_path / "golden")
    spoil(folder)  # type: ignore[operator]
    with pytest.raises(kind, match=printed) as caught:
        read(folder)
    assert aam("golden", "compare", folder, "--device", "cpu") == caught.value.status
    shown = capsys.readouterr().err
    if spoil is absent:  # refused before anything is read
        assert shown.startswith("aam: No file for --golden-dir: ")
    else:
        assert shown == f"aam: {caught.value}\n"
    assert isinstance(caught.value, AamError)


RECORDS: dict[str, object] = {
    "losses": "many",
    "losses-few": [1.0],
    "losses-zero": [0.0] * 50,
    "losses-text": ["1.0"] * 50,
    "products": [],
    "products-none": {},
    "products-negative": {"even/samples": -1},
    "products-other": {"even/stranger": 1},
    "stack": 3,
    "stack-short": {"version": "1"},
    "sha256": ["a"],
    "sha256-none": {},
    "format": [1],
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_with_a_wrong_entry_is_refused(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(KEPT, tmp_path / "golden")
    record = json.loads((folder / RECORD).read_text())
    record[name.partition("-")[0]] = RECORDS[name]
    (folder / RECORD).write_text(json.dumps(record))
    with pytest.raises(DataError, match="golden folder is"):
        read(folder)


@pytest.mark.parametrize("text", ["[]", "3", "[" * 100_000, '"\\ud800"', "NaN", " " * (1 << 26)])
def test_a_record_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    folder = shutil.copytree(KEPT, tmp_path / "golden")
    (folder / RECORD).write_text(text)
    with pytest.raises(DataError, match=r"damaged: '.*golden.json'"):
        read(folder)


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("inputs", "even/slots_BS", torch.full((4, 6), 10**9)),
        ("inputs", "even/tokens_UL", torch.full((14, 60), 99, dtype=torch.uint8)),
        ("inputs", "even/counts_BS", torch.zeros(4, 7)),
        ("outputs", "even/samples", torch.zeros(4, 16, dtype=torch.bool)),
        ("gradients", "even/head.1.weight", torch.zeros(0)),
    ],
)
def test_tensors_that_no_run_writes_are_refused(
    file: str, key: str, value: Tensor, tmp_path: Path
) -> None:
    folder = shutil.copytree(KEPT, tmp_path / "golden")
    tensors = load((folder / f"{file}.safetensors").read_bytes())
    assert key in tensors
    _rewrite(folder, file, tensors | {key: value})
    with pytest.raises(DataError, match="golden folder is damaged"):
        read(folder)
