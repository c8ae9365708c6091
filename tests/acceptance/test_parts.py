"""Parts of the acceptance: each ends, with one sentence; planted faults are found and named."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aam.acceptance.parts import (
    Context,
    evaluate_attention,
    evaluate_check,
    evaluate_golden,
    evaluate_host,
    evaluate_interruption,
    evaluate_launch,
    evaluate_memory,
    evaluate_ranks,
    evaluate_settings,
    evaluate_speed,
    gpu_settings,
    measure_launch,
)
from aam.acceptance.runner import PartResult, run_part
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
    found = result(made_up.unlike_its_schema, tmp_path)
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
        "slower", "Equal. speed is 0.50 times the reference."
    )  # fmt: skip
    assert compared(made_up.right, 8.0)[0] == "faster"
    assert compared(made_up.wrong, 8.0) == ("wrong", "3.0 instead of 2.0.")


def device(name: str, **changes: Any) -> dict[str, Any]:
    right = {"quick": False, "verdict": "math right", "backends": {"math": "right"}, "faults": {}}
    return {"name": name, **right, **changes}


def test_wrong_attention_on_one_of_four_gpus_is_named() -> None:
    gpus = [device(f"GPU {k}, MI300A") for k in range(4)]
    assert evaluate_check({"devices": gpus}) == ("as predicted", "math right.")
    faults = {"math": ["mask of the first sample for all"]}
    gpus[2] = device("GPU 2, MI300A", backends={"math": "wrong"}, faults=faults)
    outcome, sentence = evaluate_check({"devices": gpus})
    assert outcome == "wrong"
    assert sentence == (
        "GPU 2, MI300A: math (mask of the first sample for all) wrong, and not on the other "
        "devices."
    )
    silent = {"name": "GPU 3", "verdict": "", "backends": {}, "failed": "`aam check` status 69"}
    assert "GPU 3: `aam check` status 69" in evaluate_check({"devices": [*gpus[:3], silent]})[1]


def test_a_slow_gpu_of_a_node_is_named() -> None:
    cost = {"backend": "math", "dtype": "fp32", "mask": "none", "shape": "sample encoder",
            "milliseconds": 2.0, "peak_bytes": None}  # fmt: skip
    measured: dict[str, Any] = {"costs": [cost], "speeds": [81.0] * 4, "rates": {}}
    assert evaluate_attention(measured) == (
        "as predicted", "Fastest in fp32: math without masks (2.0 ms)."
    )  # fmt: skip
    measured["speeds"][3] = 33.0
    assert evaluate_attention(measured) == (
        "slower", "GPU 3 computes at 0.41 of the median of all."
    )  # fmt: skip


def memory(share: float) -> dict[str, Any]:
    rows = [("as given", 1.0), ("--batch-size 64", share), ("--asv-chunk 64", 1.0)]
    return {
        "runs": [
            {"setting": name, "predicted": 3 << 30, "failure": "", "reserved": 4 << 30,
             "allocated": round(factor * (3 << 30)), "rss": 1 << 30}
            for name, factor in rows
        ],
    }  # fmt: skip


def test_memory_of_20_percent_over_the_prediction_is_wrong() -> None:
    outcome, sentence = evaluate_memory(memory(1.2))
    assert outcome == "wrong"
    assert sentence.startswith("--batch-size 64 takes 20% more than predicted; 1 of 3")
    assert evaluate_memory(memory(0.8))[0] == "wrong"
    assert evaluate_memory(memory(1.04))[0] == "as predicted"
    failed = memory(1.0)
    failed["runs"][1]["failure"] = "out of memory after step 3 of 25"
    assert "out of memory after step 3" in evaluate_memory(failed)[1]


def test_the_fastest_setting_and_the_chosen_ones_are_named() -> None:
    runs = [
        {"setting": "default", "samples": 820.0, "failure": ""},
        {"setting": "--mixed-precision bf16", "samples": 1640.0, "failure": ""},
    ]
    assert evaluate_speed({"runs": runs})[1] == "1640 samples/s with --mixed-precision bf16."
    runs[1] |= {"samples": None, "failure": "out of memory after step 3 of 25"}
    assert evaluate_speed({"runs": runs})[0] == "wrong"
    chosen = {"values": {"--mixed-precision": "bf16"}, "gain": 2.0, "trials": [{}]}
    assert evaluate_settings(chosen)[1] == "--mixed-precision bf16: 2.00 times as fast."
    assert "1 settings tried" in evaluate_settings(chosen | {"values": {}})[1]


TOGETHER: dict[str, Any] = {
    "ranks": 4, "nodes": 1, "agree": True, "difference": 2.1e-7, "samples": 3100.0, "one": 820.0,
    "gpu": True, "network": ["NET/Socket : Using [0]eth0"],
}  # fmt: skip


def planted(*changes: dict[str, Any]) -> Any:
    return evaluate_ranks({"runs": [copy.deepcopy(TOGETHER) | one for one in changes]})


def test_ranks_that_train_another_network_or_slowly_are_named() -> None:
    assert planted({})[0] == "as predicted"
    bad, slow = {"agree": False, "difference": 3e-2}, {"ranks": 2, "samples": 700.0}
    outcome, sentence = planted(slow, bad)
    assert (outcome, "3.0e-02" in sentence) == ("wrong", True)
    outcome, sentence = planted(slow, {})
    assert (outcome, "NET/Socket" in sentence) == ("slower", True)
    # The processes of a CPU share its cores.
    assert planted(slow | {"gpu": False})[0] == "as predicted"


def test_a_golden_run_that_differs_is_wrong() -> None:
    same = {"with": "the CPU", "precision": "none", "agree": True, "verdict": "", "largest": 0.2}
    other = {"with": "rocm63", "precision": "none", "agree": False, "largest": 40.0,
             "verdict": "samples.blocks.0 differs first."}  # fmt: skip
    assert evaluate_golden({"comparisons": [same]})[0] == "as predicted"
    outcome, sentence = evaluate_golden({"comparisons": [same, other]})
    assert (outcome, "rocm63" in sentence) == ("wrong", True)


INTERRUPTION = {
    "stop_status": 75, "resume_status": 0, "equal": True, "difference": 0.0, "rank_status": 137,
    "rank_named": True, "rank_seconds": 4.2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "outcome", "sentence"),
    [
        ({}, "as predicted", "bit for bit"),
        ({"stop_status": 143}, "wrong", "A stopped run ended with status 143"),
        ({"equal": False, "difference": 3e-3}, "wrong", "differ by up to 3.0e-03"),
        ({"equal": False, "difference": 1e-7}, "not possible here", "up to rounding (1e-07)"),
        ({"rank_named": False}, "wrong", "not named"),
    ],
)
def test_an_interruption_is_evaluated_by_status_and_weights(
    change: dict[str, Any], outcome: str, sentence: str
) -> None:
    found = evaluate_interruption(INTERRUPTION | change)
    assert found[0] == outcome
    assert sentence in found[1]


def test_gpus_that_others_use_are_named_and_those_not_visible_are_wrong() -> None:
    host = {"gpus": ["MI300A"] * 2, "arch": "gfx942", "torch": "2.7", "used": [0, 3 << 30]}
    assert "Others use 3.0 GiB of GPU 1" in evaluate_host(host)[1]
    launch = {"launcher": True, "visible": 2, "planned": 4, "mounts": None, "overhead": 3.0}
    assert evaluate_launch(launch) == ("wrong", "2 GPUs are visible, 4 were planned.")
    assert evaluate_launch(launch | {"planned": 2})[0] == "as predicted"
    assert evaluate_launch(launch | {"planned": 2, "overhead": 90.0})[0] == "slower"
    assert evaluate_launch({"launcher": False})[0] == "not possible here"


@pytest.mark.parametrize(("seconds", "overhead"), [(3.0, 3.0), (-0.2, 0.0)])
def test_the_start_takes_no_negative_time(
    seconds: float, overhead: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AAM_PLAN", '{"started": 100}')
    place = context(tmp_path, started=100 + seconds)
    assert measure_launch(place)["overhead"] == overhead


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
