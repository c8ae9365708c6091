"""Every definition built for real, on this machine's stand-in for the base.

What is replaced, by build argument: the base, Debian's snapshot (the base's own packages), and the
wheel of PyTorch, of which only the CPU build can be had here. `cpu` is built in full, once for
Apptainer and once for podman. The others start from the finished image `cpu`, so that what they
would install is there already; every line of their definition runs all the same.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launcher.images.sif import check_sif, labels_of
from tests.containers.shared import (
    build_words,
    cpu_podman,
    cpu_sif,
    in_podman,
    warm_base,
    workshop,
)
from tests.launcher.containers import PYTHON, Engines

pytestmark = [pytest.mark.container, pytest.mark.slow]
OTHERS = pytest.mark.parametrize("name", ["rocm63", "rocm62", "rocm60", "cuda"])
CPU_TORCH = "TORCH=2.13.0+cpu"
SHOW = 'echo $LD_LIBRARY_PATH; python -c "import sys; print(sys.path)"'


@pytest.fixture(scope="module")
def engines() -> Engines:
    return workshop()


@pytest.fixture(scope="module")
def sif() -> Path:
    return cpu_sif()


def recorded(engines: Engines, name: str, kind: str) -> Any:
    return json.loads((engines.images / "images.json").read_text())[name][kind]


# --- cpu, in full


def test_labels_are_read_without_starting_the_image(engines: Engines, sif: Path) -> None:
    labels = labels_of(sif)
    assert labels["org.aam.torch"] == "2.13.0+cpu"
    assert labels["org.aam.name"] == "cpu"
    assert labels["org.aam.glibc"] == "2.36"
    inside = engines.run(["apptainer", "exec", str(sif), "cat", "/opt/aam/labels.json"])
    assert json.loads(inside.stdout).items() <= labels.items()
    assert recorded(engines, "cpu", "sif")["labels"].items() <= labels.items()
    words = ["explain", "--json", "--runtime", "apptainer", "simulate", "--output-dir", "/tmp/x"]
    explained = engines.run([PYTHON, "-m", "launcher.cli", *words], cwd=engines.folder)
    assert explained.returncode == 0, explained.stderr
    said = json.loads(explained.stdout)["decisions"]
    assert [d["source"] for d in said if d["subject"] == "image"] == ["label"]


def test_labels_of_podman_are_those_of_apptainer(engines: Engines, sif: Path) -> None:
    in_root = cpu_podman()
    held = recorded(in_root, "cpu", "podman")
    said = in_root.run(["podman", "image", "inspect", "--format", "{{json .Labels}}",
                        str(held["id"])], user="root")  # fmt: skip
    labels = json.loads(said.stdout)
    assert held["labels"].items() <= labels.items()
    ours = {k: v for k, v in labels_of(sif).items() if k.startswith("org.aam.")}
    # Both engines made the same of the same inputs: same packages, same source, same versions.
    assert {k: v for k, v in labels.items() if k.startswith("org.aam.")} == ours


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


def test_podman_runs_by_hand_as_any_user_without_root_home_or_network(tmp_path: Path) -> None:
    engines = cpu_podman()
    hard = ["podman", "run", "--rm", "--no-healthcheck", "--read-only", "--network=none"]
    hard += ["--user=54321:54321", "--env=HOME=/nonexistent"]
    image = str(recorded(engines, "cpu", "podman")["id"])
    done = engines.run([*hard, image, "--version"], user="root")
    assert done.stdout.startswith("aam "), done.stderr
    tmp_path.chmod(0o777)
    made = engines.run([*hard, f"--volume={tmp_path}:/out", image, "simulate", "--samples", "48",
                        "--asvs", "60", "--richness", "20", "--output-dir", "/out/study"],
                       user="root")  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "study/table.biom").stat().st_uid == 54321
    told = engines.run(["podman", "image", "inspect", image], user="root")
    assert "smoke.py" in str(json.loads(told.stdout)[0]["Healthcheck"])


# --- the others


@OTHERS
def test_definition_for_apptainer(engines: Engines, sif: Path, name: str) -> None:
    words = build_words(engines, name, "apptainer", "--build-arg", CPU_TORCH, "--no-test")
    words = [f"BASE={warm_base()}" if word.startswith("BASE=") else word for word in words]
    place = engines.images / f"{name}.sif"
    if name == "rocm60":
        two_at_once(engines, words)
    done = engines.run(words, cwd=engines.folder, timeout=1200)
    assert done.returncode == 0, done.stderr
    try:
        check_sif(str(place))
        labels = labels_of(place)
        assert labels["org.aam.name"] == name
        assert CPU_TORCH in labels["org.aam.arguments"].split()  # the record says what is replaced
        assert labels["org.aam.torch"] == "2.13.0+cpu"
        quick = ["/opt/aam/bin/python", "/opt/aam/containers/smoke.py", "--quick"]
        tested = engines.run(["apptainer", "exec", str(place), *quick])
        assert tested.returncode == 0, tested.stdout + tested.stderr
    finally:
        engines.run([PYTHON, "-m", "launcher.cli", "images", "rm", name], cwd=engines.folder)
    assert not place.exists()
    assert name not in json.loads((engines.images / "images.json").read_text())


def two_at_once(engines: Engines, words: list[str]) -> None:
    """Start a build twice: one of the two builds, the other waits and finds it built."""
    pair = [subprocess.Popen(engines.command(words), cwd=engines.folder, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(2)]  # fmt: skip
    said = [process.communicate(timeout=1200) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], said
    assert sum("Another build of rocm60 is under way" in err for _, err in said) == 1
    assert sum("built of the same inputs before" in out for out, _ in said) == 1


@OTHERS
def test_definition_for_podman(name: str) -> None:
    engines = cpu_podman()
    words = build_words(engines, name, "podman", "--build-arg", CPU_TORCH, "--no-test")
    words = [f"BASE={warm_base()}" if word.startswith("BASE=") else word for word in words]
    done = in_podman(engines, words)
    assert done.returncode == 0, done.stderr
    held = recorded(engines, name, "podman")
    assert held["labels"]["org.aam.name"] == name
    removed = in_podman(engines, [PYTHON, "-m", "launcher.cli", "images", "rm", name])
    assert removed.returncode == 0, removed.stderr
    left = engines.run(["podman", "images", "--format", "{{.Tag}}", "localhost/aam"], user="root")
    assert name not in left.stdout.split()


def test_from_podman_to_a_sif_without_a_registry() -> None:
    """Root holds the image in podman and makes the SIF; the launcher reads its labels from it."""
    engines = cpu_podman()
    words = [PYTHON, "-m", "launcher.cli", "images", "build", "cpu", "--engine", "apptainer",
             "--from", "podman", "--fast", "--no-test"]  # fmt: skip
    done = in_podman(engines, words)
    assert done.returncode == 0, done.stderr
    try:
        labels = labels_of(engines.images / "cpu.sif")
        held = recorded(engines, "cpu", "podman")
        assert held["labels"].items() <= labels.items()
        assert recorded(engines, "cpu", "sif")["digest"] == held["digest"]
        said = engines.run(["apptainer", "run", str(engines.images / "cpu.sif"), "--version"])
        assert said.stdout.startswith("aam "), said.stderr
    finally:
        in_podman(engines, [PYTHON, "-m", "launcher.cli", "images", "rm", "cpu", "--engine",
                            "apptainer"])  # fmt: skip
