"""Golden runs: the stored case is reproduced, and faults are located at their stage."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from aam.contract.errors import AamError, DataError, MissingInput
from aam.contract.files import dump_json
from aam.network.model.attention import AUTO, Backend, Backends, named
from aam.network.numerics.device import Precision
from aam.stack.golden import (
    FILE,
    SAMPLES,
    SHAPE,
    Stack,
    StageDifference,
    Tensors,
    as_plain,
    batch,
    compare,
    conclusion,
    first_difference,
    measure,
    read,
    table,
    weights,
)
from tests.support.commands import aam

KEPT = Path(__file__).parents[1] / "golden"
"""The golden run that the repository keeps."""
CPU = torch.device("cpu")
MATH = named("math").function


Stored = tuple[Stack, Tensors]


@pytest.fixture(scope="module")
def golden() -> Stored:
    return read(KEPT)


def again(
    golden: Stored, backends: Backends = AUTO, precision: Precision = "none"
) -> list[StageDifference]:
    """Compute the case with other backends or another precision, and compare."""
    batches = {name: batch(name) for name in SAMPLES}
    found = measure(weights(), batches, CPU, backends, precision)
    return compare(golden[1], found, ("none", precision))


def test_this_stack_computes_the_stored_golden_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert aam("golden", "compare", KEPT, "--device", "cpu") == 0, capsys.readouterr().out
    shown = capsys.readouterr().out
    assert "They agree within rounding: outputs of 21 stages" in shown
    assert "losses of 50 steps" in shown


def test_the_cases_have_masks_and_no_masks() -> None:
    even, ragged = batch("even"), batch("ragged")
    assert not even.ragged(SHAPE.nucleotide_patch)
    assert even.attend_BS is None
    assert ragged.ragged(SHAPE.nucleotide_patch)
    assert ragged.attend_BS is not None
    # No sample has the mask of another one.
    assert len({tuple(row) for row in ragged.attend_BS.tolist()}) == len(ragged.attend_BS)


@pytest.mark.medium
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_rounding(golden: Stored, precision: Precision) -> None:
    rows = again(golden, precision=precision)
    assert first_difference(rows) is None
    # But it is not fp32: held to that, the first product is out.
    batches = {name: batch(name) for name in SAMPLES}
    strict = compare(golden[1], measure(weights(), batches, CPU, AUTO, precision), ("none",))
    first = first_difference(strict)
    assert first is not None
    assert first.stage == "nucleotides.blocks.0.attention"
    assert first.differs == ("even", "ragged")


def test_another_right_kernel_is_rounding(golden: Stored) -> None:
    rows = again(golden, Backends(named("math"), named("math")))
    assert first_difference(rows) is None
    assert any(value > 0 for row in rows for value in row.difference.values())


def mask_of_the_first(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """The fault of aotriton 0.7b to 0.8.1b: every member of a batch has the first one's mask."""
    return MATH(q, k, v, None if mask is None else mask[:1].expand_as(mask))


def no_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return MATH(q, k, v, None)


class Skewed(torch.autograd.Function):
    """Leaves values as they are and makes gradients larger by 1 %."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient * 1.01


def skewed_gradient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return MATH(q, k, Skewed.apply(v), mask)


def nan_where_masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    out = MATH(q, k, v, mask)
    return out if mask is None else out.masked_fill(~mask.transpose(-1, -2), torch.nan)


FAULTS = {
    "mask of the first": (
        mask_of_the_first,
        ("output", "nucleotides.blocks.0.attention", ("ragged",)),
    ),
    "no mask": (no_mask, ("output", "nucleotides.blocks.0.attention", ("ragged",))),
    "gradient": (skewed_gradient, ("gradient", "target.blocks.0", ("even", "ragged"))),
    "nan": (nan_where_masked, ("output", "nucleotides.blocks.0.attention", ("ragged",))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_at_its_stage(golden: Stored, fault: str) -> None:
    function, (kind, stage, cases) = FAULTS[fault]
    faulty = Backend("faulty", function)
    rows = again(golden, Backends(faulty, faulty))
    first = first_difference(rows)
    assert first is not None
    assert (first.kind, first.stage, first.differs) == (kind, stage, cases)
    # The loss curve shows it too, as it would to a person who watches nothing else.
    assert any(row.differs for row in rows if row.kind == "loss")
    printed = conclusion(rows)
    assert f"They first differ at the {kind} of {stage}" in printed
    assert ("with masks (not without)" in printed) == (cases == ("ragged",))
    assert ("is not finite" in printed) == (fault == "nan")
    stack = Stack.here(CPU, "none", ("faulty", "faulty"))
    text = table(rows).tsv
    assert "\tdiffers" in text
    assert ("not finite" in text) == (fault == "nan")
    plain = json.loads(dump_json(as_plain(rows, golden[0], stack)))
    assert plain["first_difference"] == {"kind": kind, "stage": stage}
    assert plain["agree"] is False


@pytest.mark.medium
def test_a_fault_shows_in_half_precision_where_it_is_larger_than_rounding(golden: Stored) -> None:
    # 1 % is less than what bf16 rounds away.
    for fault, shows in (("mask of the first", True), ("gradient", False)):
        faulty = Backend("faulty", FAULTS[fault][0])
        first = first_difference(again(golden, Backends(faulty, faulty), "bf16"))
        assert (first is not None) == shows


@pytest.mark.medium
def test_generate_and_compare_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "golden"
    args = ("--device", "cpu", "--mixed-precision", "bf16")
    assert aam("golden", "generate", folder, *args) == 0
    assert aam("golden", "generate", folder, *args) == 73
    assert "The output exists" in capsys.readouterr().err
    assert aam("golden", "generate", "--golden-dir", folder, *args, "--overwrite") == 0
    assert aam("golden", "compare", folder, *args, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["agree"] is True
    assert shown["golden"]["precision"] == shown["here"]["precision"] == "bf16"
    assert {row["kind"] for row in shown["rows"]} == {"output", "gradient", "loss"}
    # A run in bf16 held against one in fp32: the coarser decides what is rounding.
    assert aam("golden", "compare", folder, "--device", "cpu") == 0
    assert aam("golden", "compare", KEPT, *args) == 0


# --- files that are no golden run


def written(folder: Path, tensors: Tensors, **facts: str) -> None:
    """Write tensors as the golden file of a folder, with some of its facts changed."""
    with safe_open(KEPT / FILE, "pt") as content:
        known = content.metadata()
    digest = hashlib.sha256(save(tensors)).hexdigest()
    (folder / FILE).write_bytes(save(tensors, {**known, "sha256": digest, **facts}))


def test_an_edited_number_is_found_at_its_stage(
    tmp_path: Path, golden: Stored, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = dict(golden[1])
    tensors["output/even/samples.blocks.1"] = tensors["output/even/samples.blocks.1"] * 1.001
    written(tmp_path, tensors)
    assert aam("golden", "compare", tmp_path, "--device", "cpu") == 1
    printed = capsys.readouterr().out
    assert "They first differ at the output of samples.blocks.1 without masks" in printed
    assert aam("golden", "compare", tmp_path, "--device", "cpu", "--json") == 1
    first = json.loads(capsys.readouterr().out)["first_difference"]
    assert first == {"kind": "output", "stage": "samples.blocks.1"}


BAD = {
    "empty": (MissingInput, "No golden run: "),
    "cut": (DataError, "The golden run is damaged: '.*golden.safetensors'"),
    "edited": (DataError, "its checksum does not match its content"),
    "stack": (DataError, "The golden run is damaged"),
    "version": (DataError, "another version: .* has format 99, aam .* compares format 2; "),
    "model": (DataError, "another model: .* has other weights or inputs than aam"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_folder_that_cannot_be_compared(
    name: str, tmp_path: Path, golden: Stored, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, printed = BAD[name]
    tensors, file = dict(golden[1]), tmp_path / FILE
    if name == "cut":
        file.write_bytes((KEPT / FILE).read_bytes()[:5000])
    elif name == "edited":
        written(tmp_path, tensors, sha256="0" * 64)
    elif name == "stack":
        written(tmp_path, tensors, stack='{"version": 1}')
    elif name == "version":
        written(tmp_path, tensors, format="99")
    elif name == "model":
        written(tmp_path, tensors, case="0" * 64)
    with pytest.raises(kind, match=printed) as caught:
        read(tmp_path)
    assert isinstance(caught.value, AamError)
    assert aam("golden", "compare", tmp_path, "--device", "cpu") == caught.value.status
    assert capsys.readouterr().err == f"aam: {caught.value}\n"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("precision", ["none", "bf16"])
def test_a_gpu_computes_the_stored_golden_run(
    precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--device", "cuda", "--mixed-precision", precision)
    assert aam("golden", "compare", KEPT, *args) == 0, capsys.readouterr().out
