"""SIFs with real engines: in a registry, signed, in use, and read by spython."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.engines.sif import record_of
from launcher.images import index
from tests.support.engines import PYTHON, USER, Engines, start
from tests.support.images import base

pytestmark = [pytest.mark.container, pytest.mark.slow]


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """Engines with a recorded SIF in an image folder that the test user can write."""
    folder = Path("/var/tmp") / f"aam-transfer-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        engines = start(folder)
        yield replace(engines, images=with_sif(engines, "recorded"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def images(
    engines: Engines, folder: Path, *args: str, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `aam-launch images` on an image folder as the test user."""
    line = ["env", "APPTAINER_NOHTTPS=1", f"AAM_IMAGE_DIR={folder}", f"HOME={engines.folder}/home",
            PYTHON, "-m", "launcher.cli", "images", *args]  # fmt: skip
    return engines.run(line, cwd=engines.folder, timeout=600, **options)


def writable(engines: Engines, name: str) -> Path:
    """Return a new folder of the test user."""
    folder = engines.folder / name
    folder.mkdir()
    shutil.chown(folder, USER)
    return folder


def with_sif(engines: Engines, name: str, *sign: str) -> Path:
    """Return an image folder with a copy of the SIF and its record; `sign` runs on it first."""
    folder = writable(engines, name)
    place = folder / "cpu.sif"
    shutil.copy(engines.images / "cpu.sif", place)
    shutil.chown(place, USER)
    if sign:
        done = engines.run(["env", f"HOME={engines.folder}/home", *sign, str(place)])
        assert done.returncode == 0, done.stderr
    index.write(folder, "cpu", "sif", {**record_of(place), "built": 0})
    for path in folder.iterdir():
        shutil.chown(path, USER)
    return folder


def test_a_sif_goes_through_a_registry(engines: Engines) -> None:
    """The loopback registry keeps the file byte for byte; a second folder records it."""
    place = f"oras://{base(engines).partition('/')[0]}/aam/transfer:{os.getpid()}"
    other = writable(engines, "other")
    record = record_of(engines.images / "cpu.sif")
    published = images(engines, engines.images, "publish", "cpu", "--to", place)
    assert published.returncode == 0, published.stderr
    assert published.stdout.split()[-1] == f"sha256:{record['sha256']}"

    wrong = images(engines, other, "pull", place, "--name", "cpu", "--digest", "sha256:" + "0" * 64)
    assert wrong.returncode == 66
    assert "The registry has another image" in wrong.stderr
    assert not (other / "cpu.sif").exists()
    absent = images(
        engines, other, "pull", f"{place}-none", "--name", "cpu", "--digest", record["sha256"]
    )
    assert (absent.returncode, "The image was not pulled" in absent.stderr) == (73, True)

    pulled = images(engines, other, "pull", place, "--name", "cpu", "--digest", record["sha256"])
    assert pulled.returncode == 0, pulled.stderr
    assert json.loads((other / "images.json").read_text())["cpu"]["sif"]["from"] == place
    assert images(engines, other, "verify", "cpu", "--no-test").stdout.startswith(
        "ok      cpu (sif)"
    )

    with (other / "cpu.sif").open("ab") as stream:
        stream.write(b"x")
    changed = images(engines, other, "publish", "cpu", "--to", place)
    assert changed.returncode == 66, changed.stderr


# --- signatures


@pytest.fixture(scope="module")
def keys(engines: Engines) -> Path:
    """A folder with two pairs of PEM keys, and a PGP key in the keyring of the test user."""
    folder = writable(engines, "keys")
    writable(engines, "home")
    for name in ("ours", "other"):
        private, public = f"{folder}/{name}.pem", f"{folder}/{name}.pub"
        for argv in (["openssl", "genrsa", "-out", private, "2048"],
                     ["openssl", "rsa", "-in", private, "-pubout", "-out", public]):  # fmt: skip
            assert engines.run(argv).returncode == 0
    return folder


def test_an_unsigned_image_is_named_so(engines: Engines, keys: Path) -> None:
    done = images(engines, engines.images, "verify", "cpu", "--no-test")
    assert (done.returncode, "note    not signed" in done.stdout) == (0, True), done.stderr
    line = ("verify", "cpu", "--no-test", "--key", f"{keys}/ours.pub")
    done = images(engines, engines.images, *line)
    assert (done.returncode, "The image is not signed" in done.stderr) == (66, True)


def test_a_signature_with_a_pem_key(engines: Engines, keys: Path) -> None:
    folder = with_sif(engines, "pem", "apptainer", "sign", "--key", f"{keys}/ours.pem")
    verify = ("verify", "cpu", "--no-test")
    done = images(engines, folder, *verify, "--key", f"{keys}/ours.pub")
    assert (done.returncode, "ok      signed with the key of" in done.stdout) == (0, True)
    done = images(engines, folder, *verify)
    assert "note    signed with a key that is not in your keyring" in done.stdout
    done = images(engines, folder, *verify, "--key", f"{keys}/other.pub")
    assert (done.returncode, "signature of the image is not valid" in done.stderr) == (66, True)
    content = bytearray((folder / "cpu.sif").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "cpu.sif").write_bytes(content)
    index.write(folder, "cpu", "sif", record_of(folder / "cpu.sif"))  # the record is forged, too
    done = images(engines, folder, *verify, "--key", f"{keys}/ours.pub")
    assert (done.returncode, "signature of the image is not valid" in done.stderr) == (66, True)


def test_a_signature_with_a_key_of_the_keyring(engines: Engines, keys: Path) -> None:
    new = ["env", f"HOME={engines.folder}/home", "apptainer", "key", "newpair", "--name", "aam",
           "--email", "a@b", "--comment", "", "--password", "", "--push=false"]  # fmt: skip
    assert engines.run(new, stdin=subprocess.DEVNULL).returncode == 0
    folder = with_sif(engines, "pgp", "apptainer", "sign")
    done = images(engines, folder, "verify", "cpu", "--no-test")
    assert re.search(r"ok      signed with [0-9A-F]{40}$", done.stdout, re.MULTILINE), done.stdout


# --- in use


def test_a_running_container_keeps_its_image(engines: Engines) -> None:
    """The engine inherits the lock of the launcher that it was."""
    folder = with_sif(engines, "used")
    code = f"import os; from launcher.images import usage; usage.hold('{folder}/.used.cpu.sif'); "
    argv = ["apptainer", "exec", f"{folder}/cpu.sif", "sh", "-c", "echo runs; read line"]
    line = engines.command([PYTHON, "-c", f"{code}os.execvp('apptainer', {argv})"])
    running = subprocess.Popen(line, cwd=engines.folder, text=True, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)  # fmt: skip
    prune = ("prune", "--older-than", "1", "--yes")
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "runs\n"
        done = images(engines, folder, *prune)
        assert "kept: a container runs it" in done.stdout, done.stdout + done.stderr
        assert (folder / "cpu.sif").exists()
    finally:
        running.communicate(timeout=120)  # the end of its input ends it
    assert "removed: built" in images(engines, folder, *prune).stdout
    assert not (folder / "cpu.sif").exists()


# --- spython


@pytest.fixture(scope="module")
def with_spython(engines: Engines) -> Engines:
    """Engines with spython beside the launcher."""
    spec = importlib.util.find_spec("spython")
    if spec is None or spec.origin is None:
        pytest.skip("spython is not installed")
    place = engines.folder / "code/spython"
    shutil.copytree(Path(spec.origin).parent, place, dirs_exist_ok=True)
    return engines


def python(engines: Engines, code: str) -> subprocess.CompletedProcess[str]:
    return engines.run([PYTHON, "-c", code], cwd=engines.folder)


def test_spython_reads_the_labels_that_the_launcher_reads(with_spython: Engines) -> None:
    done = images(with_spython, with_spython.images, "verify", "cpu", "--no-test")
    assert re.search(r"ok      spython reads the same [1-9]\d* labels", done.stdout), done.stderr


def test_spython_hides_a_failure_that_the_launcher_reports(with_spython: Engines) -> None:
    """Client.execute returns a mapping for a program that fails, and text for one that succeeds."""
    sif = with_spython.images / "cpu.sif"
    code = "from spython.main import Client; r = Client.execute({!r}, ['sh', '-c', 'exit {}']); "
    code += "print(type(r).__name__, r['return_code'] if isinstance(r, dict) else '')"
    assert python(with_spython, code.format(str(sif), 3)).stdout.split() == ["dict", "3"]
    assert python(with_spython, code.format("/nonexistent.sif", 0)).stdout.split()[0] == "dict"
    code = "from launcher.engines import spython_client as s; "
    code += "print(s.execute({!r}, ['sh', '-c', {!r}]))"
    fails = python(with_spython, code.format(str(sif), "exit 3"))
    assert fails.returncode == 1
    assert "The engine failed under spython: sh ended with status 3" in fails.stderr
    assert python(with_spython, code.format(str(sif), "echo yes")).stdout.strip() == "yes"


def test_doctor_lists_running_instances(with_spython: Engines) -> None:
    sif = str(with_spython.images / "cpu.sif")
    home = ["env", f"HOME={writable(with_spython, 'instances')}"]
    assert with_spython.run([*home, "apptainer", "instance", "start", sif, "aam1"]).returncode == 0
    try:
        doctor = [*home, PYTHON, "-m", "launcher.cli", "doctor"]
        done = with_spython.run(doctor, cwd=with_spython.folder)
        assert f"Instances of containers run: aam1 ({sif})" in done.stdout, done.stdout
    finally:
        with_spython.run([*home, "apptainer", "instance", "stop", "aam1"])
