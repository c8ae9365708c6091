"""`aam tune --measure-only` and its runs: real child processes that log steps, fail and hang."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from aam.contract.errors import CannotCreate, UsageError
from aam.performance.measurement.bench import BLOCK, Bench, blocks, gain, rates
from aam.performance.measurement.device import DeviceFacts
from aam.performance.measurement.journal import JOURNAL, open_runs
from aam.performance.measurement.settings import SUBJECTS, Setting
from aam.performance.measurement.workload import Program, RunPlan, RunResult, Step, run_workload
from tests.support import step_program
from tests.support.commands import aam

PROGRAM = (sys.executable, step_program.__file__)


def result(fault: str, folder: Path, steps: int = 15, timeout: float = 60.0) -> RunResult:
    workload = Program((*PROGRAM, "--fault", "{fault}"), {"fault": fault})
    return run_workload(workload, RunPlan({}, steps, "test"), folder / "run", timeout)


def test_a_run_has_the_steps_that_the_program_logs(tmp_path: Path) -> None:
    found = result("none", tmp_path)
    assert found.failure == ""
    assert len(found.steps) == 15
    assert all(step.samples == 8 and step.seconds > 0 for step in found.steps)
    assert found.losses == result("none", tmp_path).losses
    assert found.losses != result("gradient", tmp_path).losses


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
    missing = Program(("/no/such/program",), {})
    found = run_workload(missing, RunPlan({}, 5, "test"), tmp_path / "run", 5.0)
    assert found.failure == "it cannot be started: No such file or directory"
    short = "import os; open(os.environ['AAM_STEP_LOG'], 'w').write({line})"
    line = json.dumps({"loss": 1, "seconds": 1, "samples": 1}) + "\n"
    program = Program((sys.executable, "-c", short), {"line": repr(line)})
    found = run_workload(program, RunPlan({}, 5, "test"), tmp_path / "run", 30.0)
    assert found.failure == "it ended after step 1 of 5: give fewer --steps, or let it train longer"


def run_of(seconds: float, steps: int = 15) -> RunResult:
    return RunResult((Step(1.0, seconds, 8, wait=seconds / 4, asvs=40),) * steps)


def test_rates_and_gain_leave_the_warm_up_out() -> None:
    slow_start = RunResult((Step(1.0, 60.0, 8),) * 5 + run_of(0.5, 10).steps)
    found = rates([slow_start], warmup=5)
    assert found.samples == pytest.approx(16)
    assert found.asvs == pytest.approx(80)
    assert found.wait == pytest.approx(0.25)
    assert gain(run_of(0.25), slow_start, 5, lambda step: step.seconds) == pytest.approx(2)
    assert [len(part) for part in blocks(run_of(1.0, 13), 0)] == [BLOCK, 13 - BLOCK]


def test_settings_are_measured_in_turns_and_the_journal_is_not_repeated(tmp_path: Path) -> None:
    program = Program((*PROGRAM, "--cost", "{cost}"), {"cost": "0.004"})
    fast = Setting("cost=0.001", {"cost": "0.001"})
    failing = Setting("cost=x", {"cost": "x"})
    for _ in range(2):
        runs = open_runs(program, tmp_path, 30.0, {"what": "test"}, overwrite=False)
        bench = Bench(runs, rounds=2, steps=12, warmup=2)
        default, better, broken = bench.compare("cost", Setting("default"), [fast, failing])
        lines = (tmp_path / JOURNAL).read_text().splitlines()
        order = [json.loads(json.loads(line)["run"])["settings"] for line in lines[1:]]
        assert order == [{}, fast.values, failing.values, {}, fast.values]
    assert default.gain == 1.0 and default.rates is not None and better.rates is not None
    assert better.gain > 1.5 and len(better.rounds) == 2
    assert broken.rates is None
    assert "invalid float value: 'x'" in broken.failure
    with (tmp_path / JOURNAL).open("a") as stream:
        stream.write('{"run": "cut o')  # killed while it wrote
    assert len(open_runs(program, tmp_path, 30.0, {"what": "test"}, overwrite=False).known) == 5
    with pytest.raises(CannotCreate, match=r'differs in what \(what: "test", now "other"\)'):
        open_runs(program, tmp_path, 30.0, {"what": "other"}, overwrite=False)
    assert not open_runs(program, tmp_path, 30.0, {"what": "other"}, overwrite=True).known


@pytest.mark.parametrize("text", ["{missing}", "{", "{0}", "{a.b}"])
def test_a_command_line_that_cannot_be_filled_in_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="give --values NAME=VALUE,VALUE"):
        Program(("run", text), {"a": "1"}).argv({}, Path())


CPU = DeviceFacts("CPU, 4 cores", "cpu", "2.13.0", 4, 0, 0.0)
GPU = DeviceFacts("MI210", "gfx90a", "2.13.0", 16, 0, 0.0, "Triton mixes types")
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
    assert labels("chunks", CPU) == ["--asv-chunk 0", "--asv-chunk 256"]
    assert labels("compile", GPU) == []
    assert labels("precision", CPU) == ["--mixed-precision bf16"]
    assert labels("batch-size", GPU) == [f"--batch-size {n}" for n in (8, 32, 64)]
    assert (
        not GPU.busy
        and "load 3.0 on 4 cores" in DeviceFacts(*list(vars(CPU).values())[:5], 3.0).busy
    )


def test_bench_of_a_program_prints_an_aligned_table_and_writes_json_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (
        "tune", "--values", "cost=0.002,0.001,x", "--measure-only", "--rounds", "2", "--steps",
        "11", "--warmup-steps", "1", "--output-dir", tmp_path / "bench",
    )  # fmt: skip
    program = ("--", *PROGRAM, "--cost", "{cost}")
    assert aam(*command, *program) == 0
    printed = capsys.readouterr().out
    starts = (" setting", " as given", " cost=0.001")
    table = [line.rstrip() for line in printed.splitlines() if line.startswith(starts)]
    assert len(table) == 3 and len(set(map(len, table))) == 1
    assert len(table[0]) <= 80
    assert "cost=x: it ended with status 2" in " ".join(printed.split())
    found = json.loads((tmp_path / "bench" / "bench.json").read_text())
    assert [one["setting"] for one in found["subjects"]["cost"]] == [
        "as given", "cost=0.001", "cost=x"
    ]  # fmt: skip
    page = (tmp_path / "bench" / "report.html").read_text()
    assert page.count("<svg") == 1 and "cost=0.001" in page
    assert aam(*command, "--half", "speed", *program) == 64
    assert aam(*command, "--warmup-steps", "11", *program) == 64
    assert aam("tune", "--values", "cost", "--output-dir", tmp_path / "b", *program) == 64


def test_bench_of_a_gpu_that_is_not_there_names_the_option(
    tmp_path: Path, study_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("tune", "--output-dir", tmp_path, "pretrain", "--table", study_dir / "table.biom")
    assert aam(*command, "--device", "cuda") == 69
    assert "No GPU: --device cuda; use --device auto or cpu." in capsys.readouterr().err


def test_one_task_of_several_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1"}
    for name, value in {**step, "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, value)
    assert aam("tune", "--output-dir", tmp_path / "run", "--measure-only", "--", *PROGRAM) == 64
    assert "2 processes of srun; start it once" in capsys.readouterr().err
