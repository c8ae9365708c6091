"""Text of captures, sites, records and engines on the terminal, and secrets, which stay hidden."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from launcher.engines.sif import record_of
from launcher.images import index
from tests.support.hosts import MI300A, Tree
from tests.support.launches import ROOT, engine, launch, sif
from tests.support.submissions import SITE, slurm_and_image, submit

CONTROL = re.compile(r"[^\n -~\u00a1-\uffff]")
TITLE = "\x1b]0;owned\x07\u202e"
"""It names the window of a terminal, and turns the direction of the text after it."""


def hostile_capture(folder: Path) -> tuple[str, ...]:
    tree = Tree(folder / "h").cpu().amd(MI300A, 2)
    kfd = {"/dev/kfd": {"gid": 9, "group": f"g{TITLE}", "mode": 0o660, "access": False}}
    podman = {"name": "podman", "path": f"/bin/{TITLE}", "version": TITLE}
    tree.recorded(engines=[podman], nodes=kfd)
    place = folder / "h/proc/sys/kernel"
    place.mkdir(parents=True, exist_ok=True)
    (place / "hostname").write_text(f"n1{TITLE}\n")
    (place / "osrelease").write_text(f"6.1{TITLE}\n")
    return "--host", str(tree.root)


def hostile_site(folder: Path) -> tuple[str, ...]:
    (folder / "s.yaml").write_text(json.dumps(
        {"title": f"t{TITLE}", "home": {"value": f"/h{TITLE}", "source": TITLE, "confirm": TITLE}}
    ))  # fmt: skip
    return (str(folder / "s.yaml"),)


def hostile_record(folder: Path) -> tuple[str, ...]:
    recorded = replace(record_of(sif(folder / "cpu.sif")), verified=TITLE)
    for name in ("cpu", f"a{TITLE}"):
        index.write(folder, name, "sif", recorded)
    return (f"--image-dir={folder}",)


def hostile_engine(folder: Path) -> tuple[str, ...]:
    program = engine(folder, "apptainer", "apptainer version 1.4.5")
    program.write_text(
        f"{program.read_text()}[ $1 = --version ] || {{ echo '{TITLE}'; exit 1; }}\n"
    )
    return "cpu", "--engine", "apptainer", f"--image-dir={folder}", "--registry", "127.0.0.1:9/aam"


def hostile_job(folder: Path) -> tuple[str, ...]:
    (folder / ".local/state/aam/jobs").mkdir(parents=True)
    script = f'#SBATCH "--job-name={TITLE}"\n#SBATCH --output={folder}/run-%j.log\n'
    (folder / ".local/state/aam/jobs/7.sh").write_text(script)
    (folder / "run-7.log").write_text(f"aam: \x1b[2J{TITLE}.\naam-job: ended with status 1")
    return ()


@pytest.mark.parametrize(
    ("command", "prepare"),
    [("doctor", hostile_capture), ("explain check --device cpu", hostile_capture),
     ("--dry-run check --device cpu", hostile_capture), ("images", hostile_capture),
     ("doctor --site", hostile_site), ("images", hostile_record), ("images pull", hostile_engine),
     ("jobs", hostile_job)],
)  # fmt: skip
def test_no_control_character_reaches_the_terminal(
    folder: Path, command: str, prepare: Callable[[Path], tuple[str, ...]]
) -> None:
    done = launch(folder, *command.split(), *prepare(folder))
    assert "owned" in done.stdout + done.stderr
    assert not CONTROL.search(done.stdout), ascii(done.stdout)
    assert not CONTROL.search(done.stderr), ascii(done.stderr)


# --- secrets


@pytest.mark.parametrize("form", ["explain", "explain --json", "--dry-run"])
@pytest.mark.parametrize("runtime", ["native", "apptainer"])
def test_values_of_env_are_hidden(folder: Path, form: str, runtime: str) -> None:
    engine(folder, "apptainer")
    index.write(folder, "cpu", "sif", record_of(sif(folder / "cpu.sif")))
    values = ("API_KEY=s3cret", "MY_PW=s3cret", "OTHER", "NCCL_DEBUG=visible")
    own = ["--runtime", runtime, *(f"--env={value}" for value in values), f"--image-dir={folder}"]
    done = launch(folder, *form.split(), *own, "check", "--device", "cpu", OTHER="s3cret")
    assert done.returncode in (0, 69), done.stderr  # natively PyTorch may be absent
    assert "s3cret" not in done.stdout + done.stderr
    assert "API_KEY=..." in done.stdout
    assert "MY_PW=..." in done.stdout
    assert ("NCCL_DEBUG=visible" in done.stdout) == ("explain" in form)


SEARCH = ("search", "--table", "table.biom", "--metadata", "m.tsv", "--metadata-column", "age",
          "--output-dir", "out", "--storage")  # fmt: skip
HOST = "db.example.org"


@pytest.mark.parametrize(
    ("url", "shown"),
    [(f"postgresql://ada:s3cret@{HOST}/trials", f"postgresql://ada:...@{HOST};"),
     (f"postgresql://ada@{HOST}/t?password=s3cret", f"postgresql://ada@{HOST}?password=...;"),
     (f"mysql://{HOST}/t?passwd=s3cret", f"mysql://{HOST}?passwd=...;"),
     (f"postgresql://{HOST}/t?a=b&sslpassword=s3cret", f"postgresql://{HOST}?sslpassword=...;")],
)  # fmt: skip
@pytest.mark.parametrize("program", ["aam", "aam-launch", "submit"])
def test_a_password_of_a_database_is_refused(
    place: Path, program: str, url: str, shown: str
) -> None:
    search = (*SEARCH, url)
    if program == "submit":
        slurm_and_image(place, "echo 41")
        done = submit(place, "--site", "./site.yaml", *search)
    elif program == "aam-launch":
        done = launch(place, "--dry-run", *search)
    else:
        done = subprocess.run(
            [sys.executable, "-m", "aam", *search], cwd=place, env={"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (64, "")
    assert f"A password in --storage: {shown}" in done.stderr
    written = [path for path in place.rglob("*") if path.is_file() and path.suffix != ".sif"]
    assert not [path for path in written if "s3cret" in path.read_text(errors="replace")]


# --- words that would become options of an engine


def test_a_record_puts_no_option_into_the_command_line_of_an_engine(folder: Path) -> None:
    engine(folder, "podman")
    recorded = {"podman": {"reference": "localhost/aam:cpu", "id": "--privileged"}}
    (folder / "images.json").write_text(json.dumps({"cpu": recorded}))
    for words in (
        ["images"],
        ["--dry-run", "--image", "cpu", "check"],
        ["images", "verify", "cpu"],
    ):
        done = launch(folder, f"--image-dir={folder}", *words)
        assert done.returncode == 78
        assert "A damaged list of images" in done.stderr


def test_a_setting_puts_no_option_into_the_command_line_of_an_engine(folder: Path) -> None:
    engine(folder, "podman")
    done = launch(folder, "--dry-run", "--image=--privileged:x", "check")
    assert done.returncode == 78
    assert "--privileged:x" in done.stderr
    (folder / "site.yaml").write_text(f"{SITE}images: {{own: {{reference: --privileged}}}}\n")
    done = launch(folder, "--dry-run", "--site", "./site.yaml", "--image", "own", "check")
    assert (done.returncode, "Invalid value" in done.stderr) == (78, True), done.stderr


def test_lines_are_as_long_as_a_terminal_is_wide(tmp_path: Path) -> None:
    host = Tree(tmp_path / "h").cpu().amd(MI300A, 2).root
    argv = [sys.executable, str(ROOT / "launcher"), "doctor", "--host", str(host)]
    piped = subprocess.run(argv, capture_output=True, text=True)
    command = f"stty cols 80; exec {shlex.join(argv)}"
    terminal = subprocess.run(
        ["script", "-qec", command, "/dev/null"], capture_output=True, text=True
    )
    assert max(map(len, piped.stdout.splitlines())) > 80
    wide = [line for line in terminal.stdout.splitlines() if len(line) > 80]
    assert all(len(line.split()) == 1 for line in wide)  # the path of the capture alone
    assert terminal.stdout.split() == piped.stdout.split()
