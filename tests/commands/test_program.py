"""What surrounds a command: terminals that fail, limits of process and memory, signals."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from aam.memory import GIB, memory_available, memory_budget, shown_size
from tests.support.bench import CANNOT_CREATE, DATA

FULL = "/dev/full"


def start(
    *arguments: object,
    stdout: IO[str] | int = subprocess.PIPE,
    stderr: IO[str] | int = subprocess.PIPE,
    cwd: Path | None = None,
    limit: Callable[[], None] | None = None,
    **variables: str,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "aam.cli", *map(str, arguments)],
        stdout=stdout, stderr=stderr, cwd=cwd, text=True, preexec_fn=limit,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **variables},
    )  # fmt: skip


def ended(*arguments: object, **options: Any) -> tuple[int, str]:
    """Wait for the end of a command; return its status and what it printed on standard error."""
    process = start(*arguments, **options)
    _, shown = process.communicate(timeout=120)
    return process.returncode, shown


def without_a_reader() -> int:
    """Return the end of a pipe whose reader, such as `head`, has ended."""
    read, write = os.pipe()
    os.close(read)
    return write


def kernel(study: Path, output: Path) -> list[object]:
    """Arguments of the shortest training of the default members."""
    return ["train", "--table", study / "table.biom", "--metadata", study / "metadata.tsv",
            "--metadata-column", "ph", "--members", "kernel", "--folds", 2,
            "--output-dir", output]  # fmt: skip


@pytest.fixture
def evaluation(tmp_path: Path) -> list[object]:
    rows = "".join(f"s{n}\t{n}\t{n + 0.5}\n" for n in range(9))
    (tmp_path / "predictions.tsv").write_text(f"sample-id\tactual\tpredicted\n{rows}")
    (tmp_path / "metadata.tsv").write_text(
        "sample-id\tage\n" + "".join(f"s{n}\t{n}\n" for n in range(9))
    )
    return ["evaluate", "--predictions", tmp_path / "predictions.tsv", "--metadata-column", "age",
            "--metadata", tmp_path / "metadata.tsv", "--output", tmp_path / "m.json"]  # fmt: skip


@pytest.mark.medium
def test_results_are_written_whatever_the_terminal_does(
    tmp_path: Path, evaluation: list[object]
) -> None:
    pipe, full = without_a_reader(), os.open(FULL, os.O_WRONLY)
    for unbuffered, streams, status in [
        ("", {"stdout": pipe, "stderr": pipe}, 0),
        ("1", {"stdout": pipe, "stderr": full}, 0),
        ("", {"stdout": full}, CANNOT_CREATE),
    ]:
        result, shown = ended(*evaluation, "--overwrite", PYTHONUNBUFFERED=unbuffered, **streams)
        assert result == status, shown
        (tmp_path / "m.json").rename(tmp_path / "seen.json")
    assert shown.splitlines()[-1].startswith("aam: The disk is full: standard output, No space")
    os.close(pipe)


@pytest.mark.medium
def test_a_training_is_complete_whatever_the_terminal_does(study_dir: Path, tmp_path: Path) -> None:
    stream = os.open(FULL, os.O_WRONLY)
    process = start(*kernel(study_dir, tmp_path / "run"), stdout=subprocess.PIPE, stderr=stream)
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "R²" in shown
    assert {"report.html", "scores.json", "model"} <= set(os.listdir(tmp_path / "run"))
    os.close(stream)


def test_a_refusal_keeps_its_status_without_a_terminal() -> None:
    for stderr in (os.open(FULL, os.O_WRONLY), without_a_reader()):
        assert ended("trian", stderr=stderr)[0] == 64


@pytest.mark.medium
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_training_with_a_sentence(
    study_dir: Path, tmp_path: Path, number: signal.Signals
) -> None:
    # SIGHUP is ignored where the tests run under nohup.
    default = lambda: signal.signal(number, signal.SIG_DFL)  # noqa: E731
    process = start(*kernel(study_dir, tmp_path / "run"), limit=default)
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(number)
    _, shown = process.communicate(timeout=120)
    assert process.returncode == 75, shown
    last = shown.splitlines()[-1]
    assert last == f"aam: Stopped by {number.name}; start the command again."


SWALLOWED = """
import os, signal, sys, time, weakref
from aam.cli import stopped_by_signals
from aam.contract import program

class Thing:
    pass

def terminate(_=None):
    os.kill(os.getpid(), signal.SIGTERM)

def drop():
    thing = Thing()
    kept = weakref.ref(thing, terminate)
    del thing  # Python drops an exception in the callback

def replace():
    try:
        terminate()
    except BaseException as error:
        raise RuntimeError("the library failed") from error

def clean():
    try:
        terminate()
    finally:
        time.sleep(1.5)  # longer than until the handler repeats itself
        print("cleaned", flush=True)

def command():
    with stopped_by_signals():
        globals()[sys.argv[1]]()
        time.sleep(60)
    return 0

sys.exit(program.run("aam", command))
"""


@pytest.mark.parametrize("how", ["drop", "replace", "clean"])
def test_a_signal_whose_exception_is_swallowed_ends_the_command(how: str) -> None:
    command = [sys.executable, "-c", SWALLOWED, how]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 75, done.stderr
    assert done.stderr.splitlines()[-1] == "aam: Stopped by SIGTERM; start the command again."
    assert done.stdout == ("cleaned\n" if how == "clean" else "")


@pytest.mark.medium
def test_a_signal_that_nohup_ignores(study_dir: Path, tmp_path: Path) -> None:
    ignored = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    process = start("inspect", study_dir / "table.biom", limit=ignored)
    time.sleep(1)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=120)
    assert process.returncode == 0


@pytest.mark.medium
def test_the_largest_file_that_a_process_may_write(study_dir: Path, tmp_path: Path) -> None:
    # Large enough for the copy of the metadata, too small for the model.
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))  # noqa: E731
    status, shown = ended(*kernel(study_dir, tmp_path / "run"), limit=limit)
    assert status == CANNOT_CREATE, shown
    sentence = f"A file exceeds the size that this process may write: '{tmp_path}/run/"
    assert sentence in shown.splitlines()[-1]
    assert "ulimit -f" in shown.splitlines()[-1]
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.mark.medium
@pytest.mark.parametrize("size", [100, 250, 400])
def test_memory_that_no_library_fits_in(study_dir: Path, tmp_path: Path, size: int) -> None:
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (size << 20,) * 2)  # noqa: E731
    status, shown = ended(*kernel(study_dir, tmp_path / "run"), limit=limit)
    assert status == DATA, shown
    assert shown.startswith(f"aam: The input does not fit in memory: `ulimit -v` is {size}.0 MiB")
    assert len(shown.splitlines()) == 1


def test_python_without_docstrings(study_dir: Path) -> None:
    status, shown = ended("inspect", study_dir / "table.biom", PYTHONOPTIMIZE="2")
    assert status == 78
    assert "PYTHONOPTIMIZE=2 or -OO; unset it" in shown
    # Without assertions alone, it works.
    assert start("--help", PYTHONOPTIMIZE="1").wait() == 0


# --- available memory


def host(root: Path, cgroup: str, **limits: str) -> Path:
    """Write the files of a host with 8 GiB of free memory; `limits` are of control groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for place, limit in limits.items():
        file = root / "sys/fs/cgroup" / place.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_name(f"memory.{file.name}").write_text(limit)
    return root


@pytest.mark.parametrize(
    ("cgroup", "limits", "gib"),
    [
        ("0::/\n", {}, 8),
        ("0::/job/step\n", {"job__max": f"{3 * GIB}\n", "job__step__max": "max\n"}, 3),
        ("4:memory:/job\n0::/\n", {"memory__job__limit_in_bytes": f"{2 * GIB}\n"}, 2),
        ("0::/job\n", {"job__max": f"{900 * GIB}\n"}, 8),
    ],
)
def test_the_lowest_limit_counts(
    tmp_path: Path, cgroup: str, limits: dict[str, str], gib: int
) -> None:
    assert memory_available(host(tmp_path, cgroup, **limits)) == gib * GIB


def test_a_budget_is_given_or_half_of_what_is_available() -> None:
    assert memory_budget(1.5) == 1.5 * GIB
    assert 0 < memory_budget() <= memory_available()
    assert shown_size(1536) == "1.5 KiB"
    assert shown_size(10) == "10 bytes"
