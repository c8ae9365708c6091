"""SIFs read and run by spython, and instances that it lists."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines import PYTHON, USER, Engines, start

pytestmark = [pytest.mark.container, pytest.mark.medium]


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """Engines with the probe, and spython beside the launcher."""
    spec = importlib.util.find_spec("spython")
    if spec is None or spec.origin is None:
        pytest.skip("spython is not installed")
    folder = Path("/var/tmp") / f"aam-spython-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        found = start(folder)
        shutil.copytree(Path(spec.origin).parent, folder / "code/spython")
        yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def python(engines: Engines, code: str) -> subprocess.CompletedProcess[str]:
    return engines.run([PYTHON, "-c", code], cwd=engines.folder)


def test_spython_reads_the_labels_that_the_launcher_reads(engines: Engines) -> None:
    verify = [PYTHON, "-m", "launcher.cli", "images", "verify", "cpu", "--no-test"]
    done = engines.run([*verify, "--engine", "apptainer"], cwd=engines.folder)
    assert re.search(r"ok      spython reads the same [1-9]\d* labels", done.stdout), done.stderr


def test_spython_hides_a_failure_that_the_launcher_reports(engines: Engines) -> None:
    """Client.execute returns a mapping for a program that fails, and text for one that succeeds."""
    sif = engines.images / "cpu.sif"
    code = "from spython.main import Client; r = Client.execute({!r}, ['sh', '-c', 'exit {}']); "
    code += "print(type(r).__name__, r['return_code'] if isinstance(r, dict) else '')"
    assert python(engines, code.format(str(sif), 3)).stdout.split() == ["dict", "3"]
    assert python(engines, code.format("/nonexistent.sif", 0)).stdout.split()[0] == "dict"
    code = "from launcher.engines import spython_client as s; "
    code += "print(s.execute({!r}, ['sh', '-c', {!r}]))"
    fails = python(engines, code.format(str(sif), "exit 3"))
    assert fails.returncode == 1
    assert "The engine failed under spython: sh ended with status 3" in fails.stderr
    assert python(engines, code.format(str(sif), "echo yes")).stdout.strip() == "yes"


def test_doctor_lists_running_instances(engines: Engines) -> None:
    sif, folder = str(engines.images / "cpu.sif"), engines.folder / "instances"
    folder.mkdir()
    shutil.chown(folder, USER)
    home = ["env", f"HOME={folder}"]
    assert engines.run([*home, "apptainer", "instance", "start", sif, "aam1"]).returncode == 0
    try:
        done = engines.run([*home, PYTHON, "-m", "launcher.cli", "doctor"], cwd=engines.folder)
        assert f"Instances of containers run: aam1 ({sif})" in done.stdout, done.stdout
    finally:
        engines.run([*home, "apptainer", "instance", "stop", "aam1"])
