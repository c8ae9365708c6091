"""SIFs in a registry: published, pulled by SHA-256, and refused where they are others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.engines.sif import record_of
from launcher.images import index
from tests.support.engines import PYTHON, USER, Engines, start
from tests.support.images import base

pytestmark = [pytest.mark.container, pytest.mark.slow]


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    folder = Path("/var/tmp") / f"aam-transfer-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        yield start(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_sif_goes_through_a_registry(engines: Engines) -> None:
    """The loopback registry keeps the file byte for byte; a second folder records it."""
    place = f"oras://{base(engines).partition('/')[0]}/aam/transfer:{os.getpid()}"
    other = engines.folder / "other"
    other.mkdir()
    shutil.chown(other, USER)
    shutil.chown(engines.images, USER)

    def images(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        line = ["env", "APPTAINER_NOHTTPS=1", f"AAM_IMAGE_DIR={folder}", PYTHON, "-m",
                "launcher.cli", "images", *words]  # fmt: skip
        return engines.run(line, cwd=engines.folder, timeout=600)

    record = record_of(engines.images / "cpu.sif")
    index.write(engines.images, "cpu", "sif", record)
    published = images(engines.images, "publish", "cpu", "--to", place)
    assert published.returncode == 0, published.stderr
    assert published.stdout.split()[-1] == f"sha256:{record['sha256']}"

    wrong = images(other, "pull", place, "--name", "cpu", "--digest", "sha256:" + "0" * 64)
    assert wrong.returncode == 66
    assert "The registry has another image" in wrong.stderr
    assert not (other / "cpu.sif").exists()
    absent = images(other, "pull", f"{place}-none", "--name", "cpu", "--digest", record["sha256"])
    assert (absent.returncode, "The image was not pulled" in absent.stderr) == (73, True)

    pulled = images(other, "pull", place, "--name", "cpu", "--digest", record["sha256"])
    assert pulled.returncode == 0, pulled.stderr
    assert json.loads((other / "images.json").read_text())["cpu"]["sif"]["from"] == place
    assert images(other, "verify", "cpu", "--no-test").stdout.startswith("ok      cpu (sif)")

    with (other / "cpu.sif").open("ab") as stream:
        stream.write(b"x")
    changed = images(other, "publish", "cpu", "--to", place)
    assert changed.returncode == 66, changed.stderr
