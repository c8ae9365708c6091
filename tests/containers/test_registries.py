"""Digests and hashes from registries and package indexes, and without a network."""

from __future__ import annotations

import http.server
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aam.contract.errors import Unavailable
from launcher import config
from launcher.engines.sif import record_of
from launcher.images import definitions, lock, registry
from launcher.images import index as index_of_images
from tests.launcher.test_sif_files import sif
from tests.support.engines import PYTHON, ROOT, Engines
from tests.support.images import base, workshop
from tests.support.refused_builds import LAUNCH, here, left, program


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["pull", "docker://h/a:1", "--digest", "1" * 64], 64, "give oras://HOST/NAME:TAG"),
        (["pull", "oras://h/a:1", "--digest", "sha256:12"], 64, "Not a digest"),
        (["publish", "cpu", "--to", "oras://h/a:1"], 66, "No such image is recorded"),
        (["publish", "cpu", "--to", "h/a:1"], 64, "Not a SIF in a registry"),
        (["pull", "oras://h/a:1", "--digest", "1" * 64], 73, "The image was not pulled"),
    ],
)
def test_a_registry_that_cannot_serve(
    tmp_path: Path, args: list[str], status: int, message: str
) -> None:
    program(tmp_path, "apptainer", '[ "$1" = --version ] && echo apptainer version 1.4.5')
    named = ["--name", "cpu"] if args[0] == "pull" else []
    done = here(tmp_path, *args, *named)
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr
    assert not list(tmp_path.glob(".cpu.*[!k]"))  # only the lock


def test_a_build_resolves_a_hash_from_the_index(tmp_path: Path, index: str) -> None:
    """It gets as far as the engine, which is none; the hash is in a lock of the image folder."""
    program(tmp_path, "apptainer", "echo apptainer version 1.4.5", "case $1 in build) exit 1; esac")
    (tmp_path / "site.yaml").write_text(
        "images: {rocm60: {room: [0, 0], arguments: {BASE: 'base@sha256:12', SNAPSHOT: base, "
        f"TORCH: 2.4.1+rocm6.0, TORCH_INDEX: '{index}'}}}}}}\n"
    )
    args = ("--site", str(tmp_path / "site.yaml"), "--allow-one-source")
    done = here(tmp_path, "build", "rocm60", *args)
    assert done.returncode == 73, done.stderr
    lock = (tmp_path / "locks/rocm60.txt").read_text()
    assert f"pytorch-triton-rocm==3.0.0 \\\n    --hash=sha256:{'70' * 32}\n" in lock
    assert "unresolved" not in lock


@pytest.mark.container
def test_a_registry_tells_the_digest_of_a_tag() -> None:
    engines = workshop()
    name, _, digest = base(engines).partition("@")
    assert registry.digest(f"{name}:stand-in") == digest
    with pytest.raises(Unavailable, match="404"):
        registry.digest(f"{name}:none")


def test_nobody_answers() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(Unavailable, match="machine with a network"):
            registry.digest(f"127.0.0.1:{port}/a:b")


class Failing(http.server.BaseHTTPRequestHandler):
    """Answers every request with status 500."""

    def do_GET(self) -> None:
        self.send_error(500)

    do_HEAD = do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def failing() -> Iterator[str]:
    """A registry and package index on a port of this machine, which fails."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_registry_and_an_index_that_answer_500(failing: str) -> None:
    with pytest.raises(Unavailable, match=r"fails: http://.* 500: .*try again later"):
        registry.digest(f"{failing}/a:b")
    with pytest.raises(Unavailable, match=r"fails: http://.* 500: .*try again later"):
        registry.wheel_hashes(f"http://{failing}/whl", "torch")


@pytest.mark.container
def test_a_pull_from_a_registry_that_answers_500(alone: Engines, failing: str) -> None:
    line = ["env", "APPTAINER_NOHTTPS=1", PYTHON, *LAUNCH, "pull", f"oras://{failing}/aam/cpu:1"]
    done = alone.run([*line, "--name", "cpu", "--digest", "1" * 64], cwd=alone.folder)
    assert (done.returncode, "The image was not pulled" in done.stderr) == (73, True), done.stderr
    assert "500" in (alone.images / "logs/cpu-registry.log").read_text()
    assert left(alone.images) == []


def test_without_a_network_everything_else_works(tmp_path: Path) -> None:
    """In a network namespace of its own, a host has no network."""
    isolated = ["unshare", "--net", "--map-root-user"]
    if subprocess.run([*isolated, "true"], capture_output=True).returncode:
        pytest.skip("no network namespaces")
    place = sif(tmp_path / "cpu.sif")
    index_of_images.write(tmp_path, "cpu", "sif", record_of(place))
    variables = {"PATH": "/usr/sbin:/sbin", "HOME": str(tmp_path), "AAM_IMAGE_DIR": str(tmp_path)}
    for args in (
        ["images"],
        ["images", "verify", "cpu", "--no-test"],
        ["images", "prune", "--unused", "30"],
        ["env", "show", "--stack", "cpu"],
        ["explain", "simulate", "--output-dir", "out"],
    ):
        line = [shutil.which("unshare") or "", *isolated[1:], sys.executable, "-m", "launcher.cli"]
        done = subprocess.run([*line, *args], cwd=ROOT, env=variables, capture_output=True,
                              text=True, check=False)  # fmt: skip
        assert done.returncode == 0, (args, done.stderr)


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("debian", ("registry-1.docker.io", "library/debian", "latest")),
        ("debian:12@sha256:ab", ("registry-1.docker.io", "library/debian", "12")),
        ("rocm/dev:6", ("registry-1.docker.io", "rocm/dev", "6")),
        ("ghcr.io/a/b/c:d", ("ghcr.io", "a/b/c", "d")),
        ("127.0.0.1:5000/a", ("127.0.0.1:5000", "a", "latest")),
    ],
)
def test_references_are_read_like_docker_does(reference: str, parts: tuple[str, ...]) -> None:
    assert registry._split(reference) == parts


def test_a_hash_with_one_source_is_compared_with_the_index(tmp_path: Path, index: str) -> None:
    """The lock of ROCm 7.2 has the hash of PyTorch from one public file."""
    rocm72 = config.catalog(config.read({}, {}, Path("/"))).image("rocm72")
    assert rocm72 is not None
    served = tmp_path / "served/torch/index.html"
    served.parent.mkdir(parents=True)

    def complete(where: str, allow: bool = False) -> Path:
        arguments = {**rocm72.arguments, "TORCH_INDEX": where}
        ours = replace(rocm72, arguments=arguments)
        return lock.complete_lock(ours, arguments, tmp_path / "images", allow)

    ((pin, value),) = definitions.one_source(
        (ROOT / "containers/locks/rocm72.txt").read_text(), rocm72.arguments
    ).items()
    assert pin == "torch==2.11.0+rocm7.2"
    wheel = "torch-2.11.0%2Brocm7.2-cp312-cp312-manylinux_2_28_x86_64.whl"
    served.write_text(f'<a href="/x/{wheel}#sha256={value}">{wheel}</a>\n')
    assert complete(index).name == "rocm72.txt"
    served.write_text(f'<a href="/x/{wheel}#sha256={"0" * 64}">{wheel}</a>\n')
    with pytest.raises(Unavailable, match=r"one source, and .* has no wheel of torch with it"):
        complete(index)
    with pytest.raises(Unavailable, match=r"its index does not answer.*--allow-one-source"):
        complete("http://127.0.0.1:9/whl")
    assert complete("http://127.0.0.1:9/whl", allow=True).name == "rocm72.txt"


@pytest.mark.container
def test_lock_writes_what_it_resolves_into_a_checkout(tmp_path: Path, index: str) -> None:
    engines = workshop()
    name, _, digest = base(engines).partition("@")
    project = tmp_path / "project"
    shutil.copytree(engines.folder / "code", project)
    files = [project / "launcher/catalog.yaml", *(project / "containers").glob("rocm60.*"),
             project / "containers/locks/rocm60.txt"]  # fmt: skip
    for path in files:
        text = path.read_text().replace("https://download.pytorch.org/whl/rocm6.0", index)
        pinned = r"debian(:bookworm-\S+?)?@sha256:[0-9a-f]{64}"
        path.write_text(re.sub(pinned, f"{name}:stand-in", text))
    variables = {"HOME": str(tmp_path), "PATH": "/usr/bin", "PYTHONPATH": str(project)}
    done = subprocess.run([sys.executable, *LAUNCH, "lock", "rocm60"], cwd=project, check=False,
                          env=variables, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    lock = files[-1].read_text()
    assert "unresolved" not in lock
    assert f"pytorch-triton-rocm==3.0.0 \\\n    --hash=sha256:{'70' * 32}\n" in lock
    catalog, *definitions = files[:-1]
    assert f"{name}:stand-in@{digest}" in catalog.read_text()
    for path in definitions:  # whatever reads them gets no tag beside the digest
        assert f"BASE={name}@{digest}\n" in path.read_text(), path
