"""Stop requests of jobs, and the decision to queue a job again."""

from __future__ import annotations

from pathlib import Path

import pytest

from aam.contract import stop_file
from launcher.commands.job import END, REQUEUE, outcome, request_stop, requested_stop
from tests.support.commands import pretrain


def test_the_first_request_counts(tmp_path: Path) -> None:
    file = tmp_path / "stop"
    assert requested_stop(file) == ""
    request_stop(file, END)
    request_stop(file, REQUEUE)
    assert requested_stop(file) == END


def test_steps_of_several_fits_add_up(tmp_path: Path) -> None:
    file = tmp_path / "stop"
    assert stop_file.steps_made(file) == 0
    stop_file.count_steps(file, 2)
    stop_file.count_steps(file, 5)
    assert stop_file.steps_made(file) == 7


@pytest.mark.parametrize(
    ("status", "reason", "steps", "found", "sentence"),
    [
        (0, "", 0, (False, 0), "ended with status 0"),
        (137, "", 9, (False, 137), "ended with status 137"),
        (0, REQUEUE, 9, (False, 0), "ended with status 0"),  # it was complete
        (75, REQUEUE, 9, (True, 75), "stopped after 9 optimizer steps; queued again"),
        # The first rank has saved and ended, and Slurm has ended the others.
        (143, REQUEUE, 9, (True, 75), "stopped after 9 optimizer steps; queued again"),
        (143, REQUEUE, 0, (False, 143), "ended with status 143"),  # nothing was saved
        (75, REQUEUE, 2, (False, 75), "ended with status 75, stopped after 2 optimizer steps; not "
         "queued again, because it would not get further: give the job more time (--time)"),
        (75, END, 9, (False, 75), "ended with status 75, stopped on request; continue with "
         "--resume-from auto, a search with its command"),
        (73, REQUEUE, 9, (False, 73), "ended with status 73"),
    ],
)  # fmt: skip
def test_how_a_job_ends(
    status: int, reason: str, steps: int, found: tuple[bool, int], sentence: str
) -> None:
    assert outcome(status, reason, steps, False) == (*found, sentence)


def test_a_cancelled_job_is_not_queued_again() -> None:
    assert outcome(75, REQUEUE, 9, True)[:2] == (False, 143)


@pytest.mark.medium
def test_training_stops_at_a_stop_file_whenever_it_was_made(
    study_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stop"
    request_stop(file, REQUEUE)
    monkeypatch.setenv(stop_file.VARIABLE, str(file))
    args = ("--penalty", "0", "--epochs", "2", "--num-workers", "0")
    assert pretrain(study_dir, tmp_path / "run", *args) == 75
    assert stop_file.steps_made(file) == 1
    file.unlink()
    assert pretrain(study_dir, tmp_path / "run", *args, "--resume-from", "auto") == 0
    assert stop_file.steps_made(file) > 2
