"""The run folder: its lock, and the options, split and inputs of a resumed run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from aam.contract.errors import CannotCreate, DataError, UsageError
from aam.contract.options.commands.studies import Example
from aam.data.simulation import simulate, write_study
from aam.pipeline import run_folder
from tests.support.commands import aam
from tests.support.resumed_runs import KILL, STOPPED, USR1, arguments_of, part


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
    left = ["checkpoints/.last.a-4242.ckpt", "checkpoints/.best.another-7.ckpt", ".run.a-77.json"]
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
        with pytest.raises(CannotCreate), run_folder.locked(tmp_path):
            pass
    finally:
        os.kill(pid, KILL)
        os.waitpid(pid, 0)


@pytest.fixture(scope="module")
def other_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other")
    options = Example(
        output_dir=folder, samples=36, asvs=90, length=60, richness=25, depth=900, subjects=12,
        seed=8,
    )  # fmt: skip
    write_study(simulate(options), options)
    return folder


def test_a_resumed_run_has_the_options_and_the_split_of_before(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = arguments_of(study_dir, "regression", tmp_path)
    assert part(line, (3, USR1)) == STOPPED
    different = ("--group-column subject", "--penalty 0.3", "--dropout 0.5", "--count-penalty 1.0")
    for option in map(str.split, different):
        assert aam(*line, *option) == UsageError.status
        assert f"has different options: {' '.join(option)} (was " in capsys.readouterr().err

    # A split that another version of this program might have made: two samples change sides.
    path = tmp_path / "splits.tsv"
    made = path.read_text().splitlines()
    first, second = (next(k for k, row in enumerate(made) if f"\t{side}\t" in row)
                     for side in ("train", "validation"))  # fmt: skip
    swapped = list(made)
    for here, there in ((first, second), (second, first)):
        swapped[here] = "\t".join([made[there].split("\t")[0], *made[here].split("\t")[1:]])
    path.write_text("\n".join(swapped) + "\n")
    free = ("--num-workers", "1", "--checkpoint-every-n-steps", "2", "--max-memory-gb", "4")
    assert part([*line, *free]) == 0
    assert sorted(path.read_text().splitlines()) == sorted(swapped) != sorted(made)


def test_a_resumed_run_has_the_input_of_before(
    study_dir: Path, other_study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = arguments_of(study_dir, "pretraining", tmp_path / "run")
    assert part(line, (5, USR1)) == STOPPED
    assert aam(*arguments_of(other_study, "pretraining", tmp_path / "run")) == DataError.status
    printed = capsys.readouterr().err
    assert f"has different input files: --table '{other_study / 'table.biom'}', SHA-256 " in printed
    assert "--pretrained-encoder" in printed
    shutil.copytree(study_dir, tmp_path / "copy")
    assert part(arguments_of(tmp_path / "copy", "pretraining", tmp_path / "run")) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["pretraining", pytest.param("counts-alone", marks=pytest.mark.nightly), "targets"]
)
def test_a_run_lists_its_files(study_dir: Path, tmp_path: Path, name: str) -> None:
    run, logger = tmp_path / "run", ("--logger", "tensorboard")
    if name == "pretraining":
        line = arguments_of(study_dir, "pretraining", run, "--epochs", 1)
        assert part(line, (1, KILL)) == -KILL
        assert files_on_disk(run) <= files_in_list(run)
    elif name == "counts-alone":
        more = ("--epochs", 1, "--categorical-columns", "subject", "--members", "kernel")
        line = arguments_of(study_dir, "folds", run, *more, *logger)
    else:
        study = ("--table", study_dir / "table.biom", "--metadata", study_dir / "metadata.tsv")
        columns = ("--metadata-column", "ph,depth", "--members", "kernel", "--folds", 2)
        line = [str(word) for word in ("train", *study, *columns, "--output-dir", run)]
    assert aam(*line) == 0
    assert files_on_disk(run) == files_in_list(run)
    assert len(files_in_list(run)) > 8
    again = [word for word in line if word not in ("--resume-from", "auto")]
    mine = run / "target-genes.tsv"
    mine.write_text("mine")
    assert aam(*again, "--overwrite") == 0
    assert files_on_disk(run) - {"target-genes.tsv"} == files_in_list(run)
    assert mine.read_text() == "mine"


def files_on_disk(run: Path) -> set[str]:
    found = (str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    # TensorBoard names its files by time and process.
    return {re.sub("events.*", "events", name) for name in found if not name.endswith(".lock")}


def files_in_list(run: Path) -> set[str]:
    names = {"run.json"}
    for entry in json.loads((run / "run.json").read_text())["files"]:
        path = run / entry
        if (path / "run.json").exists():
            names |= {f"{entry}/{name}" for name in files_in_list(path)}
        elif path.is_dir():
            names |= {f"{entry}/{name}" for name in files_on_disk(path)}
        elif path.exists():
            names.add(entry)
    return names
