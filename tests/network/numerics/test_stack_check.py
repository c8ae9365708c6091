"""The attention check identifies each emulated fault in every dtype, and passes correct backends.

The same table runs on a GPU where there is one (`-m gpu`): the faults are emulated there too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import get_args

import pytest
import torch

from aam.contract.errors import DataError, Unavailable
from aam.network.model.attention import TORCH, Backend
from aam.network.numerics import probes
from aam.network.numerics.backends import (
    CheckPlan,
    case_of,
    check_attention,
    conclude,
    measure_in_child,
)
from aam.network.numerics.probes import DTYPES, MaskKind, Probe, Shape
from aam.network.numerics.report import FORMAT, CheckReport, worst
from tests.support import faulty_backends as emulated
from tests.support.faulty_backends import RIGHT, faulty

CPU = torch.device("cpu")
QUICK = CheckPlan(quick=True)
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(params=["cpu", GPU])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    return torch.device(request.param)


def check(*backends: Backend, plan: CheckPlan = QUICK, on: torch.device = CPU) -> CheckReport:
    return check_attention(backends, plan, on)


def named(report: CheckReport, dtype: str, backend: str = "auto") -> set[str]:
    return set(report.faults(backend, [dtype]))


FOUND: list[tuple[Callable[..., torch.Tensor], probes.KernelFault]] = [
    (emulated.first_mask, probes.FIRST_MASK),
    (emulated.aotriton_08, probes.FIRST_MASK),
    (emulated.nan_empty, probes.EMPTY),
    (emulated.average_empty, probes.EMPTY),
    (emulated.gradient_off, probes.SCALED),
    (emulated.transposed, probes.TRANSPOSED),
    (emulated.ignoring, probes.IGNORED),
    (emulated.inverted, probes.INVERTED),
    (emulated.nothing, probes.NOTHING),
    (emulated.keys_unlearnt, probes.GRADIENT),
    (emulated.nan_gradient, probes.NAN_GRADIENT),
    (emulated.infinite, probes.NAN_OUTPUT),
    (emulated.packed_only_wrong, probes.LAYOUT),
    (emulated.odd, probes.UNKNOWN),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("function", "fault"), FOUND, ids=[f.__name__ for f, _ in FOUND])
def test_a_fault_is_caught_and_named(
    function: Callable[..., torch.Tensor],
    fault: probes.KernelFault,
    dtype: str,
    device: torch.device,
) -> None:
    report = check(faulty(function), RIGHT, plan=CheckPlan(True, (dtype,)), on=device)
    expected = {"harmless"} if fault.harmless else {"wrong"}
    assert named(report, dtype) == {fault.name}
    assert {case.outcome for case in report.of("auto", [dtype])} - {"right"} == expected
    assert report.wrong != fault.harmless
    assert worst(report.of("math", [dtype])) == "right"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_right_in_fp32_and_wrong_in_half_precision(dtype: str, device: torch.device) -> None:
    plan = CheckPlan(True, ("fp32", dtype))
    odd = check(faulty(emulated.half_odd), plan=plan, on=device)
    assert named(odd, "fp32") == set()
    assert named(odd, dtype) == {"wrong in half precision"}
    first = check(faulty(emulated.half_first_mask), plan=plan, on=device)
    assert named(first, "fp32") == set()
    assert named(first, dtype) == {"wrong in half precision: first mask for all"}


def test_tf32_is_distinguished_from_fp32(device: torch.device) -> None:
    report = check(faulty(emulated.tf32), on=device)
    assert named(report, "fp32") == {probes.TF32.name}
    assert named(report, "fp16") == named(report, "bf16") == set()
    assert not report.wrong


def test_the_real_backends_are_right(device: torch.device) -> None:
    """On a GPU whose stack is at fault this fails, which is what it is for."""
    report = check(*TORCH, plan=CheckPlan(True, recomputed=True), on=device)
    assert not report.wrong, [case for case in report.cases if case.outcome == "wrong"]
    assert worst(report.of("math", DTYPES)) == "right"


def test_recomputation_that_fails_is_named(device: torch.device) -> None:
    plan = CheckPlan(True, ("fp32",), recomputed=True)
    report = check(faulty(emulated.Unrepeatable()), plan=plan, on=device)
    wrong = [case for case in report.cases if case.outcome == "wrong"]
    assert {case.mask for case in wrong} == {"recomputed"}
    assert {case.fault for case in wrong} == {probes.RECOMPUTED.name}


def test_one_set_or_one_mask_finds_nothing() -> None:
    """Why every probe has sets with masks of their own: others pass on the known faulty kernels."""
    report = check(faulty(emulated.first_mask))
    masks = get_args(MaskKind)[:4]
    outcomes = {mask: worst([c for c in report.cases if c.mask == mask]) for mask in masks}
    assert outcomes == {"none": "right", "shared": "right", "each": "wrong", "empty": "wrong"}
    alone = dataclasses.replace(Shape.probed(True)[0], sets=1)
    case = case_of(faulty(emulated.first_mask), Probe(alone, "fp32", "each"), CPU)
    assert case.outcome == "right"


# --- what does not answer


@pytest.mark.medium
def test_a_gpu_that_hangs_is_named_in_time() -> None:
    backends = (RIGHT, faulty(emulated.hanging, "flash"))
    with pytest.raises(Unavailable) as caught:
        conclude(
            measure_in_child(backends, CheckPlan(True, ("fp32",)), CPU, patience=20), quick=True
        )
    assert str(caught.value).startswith(
        "The GPU responds but computes nothing: no result for 20 s since flash, fp32, mask none, "
        "nucleotide encoder"
    )
    assert caught.value.status == 69


@pytest.mark.medium
def test_a_backend_that_kills_its_process_is_left_out() -> None:
    backends = (faulty(emulated.killing), RIGHT)
    report = conclude(
        measure_in_child(backends, CheckPlan(True, ("fp32",)), CPU, patience=120), quick=True
    )
    crashed, *others = report.cases
    assert (crashed.backend, crashed.outcome) == ("auto", "crashed")
    assert crashed.note == "was killed by SIGABRT"
    assert {(case.backend, case.outcome) for case in others} == {("math", "right")}
    assert report.wrong


# --- the document


def test_a_report_survives_json_and_a_damaged_one_is_refused() -> None:
    report = check(faulty(emulated.nan_empty), RIGHT, plan=CheckPlan(True, ("fp32",)))
    text = report.to_json()
    assert CheckReport.from_json(text) == report
    newer = text.replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}')
    for damaged in (text[:-20], newer, text.replace('"outcome": "right"', '"outcome": "fine"', 1)):
        with pytest.raises(DataError, match="run the check again"):
            CheckReport.from_json(damaged)
