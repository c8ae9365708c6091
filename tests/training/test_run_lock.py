"""The lock of a run folder: one training at a time writes to it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from aam.contract.errors import CannotCreate
from aam.training import run_folder
from tests.support.commands import aam
from tests.support.resumed_runs import KILL, arguments_of


def lock_in_another_process(folder: Path) -> int:
    """Start a process that holds the lock of a folder until it is killed; return its number."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with run_folder.locked(folder):
            os.write(writing, b"locked")
            signal.pause()
    assert os.read(reading, 6) == b"locked"
    return pid


def test_one_training_at_a_time_writes_to_a_folder(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = arguments_of(study_dir, "pretraining", tmp_path, "--epochs", 1)
    pid = lock_in_another_process(tmp_path)
    assert aam(*line) == CannotCreate.status
    printed = capsys.readouterr().err
    assert f"Another process writes to the run folder: '{tmp_path}', process {pid} on " in printed
    os.kill(pid, KILL)
    os.waitpid(pid, 0)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "notes.txt").touch()
    left = ["checkpoints/.last.4242.ckpt", "checkpoints/.best.another-node-7.ckpt", ".run.77.json"]
    for name in left:
        (tmp_path / name).write_text("of a process that was killed")
    assert aam(*line) == 0
    assert not any((tmp_path / name).exists() for name in left)
    assert (tmp_path / "notes.txt").exists()


def test_a_requeued_job_does_not_wait_for_the_lock_of_its_failed_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    pid = lock_in_another_process(tmp_path)
    try:
        with pytest.raises(CannotCreate), run_folder.locked(tmp_path):
            pass
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        with run_folder.locked(tmp_path) as held:
            assert not held
        monkeypatch.setenv("SLURM_JOB_ID", "13")
        with pytest.raises(CannotCreate):
            run_folder.check_lock(tmp_path)
    finally:
        os.kill(pid, KILL)
        os.waitpid(pid, 0)
