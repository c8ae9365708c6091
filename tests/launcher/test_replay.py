"""`aam-launch replay`: runs repeated from their run.json, and damaged records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aam import __version__
from aam.contract.errors import MissingInput
from launcher.commands import replay
from tests.support.launches import launch

LAUNCH = {
    "launcher_options": {}, "command": "pretrain", "arguments": [], "folder": "/", "gpus": []
}  # fmt: skip
RECORD = {"aam": "1", "launch": LAUNCH}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[" * 100_000, "nested too deeply"),
        (json.dumps({**RECORD, "launch": {}}), "launch.command is not text"),
        (json.dumps({**RECORD, "launch": {**LAUNCH, "launcher_options": {"--image": 1}}}),
         "launch.launcher_options.--image is not a list"),
        (json.dumps({**RECORD, "launch": {**LAUNCH, "folder": "/\0"}}), "NUL"),
        (json.dumps({**RECORD, "inputs": {"--table": {"path": "/t"}}}), "inputs.--table.sha256"),
        (json.dumps({**RECORD, "launch": {**LAUNCH, "folder": "/no/such"}}),
         "The folder of the run is gone"),
    ],
)  # fmt: skip
def test_a_damaged_record_is_one_sentence(folder: Path, content: str, named: str) -> None:
    (folder / "run.json").write_text(content)
    done = launch(folder, "replay", "{d}/run.json")
    assert done.returncode == 66, done.stderr
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


# --- replay


def test_a_record_of_an_earlier_version_loads(tmp_path: Path) -> None:
    """The keys `words` and `own` are now called `arguments` and `launcher_options`."""
    former = {
        "own": {"--image": ["rocm62"], "--force": []}, "command": "pretrain",
        "words": ["--epochs", "3"], "folder": "/", "gpus": ["MI300A (gfx942) at 0000:02:00.0"],
    }  # fmt: skip
    (tmp_path / "run.json").write_text(json.dumps({"aam": "1", "launch": former}))
    recorded = replay.read(tmp_path)
    assert recorded.request.arguments == ("--epochs", "3")
    assert recorded.request.launcher_options == {"--image": "rocm62", "--force": True}
    present = {**LAUNCH, **{key: former[key] for key in ("command", "folder", "gpus")}}
    present |= {"arguments": former["words"], "launcher_options": former["own"]}
    (tmp_path / "run.json").write_text(json.dumps({"aam": "1", "launch": present}))
    assert replay.read(tmp_path) == recorded


@pytest.mark.medium
def test_a_run_can_be_replayed(folder: Path, study_dir: Path) -> None:
    for name in ("table.biom", "tree.nwk"):
        (folder / name).write_bytes((study_dir / name).read_bytes())
    args = ["pretrain", "--table", "table.biom", "--tree", "tree.nwk", "--output-dir", "run",
            "--epochs", "1", "--embedding-dim", "8", "--attention-heads", "2"]  # fmt: skip
    done = launch(folder, *args, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    record = json.loads((folder / "run/run.json").read_text())
    assert record["launch"]["engine"] == "native"
    assert record["launch"]["arguments"] == args[1:]

    again = launch(folder, "replay", "{d}/run", "--output-dir", "again", "--dry-run")
    assert again.returncode == 0, again.stderr
    assert "--output-dir again" in again.stdout
    assert "--output-dir run" not in again.stdout

    (folder / "tree.nwk").write_text("(a,b);")
    changed = launch(folder, "replay", "{d}/run/run.json", "--dry-run")
    assert changed.returncode == 69
    assert "The input of --tree has changed" in changed.stderr
    forced = launch(folder, "replay", "{d}/run", "--dry-run", "--force")
    assert forced.returncode == 0, forced.stderr
    assert "has changed" in forced.stderr
    (folder / "tree.nwk").unlink()
    assert "is gone" in launch(folder, "replay", "{d}/run").stderr


@pytest.mark.medium
def test_commands_without_a_run_folder_are_replayed_too(folder: Path, study_dir: Path) -> None:
    for name in ("table.biom", "tree.nwk"):
        (folder / name).write_bytes((study_dir / name).read_bytes())
    args = ["unifrac", "--table", "table.biom", "--tree", "tree.nwk", "--output", "u.tsv"]
    assert launch(folder, *args, OMP_NUM_THREADS="1").returncode == 0
    first = (folder / "u.tsv").read_text()
    place = folder / "u.tsv.run.json"
    record = json.loads(place.read_text())
    assert record["launch"]["engine"] == "native"
    assert record["launch"]["engine_version"] == record["versions"]["python"]
    assert set(record["inputs"]) == {"--table", "--tree"}

    again = launch(folder, "replay", str(place), "--output", "v.tsv", OMP_NUM_THREADS="1")
    assert again.returncode == 0, again.stderr
    assert (folder / "v.tsv").read_text() == first

    record["launch"] |= {"kernel": "5.0", "engine_version": "3.0"}
    place.write_text(json.dumps(record))
    other = launch(folder, "replay", str(place), "--dry-run")
    assert other.returncode == 0, other.stderr
    assert "Another kernel: 5.0 then" in other.stderr
    assert "Another engine version: 3.0 then" in other.stderr
    (folder / "v.tsv.run.json").unlink()
    assert launch(folder, "replay", "{d}", "--dry-run").returncode == 0  # the only one there
    place.with_name("x.run.json").touch()
    assert "Several runs left a record" in launch(folder, "replay", "{d}").stderr


def test_a_run_that_was_not_launched(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"aam": __version__, "launch": None}))
    with pytest.raises(MissingInput, match="did not start"):
        replay.read(tmp_path)
