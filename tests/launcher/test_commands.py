"""Errors of the commands of the launcher: causes, exit statuses, damaged lists of images."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hosts import Tree
from tests.support.launches import ROOT, RUN, launch


def test_an_output_that_is_full_is_said(folder: Path) -> None:
    command = [sys.executable, "-m", "launcher.cli", "--version"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert done.returncode == 73
    assert done.stderr.startswith("aam-launch: The disk is full: standard output, No space left")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", "A damaged list of images"),
        ('{"cpu": {"sif": 5}}', "cpu.sif is 5, expected a mapping"),
        ('{"cpu": {"podman": {"reference": "a\\u0000b"}}}', "NUL"),
        ('{"cpu": {"podman": {"reference": "a", "labels": [1]}}}', "labels is a list, expected"),
    ],
)
def test_a_damaged_list_of_images_is_one_sentence(folder: Path, content: str, named: str) -> None:
    (folder / "images.json").write_text(content)
    for args in (["explain", *RUN], ["doctor"], ["images"]):
        done = launch(folder, *args, AAM_IMAGE_DIR=str(folder))
        assert done.returncode == 78, (args, done.stderr)
        assert named in done.stderr
        assert done.stderr.count("\n") == 1


# --- errors that have a status of their own


@pytest.mark.parametrize(
    ("args", "status", "sentence"),
    [
        ([*RUN, "--image", "rocm663"], 64, "did you mean 'rocm63'"),
        ([*RUN, "--image", "rocm36"], 64, "did you mean 'rocm63'"),
        ([*RUN, "--image", "cpu"], 69, "none of apptainer"),
        ([*RUN, "--image", "/no/such.sif"], 66, "does not exist"),
        ([*RUN, "--runtime", "podman"], 69, "no podman on PATH"),
        ([*RUN, "--runtime", "podmn"], 78, "did you mean 'podman'"),
        ([*RUN, "--tree", "{d}/none.nwk"], 66, "No file for --tree"),
        ([*RUN, "--site", "nowhere"], 78, "No such site"),
        (["pretrain", "--table", "{d}/t.biom", "--output-dir", "{d}/t.biom/x"], 73, "is a file"),
        ([*RUN, "--host", "{d}"], 64, "A captured host runs nothing: --host {d} and `pretrain`"),
        (["submit", *RUN, "--host", "{d}"], 64, "`explain`, `doctor`, `images`"),
        (["submit", "--dry-run", *RUN, "--host", "{d}"], 64, "`submit`: it runs on this host"),
        (["jobs", "--host", "{d}"], 64, "A captured host runs nothing"),
        ([*RUN, "--config", "{d}/none.json"], 66, "none.json"),
        (["completion", "tcsh"], 64, "give bash or zsh or fish"),
        (["doctor", "x"], 64, "A value without an option: 'x'"),
        (["doctor", "--capture", "/proc/x.tar"], 73, "cannot be written"),
        (["explain"], 64, "Nothing to explain: no command is named; write `explain train ...`."),
        (["--seed", "1", "train"], 64, "An option before the command: '--seed'; write it after"),
    ],
)
def test_causes_and_statuses(folder: Path, args: list[str], status: int, sentence: str) -> None:
    done = launch(folder, *args)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert sentence.format(d=folder) in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_bind_without_a_folder_is_refused(folder: Path) -> None:
    for value, status, message in (
        ("{d}/absent:/x", 66, "'{d}/absent' does not exist (command line, --bind); check the path"),
        ("", 64, "Nothing to mount: '', command line, --bind; write PATH"),
    ):
        done = launch(folder, *RUN, "--bind", value)
        assert (done.returncode, done.stdout) == (status, "")
        assert message.format(d=folder) in done.stderr
    capture = Tree(folder / "h").cpu()
    args = ("--bind", "/absent", "--runtime", "apptainer", "--host", str(capture.root))
    assert "/absent" in launch(folder, "explain", *RUN, *args).stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
@pytest.mark.parametrize("program", ["launcher.cli", "aam.cli"])
def test_closed_streams_stop_nothing(folder: Path, program: str, closed: str) -> None:
    own = program == "launcher.cli"
    args = ["explain", *RUN, "--device", "cpu"] if own else ["--version"]
    command = [sys.executable, "-m", program, *(word.format(d=folder) for word in args)]
    done = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *command], capture_output=True,
                          text=True, cwd=ROOT, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (">" not in closed)


@pytest.mark.parametrize(
    ("module", "words"), [("launcher.cli", ["doctor"]), ("aam.cli", ["inspect", "table.biom"])]
)
def test_a_current_folder_that_is_gone(folder: Path, module: str, words: list[str]) -> None:
    command = [sys.executable, "-m", module, *words]
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    done = subprocess.run(["sh", "-c", script, "sh", *command], capture_output=True, text=True,
                          cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
                          check=False)  # fmt: skip
    assert done.returncode == 66
    name = "aam" if module == "aam.cli" else "aam-launch"
    assert done.stderr.startswith(f"{name}: The current folder is gone: it was removed; change")
