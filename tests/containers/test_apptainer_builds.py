"""Builds of every definition with Apptainer, on a stand-in for the base image.

What is replaced, by build argument: the base, Debian's snapshot (the base's own packages), and the
wheel of PyTorch, of which only the CPU build can be had here. `cpu` is built in full. The others
start from the finished image `cpu`, so that what they would install is there already; every line of
their definition runs all the same. The same with podman: tests.containers.test_podman_builds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from launcher.engines.sif_file import check_sif, labels_of
from tests.containers.test_sbom import validated
from tests.support.engines import PYTHON, Engines
from tests.support.images import (
    CPU_TORCH,
    OTHERS,
    build_argv,
    cpu_sif,
    recorded,
    warm_base,
    workshop,
)

pytestmark = [pytest.mark.container, pytest.mark.slow]
SHOW = 'echo $LD_LIBRARY_PATH; python -c "import sys; print(sys.path)"'


@pytest.fixture(scope="module")
def engines() -> Engines:
    return workshop()


@pytest.fixture(scope="module")
def sif() -> Path:
    return cpu_sif()


# --- cpu, in full


def test_labels_are_read_without_starting_the_image(engines: Engines, sif: Path) -> None:
    labels = labels_of(sif)
    assert labels["org.aam.torch"] == "2.13.0+cpu"
    assert labels["org.aam.name"] == "cpu"
    assert labels["org.aam.glibc"] == "2.36"
    inside = engines.run(["apptainer", "exec", str(sif), "cat", "/opt/aam/labels.json"])
    assert json.loads(inside.stdout).items() <= labels.items()
    assert recorded(engines, "cpu", "sif")["labels"].items() <= labels.items()
    args = ["explain", "--json", "--runtime", "apptainer", "simulate", "--output-dir", "/tmp/x"]
    explained = engines.run([PYTHON, "-m", "launcher.cli", *args], cwd=engines.folder)
    assert explained.returncode == 0, explained.stderr
    printed = json.loads(explained.stdout)["decisions"]
    assert [d["source"] for d in printed if d["subject"] == "image"] == ["label"]


def test_a_sif_runs_by_hand_against_the_hosts_python_and_rocm(engines: Engines, sif: Path) -> None:
    leak = ["env", "PYTHONPATH=/leak", "HOME=/nonexistent"]
    for rocm in ([], ["--rocm"]):
        done = engines.run([*leak, "apptainer", "run", *rocm, str(sif), "--version"])
        assert done.stdout.startswith("aam "), done.stderr
        path = engines.run([*leak, "apptainer", "exec", *rocm, str(sif), "sh", "-c", SHOW])
        libraries, packages = path.stdout.splitlines()
        assert libraries.split(":")[0] == "/opt/aam/torch-lib"
        assert "leak" not in packages


def test_the_sifs_own_test(engines: Engines, sif: Path) -> None:
    done = engines.run(["apptainer", "test", str(sif)], timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok      study" in done.stdout


def test_the_sbom_of_a_build_is_stored_beside_it(engines: Engines, sif: Path) -> None:
    path = engines.images / "cpu.sif.spdx.json"
    validated(path)
    document = json.loads(path.read_text())
    image, *packages = document["packages"]
    assert image["checksums"][0]["checksumValue"] == recorded(engines, "cpu", "sif")["sha256"]
    versions = {package["name"]: package["versionInfo"] for package in packages}
    assert versions["torch"] == "2.13.0+cpu"
    assert {"attention-all-microbes", "libc6", "unifrac-tools"} <= set(versions)
    printed = engines.run([PYTHON, "-m", "launcher.cli", "images", "sbom", "cpu"],
                          cwd=engines.folder)  # fmt: skip
    assert printed.stdout == path.read_text()


# --- the others


@OTHERS
def test_definition_for_apptainer(engines: Engines, sif: Path, name: str) -> None:
    key = private_key(engines)
    more = ("--build-arg", CPU_TORCH, "--no-test", "--sign", f"{key}.pem")
    argv = build_argv(engines, name, "apptainer", *more)
    argv = [f"BASE={warm_base()}" if word.startswith("BASE=") else word for word in argv]
    place = engines.images / f"{name}.sif"
    if name == "rocm60":
        two_at_once(engines, argv)
    done = engines.run(argv, cwd=engines.folder, timeout=1200)
    assert done.returncode == 0, done.stderr
    try:
        check_sif(str(place))
        verify = [PYTHON, "-m", "launcher.cli", "images", "verify", name, "--no-test", "--key"]
        verified = engines.run([*verify, f"{key}.pub"], cwd=engines.folder)
        assert "ok      signed with the key of" in verified.stdout, verified.stderr
        labels = labels_of(place)
        assert labels["org.aam.name"] == name
        assert CPU_TORCH in labels["org.aam.arguments"].split()  # the record says what is replaced
        assert labels["org.aam.torch"] == "2.13.0+cpu"
        smoke_test_by_spython(engines, place)
        validated(engines.images / f"{name}.sif.spdx.json")
    finally:
        engines.run([PYTHON, "-m", "launcher.cli", "images", "rm", name], cwd=engines.folder)
    assert not place.exists()
    assert name not in json.loads((engines.images / "images.json").read_text())


def private_key(engines: Engines) -> str:
    """Return the path of a PEM key pair of the test user, without the endings .pem and .pub."""
    pair = engines.images / "key"
    if not pair.with_suffix(".pub").exists():
        make = ["openssl", "genrsa", "-out", f"{pair}.pem", "2048"]
        public = ["openssl", "rsa", "-in", f"{pair}.pem", "-pubout", "-out", f"{pair}.pub"]
        for argv in (make, public):
            assert engines.run(argv).returncode == 0
    return str(pair)


def smoke_test_by_spython(engines: Engines, place: Path) -> None:
    """Run the smoke test without training through spython.main.Client, as the user of the SIF."""
    quick = ["/opt/aam/bin/python", "/opt/aam/containers/smoke.py", "--quick"]
    spython = Path(pytest.importorskip("spython").__file__).parents[1]
    code = f"import sys; sys.path.append({str(engines.state / 'aam-spython')!r}); "
    code += "from launcher.engines import spython_client; "
    code += f"print(spython_client.execute({str(place)!r}, {quick}))"
    shutil.copytree(spython / "spython", engines.state / "aam-spython/spython", dirs_exist_ok=True)
    tested = engines.run([PYTHON, "-c", code], cwd=engines.folder)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "ok      program" in tested.stdout


def two_at_once(engines: Engines, args: list[str]) -> None:
    """Start a build twice: one of the two builds, the other waits and finds it built."""
    pair = [subprocess.Popen(engines.command(args), cwd=engines.folder, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(2)]  # fmt: skip
    printed = [process.communicate(timeout=1200) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], printed
    assert sum("Another build or pull of rocm60 in" in err for _, err in printed) == 1
    assert sum("built of the same inputs before" in out for out, _ in printed) == 1
