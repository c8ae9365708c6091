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

from aam.stack.tune import EARLY, SUBJECTS, DeviceFacts, compare_losses, gain
from aam.stack.workload import (
    BLOCK,
    LoggedStep,
    RunResult,
    block_totals,
    rates,
    run_workload,
)
from tests.support import faulty_training, step_program
from tests.support.commands import aam, pretrain

WORDS = (sys.executable, step_program.__file__)
PROGRAM = f"{sys.executable} {step_program.__file__} --cost {{cost}} --fault {{fault}}"


def result(fault: str, folder: Path, steps: int = 15, timeout: float = 60.0) -> RunResult:
    return run_workload((*WORDS, "--fault", fault), steps, folder / "run", timeout)


def test_a_run_has_the_steps_that_the_program_logs(tmp_path: Path) -> None:
    found = result("none", tmp_path)
    assert found.failure == ""
    assert len(found.steps) == 15
    assert all(step.samples == 8 and step.seconds > 0 for step in found.steps)
    assert found.losses == result("none", tmp_path).losses


@pytest.mark.medium
@pytest.mark.parametrize(
    ("fault", "steps", "sentence"),
    [
        ("hang", 10, "no step for 5 s after step 10 of 15"),
        ("memory", 10, "out of memory after step 10 of 15"),
        ("rubbish", 10, "line 11 of its step log is not a step with loss, seconds and samples: "
                        "'epoch 3: loss = 0.2'"),
        ("half", 10, "it ended with status 1 after step 10 of 15: "
                     "ValueError: the 11th batch is broken"),
        ("silent", 0, "it wrote no step to the file that AAM_STEP_LOG names"),
    ],
)  # fmt: skip
def test_a_run_that_fails_ends_alone_with_one_sentence(
    fault: str, steps: int, sentence: str, tmp_path: Path
) -> None:
    found = result(fault, tmp_path, timeout=5.0 if fault == "hang" else 60.0)
    assert (len(found.steps), found.failure) == (steps, sentence)


def test_a_program_that_is_missing_or_too_short_is_named(tmp_path: Path) -> None:
    found = run_workload(("/no/such/program",), 5, tmp_path / "run", 5.0)
    assert found.failure == "it cannot be started: No such file or directory"
    line = json.dumps({"loss": 1, "seconds": 1, "samples": 1}) + "\n"
    short = f"import os; open(os.environ['AAM_STEP_LOG'], 'w').write({line!r})"
    found = run_workload((sys.executable, "-c", short), 5, tmp_path / "run", 30.0)
    assert found.failure == "it ended after step 1 of 5: give fewer --steps, or let it train longer"


def run_of(seconds: float, steps: int = 15) -> RunResult:
    return RunResult((LoggedStep(1.0, seconds, 8, wait=seconds / 4, asvs=40),) * steps)


def test_rates_and_gain_leave_the_warm_up_out() -> None:
    slow_start = RunResult((LoggedStep(1.0, 60.0, 8),) * 5 + run_of(0.5, 10).steps)
    found = rates([slow_start], warmup=5)
    assert found.samples == pytest.approx(16)
    assert found.asvs == pytest.approx(80)
    assert found.wait == pytest.approx(0.25)
    assert gain(run_of(0.25), slow_start, 5) == pytest.approx(2)
    assert list(block_totals(run_of(1.0, 13), 0)["seconds"]) == [BLOCK, 13 - BLOCK]


CPU = DeviceFacts("CPU, 4 cores", "cpu", "2.13.0", 4)
GPU = DeviceFacts("MI210", "gfx90a", "2.13.0", 16, "", "Triton mixes types")
NOW = {
    "--cpu-threads": "auto", "--num-workers": "auto", "--prefetch-factor": 2,
    "--attn-implementation": "auto",
    "--gradient-checkpointing": False, "--asv-chunk": 64, "--compile-model": "off",
    "--mixed-precision": "none", "--batch-size": 16,
}  # fmt: skip


def test_settings_that_are_tried_follow_from_the_device_and_the_options() -> None:
    def labels(subject: str, device: DeviceFacts) -> list[str]:
        return [one.label for one in SUBJECTS[subject](NOW, device)]

    assert labels("threads", CPU) == ["--cpu-threads 1", "--cpu-threads 2"]
    assert labels("threads", GPU) == []
    assert labels("workers", CPU) == ["--num-workers 1", "--num-workers 2"]
    assert labels("workers", GPU) == [f"--num-workers {n}" for n in (0, 1, 2, 8)]
    assert labels("prefetch", CPU) == []
    assert labels("prefetch", GPU) == [f"--prefetch-factor {n}" for n in (1, 4, 8)]
    assert labels("recompute", CPU) == ["--gradient-checkpointing"]
    assert labels("chunks", CPU) == ["--asv-chunk 0", "--asv-chunk 256"]
    assert labels("compile", GPU) == []
    assert labels("precision", CPU) == ["--mixed-precision bf16"]
    assert labels("batch-size", GPU) == [f"--batch-size {n}" for n in (8, 32, 64)]


def losses(steps: int = 150, seed: int = 0) -> list[float]:
    return [float(v) for v in 2 + np.random.default_rng(seed).normal(0, 0.1, steps)]


def test_early_losses_are_compared_with_the_envelope_of_their_class() -> None:
    default = losses()
    close = [loss * (1 + 5e-7) for loss in default]
    assert compare_losses(default, default, "same numbers", 0)[0]
    assert not compare_losses(close, default, "same numbers", 0)[0]
    assert compare_losses(close, default, "same up to rounding", 0)[0]
    half = [loss * 1.001 for loss in default]
    assert not compare_losses(half, default, "same up to rounding", 1e-7)[0]
    assert compare_losses(half, default, "same up to half precision", 1e-7)[0]
    assert compare_losses(half, default, "same up to rounding", 1e-4)[0]  # such is the noise here
    broken = [*default[: EARLY + 1], math.nan]
    found = compare_losses(broken, default, "same up to half precision", 0)
    assert found == (False, "the loss of step 21 is nan")


@pytest.mark.medium
def test_tune_keeps_what_is_faster_and_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tuned"
    command = (
        "tune", "--values", "cost=0.02,0.01,0.03,x", "fault=none,gradient,nan,memory",
        "--rounds", "2", "--steps", "22", "--step-timeout", "60",
        "--output-dir", folder, "--", *shlex.split(PROGRAM),
    )  # fmt: skip
    assert aam(*command) == 0
    found = json.loads((folder / "tune.json").read_text())
    tried = {one["setting"]: one for one in found["trials"]}
    decisions = {name: (one["decision"], one["evidence"]) for name, one in tried.items()}
    assert decisions["as given"] == (None, [])
    assert decisions["cost=0.01"][0] == "kept"
    assert decisions["cost=0.03"][0] == "not faster"
    assert decisions["cost=x"][0] == "failed"
    assert "invalid float value: 'x'" in decisions["cost=x"][1][0]
    assert decisions["fault=gradient"][0] == "rejected"
    assert decisions["fault=nan"][0] == "rejected"
    assert "the loss of step 12 is nan" in decisions["fault=nan"][1][0]
    assert decisions["fault=memory"] == ("failed", ["out of memory after step 10 of 22"])
    # A setting that is hopeless is run once, the others in each round.
    assert len(tried["cost=0.01"]["rounds"]) == 2 and len(tried["cost=0.03"]["rounds"]) == 1
    assert found["chosen"]["gain"] == pytest.approx(2)
    text = (folder / "settings.yaml").read_text()
    assert yaml.safe_load(text) == {"cost": "0.01"}
    assert "# cost: same up to rounding: the first 20 losses are equal" in text

    shown = capsys.readouterr()
    table = [line.rstrip() for line in shown.out.splitlines() if line.startswith("cost=0.0")]
    assert len(table) == 2 and table[0].split()[-1] == "kept"
    assert max(map(len, table)) <= 80
    assert "2.00 times as fast" in shown.err
    assert [path.name for path in folder.iterdir()] == ["settings.yaml", "tune.json"]
    assert aam(*command) == 73


def test_options_that_do_not_fit_and_several_tasks_are_usage_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("tune", "--values", "cost=1,2", "--output-dir", tmp_path / "out")
    program = ("--", *WORDS, "--cost", "{cost}")
    assert aam(*command, "--half", "speed", *program) == 64
    assert aam(*command, "--steps", "5", "--warmup-steps", "5", *program) == 64
    assert aam("tune", "--values", "cost", "--output-dir", tmp_path / "b", *program) == 64
    assert aam(*command, "--", *WORDS, "--cost", "{a.b}") == 64
    assert "give --values NAME=VALUE,VALUE" in capsys.readouterr().err
    step = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1"}
    for name, value in {**step, "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, value)
    assert aam(*command, *program) == 64
    assert "2 processes of srun; start it once" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


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
        "--output-dir", tmp_path, "--", *shlex.split(program),
    )  # fmt: skip
    assert aam(*command) == 0
    found = json.loads((tmp_path / "tune.json").read_text())
    decisions = {one["setting"]: one["decision"] for one in found["trials"] if one["decision"]}
    assert decisions == {
        "kernel=mask": "rejected",
        "kernel=gradient": "rejected",
        "kernel=fp16": "rejected",
        "kernel=math": "kept",
        "precision=bf16": "kept",
    }


@pytest.mark.nightly
@pytest.mark.slow
def test_tune_of_pretrain_writes_settings_that_this_study_and_machine_take(
    tmp_path: Path, study_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("--embedding-dim", "8", "--attention-heads", "2", "--attention-layers", "1")
    command = (
        "tune", "--rounds", "1", "--steps", "21", "--warmup-steps", "2",
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
