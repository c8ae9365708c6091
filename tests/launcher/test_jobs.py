"""`aam-launch jobs`: state, progress and failure of a job, and files that are damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.cli import main
from launcher.commands.jobs import progress, row_of
from launcher.slurm.queue import Queued
from tests.support.launches import program

SCRIPT = """#!/bin/bash
#SBATCH --job-name=pretrain
#SBATCH --output={folder}/run-%j.log
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the kept scripts, with no Slurm at hand."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    folder = tmp_path / "state/aam/jobs"
    folder.mkdir(parents=True)
    (tmp_path / "run").mkdir()
    return folder


def row(state: Path, log: str | None = None, job: Queued | None = None) -> SimpleNamespace:
    folder = state.parents[2]
    (state / "7.sh").write_text(SCRIPT.format(folder=folder))
    if log is not None:
        (folder / "run-7.log").write_text(log)
    return SimpleNamespace(**row_of(state / "7.sh", {"7": job} if job else {}))


def test_progress_is_that_of_the_run_folder(tmp_path: Path) -> None:
    found = {"step": 12, "steps": 160, "fold": 1, "folds": 1, "samples_per_second": 34.56,
             "seconds_left": 3700.2, "device": "CPU"}  # fmt: skip
    (tmp_path / "progress.json").write_text(json.dumps(found))
    assert progress(tmp_path, True) == "step 12/160, 34.6 samples/s, 1:01:40 left"
    assert progress(tmp_path, False) == "step 12/160"
    (tmp_path / "progress.json").write_text(json.dumps({**found, "fold": 2, "folds": 5}))
    assert progress(tmp_path, False) == "fold 2/5 step 12/160"
    search = {"fold": 2, "folds": 6, "trial": 3, "trials": 20}
    (tmp_path / "progress.json").write_text(json.dumps(search))
    assert progress(tmp_path, True) == "fold 2/6 trial 3/20"
    assert progress(tmp_path / "none", True) == ""


@pytest.mark.parametrize(
    ("log", "state_", "message"),
    [
        ("aam-job: ended with status 0", "finished", ""),
        ("x\naam: The disk is full: '/a'; free some.\nsrun: error: n1: task 0: Exited\n"
         "aam-job: ended with status 73", "failed (status 73)",
         "aam: The disk is full: '/a'; free some."),
        ("Killed\naam-job: ended with status 137", "failed (status 137)",
         "aam-job: ended with status 137"),
        ("aam-job: ended with status 75, stopped on request; continue", "stopped, can be resumed",
         "continue it with --resume-from auto"),
        ("aam-job: ended with status 143, cancelled; the last checkpoint", "cancelled", ""),
        ("half a line", "unknown", "half a line"),
    ],
)  # fmt: skip
def test_a_log_tells_how_a_job_ended(state: Path, log: str, state_: str, message: str) -> None:
    found = row(state, f"{log}\n")
    assert (found.state, found.message) == (state_, message)
    assert (found.name, found.folder) == ("pretrain", str(state.parents[2] / "run"))
    assert found.log == str(state.parents[2] / "run-7.log")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "waits for free nodes"),
        ("PartitionTimeLimit", "wants more time than the partition gives and never starts"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "the nodes are down or reserved"),
        ("PartitionConfig", "wants more than a node of the partition has and never starts"),
        ("AssocGrpGRES", "waits for a limit of the account: AssocGrpGRES"),
        ("QOSMaxJobsPerUserLimit", "waits for a limit of the quality of service: QOSMax"),
        ("SomethingNew", "SomethingNew"),
        ("None", ""),
    ],
)
def test_why_a_job_waits_is_said_in_words(state: Path, reason: str, words: str) -> None:
    found = row(state, None, Queued("7", "PENDING", "1:00", reason))
    assert found.state == "pending"
    assert found.message.startswith(words)
    assert bool(found.message) == bool(words)


def test_a_job_that_was_queued_again(state: Path) -> None:
    log = "aam-job: stopped after 9 optimizer steps; queued again\n"
    found = row(state, log, Queued("7", "PENDING", "1:00", "BeginTime"))
    assert (found.state, found.message) == ("pending again", "starts again in a moment")
    assert row(state, log, Queued("7", "RUNNING", "1:00", "None")).state == "running"
    assert row(state, log, Queued("7", "NODE_FAIL", "", "None")).state == "node fail"


def test_a_job_without_a_log_may_be_on_a_node_that_does_not_see_it(state: Path) -> None:
    for job, shown in ((None, "unknown"), (Queued("7", "FAILED", "", "None"), "failed")):
        found = row(state, None, job)
        assert found.state == shown
        assert (
            found.message
            == "no log: cancelled before it started, or its node does not see the folder"
        )


def test_the_list_names_log_and_cause_of_a_failure(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row(state, "aam: No file for --table: 'x'.\naam-job: ended with status 66\n")
    assert main(["jobs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["JOB", "NAME", "STATE", "LEFT", "PROGRESS", "FOLDER"]
    assert lines[1].startswith("7    pretrain  failed (status 66)")
    assert lines[2:] == [
        "    aam: No file for --table: 'x'.", f"    log {state.parents[2]}/run-7.log"
    ]  # fmt: skip


DAMAGED = ["{", "[]", '{"step": 1e400, "steps": 2}', '{"step": 1, "steps": 2, "folds": {}}',
           '{"step": 1, "steps": 2, "samples_per_second": 1, "seconds_left": 1e300}', "\0\0\0",
           "[" * 100_000]  # fmt: skip


def test_damaged_files_hide_no_other_job(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = state.parents[2]
    for number, text in enumerate(DAMAGED, 10):
        (state / f"{number}.sh").write_text(SCRIPT.format(folder=folder / str(number)))
        (folder / f"{number}/run").mkdir(parents=True)
        (folder / f"{number}/run/progress.json").write_text(text)
    os.mkfifo(folder / "run/progress.json")
    row(state)
    os.mkfifo(folder / "run-7.log")
    (state / "8.sh").write_bytes(b"\xff\0#SBATCH --output='\n#SBATCH \"--job-name=x\n")
    os.mkfifo(state / "9.sh")
    (state / "1000.sh").mkdir()
    (state / "x.sh").write_text("no number")
    (state / "2000.sh").write_text(SCRIPT.replace("pretrain", "good").format(folder=folder / "g"))
    assert main(["jobs"]) == 0
    shown = capsys.readouterr().out
    jobs = [line.split()[0] for line in shown.splitlines()[1:] if line[0].isdigit()]
    assert jobs == ["2000", "1000", *(str(n) for n in range(9 + len(DAMAGED), 6, -1))]
    assert "good" in shown
    assert max(map(len, shown.splitlines())) < 700


def test_jobs_are_cancelled_by_their_numbers(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scancel = program(state.parents[2] / "bin/scancel", f'echo "$@" >{state}/cancelled')
    listed = "".join(f"echo '{n}|{s}|1:00|None'\n" for n, s in ((41, "RUNNING"), (42, "PENDING"),
                                                              (43, "COMPLETED")))  # fmt: skip
    program(state.parents[2] / "bin/squeue", listed)
    assert main(["jobs", "cancel", "41", "42"]) == 0
    assert (state / "cancelled").read_text() == "41 42\n"
    assert capsys.readouterr().out == "Cancelled: 41, 42\n"
    for wrong in ("--user=root", "../1", "4a"):
        assert main(["jobs", "cancel", wrong]) == 64
    # scancel itself has status 0 and no message for these.
    assert main(["jobs", "cancel", "41", "43", "44"]) == 64
    assert "No such job is queued: 43, 44, ended or never there" in capsys.readouterr().err
    assert (state / "cancelled").read_text() == "41\n"
    program(scancel, "echo 'scancel: error: Invalid job id 41' >&2; exit 1")
    assert main(["jobs", "cancel", "41"]) == 64
    assert "Slurm does not cancel the job: scancel: error: Invalid" in capsys.readouterr().err
