"""Builds of every definition with podman, and properties that all images share.

What is replaced is listed in tests.containers.test_apptainer_builds. A file of its own, so that two
workers share the builds.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.engines.sif_file import labels_of
from tests.support.engines import PYTHON
from tests.support.images import (
    CPU_TORCH,
    OTHERS,
    build_argv,
    cpu_podman,
    cpu_sif,
    in_podman,
    recorded,
    warm_base,
)

pytestmark = [pytest.mark.container, pytest.mark.slow]


def test_labels_of_podman_are_those_of_apptainer() -> None:
    in_root = cpu_podman()
    held = recorded(in_root, "cpu", "podman")
    printed = in_root.run(["podman", "image", "inspect", "--format", "{{json .Labels}}",
                        str(held["id"])], user="root")  # fmt: skip
    labels = json.loads(printed.stdout)
    assert held["labels"].items() <= labels.items()
    ours = {k: v for k, v in labels_of(cpu_sif()).items() if k.startswith("org.aam.")}
    # Both engines made the same of the same inputs: same packages, same source, same versions.
    assert {k: v for k, v in labels.items() if k.startswith("org.aam.")} == ours


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
    inspected = engines.run(["podman", "image", "inspect", image], user="root")
    check = json.loads(inspected.stdout)[0]["Healthcheck"]["Test"]
    assert check == ["CMD", "/opt/aam/bin/aam", "--version"]


@OTHERS
def test_definition_for_podman(name: str) -> None:
    engines = cpu_podman()
    argv = build_argv(engines, name, "podman", "--build-arg", CPU_TORCH, "--no-test")
    argv = [f"BASE={warm_base()}" if word.startswith("BASE=") else word for word in argv]
    done = in_podman(engines, argv)
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
    argv = [PYTHON, "-m", "launcher.cli", "images", "build", "cpu", "--engine", "apptainer",
            "--from", "podman", "--fast", "--no-test"]  # fmt: skip
    done = in_podman(engines, argv)
    assert done.returncode == 0, done.stderr
    try:
        labels = labels_of(engines.images / "cpu.sif")
        held = recorded(engines, "cpu", "podman")
        assert held["labels"].items() <= labels.items()
        assert recorded(engines, "cpu", "sif")["digest"] == held["digest"]
        printed = engines.run(["apptainer", "run", str(engines.images / "cpu.sif"), "--version"])
        assert printed.stdout.startswith("aam "), printed.stderr
    finally:
        in_podman(engines, [PYTHON, "-m", "launcher.cli", "images", "rm", "cpu", "--engine",
                            "apptainer"])  # fmt: skip
