"""Stop requests of jobs: their time, and the decision to requeue."""

from __future__ import annotations

from pathlib import Path

import pytest

from aam.contract import stop_file
from launcher.slurm.job import decide
from launcher.slurm.rank import stop_time
from tests.support.commands import pretrain


@pytest.mark.parametrize(
    ("limit", "expected"), [(86400, 85800), (3600, 3000), (600, 450), (60, 45), (0, 0)]
)
def test_a_job_trains_for_three_quarters_of_any_limit(limit: float, expected: float) -> None:
    assert stop_time(0, limit, 600) == expected


def test_the_first_request_counts(tmp_path: Path) -> None:
    file = tmp_path / "stop"
    assert stop_file.requested(file) == ""
    stop_file.request(file, stop_file.END)
    stop_file.request(file, stop_file.LIMIT)
    assert stop_file.requested(file) == stop_file.END


def test_steps_of_several_fits_add_up(tmp_path: Path) -> None:
    file = tmp_path / "stop"
    assert stop_file.steps_made(file) == 0
    stop_file.count_steps(file, 2)
    stop_file.count_steps(file, 5)
    assert stop_file.steps_made(file) == 7


@pytest.mark.parametrize(
    ("status", "reason", "steps", "requeue", "again", "sentence"),
    [
        (0, "", 0, True, False, "ended with status 0"),
        (137, "", 9, True, False, "ended with status 137"),
        (0, stop_file.LIMIT, 9, True, False, "ended with status 0"),
        (75, stop_file.LIMIT, 9, True, True, "stopped by the time limit; queued again"),
        (
            75,
            stop_file.LIMIT,
            9,
            False,
            False,
            "by the time limit; continue with --resume-from auto, a search with its command",
        ),
        (75, stop_file.REQUEUE, 1, True, True, "stopped on request; queued again"),
        (
            75,
            stop_file.END,
            9,
            True,
            False,
            "on request; continue with --resume-from auto, a search with its command",
        ),
        (73, stop_file.LIMIT, 9, True, False, "ended with status 73"),
    ],
)
def test_how_a_job_ends(
    status: int, reason: str, steps: int, requeue: bool, again: bool, sentence: str
) -> None:
    found, message = decide(status, reason, steps, requeue)
    assert found == again
    assert message.endswith(sentence)


def test_a_start_that_gets_nowhere_is_not_queued_again() -> None:
    again, message = decide(75, stop_file.LIMIT, stop_file.FEWEST_STEPS - 1, True)
    assert not again
    assert "after 2 optimizer steps; not queued again" in message
    assert "give the job more time (--time)" in message


@pytest.mark.medium
def test_training_stops_at_a_stop_file_whenever_it_was_made(
    study_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stop"
    stop_file.request(file, stop_file.LIMIT)
    monkeypatch.setenv(stop_file.VARIABLE, str(file))
    args = ("--penalty", "0", "--epochs", "2", "--num-workers", "0")
    assert pretrain(study_dir, tmp_path / "run", *args) == 75
    assert stop_file.steps_made(file) == 1
    file.unlink()
    assert pretrain(study_dir, tmp_path / "run", *args, "--resume-from", "auto") == 0
    assert stop_file.steps_made(file) > 2
