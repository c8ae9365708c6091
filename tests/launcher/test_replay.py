"""Runs repeated by `--config run.json`, and damaged records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.launches import launch

RECORD = {"aam": "1", "command": "pretrain", "options": {}}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[" * 100_000, "nested too deeply"),
        (json.dumps({**RECORD, "launch": {"image": 1}}), "launch.image is 1, expected text"),
        (json.dumps({**RECORD, "launch": {"image": "/\0"}}), "NUL"),
        (json.dumps({**RECORD, "inputs": {"--table": {"path": "/t"}}}), "has no 'sha256'"),
        (json.dumps({**RECORD, "command": "train"}), "A run record of another command"),
    ],
)
def test_a_damaged_record_is_one_sentence(folder: Path, content: str, named: str) -> None:
    (folder / "run.json").write_text(content)
    args = ("--config", "{d}/run.json", "--table", "{d}/t.biom", "--output-dir", "{d}/out")
    done = launch(folder, "pretrain", *args, "--device", "cpu", "--runtime", "native", "--dry-run")
    assert done.returncode in (64, 65), done.stderr
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


def recorded(folder: Path, study_dir: Path, *args: str) -> dict[str, Any]:
    for name in ("table.biom", "tree.nwk"):
        (folder / name).write_bytes((study_dir / name).read_bytes())
    done = launch(folder, *args, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    (place,) = (*folder.glob("run/run.json"), *folder.glob("*.run.json"))
    content: dict[str, Any] = json.loads(place.read_text())
    assert content["launch"]["engine"] == "native"
    return content


@pytest.mark.medium
def test_a_run_can_be_repeated(folder: Path, study_dir: Path) -> None:
    args = ["pretrain", "--table", "table.biom", "--tree", "tree.nwk", "--output-dir", "run",
            "--epochs", "1", "--embedding-dim", "8", "--attention-heads", "2"]  # fmt: skip
    record = recorded(folder, study_dir, *args)
    assert record["launch"]["arguments"] == args[1:]
    again = ("pretrain", "--config", "run", "--output-dir", "again", "--dry-run")
    same = launch(folder, *again)
    assert (same.returncode, same.stderr) == (0, ""), same.stderr
    assert "--output-dir again" in same.stdout
    assert "--output-dir run" not in same.stdout
    assert f"--tree {folder}/tree.nwk --embedding-dim 8" in same.stdout

    (folder / "tree.nwk").write_text("(a,b);")
    changed = launch(folder, *again)
    assert changed.returncode == 0, changed.stderr
    assert "warning: The input of --tree has changed: " in changed.stderr
    (folder / "other.nwk").write_text("(a,b);")
    assert launch(folder, *again, "--tree", "other.nwk").stderr == ""
    (folder / "tree.nwk").unlink()
    gone = launch(folder, *again)
    assert gone.returncode == 66
    assert "No file for --tree" in gone.stderr


@pytest.mark.medium
def test_commands_without_a_run_folder_are_repeated_too(folder: Path, study_dir: Path) -> None:
    args = ["unifrac", "--table", "table.biom", "--tree", "tree.nwk", "--output", "u.tsv"]
    record = recorded(folder, study_dir, *args)
    assert record["launch"]["engine_version"] == record["versions"]["python"]
    assert set(record["inputs"]) == {"--table", "--tree"}
    place = folder / "u.tsv.run.json"
    again = ("unifrac", "--config", str(place), "--output", "v.tsv")
    done = launch(folder, *again, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert (folder / "v.tsv").read_text() == (folder / "u.tsv").read_text()

    record["launch"] |= {"kernel": "5.0", "engine_version": "3.0", "digest": "sha256:1"}
    record["launch"]["gpus"] = ["MI300A (gfx942) at 0000:02:00.0"]
    place.write_text(json.dumps({**record, "aam": "0.0.1"}))
    other = launch(folder, *again, "--overwrite", "--dry-run")
    assert other.returncode == 0, other.stderr
    differences = (
        "version of aam: 0.0.1 then", "kernel: 5.0 then", "engine version: 3.0 then",
        "digest: sha256:1 then, none now", "gpus: MI300A (gfx942) then, none now",
    )  # fmt: skip
    for sentence in differences:
        assert f"aam-launch: warning: Another {sentence}" in other.stderr

    record["launch"]["engine"] = "podman"
    place.write_text(json.dumps(record))
    other = launch(folder, *again, "--overwrite", "--dry-run")
    assert "Another engine: podman then, native now" in other.stderr
    assert "engine version" not in other.stderr  # of another program

    place.write_text(json.dumps({**record, "launch": None}))  # `aam` alone ran it
    assert launch(folder, *again, "--overwrite", "--dry-run").stderr == ""
