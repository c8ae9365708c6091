"""Ranks of a job: its file, the task that a process is, checks of a node, mounts, restarts."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aam.contract import stop_file
from aam.contract.errors import DataError, MissingInput, Unavailable, UsageError
from aam.contract.gpus import CHECK_REPORTS
from launcher import config
from launcher.host.facts import Gpu
from launcher.plan.plan import Plan
from launcher.plan.settings import TextSetting
from launcher.slurm import job, job_file, rank
from launcher.slurm.job_file import FORMAT, JobFile, SubmittedImage
from launcher.slurm.site import Fact
from launcher.slurm.task import Task, task_of
from tests.support.submissions import WORDS, queued

ROOT = Path(__file__).parents[2]
PRETRAIN = ("--table", "{folder}/table.biom", "--device", "cpu", "--output-dir", "{folder}/out")


def content(folder: Path, *arguments: str, command: str = "pretrain", **facts: Any) -> JobFile:
    """Return the content of a job file; `facts` are those of its site."""
    settings = config.read({"--scratch": str(folder / "disk")}, {"HOME": str(folder)})
    (folder / "disk").mkdir(exist_ok=True)
    given = tuple(each.format(folder=folder) for each in arguments or PRETRAIN)
    return JobFile(
        FORMAT, "1", command, given, settings, SubmittedImage("native"), "s",
        {key: Fact(value, "s:1") for key, value in facts.items()}, gpus="vendor" in facts,
    )  # fmt: skip


def task(of: JobFile, folder: Path, **variables: str) -> Task:
    return task_of(of, folder / "job.json", {"SLURM_JOB_ID": "7", **variables})


def node(
    of: JobFile, folder: Path, part: str = "--rank", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a part of a job as srun starts it."""
    job_file.write(of, folder / "job.json")
    (folder / "job-7").mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT),
                   "SLURM_JOB_ID": "7", **variables}  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "launcher.slurm.job", part, str(folder / "job.json")],
        capture_output=True, text=True, env=environment, cwd=folder, check=False,
    )  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "table.biom").write_text("x")
    return tmp_path


# --- the job file


def test_a_job_file_is_read_as_it_was_written(place: Path) -> None:
    written = replace(content(place, stage_most_gb=3), tasks=(("--seed", "1"), ("--seed", "2")))
    job_file.write(written, place / "job.json")
    assert job_file.read(place / "job.json") == written
    assert written.request({"SLURM_ARRAY_TASK_ID": "1"}).value("--seed") == 2
    with pytest.raises(DataError, match="no such task: task 2 of 2; submit the job again"):
        written.request({"SLURM_ARRAY_TASK_ID": "2"})
    shards = replace(content(place, *PRETRAIN[:2], "--model", "m", "--output", "p",
                             command="predict"), shards=3)  # fmt: skip
    assert str(shards.request({"SLURM_ARRAY_TASK_ID": "2"}).value("--shard")) == "3/3"


@pytest.mark.parametrize(
    ("change", "status", "sentence"),
    [
        ({"format": FORMAT + 1}, 65, "A job file of another version: '{file}' of aam-launch 1"),
        ({"ranks": "four"}, 65, "The job file is damaged: '{file}', the content.ranks is 'four'"),
        ({"command": None}, 65, "the content.command is None"),
        ({"mode": 1}, 65, "has an unknown key 'mode'"),
        ({"arguments": ["--tabel", "t"]}, 64, "did you mean '--table'?"),
    ],
)
def test_an_edited_job_file_is_one_sentence(
    place: Path, change: dict[str, Any], status: int, sentence: str
) -> None:
    of, file = content(place), place / "job.json"
    job_file.write(of, file)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    done = subprocess.run(
        [sys.executable, "-m", "launcher.slurm.job", file, "srun"],
        capture_output=True, text=True, check=False, cwd="/",
        env={"SLURM_JOB_ID": "7", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    first, last = done.stderr.splitlines()
    assert (done.returncode, last) == (status, f"aam-job: ended with status {status}")
    assert sentence.format(file=file) in first


def test_a_node_that_does_not_see_the_job_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="No job file: '.*/none.json' does not exist on .*; "
                       "choose an output folder that all nodes see"):  # fmt: skip
        job_file.read(tmp_path / "none.json")


def test_a_name_that_is_not_utf_8_is_refused(place: Path) -> None:
    odd = content(place, "--table", os.fsdecode(b"\xff"), "--output-dir", "out")
    with pytest.raises(UsageError, match="is not UTF-8"):
        job_file.write(odd, place / "job.json")


def test_a_changed_or_absent_image_is_refused(place: Path) -> None:
    sif = place / "i.sif"
    sif.write_bytes(b"an image")
    facts = sif.stat()
    image = SubmittedImage("apptainer", "i", str(sif), None, facts.st_size, facts.st_mtime_ns)
    job_file.require_image(image)
    os.utime(sif, (0, 0))
    sentence = "The image has changed since the job was submitted: '.*/i.sif'; submit the job again"
    with pytest.raises(DataError, match=sentence):
        job_file.require_image(image)
    sif.unlink()
    with pytest.raises(MissingInput, match="No image: .*; put it where all nodes see it"):
        job_file.require_image(image)


def test_the_disk_of_a_node_is_that_of_the_site_where_there_is_one(place: Path) -> None:
    of = content(place, local="${PLACE}/disk$SLURM_JOB_ID")
    scratch = TextSetting("/of/the/login/node", "default")
    of = replace(of, settings=replace(of.settings, scratch=scratch))
    found = {"SLURM_JOB_ID": "7", "PLACE": str(place)}
    assert of.node_settings({**found, "TMPDIR": "/no/such"}).scratch.value == "/tmp"
    (place / "disk7").mkdir()
    assert of.node_settings(found).scratch.value == f"{place}/disk7"
    hostile = replace(of, facts={"local": Fact("${A-$(touch made)}", "s:1")})
    assert hostile.node_settings(found).scratch.value == "/tmp"


# --- what a rank runs


def test_several_ranks_train_together_on_the_gpus_of_the_site(place: Path) -> None:
    on_gpus = (*PRETRAIN[:2], *PRETRAIN[4:])
    one = task(content(place), place)
    assert rank.rank_request(one).argv == one.request.argv
    two = task(content(place, *on_gpus, vendor="amd"), place, SLURM_STEP_NUM_TASKS="2")
    assert rank.rank_request(two).argv[-3:] == ("--distributed", "--device", "cuda")
    fsdp = content(place, *on_gpus, "--fsdp")
    assert (
        "--distributed" not in rank.rank_request(task(fsdp, place, SLURM_STEP_NUM_TASKS="2")).argv
    )


def test_a_restart_is_recognised_by_the_job_of_the_run(place: Path) -> None:
    of, again = content(place, *PRETRAIN, "--overwrite"), {"SLURM_RESTART_COUNT": "1"}
    assert not task(of, place, **again).continues
    (place / "out").mkdir()
    (place / "out/run.json").write_text(json.dumps({"host": {"job": "7"}}))
    assert not task(of, place).continues
    assert not task_of(of, place / "job.json", {**again, "SLURM_JOB_ID": "8"}).continues
    restarted = task(of, place, **again)
    assert restarted.continues
    request = rank.rank_request(restarted)
    assert (request.value("--resume-from"), request.value("--overwrite")) == ("auto", False)


def test_the_run_folder_of_a_search_is_not_copied(place: Path) -> None:
    image = SubmittedImage("apptainer", "cpu", "/i.sif")
    of = replace(content(place, stage_most_gb=1), image=image)
    assert (
        task(of, place).local_run == place / f"disk/aam-{os.getuid()}/7-{os.uname().nodename}/run"
    )
    assert task(replace(of, facts={}), place).local_run is None
    assert task(replace(of, image=SubmittedImage("native")), place).local_run is None
    words = ("--table", "t", "--metadata", "m", "--metadata-column", "y", "--output-dir", "o")
    search = replace(of, command="search", arguments=words)
    assert task(search, place).local_run is None  # other jobs write there too
    predict = replace(of, command="predict",
                      arguments=("--table", "t", "--model", "m", "--output", "p"))  # fmt: skip
    assert (task(predict, place).run_folder, task(predict, place).local_run) == (None, None)


def test_ranks_meet_at_the_address_of_the_node_that_started_them(place: Path) -> None:
    present = {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7", "SLURM_CPUS_PER_TASK": "24"}
    one = task(content(place), place)
    assert rank.rank_variables(one, present) == {
        "AAM_STOP_FILE": str(one.stop_file), "MASTER_ADDR": "10.0.0.7", "OMP_NUM_THREADS": "24"
    }  # fmt: skip
    of = content(place, **{"network.NCCL_CROSS_NIC": "1", "network.FI_A": "2"})
    several = {**present, "NCCL_CROSS_NIC": "0", "OMP_NUM_THREADS": "1"}
    found = rank.rank_variables(task(of, place, SLURM_NNODES="2"), several)
    assert (found["NCCL_CROSS_NIC"], found["FI_A"], found["OMP_NUM_THREADS"]) == ("0", "2", "1")
    measures = content(place, "--output-dir", "o", command="acceptance")
    assert "OMP_NUM_THREADS" not in rank.rank_variables(task(measures, place), present)
    ranks = task(measures, place, SLURM_STEP_NUM_TASKS="4")
    assert rank.rank_variables(ranks, present)["OMP_NUM_THREADS"] == "24"


def test_ranks_with_different_plans_are_refused() -> None:
    first = {"image": "sha256:1", "GPUs": ["gfx942"] * 4}
    rank.require_same(dict(first), first, "n2", "the first node")
    sentence = (r"Two ranks with different plans: GPUs of n2: \['gfx90a'\], of the first node: "
                ".*; ask Slurm for equal nodes")  # fmt: skip
    with pytest.raises(Unavailable, match=sentence):
        rank.require_same({**first, "GPUs": ["gfx90a"]}, first, "n2", "the first node")


def test_gpus_other_than_the_site_states_are_in_the_log(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = Gpu("amd", 0, "gfx90a", "MI210", "0000:01:00.0")
    plan = Plan("apptainer", "/bin/apptainer", (), place="/i.sif", gpus=(gpu, gpu))
    two = {"SLURM_STEP_NUM_TASKS": "2"}
    rank._say(task(content(place, arch="gfx942"), place, **two), plan)
    name = os.uname().nodename
    assert capsys.readouterr().err.splitlines() == [
        f"aam-job: {name}: apptainer, image '/i.sif', 2 ranks, 2 x MI210 (gfx90a)",
        f"aam-job: {name}: site s states GPUs of arch gfx942; the job uses those above",
    ]
    rank._say(task(content(place, arch="gfx90a"), place), plan)
    assert "states GPUs" not in capsys.readouterr().err


def test_a_rank_starts_with_the_folders_of_its_plan(place: Path) -> None:
    """The folder of the check reports is mounted, and an engine refuses a mount of no folder."""
    reports, private = place / "cache/aam/check-reports", place / "disk/private"
    code = (f"import os; folder = os.environ['{CHECK_REPORTS}']; "
            "open(os.path.join(folder, 'one.json'), 'x')")  # fmt: skip
    program = place / "python"
    program.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(code)}\n")
    program.chmod(0o755)
    plan = Plan(
        "native", str(program), ("pretrain",), variables=((CHECK_REPORTS, str(reports)),),
        folders=(str(private),), outputs=(str(reports),),
    )  # fmt: skip
    with rank._child(plan) as started:
        assert started.process.wait() == 0
    assert (reports / "one.json").exists()
    assert (private.stat().st_mode & 0o777) == 0o700


# --- checks on the node


REFUSED: list[tuple[tuple[str, ...], dict[str, Any], int, str]] = [
    (("--table", "{folder}/none.biom", "--output-dir", "{folder}/out", "--device", "cpu"), {}, 66,
     "{node}: No file for --table: '{folder}/none.biom' does not exist on {node}; "
     "put it where all nodes see it.\n"),
    (("--table", "{folder}/table.biom", "--output-dir", "/proc/absent/out", "--device", "cpu"), {},
     73, "{node}: A folder cannot be made: '/proc/absent/out', No such file or directory"),
    (("--table", "{folder}/table.biom", "--output-dir", "{folder}/out"), {"vendor": "amd"}, 69,
     "{node}: The job needs GPUs: "),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "facts", "status", "sentence"), REFUSED)
def test_a_mistake_is_found_before_anything_is_staged(
    place: Path, arguments: tuple[str, ...], facts: dict[str, Any], status: int, sentence: str
) -> None:
    done = node(content(place, *arguments, **facts), place)
    assert done.returncode == status, done.stderr
    shown = sentence.format(folder=place, node=os.uname().nodename)
    assert done.stderr.startswith(f"aam-job: {shown}")
    assert done.stderr.count("\n") == 1
    assert (place / "job-7/status").read_text() == f"{status}\n"
    assert not (place / "out").exists()


def test_inputs_are_copied_to_the_node(place: Path) -> None:
    (place / "out").mkdir()
    (place / "out/last.ckpt").write_text("weights")
    arguments = (*PRETRAIN, "--resume-from", "{folder}/out/last.ckpt")
    of = replace(content(place, *arguments, stage_most_gb=1),
                 image=SubmittedImage("apptainer", "cpu"))  # fmt: skip
    own = task(of, place)
    copies = rank._prepare(own, own.request)
    if not copies:
        pytest.skip("temporary files are in memory here, and nothing is staged to memory")
    assert copies == {str(place / "table.biom"): str(own.private / "staged/0")}
    assert (own.private / "staged/0").read_text() == "x"
    assert (own.private / "run/last.ckpt").read_text() == "weights"
    assert (own.private.stat().st_mode & 0o777) == 0o700


# --- the end of a job


def test_the_status_of_the_rank_that_fails_first_is_kept(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = task(content(place), place)
    own.shared.mkdir()
    rank.leave_status(own, 64)
    rank.leave_status(own, 137)
    assert job.end(own, 143) == (64, False)
    assert capsys.readouterr().err == "aam-job: ended with status 64\n"


def test_a_stop_without_the_folder_of_the_node_is_one_sentence(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = task(content(place), place)
    job.request_stop(own, stop_file.END)  # a cleaner of /tmp has removed it
    assert capsys.readouterr().err.startswith("aam-job: No stop can be requested: ")
    own.private.mkdir(parents=True)
    job.request_stop(own, stop_file.END)
    assert stop_file.requested(own.stop_file) == stop_file.END


def test_the_end_decides_to_queue_again(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = task(replace(content(place), requeue=True), place)
    own.private.mkdir(parents=True)
    stop_file.request(own.stop_file, stop_file.LIMIT)
    stop_file.count_steps(own.stop_file, 10)
    assert job.end(own, 75) == (75, True)
    assert capsys.readouterr().err == "aam-job: stopped by the time limit; queued again\n"


# --- the script


def started(place: Path, **changed: str) -> subprocess.CompletedProcess[str]:
    """Run the script of a job with other values of its variables, and `echo` in place of Python."""
    text = queued(place, *WORDS)
    for name, value in changed.items():
        text = re.sub(rf"\b{name}=\S+", f"{name}={value}", text)
    return subprocess.run(["bash"], input=text, capture_output=True, text=True, check=False)


def test_a_node_that_does_not_see_the_launcher_is_named(place: Path) -> None:
    (place / "tree.nwk").write_text("(a,b);")
    (place / "site.yaml").write_text("title: here\nvendor: amd\narch: gfx942\n")
    seen = started(place, python="/bin/echo")
    file = place / "out/.aam-job.json"
    words = f"-m launcher.slurm.job {file} srun --kill-on-bad-exit=1 --wait=0\n"
    assert (seen.returncode, seen.stdout) == (0, words), seen.stderr
    for name in ("python", "code"):
        hidden = started(place, **{"python": "/bin/echo", name: "/no/such"})
        assert hidden.returncode == 69
        shown = "/no/such" if name == "python" else "/no/such/launcher"
        assert hidden.stderr == (
            f"aam-job: {os.uname().nodename} does not see '{shown}'; install the launcher where "
            "all nodes see it\n"
        )


def test_the_start_of_a_rank_names_a_node_without_the_launcher() -> None:
    argv = ["/bin/sh", "-c", job.VISIBLE]
    seen = subprocess.run([*argv, "/bin/echo", "/", "a  b", "$c"], capture_output=True, text=True)
    assert (seen.returncode, seen.stdout) == (0, "a  b $c\n")
    hidden = subprocess.run([*argv, "/bin/echo", "/no"], capture_output=True, text=True)
    assert (hidden.returncode, hidden.stdout) == (69, "")
    assert "does not see '/no'; install the launcher" in hidden.stderr
