"""SIFs read by spython, and instances that it lists."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from launcher.images import index
from tests.support.engines import LAUNCH, USER, Engines, open_folder, start

pytestmark = [pytest.mark.container, pytest.mark.medium]


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """Engines with the probe, and spython beside the launcher."""
    spec = importlib.util.find_spec("spython")
    if spec is None or spec.origin is None:
        pytest.skip("spython is not installed")
    with open_folder("spython") as folder:
        engines = start(folder)
        shutil.copytree(Path(spec.origin).parent, folder / "code/spython")
        yield engines


def test_spython_reads_the_labels_that_are_recorded(engines: Engines) -> None:
    recorded = index.read(engines.images)["cpu"]["sif"]
    labels = {"org.label-schema.build-arch": "amd64"}
    index.write(engines.images, "cpu", "sif", replace(recorded, labels=labels))
    verify = [*LAUNCH, "images", "verify", "cpu", "--no-test"]
    done = engines.run([*verify, "--engine", "apptainer"], cwd=engines.folder)
    assert re.search(r"ok      spython reads the same 1 labels", done.stdout), done.stderr


def test_doctor_lists_running_instances(engines: Engines) -> None:
    sif, folder = str(engines.images / "cpu.sif"), engines.folder / "instances"
    folder.mkdir()
    shutil.chown(folder, USER)
    home = ["env", f"HOME={folder}"]
    assert engines.run([*home, "apptainer", "instance", "start", sif, "aam1"]).returncode == 0
    try:
        done = engines.run([*home, *LAUNCH, "doctor"], cwd=engines.folder)
        assert f"Instances of containers run: aam1 ({sif})" in done.stdout, done.stdout
    finally:
        engines.run([*home, "apptainer", "instance", "stop", "aam1"])
