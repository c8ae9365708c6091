"""Verdicts of the parts: planted faults are found and named, what is within tolerance is not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from aam.acceptance.correctness import device_result, evaluate_check, evaluate_golden
from aam.acceptance.host import evaluate_host, evaluate_launch, gpu_settings, measure_launch
from aam.acceptance.interruption import evaluate_interruption
from aam.acceptance.memory import evaluate_memory
from aam.acceptance.part import Context
from aam.acceptance.ranks import evaluate_nodes, evaluate_ranks, wire_rate
from aam.acceptance.speed import evaluate_speed
from aam.model.attention import TORCH
from aam.numerics.check import CheckPlan, conclude, measure
from tests.support import faulty_backends as emulated
from tests.support.faulty_backends import RIGHT, faulty

CPU = torch.device("cpu")


def check_of(*backends: Any) -> dict[str, Any]:
    """Measure backends for real, as `aam check --quick` does."""
    plan = CheckPlan(True, dtypes=("fp32",))
    return device_result("", conclude(measure(tuple(backends), plan, CPU), True))


@pytest.mark.medium
def test_wrong_attention_on_one_of_four_gpus_is_named() -> None:
    good, bad = check_of(RIGHT), check_of(faulty(emulated.first_mask, RIGHT.name))
    gpus = [{**good, "name": f"GPU {k}, MI300A"} for k in range(4)]
    assert evaluate_check({"devices": gpus}, {}).outcome == "as predicted"
    gpus[2] = {**bad, "name": "GPU 2, MI300A"}
    found = evaluate_check({"devices": gpus}, {})
    assert found.outcome == "wrong"
    assert found.summary.startswith(f"GPU 2, MI300A: {RIGHT.name} (")
    assert "not on the other devices" in found.summary
    silent = device_result("GPU 3", None) | {"failed": "no result for 120 s"}
    assert "GPU 3: no result" in evaluate_check({"devices": [*gpus[:3], silent]}, {}).summary


@pytest.mark.medium
def test_the_backends_of_this_cpu_are_as_predicted() -> None:
    found = evaluate_check({"devices": [check_of(*TORCH)]}, {})
    assert (found.outcome, "math right" in found.summary) == ("as predicted", True)


def memory(share: float) -> dict[str, Any]:
    rows = [
        ("pretrain", "batch 16", 1.0),
        ("pretrain", "batch 64", share),
        ("train", "batch 64", 1),
    ]
    return {
        "runs": [
            {"command": command, "setting": name, "predicted": 3 << 30, "failure": "",
             "allocated": round(factor * (3 << 30)), "reserved": 4 << 30, "rss": 1 << 30}
            for command, name, factor in rows
        ],
        "largest_batch": 512,
    }  # fmt: skip


def test_memory_of_20_percent_over_the_prediction_is_wrong() -> None:
    found = evaluate_memory(memory(1.2), {"tolerance": 0.1})
    assert found.outcome == "wrong"
    assert found.summary.startswith("pretrain, batch 64 takes 20% more than predicted; 1 of 3")
    assert evaluate_memory(memory(0.8), {"tolerance": 0.1}).outcome == "wrong"
    assert evaluate_memory(memory(1.04), {"tolerance": 0.1}).outcome == "as predicted"
    failed = memory(1.0)
    failed["runs"][1]["failure"] = "out of memory after step 3 of 25"
    assert "out of memory after step 3" in evaluate_memory(failed, {}).summary
    for row in failed["runs"]:
        row |= {"failure": "", "allocated": None}
    assert evaluate_memory(failed, {}).outcome == "not possible here"


TOGETHER: dict[str, Any] = {
    "ranks": 4, "nodes": 1, "agree": True, "losses": "the first 20 losses differ by up to 2.1e-07",
    "difference": 2.1e-7, "products": [81.2, 80.9, 81.0, 80.7], "links": [41.0, 40.2, 40.7, 41.3],
    "all_reduce": {"1 MiB": 8.1, "256 MiB": 118.0}, "wire": None, "network": [], "samples": 3100.0,
    "one": 820.0, "rates": {"all-reduce": 118.0, "samples": 3100.0},
}  # fmt: skip
EXPECTED = {"scaling": 0.5, "gpu": True}


def planted(**changes: Any) -> Any:
    return evaluate_nodes(copy.deepcopy(TOGETHER) | changes, EXPECTED)


def test_a_rank_that_is_slower_by_half_is_named() -> None:
    assert planted().outcome == "as predicted"
    found = planted(products=[81.2, 40.4, 81.0, 80.7], samples=1600.0)
    assert found.outcome == "slower"
    assert "ank 1 computes at 0.50" in found.summary
    assert planted(products=[81.2, 75.0, 81.0, 80.7]).outcome == "as predicted"


def test_a_link_at_a_tenth_of_its_bandwidth_is_named() -> None:
    found = planted(links=[41.0, 40.2, 4.1, 41.3])
    assert found.outcome == "slower"
    assert "ranks 2 and 3 has 4.1 GB/s, the others 40.6" in found.summary
    over_nodes = planted(nodes=2, wire=100.0, all_reduce={"256 MiB": 10.0})
    assert "10.0 of 100 GB/s" in over_nodes.summary
    assert planted(nodes=2, wire=100.0, all_reduce={"256 MiB": 80.0}).outcome == "as predicted"


def test_ranks_that_train_another_network_are_wrong() -> None:
    bad = TOGETHER | {"agree": False, "losses": "the first 20 losses differ by up to 3.0e-02"}
    slow = TOGETHER | {"ranks": 2, "samples": 700.0}
    found = evaluate_ranks({"runs": [slow, bad], "rates": {}}, EXPECTED)
    assert (found.outcome, "3.0e-02" in found.summary) == ("wrong", True)
    assert evaluate_ranks({"runs": [slow, TOGETHER], "rates": {}}, EXPECTED).outcome == "slower"
    assert evaluate_ranks({"runs": [TOGETHER], "rates": {}}, EXPECTED).outcome == "as predicted"


def test_a_slow_gpu_of_a_node_is_named() -> None:
    run = {"setting": "batch 64", "samples": 820.0, "share": 0.31, "failure": ""}
    products = [{"fp32": 81.0, "bf16": 390.0} for _ in range(4)]
    measured = {"runs": [run], "products": products, "data_path": 9000.0, "rates": {}}
    assert evaluate_speed(measured, {}).outcome == "as predicted"
    products[3] = {"fp32": 33.0, "bf16": 390.0}
    assert evaluate_speed(measured, {}).summary == "GPU 3 computes at 0.41 of the median of all."


def test_a_golden_run_that_differs_is_wrong() -> None:
    same = {"with": "the CPU", "precision": "none", "agree": True, "verdict": "", "largest": 0.2}
    other = {"with": "rocm63", "precision": "none", "agree": False, "largest": 40.0,
             "verdict": "samples.blocks.0 differs first."}  # fmt: skip
    assert evaluate_golden({"comparisons": [same]}, {}).outcome == "as predicted"
    found = evaluate_golden({"comparisons": [same, other]}, {})
    assert (found.outcome, "rocm63" in found.summary) == ("wrong", True)


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
    found = evaluate_interruption(INTERRUPTION | change, {"stop_status": 75, "rank_status": 137})
    assert found.outcome == outcome
    assert sentence in found.summary


def test_gpus_that_others_use_are_named_and_those_not_visible_are_wrong() -> None:
    host = {"gpus": ["MI300A"] * 2, "arch": "gfx942", "torch": "2.7", "used": [0, 3 << 30]}
    assert "Others use 3.0 GiB of GPU 1" in evaluate_host(host, {}).summary
    launch = {"launcher": True, "visible": 2, "planned": 4, "mounts": None, "overhead": 3.0}
    found = evaluate_launch(launch, {})
    assert (found.outcome, found.summary) == ("wrong", "2 GPUs are visible, 4 were planned.")
    assert evaluate_launch(launch | {"planned": 2}, {}).outcome == "as predicted"
    assert evaluate_launch(launch | {"planned": 2, "overhead": 90.0}, {}).outcome == "slower"
    assert evaluate_launch({"launcher": False}, {}).outcome == "not possible here"


@pytest.mark.parametrize(("seconds", "overhead"), [(3.0, 3.0), (-0.2, 0.0)])
def test_the_start_takes_no_negative_time(
    seconds: float, overhead: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AAM_PLAN", '{"started": 100}')
    place = Context(tmp_path, tmp_path, "run", "cpu", 0, True, 100 + seconds)
    assert measure_launch(place).measured["overhead"] == overhead


def test_modes_clocks_and_wire_are_read_from_sysfs(tmp_path: Path) -> None:
    device = tmp_path / "sys/class/drm/card1/device"
    (device / "hwmon/hwmon3").mkdir(parents=True)
    (device / "current_compute_partition").write_text("SPX\n")
    (device / "pp_dpm_sclk").write_text("0: 132Mhz\n1: 2100Mhz *\n")
    (device / "hwmon/hwmon3/power1_cap").write_text("550000000\n")
    found = gpu_settings(tmp_path)
    assert found["compute partition"] == ["SPX"]
    assert found["shader clock"] == ["1: 2100Mhz"]
    assert found["power limit, µW"] == ["550000000"]
    assert wire_rate(tmp_path) is None
    for name, speed in (("hsn0", "200000"), ("hsn1", "200000"), ("lo", "-1")):
        (tmp_path / "sys/class/net" / name).mkdir(parents=True)
        (tmp_path / "sys/class/net" / name / "speed").write_text(f"{speed}\n")
    assert wire_rate(tmp_path) == 50.0
