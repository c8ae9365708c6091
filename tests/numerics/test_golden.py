"""Golden runs: the stored case is reproduced, and faults are located at their stage."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from aam.golden import case, random_numbers
from aam.golden.compare import Row, as_plain, compare, conclusion, first_difference, lines
from aam.golden.folder import Golden, Stack, read
from aam.golden.measure import GoldenResult, measure
from aam.model.attention import AUTO, Backend, Backends, named
from aam.numerics.device import Precision
from tests.support.commands import aam
from tests.support.golden import KEPT

CPU = torch.device("cpu")
MATH = named("math").function


@pytest.fixture(scope="module")
def golden() -> Golden:
    return read(KEPT)


def again(golden: Golden, backends: Backends = AUTO, precision: Precision = "none") -> list[Row]:
    """Compute the case with other backends or another precision, and compare."""
    found = measure(golden.weights, golden.batches, CPU, backends, precision)
    return compare(golden.measured, found, ("none", precision), case.network())


def test_this_stack_computes_the_stored_golden_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert aam("golden", "compare", KEPT, "--device", "cpu") == 0, capsys.readouterr().out
    shown = capsys.readouterr().out
    assert "They agree within rounding: outputs of 21 stages" in shown
    assert "losses of 50 steps" in shown


def test_the_stored_golden_run_is_small_and_current(golden: Golden) -> None:
    assert sum(file.stat().st_size for file in KEPT.iterdir()) < 1_000_000
    weights = case.weights()
    assert weights.keys() == golden.weights.keys()
    assert all(torch.equal(weights[name], golden.weights[name]) for name in weights)
    for name in case.CASES:
        made = case.batch(name)
        for field, value in vars(golden.batches[name]).items():
            other = getattr(made, field)
            assert torch.equal(other, value) if isinstance(value, Tensor) else other == value, field
    assert len(golden.measured.losses) == case.STEPS
    assert golden.measured.losses[-1] < 0.5 * golden.measured.losses[0]


def test_the_cases_have_masks_and_no_masks() -> None:
    even, ragged = case.batch("even"), case.batch("ragged")
    assert not even.ragged(case.SHAPE.nucleotide_patch)
    assert even.attend_BS is None
    assert ragged.ragged(case.SHAPE.nucleotide_patch)
    assert ragged.attend_BS is not None
    # No sample has the mask of another one.
    assert len({tuple(row) for row in ragged.attend_BS.tolist()}) == len(ragged.attend_BS)


def test_random_numbers_are_those_of_splitmix64() -> None:
    # The same, word by word, in Python's own integers.
    start = int.from_bytes(hashlib.sha256(b"x").digest()[:8], "little")
    state, words = start, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        words.append(z ^ (z >> 31))
    expected = [(word >> 40) / 2**23 - 1 for word in words]
    assert random_numbers.uniform("x", 3).tolist() == expected
    assert random_numbers.uniform("x", 3, 5).flatten()[:3].tolist() == expected
    assert random_numbers.uniform("y", 3).tolist() != expected
    assert random_numbers.integers("x", 4, 9, 3).tolist() == [
        (word >> 33) % 5 + 4 for word in words
    ]
    assert sorted(random_numbers.permutation("x", 20).tolist()) == list(range(20))


@pytest.mark.medium
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_rounding(golden: Golden, precision: Precision) -> None:
    rows = again(golden, precision=precision)
    assert first_difference(rows) is None
    # But it is not fp32: held to that, the first product is out.
    found = measure(golden.weights, golden.batches, CPU, AUTO, precision)
    strict = compare(golden.measured, found, ("none",), case.network())
    first = first_difference(strict)
    assert first is not None
    assert first.stage == "nucleotides.blocks.0.attention"
    assert first.differs == ("even", "ragged")


def test_another_right_kernel_is_rounding(golden: Golden) -> None:
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
def test_a_fault_is_found_at_its_stage(golden: Golden, fault: str) -> None:
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
    assert ("need masks, and not without" in printed) == (cases == ("ragged",))
    assert ("is not finite" in printed) == (fault == "nan")
    stack = Stack.here(CPU, "none", ("faulty", "faulty"))
    text = "\n".join(lines(rows, golden.stack, stack))
    assert "  differs" in text
    assert ("not finite" in text) == (fault == "nan")
    plain = json.loads(json.dumps(as_plain(rows, golden.stack, stack), allow_nan=False))
    assert plain["first_difference"] == {"kind": kind, "stage": stage}
    assert plain["agree"] is False


@pytest.mark.medium
@pytest.mark.parametrize("fault", ["mask of the first", "gradient"])
def test_a_fault_shows_in_half_precision_where_it_is_larger_than_rounding(
    golden: Golden, fault: str
) -> None:
    faulty = Backend("faulty", FAULTS[fault][0])
    first = first_difference(again(golden, Backends(faulty, faulty), "bf16"))
    # 1 % is less than what bf16 rounds away.
    assert (first is not None) == (fault == "mask of the first")


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


def test_a_measurement_without_a_stage_differs(golden: Golden) -> None:
    lost = dataclasses.replace(golden.measured, stages={})
    assert isinstance(lost, GoldenResult)
    first = first_difference(compare(golden.measured, lost, ("none",), case.network()))
    assert first is not None
    assert first.stage == "nucleotides.blocks.0.attention"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("precision", ["none", "bf16"])
def test_a_gpu_computes_the_stored_golden_run(
    precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--device", "cuda", "--mixed-precision", precision)
    assert aam("golden", "compare", KEPT, *args) == 0, capsys.readouterr().out
