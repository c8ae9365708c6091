"""Attention backends of a run: selection by status, kept check reports and their reuse."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aam.contract.errors import Unavailable
from aam.contract.gpus import CHECK_REPORTS
from aam.contract.options.groups import AttnImplementation, DeviceOptions, ModelOptions
from aam.network.model.attention import TORCH, Backend
from aam.network.numerics.backends import BackendPolicy, select_backends
from aam.network.numerics.device import Precision
from aam.network.numerics.report import CheckReport, Status, Use, latest_reports
from tests.support import faulty_backends as emulated
from tests.support.check_reports import CPU, KEY, report
from tests.support.commands import aam
from tests.support.faulty_backends import faulty

FAULTY = tuple(
    faulty(emulated.first_mask, b.name) if b.name == "auto" else b for b in TORCH
)  # fmt: skip


@pytest.fixture(scope="module")
def correct_report() -> CheckReport:
    return report()


def test_a_report_is_found_under_its_key_alone(tmp_path: Path, correct_report: CheckReport) -> None:
    cache = tmp_path / "cache"
    assert KEY.load(cache) == (None, "")
    assert correct_report.store(cache) == ""
    assert KEY.load(cache) == (correct_report, "")
    assert KEY.file(cache).stat().st_mode & 0o777 == 0o600
    for change in (
        {"image": "sha256:2"}, {"arch": "gfx90a"}, {"driver": "6.8.5"}, {"aam": "9"},
        {"attention": "8 x 64"},
    ):  # fmt: skip
        assert replace(KEY, **change).load(cache) == (None, ""), change


def _swap(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda path: path.write_text("{"), "A damaged check report"),
        (lambda path: path.write_text('{"format": 7}'), "format 7, this program reads 2"),
        (lambda path: path.chmod(0o666), "others may write it"),
        (_swap, "Too many levels of symbolic links"),
        (lambda path: (path.unlink(), os.mkfifo(path, 0o600)), "it is not a regular file"),
        (
            lambda path: path.write_text(path.read_text().replace("6.10.5", "6.8.5")),
            "it is for another key",
        ),
    ],
)
def test_a_report_that_cannot_be_trusted_is_not_used(
    tmp_path: Path, correct_report: CheckReport, harm: Callable[[Path], object], reason: str
) -> None:
    correct_report.store(tmp_path / "cache")
    harm(KEY.file(tmp_path / "cache"))
    found, problem = KEY.load(tmp_path / "cache")
    assert found is None
    assert reason in problem


# --- reuse by runs


def chosen(
    cache: Path,
    backends: tuple[Backend, ...] = TORCH,
    launch: dict[str, object] | None = None,
    precision: Precision = "none",
    **sizes: int,
) -> dict[str, Any]:
    policy, model = BackendPolicy(backends, ("cpu",)), ModelOptions(**sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CHECK_REPORTS, str(cache))
        patch.setenv("AAM_PLAN", json.dumps(launch))
        return policy.choose_attention(DeviceOptions(), CPU, model, precision)[1]


def measured(found: dict[str, Any]) -> bool:
    return found["evidence"] == "measured before this run"


def test_a_stack_is_measured_once(tmp_path: Path) -> None:
    first = chosen(tmp_path, FAULTY)
    assert measured(first)
    assert first["with_mask"] == "flash"
    (file,) = tmp_path.glob("*.json")
    # The second run has torch's own backends, so its selection can only be that of the report.
    again = chosen(tmp_path)
    assert again["evidence"].startswith("measured for this stack, ")
    assert again["with_mask"] == "flash"
    content = json.loads(file.read_text())
    assert content["verdict"].startswith("auto wrong (first mask for all), flash right")
    assert str(torch.__version__) in content["stack"]
    assert measured(chosen(tmp_path, attention_heads=2, embedding_dim=16))  # other sizes
    assert measured(chosen(tmp_path, precision="bf16"))  # what the report lacks
    assert not measured(chosen(tmp_path, precision="bf16"))
    assert not measured(chosen(tmp_path))  # and what it had is still there


def test_a_report_belongs_to_the_digest_of_an_image(tmp_path: Path) -> None:
    one: dict[str, object] = {"image": "rocm63", "digest": "sha256:1"}
    assert measured(chosen(tmp_path, launch=one))
    assert not measured(chosen(tmp_path, launch=one))
    assert measured(chosen(tmp_path, launch={**one, "digest": "sha256:2"}))
    for _ in range(2):  # an image without a digest is measured before each run
        assert measured(chosen(tmp_path, launch={**one, "digest": None}))


@pytest.mark.parametrize(("name", "value"), [("torch", "2.5.1+rocm6.2"), ("aotriton", "0.7b")])
def test_a_report_of_another_torch_is_measured_again(tmp_path: Path, name: str, value: str) -> None:
    chosen(tmp_path)
    (file,) = tmp_path.glob("*.json")
    kept = CheckReport.from_json(file.read_text())
    file.write_text(replace(kept, identity={**kept.identity, name: value}).to_json())
    assert measured(chosen(tmp_path))
    assert CheckReport.from_json(file.read_text()).identity[name] != value


def test_a_report_that_is_not_used_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen(tmp_path)
    (file,) = tmp_path.glob("*.json")
    file.write_text('{"format": 1, "cases"')
    assert measured(chosen(tmp_path))
    message = f"A check report is not used: '{file}', A damaged check report"
    assert message in capsys.readouterr().err
    assert not measured(chosen(tmp_path))


@pytest.mark.medium
def test_the_check_fills_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CHECK_REPORTS, str(tmp_path))
    assert aam("check", "--quick", "--device", "cpu", "--json") == 0
    printed = CheckReport.from_json(capsys.readouterr().out)
    assert latest_reports({CHECK_REPORTS: str(tmp_path)}) == [printed]
    assert printed.key is not None
    assert printed.key.image == f"native:{torch.__version__}"
    assert not measured(chosen(tmp_path))


# --- selection by status


def selected(requested: AttnImplementation, **statuses: Status) -> tuple[str, str, str]:
    """Select where all backends are right but for `statuses`; `flash_masked` is one use."""

    def status_of(backend: str, use: Use) -> Status:
        return statuses.get(f"{backend}_{use}") or statuses.get(backend, "right")

    names = [backend.name for backend in TORCH]
    return select_backends(requested, names, status_of, "cuda")


def test_a_correct_backend_is_used_as_requested() -> None:
    assert selected("sdpa") == ("auto", "auto", "")
    assert selected("mem_efficient") == ("mem_efficient", "mem_efficient", "")


def test_a_backend_that_cannot_run_is_replaced() -> None:
    assert selected("flash", flash_masked="absent") == (
        "flash",
        "mem_efficient",
        "--attn-implementation flash supports no mask on cuda; mem_efficient runs with masks.",
    )
    assert selected("mem_efficient", mem_efficient="absent", flash_masked="absent") == (
        "flash",
        "math",
        "--attn-implementation mem_efficient cannot run on cuda; "
        "flash, and math with masks, run instead.",
    )


def test_a_selection_without_a_correct_backend_is_refused() -> None:
    with pytest.raises(Unavailable, match="auto wrong, flash wrong") as caught:
        selected("auto", **dict.fromkeys(("auto", "flash", "mem_efficient", "math"), "wrong"))
    assert caught.value.status == 69
