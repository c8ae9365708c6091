"""`aam check` as a command: table, JSON, exit status and the identity of the stack."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from aam.contract.errors import Unavailable
from aam.contract.gpus import AMD, NVIDIA
from aam.contract.options.commands.measure import Check
from aam.network.model.attention import TORCH, Backend
from aam.network.numerics.backends import CheckPlan, check_attention, conclusion, run_check
from aam.network.numerics.device import aotriton_version, driver
from aam.network.numerics.report import CheckReport, Cost
from tests.support import faulty_backends as emulated
from tests.support.commands import aam
from tests.support.faulty_backends import RIGHT, faulty

CPU = torch.device("cpu")
QUICK = Check(quick=True, device="cpu")


def shown(report: CheckReport, width: int = 100) -> str:
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(report.page(conclusion(report)))
    return capture.get()


def row(page: str, name: str) -> str:
    return next(line for line in page.splitlines() if line.strip().startswith(name))


# --- the command


def test_a_right_stack_gives_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert aam("check", "--quick", "--device", "cpu") == 0
    page = capsys.readouterr().out
    assert row(page, "auto").split()[-1] == row(page, "math").split()[-1] == "right"
    assert "cannot run" in row(page, "mem_efficient")
    assert "Right here. aam uses auto." in page
    assert str(torch.__version__) in page


def test_a_usable_backend_that_is_wrong_gives_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = (faulty(emulated.first_mask), faulty(emulated.unmasked_only, "flash"), RIGHT)
    assert run_check(QUICK, wrong) == 1
    page = capsys.readouterr().out
    assert "WRONG" in row(page, "auto")
    assert "right, no masks" in row(page, "flash")
    assert "auto, fp32, fp16, bf16: first mask for all" in page
    assert "ROCm/aotriton PR 68" in " ".join(page.split())
    assert "Wrong here: auto. aam uses flash, and math with masks." in " ".join(page.split())


def test_without_a_gpu_the_cpu_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert aam("check", "--quick", "--device", "cuda") == 69
    assert "No GPU" in capsys.readouterr().err
    assert aam("check", "--quick") == 0
    assert "No GPU was found; the CPU is measured." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (emulated.full, "Out of memory during the check: auto: HIP out of memory"),
        (emulated.broken, "No attention backend runs: auto: HIP error: invalid device function"),
    ],
)
def test_a_device_without_response_gives_no_report(function: object, sentence: str) -> None:
    with pytest.raises(Unavailable) as caught:
        run_check(QUICK, (faulty(function),))
    assert str(caught.value).startswith(sentence)
    assert caught.value.status == 69


def test_an_error_of_the_driver_is_no_absent_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(QUICK, (faulty(emulated.refused_by_driver), RIGHT)) == 0
    page = capsys.readouterr().out
    assert "fails" in row(page, "auto")
    assert "auto: CUDA error: operation not supported" in page


@pytest.mark.medium
def test_the_alias_of_the_command_runs_the_check() -> None:
    argv = [sys.executable, "-m", "aam.tools.rocm_attention_diagnostic", "--quick", "--json"]
    done = subprocess.run([*argv, "--device", "cpu"], capture_output=True, text=True, check=True)
    assert not CheckReport.from_json(done.stdout).wrong


@pytest.mark.slow
def test_the_whole_check_has_times_and_recomputation(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(Check(device="cpu", json=True), (RIGHT,)) == 0
    found = CheckReport.from_json(capsys.readouterr().out)
    assert {case.mask for case in found.cases} >= {"recomputed", "none"}
    assert len(found.costs) == 3 * 2 * 2
    assert all(cost.milliseconds > 0 and cost.peak_bytes is None for cost in found.costs)


# --- the table


def report(*backends: Backend) -> CheckReport:
    return check_attention(backends, CheckPlan(True, ("fp32", "bf16")), CPU)


@pytest.fixture(scope="module")
def of_torch() -> CheckReport:
    return report(*TORCH)


def test_the_table_has_the_stack_and_costs_relative_to_math(of_torch: CheckReport) -> None:
    costs = tuple(
        Cost(name, "fp32", mask, "sample encoder", time, memory)
        for name, time, memory in (("flash", 2.0, 100), ("math", 5.0, 400))
        for mask in ("none", "each")
    )
    identity = {**of_torch.identity, "aotriton": "unknown", "arch": "gfx942", "driver": "6.8.5"}
    changed = {**vars(of_torch), "costs": costs, "identity": identity}
    page = shown(CheckReport(**changed), width=120)
    assert "2.5 x  0.25 x" in row(page, "flash")
    assert "1.0 x  1.00 x" in row(page, "math")
    assert "relative to math" in page
    assert "unknown: libraries before 0.9 have no version" in page
    assert "(gfx942)" in page and "6.8.5" in page


def test_a_faulty_figure_is_shown_as_such() -> None:
    page = shown(report(faulty(emulated.nan_empty), faulty(emulated.half_odd, "flash"), RIGHT))
    assert "NaN" in row(page, "auto")
    assert "harmless" in row(page, "auto")
    assert "flash, bf16: wrong in half precision" in page
    text = " ".join(page.split())
    assert "nothing to do: the model never computes such rows" in text


# --- what the stack is


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x7fELF\x02GCC: (Ubuntu 11.4.0) 11.4.0\0AOTriton 0.9.2\0", "0.9.2"),
        (b"\x7fELF\x02GCC: (GNU) 9.3.1\0", "unknown"),
        (b"", "unknown"),
    ],
)
def test_the_version_of_aotriton_is_read_or_unknown(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    (tmp_path / "libaotriton_v2.so").write_bytes(content)
    assert aotriton_version(tmp_path) == expected


def test_kernel_drivers(tmp_path: Path) -> None:
    assert driver("amd", tmp_path) == driver("nvidia", tmp_path) == f"kernel {os.uname().release}"
    for name, text in (
        (AMD.driver_file, "6.10.5\n"),
        (NVIDIA.driver_file, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert driver("amd", tmp_path) == "6.10.5"
    assert driver("nvidia", tmp_path) == "550.54.14"
