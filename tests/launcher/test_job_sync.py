"""Copies of a run folder: complete at any moment, on a full disk too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.slurm.sync import Mirror, main, restore


def test_what_is_being_written_is_not_copied(tmp_path: Path) -> None:
    run, copy = tmp_path / "from", tmp_path / "to"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints/last.ckpt").write_text("weights")
    (run / "checkpoints/.last.12.ckpt").write_text("half")
    (run / "metrics.csv").write_text("epoch\n0\n")
    assert main(run, copy) == 0
    found = {str(path.relative_to(copy)) for path in copy.rglob("*")}
    assert found == {"checkpoints", "checkpoints/last.ckpt", "metrics.csv"}
    (copy / "notes.txt").write_text("mine")
    (run / "metrics.csv").unlink()
    assert main(run, copy) == 0
    assert (copy / "notes.txt").exists()
    assert (copy / "metrics.csv").exists()  # nothing lists it as a part of this run


def test_metrics_are_copied_before_the_checkpoint_that_belongs_to_them(tmp_path: Path) -> None:
    run = tmp_path / "from"
    (run / "checkpoints").mkdir(parents=True)
    for name in ("checkpoints/best.ckpt", "checkpoints/last.ckpt", "metrics.csv", "run.json"):
        (run / name).write_text(name)
    assert main(run, tmp_path / "to") == 0
    made = sorted((path.stat().st_ctime_ns, path.suffix) for path in (tmp_path / "to").rglob("*.*"))
    assert [suffix == ".ckpt" for _, suffix in made] == [False, False, True, True]


def test_only_changes_are_copied(tmp_path: Path) -> None:
    run, copy = tmp_path / "from", tmp_path / "to"
    run.mkdir()
    (run / "metrics.csv").write_text("epoch\n")
    mirror = Mirror(run, copy, "7")
    mirror.update()
    inode = (copy / "metrics.csv").stat().st_ino
    mirror.update()
    Mirror(run, copy, "8").update()
    assert (copy / "metrics.csv").stat().st_ino == inode
    (run / "metrics.csv").write_text("epoch\n0\n")
    mirror.update()
    assert (copy / "metrics.csv").read_text() == "epoch\n0\n"


def test_a_run_that_is_replaced_leaves_no_file_of_the_old_one(tmp_path: Path) -> None:
    kept, run = tmp_path / "to", tmp_path / "from"
    (kept / "checkpoints").mkdir(parents=True)
    for name in ("checkpoints/best.ckpt", "predictions.tsv", "run.json"):
        (kept / name).write_text("old")
    restore(kept, run)
    (run / "checkpoints/best.ckpt").unlink()
    (run / "predictions.tsv").unlink()
    (run / "run.json").write_text("new")
    (kept / "notes.txt").write_text("mine")
    Mirror(run, kept, "7").update()
    assert {path.name for path in kept.iterdir()} == {"checkpoints", "run.json", "notes.txt"}
    assert not list((kept / "checkpoints").iterdir())
    assert (kept / "run.json").read_text() == "new"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_full_disk_leaves_the_last_complete_copy(tmp_path: Path) -> None:
    run, copy = tmp_path / "from", tmp_path / "to"
    (run / "checkpoints").mkdir(parents=True)
    copy.mkdir()
    sync = f'"{sys.executable}" -m launcher.slurm.sync "{run}" "{copy}"'
    code = f"""mount -t tmpfs -o size=256k tmpfs "{copy}"
    head -c 100000 /dev/zero >"{run}/checkpoints/last.ckpt"
    {sync} || exit 1
    head -c 400000 /dev/urandom >"{run}/checkpoints/last.ckpt"
    {sync}
    echo "status $?" $(stat -c %s "{copy}/checkpoints/last.ckpt")
    ls -A "{copy}/checkpoints"
    umount "{copy}" """
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", code], capture_output=True, text=True
    )
    assert done.stdout == "status 73 100000\nlast.ckpt\n", done.stderr
    assert "No space left on device" in done.stderr
    assert "what was copied before is complete" in done.stderr
