"""Builds with podman, and a release: `rocm63` on a base with Python 3.12, with stand-ins.

What is replaced is described in tests.containers.test_apptainer_builds. A file of its own, so that
two workers share the builds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines import PYTHON, ROOT, Engines
from tests.support.images import (
    IMAGES,
    ROCM63,
    as_root,
    build_argv,
    cpu_sif,
    fetch_rocm63,
    forget,
    podman_image,
    recorded,
    wheels,
    workshop,
    write_lock,
)

pytestmark = [pytest.mark.container, pytest.mark.slow, pytest.mark.nightly]
REGISTRY = "127.0.0.1:5000/published"
PACKAGED = (".ci", "docs", "plugins", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in",
            "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md")  # fmt: skip
"""What the packages of a release are built of, besides what the images are built of."""
ANY_USER = ("podman", "run", "--rm", "--read-only", "--network=none", "--user=54321:54321",
            "--env=HOME=/nonexistent")  # fmt: skip
IMPORTS = "import aam, biom, h5py, matplotlib, numpy, pandas, scipy, skbio, sklearn, sys, torch"


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """Engines whose image folder has `rocm63` for podman."""
    found = podman_image("rocm63")
    yield found
    removed = found.run(["podman", "rmi", "localhost/aam:rocm63"], user="root")
    assert removed.returncode == 0, removed.stderr
    forget(found, "rocm63")


def test_the_labels_are_measured_in_the_image(engines: Engines) -> None:
    held = recorded(engines, "rocm63", "podman")
    labels = held["labels"]
    assert labels["org.aam.name"] == "rocm63"
    assert labels["org.aam.python"].startswith("3.12.")
    assert labels["org.aam.torch"] == "2.7.1+rocm6.3"
    assert labels["org.aam.aotriton"] == "0.9.2"
    assert labels["org.aam.archs"] == "gfx942"  # without gfx90a, for which rocBLAS has no kernels
    assert labels["org.aam.attention-archs"] == "gfx942"
    assert "SNAPSHOT=base" in labels["org.aam.arguments"].split()  # what is replaced is recorded
    printed = engines.run(["podman", "image", "inspect", "--format", "{{json .Labels}}",
                           str(held["id"])], user="root")  # fmt: skip
    assert labels.items() <= json.loads(printed.stdout).items()
    verified = as_root(engines, [*IMAGES, "verify", "rocm63", "--no-test"])
    assert "ok      hip: 6.3.42131-fa1d09cbd measured, 6.3.42131 in the" in verified.stdout
    assert "differs" not in verified.stdout


def test_podman_runs_by_hand_as_any_user_without_root_home_or_network(engines: Engines) -> None:
    image = str(recorded(engines, "rocm63", "podman")["id"])
    done = engines.run([*ANY_USER, image, "--version"], user="root")
    assert done.stdout.startswith("aam "), done.stderr


def test_every_package_of_a_lock_works_on_python_312(engines: Engines, tmp_path: Path) -> None:
    """By its hash, in an image without PyTorch; a study is made in it."""
    folder = Path("/var/tmp") / f"aam-whole-{os.getpid()}"
    whole = Engines(folder / "project", engines.state, folder / "images")
    try:
        shutil.copytree(engines.folder, whole.folder)
        write_lock(whole.folder / "code/containers/locks/rocm63.txt", (), ROCM63)
        whole.images.mkdir()
        shutil.copytree(wheels(), folder / "wheels")
        fetch_rocm63(folder / "wheels")
        argv = build_argv(whole, "rocm63", "podman", "--no-test")
        argv[argv.index("--wheels") + 1] = str(folder / "wheels")
        built = as_root(whole, argv)
        assert built.returncode == 0, built.stderr
        image = str(recorded(whole, "rocm63", "podman")["id"])
        tmp_path.chmod(0o777)
        made = engines.run([*ANY_USER, f"--volume={tmp_path}:/out", image, "example", "--samples",
                            "48", "--asvs", "60", "--richness", "20", "--output-dir", "/out/study"],
                           user="root")  # fmt: skip
        assert made.returncode == 0, made.stderr
        assert (tmp_path / "study/table.biom").stat().st_uid == 54321
        python = [*ANY_USER, "--entrypoint=/opt/aam/bin/python", image]
        done = engines.run([*python, "-c", f"{IMPORTS}; print(sys.version)"], user="root")
        assert done.stdout.startswith("3.12."), done.stderr
    finally:
        shutil.rmtree(folder)


def test_from_podman_to_a_sif_without_a_registry(engines: Engines) -> None:
    """Root holds the image in podman, saves it as an archive, and makes the SIF."""
    archive = engines.images / "rocm63.tar"
    archive.unlink(missing_ok=True)  # of a run that was killed; podman adds to no archive
    held = recorded(engines, "rocm63", "podman")
    save = ["podman", "save", "--format", "docker-archive", "--output", str(archive)]
    assert engines.run([*save, str(held["id"])], user="root").returncode == 0
    build = [*IMAGES, "build", "rocm63", "--engine", "apptainer", "--from", str(archive)]
    done = as_root(engines, [*build, "--no-test"])
    archive.unlink()
    assert done.returncode == 0, done.stderr
    assert recorded(engines, "rocm63", "sif")["labels"] == held["labels"]
    printed = engines.run(["apptainer", "run", str(engines.images / "rocm63.sif"), "--version"])
    assert printed.stdout.startswith("aam "), printed.stderr


@pytest.fixture(scope="module")
def release(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The program of a release that is published in the registry of this host, and installed."""
    checkout = Path("/var/tmp") / f"aam-release-{os.getpid()}"
    shutil.copytree(engines.folder / "code", checkout)
    for part in PACKAGED:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        (checkout / part).parent.mkdir(exist_ok=True)
        copy(ROOT / part, checkout / part)
    try:
        options = build_argv(engines, "rocm63", "podman", "--no-test")[8:]
        for step in (["image", "rocm63", REGISTRY, *options], ["sif", "rocm63", REGISTRY]):
            argv = ["env", "APPTAINER_NOHTTPS=1", PYTHON, f"{checkout}/.ci/release"]
            done = as_root(engines, [*argv, *step])
            assert done.returncode == 0, done.stderr
        place = tmp_path_factory.mktemp("installed")
        for name in ("cpu", "cuda"):  # without which there is no release
            (checkout / f"published/{name}.oci").write_text(f"sha256:{'1' * 64}\n")
        argv = [
            sys.executable,
            f"{checkout}/.ci/release",
            "packages",
            REGISTRY,
            "https://example.org",
        ]
        subprocess.run(argv, check=True)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        (wheel,) = checkout.glob("dist/attention*.whl")
        subprocess.run([place / "bin/pip", "install", "-q", wheel], check=True, cwd="/")
        yield place / "bin/aam-launch"
    finally:
        shutil.rmtree(checkout)


@pytest.mark.parametrize(("engine", "form"), [("podman", "oci"), ("apptainer", "sif")])
def test_a_release_pulls_its_images_without_options(
    engines: Engines, release: Path, engine: str, form: str
) -> None:
    held = recorded(engines, "rocm63", "podman")
    # The registry of the tests has no certificate; podman's configuration says so.
    variables = ["env", "-u", "PYTHONPATH", "APPTAINER_NOHTTPS=1"]
    pull = [*variables, str(release), "images", "pull", "rocm63", "--engine", engine]
    done = engines.run(pull, user="root", cwd="/")
    assert done.returncode == 0, done.stderr
    (listed,) = release.parents[1].rglob("launcher/images/published.json")
    digests = json.loads(listed.read_text())["images"]["rocm63"]
    pulled = recorded(engines, "rocm63", "sif" if form == "sif" else engine)
    assert (pulled["labels"], pulled["digest"]) == (held["labels"], digests[form])
    digests[form] = f"sha256:{'0' * 64}"
    listed.write_text(json.dumps({"registry": REGISTRY, "images": {"rocm63": digests}}))
    refused = engines.run(pull, user="root", cwd="/")
    assert refused.returncode == 73
    assert "The image was not pulled" in refused.stderr


def test_podman_and_apptainer_make_the_same_of_the_same_inputs() -> None:
    """Same packages, same source, same versions: `cpu` is built in full by both."""
    held = recorded(podman_image("cpu"), "cpu", "podman")["labels"]
    cpu_sif()
    assert recorded(workshop(), "cpu", "sif")["labels"] == held
