"""Errors of files and folders: absent, unreadable, not writable, full disks, run folders in use."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from aam.network.inference.stored_networks import FORMAT
from aam.network.training.checkpoints import read_tensors
from tests.support.bench import CANNOT_CREATE, DATA, NO_INPUT, USAGE, Bench, Refused
from tests.support.commands import TINY, aam

ROOT = Path(__file__).parents[2]
OTHER_USER = 65534


# Files that are not there


@pytest.mark.parametrize(
    "args",
    [
        "train --table",
        "train --pretrained-encoder",
        "train --resume-from",
        "pretrain --unifrac-matrix",
    ],
)
def test_missing_files(bench: Bench, refused: Refused, args: str) -> None:
    command, flag = args.split()
    tree = {"tree": False} if flag == "--unifrac-matrix" else {}
    absent = bench.work / "absent"
    refused(getattr(bench, command)(flag, absent, **tree), NO_INPUT, str(absent), "not exist")
    if flag not in ("--pretrained-encoder", "--resume-from"):
        folder = getattr(bench, command)(flag, bench.good, **tree)
        refused(folder, NO_INPUT, f"'{bench.good}' is a folder")


def test_an_output_folder_that_holds_the_study(bench: Bench, refused: Refused) -> None:
    shown = refused(bench.train("--output-dir", bench.good), USAGE, "--output-dir has --table")
    assert f"choose another folder, such as '{bench.good / 'run'}'" in shown
    refused(bench.pretrain("--output-dir", f"{bench.good}/."), USAGE, "The output folder holds")


@pytest.mark.parametrize("header", ["sample-id", "#SampleID", '"sample-id"'])
def test_columns_are_looked_up_before_anything_is_read(
    bench: Bench, refused: Refused, header: str
) -> None:
    # The table is no table: the header of the metadata is read first, and alone.
    table = bench.text("table.biom", "no table")
    metadata = bench.text("m.tsv", f"# comment\n{header}\tph\ta,b\nx\t1\n")
    given = ("--table", table, "--metadata", metadata)
    shown = refused(bench.train(*given, "--metadata-column", "pH"), DATA, "no column 'pH'")
    assert f"--metadata-column for '{metadata}'; it has 2: ph, a,b; did you mean 'ph'?" in shown
    refused(bench.train(*given, "--metadata-column", "ph,host"), DATA, "no column 'host'")
    refused(bench.train(*given, "--group-column", "host"), DATA, "--group-column for")
    refused(bench.train(*given, "--metadata-column", "a,b"), DATA, "table.biom")


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Take the permission to read; root, who may read all, becomes another user meanwhile."""
    is_root = os.geteuid() == 0
    mode = path.stat().st_mode
    path.chmod(0)
    if is_root:
        os.setresuid(OTHER_USER, OTHER_USER, 0)
    try:
        yield
    finally:
        if is_root:
            os.setresuid(0, 0, 0)
        path.chmod(mode)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may look into, as pytest's are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("hidden", ["file", "folder"])
def test_a_path_that_may_not_be_read(
    bench: Bench, open_folder: Path, capsys: pytest.CaptureFixture[str], hidden: str
) -> None:
    folder, metadata = open_folder / "closed", open_folder / "metadata.tsv"
    metadata.write_text("sample-id\tph\ns\t7\n")
    args = ("--metadata", metadata, "--metadata-column", "ph")
    folder.mkdir()
    table = folder / "predictions.tsv"
    table.write_text("sample-id\tpredicted\n")
    # The first call, as root, imports what the second one needs.
    assert aam("evaluate", "--predictions", metadata, *args) == DATA
    capsys.readouterr()
    with unreadable(table if hidden == "file" else folder):
        status = aam("evaluate", "--predictions", table, *args)
    shown = capsys.readouterr().err
    assert status == NO_INPUT, shown
    sentence = rf"aam: The predictions file cannot be read: '{table}'.*; check .*permissions.\n"
    assert re.fullmatch(sentence, shown)


def test_a_run_folder_that_may_not_be_written(
    bench: Bench, open_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = open_folder / "closed"
    folder.mkdir()
    assert bench.train("--table", "absent") == NO_INPUT
    capsys.readouterr()
    with unreadable(folder):
        for place in (folder, folder / "run"):
            status = bench.train("--output-dir", place)
            shown = capsys.readouterr().err
            assert status == CANNOT_CREATE, shown
            assert str(folder) in shown
            assert "choose another --output-dir" in shown
    assert list(folder.iterdir()) == []


# Output that is in the way, or has no room


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_folder_that_holds_a_run_is_refused(
    bench: Bench, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bench.work / "held"
    shutil.copytree(trained, folder)
    mine = ["notes.txt", "fold-changes.tsv", "target-genes.tsv", "fold-analysis/metrics.csv",
            "fold-1/notes.txt", "counts-alone/notes.txt"]  # fmt: skip
    for name in mine:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    before = snapshot(folder)
    assert bench.train("--output-dir", folder) == CANNOT_CREATE
    shown = capsys.readouterr().err
    assert f"aam: The folder already holds a run: '{folder}' has run.json, " in shown
    assert "--resume-from" in shown
    assert "--overwrite" in shown
    assert snapshot(folder) == before

    # Asked to replace it with bad input, the run is kept.
    spoilt = ("--metadata-column", "phh")
    assert bench.train("--output-dir", folder, "--overwrite", *spoilt) == DATA
    assert bench.train("--output-dir", folder, "--overwrite", "--attention-heads", 3) == USAGE
    assert snapshot(folder) == before

    assert bench.train("--output-dir", folder, "--overwrite", "--seed", 5) == 0
    after = snapshot(folder)
    assert {name for name, content in after.items() if content == b"mine"} == {*mine}
    assert after["run.json"] != before["run.json"]
    assert len([name for name in after if "tfevents" in name]) == 1


def test_a_run_without_a_list_of_its_files_is_not_replaced(
    bench: Bench, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(trained, bench.work / "older"))
    record = json.loads((folder / "run.json").read_text())
    for files in (None, ["../outside"], [""]):
        (folder / "run.json").write_text(json.dumps({**record, "files": files}))
        before = snapshot(folder)
        assert bench.train("--output-dir", folder, "--overwrite") == CANNOT_CREATE
        shown = capsys.readouterr().err
        assert f"does not list its files: '{folder}' has run.json, model, splits.tsv, " in shown
        assert snapshot(folder) == before
    assert aam("report", "--run-dir", folder) == 0


@pytest.mark.parametrize("option", ["--overwrite", "--resume-from"])
def test_files_of_the_user_with_names_of_a_run(
    bench: Bench, trained: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    given = (option, "auto") if option == "--resume-from" else (option,)
    plain, run = bench.work / "plain", Path(shutil.copytree(trained, bench.work / "held"))
    plain.mkdir()
    (plain / "predictions.tsv").write_text("mine")
    (run / "unifrac.tsv").write_text("mine")
    for folder, name in ((plain, "predictions.tsv"), (run, "unifrac.tsv")):
        before = snapshot(folder)
        assert bench.train("--output-dir", folder, *given) == CANNOT_CREATE
        assert f"'{folder}' has {name}; move them" in capsys.readouterr().err
        assert snapshot(folder) == before


def test_what_commands_add_to_a_run_is_listed(bench: Bench, trained: Path) -> None:
    run = Path(shutil.copytree(trained, bench.work / "held"))
    (run / "report.html").unlink()
    record = json.loads((run / "run.json").read_text())
    record["files"].remove("report.html")
    (run / "run.json").write_text(json.dumps(record))
    table, tree = ("--table", bench.good / "table.biom"), ("--tree", bench.good / "tree.nwk")
    assert aam("unifrac", *table, *tree, "--output", run / "unifrac.tsv") == 0
    assert aam("predict", *table, "--model", run, "--output", run / "new.tsv") == 0
    assert aam("report", "--run-dir", run) == 0
    added = ["unifrac.tsv", "unifrac.tsv.run.json", "report.html"]
    assert json.loads((run / "run.json").read_text())["files"] == [*record["files"], *added]
    assert bench.train("--output-dir", run, "--overwrite") == 0
    assert not (run / "unifrac.tsv").exists()
    assert (run / "new.tsv").exists()


def test_a_run_is_resumed_only_as_itself(
    bench: Bench, trained: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bench.work / "held"
    shutil.copytree(trained, folder)
    before = snapshot(folder)
    given = ("--output-dir", folder, "--resume-from", folder, "--epochs", 3)
    assert bench.train(*given, "--embedding-dim", 16) == USAGE
    assert "--embedding-dim 16 (was 8)" in capsys.readouterr().err
    assert bench.train(*given, "--lr", 0.5) == USAGE
    assert "--lr 0.5 (was 0.0003)" in capsys.readouterr().err
    assert bench.train(*given, "--metadata-column", "depth") == USAGE
    assert "--metadata-column depth (was ph)" in capsys.readouterr().err
    assert bench.train(*given, "--resume-from", pretrained) == DATA
    assert "written by `aam pretrain`; resume it with that command" in capsys.readouterr().err
    assert bench.train(*given, "--folds", 3) == USAGE
    assert snapshot(folder) == before
    assert bench.train(*given) == 0
    rows = (folder / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", "0", "1", "2"]


def test_an_output_replaces_no_other_path_of_the_command(
    bench: Bench, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, study = Path(shutil.copytree(trained, bench.work / "held")), bench.work / "study.aam"
    given = ("--table", bench.good / "table.biom")
    tree, labels = ("--tree", bench.good / "tree.nwk"), ("--metadata", bench.good / "metadata.tsv")
    assert aam("prepare", *given, "--output", study) == 0
    metadata = Path(shutil.copy(bench.good / "metadata.tsv", study))
    link = bench.work / "link"
    link.symlink_to(run)
    capsys.readouterr()
    before = snapshot(bench.work)
    predict = ("predict", *given, "--model", run)
    evaluate = ("evaluate", "--predictions", run / "predictions.tsv", "--metadata-column", "ph")
    train = ("train", *given, *labels, "--metadata-column", "ph", "--members", "kernel")
    twice, part = "Two outputs are one file", "would replace a file of a run, a model or a study"
    inside = "The output folder holds an input"
    out = bench.work / "p.tsv"
    clades = ("--taxonomy", bench.good / "taxonomy.tsv", "--clades", out)
    for line, phrase in [
        ((*predict, "--output", out, "--explain", bench.work / "held" / ".." / "p.tsv"), twice),
        (("importance", *predict[1:], "--output", out, *clades), twice),
        ((*predict, "--output", run / "model" / "model.json", "--overwrite"), part),
        ((*predict, "--output", link / "model" / "new.tsv"), part),
        ((*predict, "--output", run / "predictions.tsv", "--overwrite"), part),
        ((*predict, "--output", run / "checkpoints" / "new.tsv"), part),
        ((*evaluate, *labels, "--output", run / "run.json", "--overwrite"), part),
        (("unifrac", *given, *tree, "--output", study / "m.tsv"), part),
        ((*train, "--output-dir", run / "model", "--overwrite"), part),
        ((*train, "--output-dir", run, "--overwrite", "--splits", run / "splits.tsv"), inside),
        (("prepare", *given, "--metadata", metadata, "--output", study, "--overwrite"), inside),
    ]:
        assert aam(*line) == USAGE, line
        assert phrase in capsys.readouterr().err
    assert aam("prepare", *given, "--output", study, "--overwrite") == CANNOT_CREATE
    assert f"'{study}' has metadata.tsv" in capsys.readouterr().err
    assert snapshot(bench.work) == before

    own = ("--output", run / "importance.tsv", "--overwrite")
    assert aam("importance", *predict[1:], *own) == 0
    assert aam(*predict, "--output", run / "new.tsv") == 0


def test_an_output_that_cannot_be_made(
    bench: Bench, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = bench.text("file", "mine")
    for place in (file, file / "run"):
        assert bench.train("--output-dir", place) == CANNOT_CREATE
        assert f"'{file}' is not a folder" in capsys.readouterr().err
    args = ("--table", bench.good / "table.biom", "--model", trained)
    assert aam("predict", *args, "--output", file) == CANNOT_CREATE
    assert f"aam: The output exists: '{file}'; add --overwrite" in capsys.readouterr().err
    assert aam("predict", *args, "--output", file / "p.tsv") == CANNOT_CREATE
    assert file.read_text() == "mine"


def whole(path: Path) -> None:
    if path.suffix == ".ckpt":
        assert read_tensors(path)["aam"]["format"] == FORMAT
    elif path.suffix in (".json", ".csv", ".tsv"):
        assert path.read_text().endswith("\n")
    elif path.suffix == ".safetensors":
        assert load_file(path)
    else:
        assert path.name == ".lock" or path.parent.name == "tensorboard"


@pytest.mark.medium
@pytest.mark.parametrize("kib", [64, 250])
def test_a_disk_that_fills_while_training(
    bench: Bench, small_disk: Callable[[int], Path], kib: int
) -> None:
    # A checkpoint of this network has about 230 KiB: the first, or the second, does not fit.
    disk = small_disk(kib)
    args = ("--tree", bench.good / "tree.nwk", "--table", bench.good / "table.biom",
            "--output-dir", disk / "run", "--checkpoint-every-n-steps", 1)  # fmt: skip
    command = [sys.executable, "-m", "aam.cli", "pretrain", *TINY, *(str(word) for word in args)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == CANNOT_CREATE, done.stderr
    *_, sentence = done.stderr.splitlines()
    assert sentence.startswith(f"aam: The disk is full: '{disk}', while writing '{disk}/run/")
    assert sentence.endswith("free some space or choose another folder.")
    assert "Traceback" not in done.stderr
    left = [path for path in disk.rglob("*") if path.is_file()]
    assert left
    for path in left:
        whole(path)


def test_a_disk_that_is_full_for_a_study(
    small_disk: Callable[[int], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    disk = small_disk(8)
    given = ("--samples", 9, "--asvs", 30, "--richness", 9, "--subjects", 3, "--depth", 200)
    assert aam("example", *given, "--output-dir", disk / "study") == CANNOT_CREATE
    [sentence] = capfd.readouterr().err.splitlines()
    assert sentence.startswith(f"aam: The disk is full: '{disk}', while writing")
    assert not list((disk / "study").iterdir())


def test_a_disk_that_is_full_for_a_matrix(
    bench: Bench,
    trained: Path,
    small_disk: Callable[[int], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = small_disk(8)
    (disk / "filler").write_bytes(bytes(4096))
    given = ("--table", bench.good / "table.biom", "--tree", bench.good / "tree.nwk")
    for name in ("d.npy", "d.h5", "d.tsv"):
        assert aam("unifrac", *given, "--output", disk / name) == CANNOT_CREATE
        assert f"aam: The disk is full: '{disk}', while writing" in capsys.readouterr().err
        # The ids beside a .npy are whole and may stay.
        assert {path.name for path in disk.iterdir()} <= {"filler", "d.txt"}
        (disk / "d.txt").unlink(missing_ok=True)
    (disk / "filler").write_bytes(bytes(8192))
    args = ("--table", bench.good / "table.biom", "--model", trained)
    assert aam("predict", *args, "--output", disk / "p.tsv") == CANNOT_CREATE
    assert [path.name for path in disk.iterdir()] == ["filler"]
