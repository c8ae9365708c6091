"""Parts of the acceptance: each ends, with one sentence; planted faults are found and named."""

from __future__ import annotations

import time
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aam.contract.records import convert
from aam.stack.acceptance_parts import Context, gpu_settings, measure_launch
from aam.stack.acceptance_run import PARTS, PartResult, run_part
from tests.support import acceptance_parts as made_up


def context(folder: Path, seconds: float = 60.0, started: float = 0.0) -> Context:
    place = folder / "run"
    place.mkdir(exist_ok=True)
    return Context(place, folder, "cpu", 0, True, started, time.monotonic() + seconds)


def result(measure: Callable[..., Any], folder: Path, seconds: float = 60.0) -> PartResult:
    return run_part(made_up.part(measure), context(folder, seconds), {})


@pytest.mark.medium
def test_a_part_that_fails_gives_one_sentence(tmp_path: Path) -> None:
    found = result(made_up.crash, tmp_path)
    assert found.verdict == "failed"
    assert found.summary.startswith("`aam check` status 1: ") and "\n" not in found.summary
    found = result(made_up.no_gpu, tmp_path)
    assert (found.verdict, found.summary) == ("not possible here", "There is no GPU.")
    found = result(made_up.with_a_bug, tmp_path)
    assert found.verdict == "failed" and "KeyError" in found.summary


@pytest.mark.medium
def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    found = result(made_up.hang, tmp_path, seconds=3.0)
    assert (found.verdict, found.summary) == ("failed", "`aam example` had no result in time")
    mark = str(context(tmp_path).folder / "large").encode()
    lines = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    assert not [line for line in lines if mark in line]


def test_speeds_are_compared_with_those_of_a_reference(tmp_path: Path) -> None:
    def compared(measure: Callable[..., Any], reference: float) -> tuple[str, str]:
        place = context(tmp_path)
        found = run_part(made_up.part(measure), place, {"speed": reference, "another": 1.0})
        return found.verdict, found.summary

    assert compared(made_up.right, 10.5)[0] == "as predicted"
    assert compared(made_up.right, 20.0) == (
        "slower",
        "Equal. speed is 0.50 times the reference.",
    )
    assert compared(made_up.right, 8.0)[0] == "faster"
    assert compared(made_up.wrong, 8.0) == ("wrong", "3.0 instead of 2.0.")


def device(number: int, **changes: Any) -> dict[str, Any]:
    right = {"verdict": "math right", "backends": {"math": "right"}, "speed": 81.0}
    return {"name": f"GPU {number}, MI300A", **right, **changes}


def memory(share: float, failure: str = "") -> dict[str, Any]:
    rows = [("as given", 1.0), ("--batch-size 64", share), ("--asv-chunk 64", 1.0)]
    sizes = {"predicted": 3 << 30, "reserved": 4 << 30, "rss": 1 << 30, "failure": failure}
    return {"runs": [
        {"setting": name, "allocated": round(factor * (3 << 30)), **sizes} for name, factor in rows
    ]}  # fmt: skip


def speed(failure: str = "", **chosen: Any) -> dict[str, Any]:
    runs = [("default", 820.0, ""), ("--mixed-precision bf16", 1640.0, failure)]
    rows = [{"setting": n, "samples": s, "failure": f} for n, s, f in runs]
    return {"runs": rows, **chosen}


COST = {"backend": "math", "dtype": "fp32", "mask": "none", "shape": "sample encoder",
        "milliseconds": 2.0}  # fmt: skip


def ranks(*changes: dict[str, Any]) -> dict[str, Any]:
    together: dict[str, Any] = {
        "ranks": 4, "nodes": 1, "agree": True, "difference": 2.1e-7, "samples": 3100.0,
        "alone": 820.0, "gpu": True, "network": ["NET/Socket : Using [0]eth0"],
    }  # fmt: skip
    return {"runs": [together | change for change in changes]}


def golden(*agree: bool) -> dict[str, Any]:
    same = {
        "reference": "rocm63",
        "precision": "none",
        "verdict": "head differs first.",
        "largest": 0.2,
    }
    return {"comparisons": [{**same, "largest": 0.2, "agree": right} for right in agree]}


def interruption(**changes: Any) -> dict[str, Any]:
    right = {"stop_status": 75, "resume_status": 0, "equal": True, "difference": 0.0,
             "rank_status": 137, "rank_named": True, "rank_seconds": 4.2}  # fmt: skip
    return right | changes


SLOW, BAD = {"ranks": 2, "samples": 700.0}, {"agree": False, "difference": 3e-2}
HOST = {"gpus": ["MI300A"] * 2, "arch": "gfx942", "torch": "2.7", "used": [0, 3 << 30]}
LAUNCH = {"launcher": True, "visible": 2, "planned": 2, "mounts": None, "overhead": 3.0}
CHOSEN: dict[str, Any] = {"values": {"--mixed-precision": "bf16"}, "gain": 2.0}
WRONG = {"backends": {"math": "wrong"}, "faults": {"math": ["mask of the first sample for all"]}}
SILENT = {"name": "GPU 1", "backends": {}, "failed": "`aam check` status 69"}


@pytest.mark.parametrize(
    ("part", "measured", "outcome", "sentence"),
    [
        ("host", HOST, "as predicted", "Others use 3.0 GiB of GPU 1"),
        ("launch", LAUNCH, "as predicted", "2 GPUs visible"),
        ("launch", LAUNCH | {"planned": 4}, "wrong", "2 GPUs are visible, 4 were planned."),
        ("launch", LAUNCH | {"overhead": 90.0}, "slower", "90.0 s"),
        ("launch", {"launcher": False}, "not possible here", "not started by aam-launch"),
        ("check", {"devices": [device(0), device(1)]}, "as predicted", "math right."),
        ("check", {"devices": [device(0), device(1, **WRONG)]}, "wrong",
         "GPU 1, MI300A: math (mask of the first sample for all) wrong, and not on the other"),
        ("check", {"devices": [device(0), SILENT]}, "wrong", "GPU 1: `aam check` status 69"),
        ("golden", golden(True, True), "as predicted", "Equal to rocm63; 20% of the allowed"),
        ("golden", golden(True, False), "wrong", "Differs from rocm63 (none): head differs"),
        ("check", {"devices": [device(0)], "costs": [COST]}, "as predicted",
         "math right. Fastest in fp32: math without masks (2.0 ms)."),
        ("check", {"devices": [*map(device, range(3)), device(3, speed=33.0)]}, "slower",
         "GPU 3, MI300A computes at 0.41 of the median of all."),
        # A GPU on which no backend could be timed is not a slow one.
        ("check", {"devices": [device(0), device(1, speed=None, **WRONG)]}, "wrong",
         "GPU 1, MI300A: math (mask of the first sample for all) wrong"),
        ("check", {"devices": [device(0), device(1), SILENT]}, "wrong", "gave no result"),
        ("memory", memory(1.2), "wrong",
         "--batch-size 64 takes 20% more than predicted; 1 of 3"),
        ("memory", memory(0.8), "wrong", "20% less"),
        ("memory", memory(1.04), "as predicted", "3 peaks are within 4.0%"),
        ("memory", memory(1.0, "out of memory after step 3"), "wrong", "out of memory after step"),
        ("speed", speed(), "as predicted", "1640 samples/s with --mixed-precision bf16"),
        ("speed", speed("out of memory"), "wrong", "1 of 2 runs failed"),
        ("speed", speed(**CHOSEN), "as predicted", "--mixed-precision bf16, 2.00 times as fast."),
        ("speed", speed(**CHOSEN | {"values": {}}), "as predicted", "the defaults are kept"),
        ("ranks", ranks({}), "as predicted", "2.1e-07"),
        ("ranks", ranks(SLOW, BAD), "wrong", "3.0e-02"),
        ("ranks", ranks(SLOW, {}), "slower", "NET/Socket"),
        # The processes of a CPU share its cores.
        ("nodes", ranks({**SLOW, "gpu": False}), "as predicted", "0.85 times"),
        ("interruption", interruption(), "as predicted", "bit for bit"),
        ("interruption", interruption(stop_status=143), "wrong",
         "A stopped run ended with status 143"),
        ("interruption", interruption(equal=False, difference=3e-3), "wrong",
         "differ by up to 3.0e-03"),
        ("interruption", interruption(equal=False, difference=1e-7), "not possible here",
         "up to rounding (1e-07)"),
        ("interruption", interruption(rank_named=False), "wrong", "not named"),
    ],
)  # fmt: skip
def test_planted_faults_are_found_and_named(
    part: str, measured: dict[str, Any], outcome: str, sentence: str
) -> None:
    chosen = PARTS[part]
    record = typing.get_type_hints(chosen.measure)["return"]
    found, summary = convert(measured, record).verdict()
    assert found == outcome
    assert sentence in summary


@pytest.mark.parametrize(("seconds", "overhead"), [(3.0, 3.0), (-0.2, 0.0)])
def test_the_start_takes_no_negative_time(
    seconds: float, overhead: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AAM_PLAN", '{"started": 100}')
    place = context(tmp_path, started=100 + seconds)
    assert measure_launch(place).overhead == overhead


def test_modes_and_clocks_are_read_from_sysfs(tmp_path: Path) -> None:
    device = tmp_path / "sys/class/drm/card1/device"
    (device / "hwmon/hwmon3").mkdir(parents=True)
    (device / "current_compute_partition").write_text("SPX\n")
    (device / "pp_dpm_sclk").write_text("0: 132Mhz\n1: 2100Mhz *\n")
    (device / "hwmon/hwmon3/power1_cap").write_text("550000000\n")
    found = gpu_settings(tmp_path)
    assert found["compute partition"] == ["SPX"]
    assert found["shader clock"] == ["1: 2100Mhz"]
    assert found["power limit, µW"] == ["550000000"]
