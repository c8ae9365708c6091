"""An image folder that several processes and users share: list, use, locks, access."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from aam.contract.errors import CannotCreate
from launcher import cli, system
from launcher.engines.engine import BuildLog, ImageRecord
from launcher.engines.sif import record_of
from launcher.images import index
from tests.support.launches import sif, without_flock

ROOT = Path(__file__).parents[2]
DAY = 86400


def images(folder: Path, *args: str) -> int:
    return cli.main([f"--image-dir={folder}", "images", *args])


def put(folder: Path, name: str, age: int) -> None:
    """Put a SIF with its record into a folder, which was built so many days ago."""
    path = sif(folder / f"{name}.sif")
    built = int(time.time()) - age * DAY - 60
    index.write(folder, name, "sif", replace(record_of(path), built=built))


# --- list


def test_list_shows_size_age_and_verification(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "cpu", age=40)
    entry = index.read(tmp_path)["cpu"]["sif"]
    index.write(tmp_path, "cpu", "sif", replace(entry, bytes=2 << 30, verified="2026-11-20"))
    put(tmp_path, "mine", age=1)
    assert images(tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("cpu "))
    assert lines[place].split() == ["cpu", "yes", "no", "GPU,", "PyTorch", "2.13.0"]
    assert " ".join(line.strip() for line in lines[place + 1 :]).startswith(
        f"sif, 2.0 GiB, 40 days old, verified 2026-11-20 {tmp_path}/cpu.sif "
    )
    assert any(line.split()[:2] == ["mine", "no"] for line in lines)
    assert all(len(line) <= 80 for line in lines if "/" not in line)
    assert cli.main([f"--image-dir={tmp_path}", "--json", "images"]) == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out) if row["name"] == "cpu"]
    assert row["stored"][0]["bytes"] == 2 << 30


def test_a_sif_is_compared_with_its_record_without_an_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sif(tmp_path / "cpu.sif")
    index.write(tmp_path, "cpu", "sif", record_of(path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert images(tmp_path, "verify", "cpu", "--no-test") == 0
    assert "cpu (sif) is what was recorded" in capsys.readouterr().out
    assert images(tmp_path, "verify", "cpu") == 69
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert images(tmp_path, "verify", "cpu", "--no-test") == 66


# --- locks

HOLD = """
import time
from pathlib import Path
from launcher.images import index
with index.locked(Path({folder!r}), "cpu.build", "Another build of cpu"):
    print("locked", flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    code = HOLD.format(folder=str(tmp_path))
    environment = {**os.environ, "USER": "ada"}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE, env=environment)  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.wait()


def test_a_waiting_build_names_the_holder_and_a_killed_holder_leaves_no_lock(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    code = HOLD.format(folder=str(tmp_path))
    waiting = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    assert waiting.stdout is not None
    assert waiting.stderr is not None
    message = waiting.stderr.readline()
    assert message.startswith(f"Another build of cpu in '{tmp_path}' is under way (ada on ")
    assert f"process {holder.pid}, since" in message
    holder.send_signal(signal.SIGKILL)
    assert waiting.stdout.readline() == "locked\n"  # the lock of a dead process is none
    waiting.kill()
    waiting.communicate()


def test_a_file_system_without_locks_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    library = without_flock(tmp_path)
    code = HOLD.format(folder=str(tmp_path)).replace("sleep(1000)", "sleep(0)")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "LD_PRELOAD": library}, check=False)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "locked\n")
    assert "has no file locks: start one build at a time" in done.stderr


# --- programs that leave children behind, print much, or do not end


@pytest.fixture
def left(tmp_path: Path) -> Iterator[str]:
    """A shell command that leaves a child with its output open, and writes the child's number."""
    yield f"sleep 1000 & echo $! >{tmp_path}/child"
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def child_runs(folder: Path) -> bool:
    """Return whether the child runs; one that was killed may take a moment to end."""
    status = Path("/proc", (folder / "child").read_text().strip(), "stat")
    for _ in range(100):
        if not status.exists() or status.read_text().split()[2] == "Z":
            return False
        time.sleep(0.01)
    return True


def test_a_child_that_holds_the_output_is_not_waited_for(tmp_path: Path, left: str) -> None:
    BuildLog(tmp_path / "log").run(["sh", "-c", f"{left}; echo pulled"], tmp_path)
    assert child_runs(tmp_path)
    assert (tmp_path / "log").read_text().endswith("pulled\n")
    done = system.run(["sh", "-c", f"{left}; echo out; echo err >&2; cat"], text="text")
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\ntext", "err\n")
    assert child_runs(tmp_path)


def test_a_program_that_does_not_end_is_ended_with_its_children(tmp_path: Path, left: str) -> None:
    log = BuildLog(tmp_path / "log", limit=0.2)
    with pytest.raises(CannotCreate, match=r"no end of `sh -c` in .* minutes; see .*--minutes"):
        log.run(["sh", "-c", f"{left}; wait"], tmp_path)
    assert not child_runs(tmp_path)
    with pytest.raises(TimeoutError, match="no result in 0.2 s"):
        system.run(["sh", "-c", f"{left}; wait"], 0.2)
    assert not child_runs(tmp_path)


def test_millions_of_lines_are_logged_and_steps_among_them_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "echo '== first'; yes 0 | head -n 3000000; echo '== la\033[1mst'; exit 3"
    with pytest.raises(CannotCreate, match="ended with status 3"):
        BuildLog(tmp_path / "log").run(["sh", "-c", line], tmp_path)
    shown = capsys.readouterr().err.splitlines()
    assert [text.split()[1:] for text in shown[:2]] == [["first"], ["la\\x1b[1mst"]]
    assert (tmp_path / "log").stat().st_size > 6_000_000


# --- a folder of a group


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder of group 54300 with the set-group-ID bit, which every user can reach."""
    if os.geteuid() != 0:
        pytest.skip("two users are tested as root")
    folder = Path(tempfile.mkdtemp(prefix="aam-group-", dir="/var/tmp"))
    os.chown(folder, 0, 54300)
    folder.chmod(0o2770)
    yield folder
    shutil.rmtree(folder)


def as_member(user: int, action: Callable[[], object]) -> None:
    """Run a function as a user of the group, with a umask that excludes the group."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([54300])
            os.setgid(user)
            os.setuid(user)
            os.umask(0o077)
            action()
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_members_of_a_group_replace_each_others_files(shared: Path) -> None:
    def build() -> None:
        with index.locked(shared, "cpu.build", "Another build of cpu"):
            BuildLog(shared / "logs/cpu.log").run(["touch", "made"], shared)
            index.write(shared, "cpu", "sif", ImageRecord(sha256=str(os.getuid())))
            (shared / "made").unlink()

    for user in (54321, 54322):
        as_member(user, build)
        assert index.read(shared)["cpu"]["sif"].sha256 == str(user)
    for path in (shared, *shared.rglob("*")):
        facts = path.stat()
        assert (facts.st_gid, facts.st_mode & 0o077) == (54300, 0o070 if path.is_dir() else 0o060)


def test_a_folder_of_others_is_refused_in_one_sentence(shared: Path) -> None:
    shared.chmod(0o755)

    def write() -> None:
        with pytest.raises(CannotCreate, match=r"Permission denied.*chmod g\+ws"):
            index.write(shared, "cpu", "sif", ImageRecord())

    as_member(54321, write)
