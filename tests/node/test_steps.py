"""Steps of a job: paths of its command, mounts, restarts, the variables of a rank, the tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aam.contract import stop_file
from aam.contract.errors import MissingInput, Unavailable
from aam.node import steps, stop
from aam.node.check import require_tested
from aam.node.commands import read, require_inputs, resumed
from aam.node.settings import Settings

ROOT = Path(__file__).parents[2]


def settings(folder: Path, **more: object) -> Settings:
    node = folder / "node"
    node.mkdir(exist_ok=True)
    return Settings(node, Path("/scratch/job"), folder, **more)  # type: ignore[arg-type]


def node(folder: Path, step: str, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step as the job script does."""
    (folder / "node").mkdir(exist_ok=True)
    own = ["--node-folder", f"{folder}/node", "--host-folder", "/scratch/job", "--directory",
           str(folder)]  # fmt: skip
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, "-m", "aam.node", step, *own, *args],
        capture_output=True, text=True, env=environment, cwd=folder, check=False,
    )  # fmt: skip


# --- the command line


def test_paths_become_absolute_and_are_sorted_by_role(tmp_path: Path) -> None:
    args = ["pretrain", "--table=t.biom", "--tree", "../tree", "--output_dir", "runs/a",
            "--resume-from", "auto", "--seed", "1", "--device", "cpu"]  # fmt: skip
    found = read(args, tmp_path)
    inputs = [(spec.flag, path) for spec, path in found.paths("input")]
    assert inputs == [("--table", tmp_path / "t.biom"), ("--tree", tmp_path.parent / "tree")]
    assert [path for _, path in found.paths("output")] == [tmp_path / "runs/a"]
    assert found.run_folder == tmp_path / "runs/a"
    assert found.argv[:3] == ("pretrain", "--table", str(tmp_path / "t.biom"))
    assert found.argv[-6:] == ("--resume-from", "auto", "--seed", "1", "--device", "cpu")
    assert not found.computes_on_gpu
    assert read(args[:-2], tmp_path).computes_on_gpu
    assert not found.in_place
    assert read(["search", "--output-dir", "out"], tmp_path).in_place  # other jobs write there too


def test_an_output_file_makes_no_run_folder(tmp_path: Path) -> None:
    args = ["predict", "--model", "m", "--table", "t", "--output", "p.tsv"]
    found = read(args, tmp_path)
    assert (found.run_folder, found.writes_folder) == (None, False)


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    sentence = (
        rf"No file for --table: '.*/t.biom' does not exist on {re.escape(os.uname().nodename)}; "
        "check the path, or copy the file to a folder that all nodes see"
    )
    with pytest.raises(MissingInput, match=sentence):
        require_inputs(read(["pretrain", "--table", "t.biom"], tmp_path))


def test_a_restart_continues_the_run(tmp_path: Path) -> None:
    again = resumed(read(["train", "--overwrite", "--resume_from=x", "--seed", "1"], tmp_path))
    assert again.argv == ("train", "--no-overwrite", "--resume-from", "auto", "--seed", "1")


# --- prepare


def test_copies_are_mounted_at_the_paths_of_their_originals(tmp_path: Path) -> None:
    odd = tmp_path / 'a,"b" table'
    odd.write_text("x")
    command = read(["pretrain", "--table", str(odd), "--output-dir", "out"], tmp_path)
    doubled = str(odd).replace('"', '""')
    assert steps.mounts(settings(tmp_path, stage_gb=1), command) == [
        "--mount",
        f'type=bind,source=/scratch/job/staged/0,"destination={doubled}",ro',
        *("--mount", f"type=bind,source={tmp_path}/out,destination=/mnt/run"),
        *("--mount", f"type=bind,source=/scratch/job/run,destination={tmp_path}/out"),
    ]
    assert steps.mounts(settings(tmp_path), command) == []
    assert steps.mounts(settings(tmp_path, stage_gb=1, native=True), command) == []


def test_a_copy_replaces_the_mount_of_its_original(tmp_path: Path) -> None:
    """Of two mounts at one place Apptainer takes the first, with a warning."""
    table = tmp_path / "t.biom"
    table.write_text("x")
    command = read(["pretrain", "--table", str(table), "--output-dir", "out"], tmp_path)
    paths = (table, tmp_path / "out", tmp_path / "other")
    before = tuple(f"type=bind,source={path},destination={path}" for path in paths)
    found = steps.mounts(settings(tmp_path, stage_gb=1, mounts=before), command)
    values = [word for word in found if word != "--mount"]
    assert values[0] == before[2]
    assert len(values) == len({value.split(",")[2] for value in values}) == 4
    assert not {before[0], before[1]} & set(values)


def test_a_folder_of_several_jobs_is_written_where_all_nodes_see_it(tmp_path: Path) -> None:
    args = ["search", "--table", "t", "--output-dir", "out"]
    assert steps.mounts(settings(tmp_path, stage_gb=1), read(args, tmp_path)) == []


def test_inputs_that_stay_are_linked_so_that_the_mounts_hold(tmp_path: Path) -> None:
    table = tmp_path / "t.biom"
    table.write_text("x")
    args = ["pretrain", "--table", str(table), "--output-dir", str(tmp_path / "out")]
    given = settings(tmp_path, stage_gb=1e-12)
    steps.prepare(given, args, {})
    assert given.staged(0).readlink() == table
    assert (tmp_path / "out").is_dir()


REFUSED = [
    (["--tabel", "t"], 64, "did you mean '--table'?"),
    (["--table", "none.biom"], 66, "No file for --table: '{folder}/none.biom' does not exist"),
]


@pytest.mark.parametrize(("args", "status", "sentence"), REFUSED)
def test_a_mistake_is_found_before_anything_is_staged(
    tmp_path: Path, args: list[str], status: int, sentence: str
) -> None:
    done = node(tmp_path, "prepare", "--", "pretrain", *args, "--output-dir", "out")
    assert done.returncode == status, done.stderr
    assert sentence.format(folder=tmp_path) in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_a_node_cannot_make_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.biom").write_text("x")
    args = ("--table", "t.biom", "--model", "t.biom", "--output", "/proc/absent/p.tsv")
    done = node(tmp_path, "prepare", "--native", "--", "predict", *args)
    assert done.returncode == 73
    assert done.stderr == (
        f"aam-job: The output folder cannot be made: '/proc/absent' on {os.uname().nodename}, "
        "No such file or directory; choose a folder that all nodes see.\n"
    )


def test_a_job_without_its_gpus_fails_at_once(tmp_path: Path) -> None:
    args = [
        "--vendor",
        "amd",
        "--ranks",
        "4",
        "--",
        "pretrain",
        "--table",
        "t",
        "--output-dir",
        "o",
    ]
    done = node(tmp_path, "prepare", *args)
    assert done.returncode == 69
    assert "aam-job: The job needs GPUs: " in done.stderr
    done = node(tmp_path, "prepare", *args, "--device", "cpu")
    assert done.returncode == 66  # the table


# --- run


def test_ranks_meet_at_the_address_of_the_node_that_started_them(tmp_path: Path) -> None:
    present = {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7", "SLURM_CPUS_PER_TASK": "24"}
    found = steps.rank_variables(settings(tmp_path), present)
    assert found == {
        "AAM_STOP_FILE": f"{tmp_path}/node/stop", "MASTER_ADDR": "10.0.0.7", "OMP_NUM_THREADS": "24"
    }  # fmt: skip
    several = {**present, "SLURM_NNODES": "2", "NCCL_CROSS_NIC": "0", "OMP_NUM_THREADS": "1"}
    found = steps.rank_variables(
        settings(tmp_path, variables=("NCCL_CROSS_NIC=1", "FI_A=2")), several
    )
    assert (found["NCCL_CROSS_NIC"], found["FI_A"], found["OMP_NUM_THREADS"]) == ("0", "2", "1")


def test_the_status_of_the_rank_that_fails_first_is_kept(tmp_path: Path) -> None:
    run = tmp_path / "out"
    run.mkdir()
    args = ["pretrain", "--tree", "none", "--output-dir", str(run)]  # without --table
    variables = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_PROCID": "1"}
    assert steps.run(settings(tmp_path), args, variables) == 64
    assert (run / ".aam-status-7").read_text() == "64\n"
    assert steps.finish(settings(tmp_path), args, {"SLURM_JOB_ID": "7"}, 137) == 64
    assert not list(run.iterdir())


def test_the_last_step_of_a_command_that_is_wrong_keeps_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["pretrain", "--tabel", "t.biom", "--output-dir", "run"]
    assert steps.finish(settings(tmp_path), args, {}, 64) == 64
    assert capsys.readouterr().err == "aam-job: ended with status 64\n"


def test_a_restart_is_recognised_by_the_job_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"host": {"job": "7"}}))
    again = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}
    assert steps._continues(tmp_path, again)
    assert not steps._continues(tmp_path, {**again, "SLURM_JOB_ID": "8"})
    assert not steps._continues(tmp_path, {"SLURM_JOB_ID": "7"})
    assert not steps._continues(tmp_path / "none", again)


def test_the_last_step_decides_to_queue_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["pretrain", "--table", "t", "--output-dir", str(tmp_path / "out")]
    given = settings(tmp_path, requeue=True)
    stop_file.request(given.stop_file, stop_file.LIMIT)
    stop_file.count_steps(given.stop_file, 10)
    assert steps.finish(given, args, {}, 75) == stop.QUEUE_AGAIN
    assert "aam-job: stopped by the time limit; queued again" in capsys.readouterr().err
    assert steps.finish(given, args, {"SLURM_NODEID": "1"}, 75) == 0


# --- the tests of a node

SKIPPED = "import pytest\n\n@pytest.mark.skip(reason='no GPU')\ndef test_a(): pass\n"


TESTED = "def test_b(): pass\n"


@pytest.mark.parametrize(
    ("tests", "fails"), [(TESTED + SKIPPED, False), (TESTED, False), (SKIPPED, True), ("", True)]
)
def test_a_run_that_tested_nothing_fails(tmp_path: Path, tests: str, fails: bool) -> None:
    (tmp_path / "test_it.py").write_text(tests)
    report = tmp_path / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
    ]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, tmp_path / "test_it.py"], capture_output=True, cwd=tmp_path, env=alone
    )
    if fails:
        with pytest.raises(Unavailable, match="Nothing was tested"):
            require_tested(report, done.returncode)
    else:
        require_tested(report, done.returncode)
