"""`aam tune`: faster settings are kept only if the losses are the same up to rounding."""

from __future__ import annotations

import json
import math
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from aam.performance.measurement.journal import JOURNAL
from aam.performance.measurement.parity import EARLY, Parity, compare_early, compare_late
from tests.support import faulty_training, step_program
from tests.support.commands import aam, pretrain

PROGRAM = f"{sys.executable} {step_program.__file__} --cost {{cost}} --fault {{fault}}"


def losses(steps: int = 150, seed: int = 0) -> list[float]:
    return [float(v) for v in 2 + np.random.default_rng(seed).normal(0, 0.1, steps)]


def test_early_losses_are_compared_with_the_envelope_of_their_class() -> None:
    default = losses()
    close = [loss * (1 + 5e-7) for loss in default]
    assert compare_early(default, default, Parity.SAME, 0).passed
    assert not compare_early(close, default, Parity.SAME, 0).passed
    assert compare_early(close, default, Parity.ROUNDING, 0).passed
    half = [loss * 1.001 for loss in default]
    assert not compare_early(half, default, Parity.ROUNDING, 1e-7).passed
    assert compare_early(half, default, Parity.HALF, 1e-7).passed
    assert compare_early(half, default, Parity.ROUNDING, 1e-4).passed  # such is the noise here
    broken = [*default[: EARLY + 1], math.nan]
    assert compare_early(broken, default, Parity.HALF, 0).sentence == "the loss of step 21 is nan"


def test_late_losses_count_by_their_mean_and_its_standard_error() -> None:
    default = losses()
    noise = np.random.default_rng(1).normal(0, 2e-3, 150)
    rounded = [loss + float(noise[k]) for k, loss in enumerate(default)]
    assert compare_late(rounded, default, [rounded]).passed
    biased = [loss * 1.007 for loss in rounded]
    assert not compare_late(biased, default, [rounded]).passed
    other = [loss * 1.02 for loss in default]
    assert compare_late(biased, default, [other]).passed, "the noise is larger"
    assert not compare_late([*default[:-1], math.inf], default, []).passed


@pytest.mark.medium
def test_tune_keeps_what_is_faster_and_the_same_and_continues_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (
        "tune", "--values", "cost=0.02,0.01,0.03", "fault=none,gradient,late,nan,memory",
        "--rounds", "2", "--steps", "22", "--parity-steps", "60", "--step-timeout", "60",
        "--output-dir", tmp_path, "--", *shlex.split(PROGRAM),
    )  # fmt: skip
    assert aam(*command) == 0
    found = json.loads((tmp_path / "tune.json").read_text())
    decisions = {one["setting"]: (one["decision"], one["evidence"]) for one in found["trials"]}
    assert decisions["cost=0.01"][0] == "kept"
    assert decisions["cost=0.03"][0] == "not faster"
    assert decisions["fault=gradient"][0] == "rejected"
    assert decisions["fault=nan"][0] == "rejected"
    assert "the loss of step 12 is nan" in decisions["fault=nan"][1][0]
    assert decisions["fault=late"][0] == "not faster", (
        "equally fast, so its late losses do not matter"
    )
    assert decisions["fault=memory"] == ("failed", ["out of memory after step 10 of 22"])
    assert found["chosen"]["gain"] == pytest.approx(2)
    text = (tmp_path / "settings.yaml").read_text()
    assert yaml.safe_load(text) == {"cost": "0.01"}
    assert "# cost: same up to rounding: the first 20 losses differ by up to 0.0e+00" in text
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 3 and "2.00 times as fast" in page

    journal = tmp_path / JOURNAL
    complete = journal.read_text()
    lines = complete.splitlines(keepends=True)
    journal.write_text("".join(lines[:-2]) + lines[-2][:40])  # killed while it wrote
    capsys.readouterr()
    assert aam(*command) == 0
    assert f"{len(lines) - 3} runs of '{journal}' are not repeated." in capsys.readouterr().err
    assert journal.read_text() == complete
    assert json.loads((tmp_path / "tune.json").read_text()) == found


@pytest.mark.medium
def test_tune_rejects_a_fault_that_only_late_losses_show(tmp_path: Path) -> None:
    program = PROGRAM.replace("--cost {cost}", "--cost {fault}").replace("--fault {fault}", "")
    program += " --fault none"
    slow = tmp_path / "late.py"
    slow.write_text(
        "import sys\nfrom tests.support import step_program\n"
        "fault = sys.argv[1]\n"
        "cost = '0.02' if fault == 'none' else '0.01'\n"
        "sys.argv[1:] = ['--cost', cost, '--fault', fault]\n"
        "step_program.main()\n"
    )
    program = f"env PYTHONPATH={Path.cwd()} {sys.executable} {slow} {{fault}}"
    command = (
        "tune", "--values", "fault=none,late", "--rounds", "1", "--steps", "22",
        "--parity-steps", "60", "--output-dir", tmp_path / "tuned", "--", *shlex.split(program),
    )  # fmt: skip
    assert aam(*command) == 0
    (trial,) = json.loads((tmp_path / "tuned" / "tune.json").read_text())["trials"]
    assert trial["decision"] == "rejected"
    assert "the mean of the last 20 of 60 losses differs by +1.00%" in trial["evidence"][-1]
    assert yaml.safe_load((tmp_path / "tuned" / "settings.yaml").read_text()) is None


@pytest.mark.nightly
def test_tune_rejects_planted_faults_of_the_real_network(tmp_path: Path, study_dir: Path) -> None:
    """A mask bug, a gradient scaled by 0.9 and weights rounded to fp16; math and bf16 are kept."""
    program = (
        f"env PYTHONPATH={Path.cwd()} {sys.executable} {faulty_training.__file__} "
        f"{study_dir / 'table.biom'} {study_dir / 'tree.nwk'} {{kernel}} {{precision}}"
    )
    command = (
        "tune", "--values", "kernel=auto,mask,gradient,fp16,math", "precision=fp32,bf16",
        "--half", "precision", "--rounds", "1", "--steps", "20", "--warmup-steps", "0",
        "--parity-steps", "30", "--output-dir", tmp_path, "--", *shlex.split(program),
    )  # fmt: skip
    assert aam(*command) == 0
    found = json.loads((tmp_path / "tune.json").read_text())
    decisions = {one["setting"]: one["decision"] for one in found["trials"]}
    assert decisions == {
        "kernel=mask": "rejected",
        "kernel=gradient": "rejected",
        "kernel=fp16": "rejected",
        "kernel=math": "kept",
        "precision=bf16": "kept",
    }


@pytest.mark.slow
def test_tune_of_pretrain_writes_settings_that_this_study_and_machine_take(
    tmp_path: Path, study_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("--embedding-dim", "8", "--attention-heads", "2", "--attention-layers", "1")
    command = (
        "tune", "--rounds", "1", "--steps", "21", "--warmup-steps", "2", "--parity-steps", "21",
        "--output-dir", tmp_path / "tuned", "--subjects", "attention",
        "pretrain", "--table", study_dir / "table.biom", "--tree", study_dir / "tree.nwk",
        *sizes, "--batch-size", "4", "--device", "cpu", "--cpu-threads", "1",
    )  # fmt: skip
    assert aam(*command) == 0
    found = json.loads((tmp_path / "tuned" / "tune.json").read_text())
    parity = {one["setting"]: one["parity"] for one in found["trials"]}
    assert parity["--attn-implementation math"] == "same up to rounding"
    assert not [one for one in found["trials"] if one["decision"] in ("rejected", "failed")]
    settings = tmp_path / "tuned" / "settings.yaml"
    mark = f"aam 0; PyTorch {found['measured']['torch']}; {found['measured']['device']}; table 0"
    settings.write_text(f"tuned_for: '{mark}'\nnum_workers: 0\n")
    capsys.readouterr()
    assert pretrain(study_dir, tmp_path / "run", "--penalty", "0", "--config", settings) == 64
    message = capsys.readouterr().err
    assert "for another study, device or version" in message and "table 0; here aam " in message
