"""`aam-launch jobs`: state and progress of a job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.commands.jobs import job_status, progress
from launcher.slurm.history import Submitted
from launcher.slurm.queue import Queued


def test_progress_is_that_of_the_run_folder(tmp_path: Path) -> None:
    found = {"step": 12, "steps": 160, "fold": 1, "folds": 1, "samples_per_second": 34.56,
             "seconds_left": 3700.2}  # fmt: skip
    (tmp_path / "progress.json").write_text(json.dumps(found))
    assert progress(tmp_path, True) == "step 12/160, 34.6 samples/s, 1:01:40 left"
    assert progress(tmp_path, False) == "step 12/160"
    (tmp_path / "progress.json").write_text(json.dumps({**found, "fold": 2, "folds": 5}))
    assert progress(tmp_path, False) == "fold 2/5 step 12/160"
    search = {"fold": 2, "folds": 6, "trial": 3, "trials": 20}
    (tmp_path / "progress.json").write_text(json.dumps(search))
    assert progress(tmp_path, True) == "fold 2/6 trial 3/20"
    (tmp_path / "progress.json").write_text("{")
    assert progress(tmp_path, True) == progress(tmp_path / "none", True) == ""


@pytest.mark.parametrize(
    ("log", "state"),
    [
        ("aam-job: ended with status 0", "finished"),
        ("aam-job: ended with status 137", "failed (status 137)"),
        ("aam-job: ended with status 75, stopped on request; continue", "stopped, can be resumed"),
        ("", "unknown, see its log"),
    ],
)
def test_a_stop_on_request_is_no_failure(tmp_path: Path, log: str, state: str) -> None:
    (tmp_path / "job.log").write_text(f"{log}\n")
    entry = Submitted(
        "7", "n", "pretrain", "s", "", str(tmp_path / "job.log"), {"7": str(tmp_path)}
    )
    assert [row.state for row in job_status(entry, {})] == [state]


def test_a_job_without_a_log_may_be_on_a_node_that_does_not_see_it(tmp_path: Path) -> None:
    log = str(tmp_path / "absent/job.log")
    entry = Submitted("7", "n", "pretrain", "s", "", log, {"7": str(tmp_path)})
    failed = Queued(job="7", state="FAILED", left="", reason="None")
    for known, state in (({}, "unknown"), ({"7": failed}, "failed")):
        assert [row.state for row in job_status(entry, known)] == [
            f"{state}, no log: not started, or its node does not see the folder"
        ]
