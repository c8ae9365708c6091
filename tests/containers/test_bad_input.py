"""Errors of image builds, checks and runs, each caused by real files and programs."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aam.contract.errors import CannotCreate, Unavailable
from launcher import config
from launcher.engines import apptainer
from launcher.engines.base import GIB, SpaceRequirement
from launcher.engines.sif import record_of
from launcher.images import definitions, lock, registry
from launcher.images import index as index_of_images
from launcher.images.build import require_space
from tests.launcher.test_sif_files import sif
from tests.support.engines import PYTHON, ROOT, USER, Engines
from tests.support.images import base, build_argv, warm_base, wheels, workshop

container = pytest.mark.container
LAUNCH = ("-m", "launcher.cli", "images")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Engines]:
    """Engines with an empty image folder of their own, which the test user may write."""
    engines = workshop()
    folder = Path("/var/tmp") / f"aam-images-{os.getpid()}"
    folder.mkdir()
    shutil.chown(folder, USER, USER)
    try:
        yield Engines(engines.folder, engines.state, folder)
    finally:
        shutil.rmtree(folder)


def here(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `aam-launch images` natively, with nothing but the given programs on PATH."""
    environment = {"PATH": str(folder / "bin"), "HOME": str(folder), "AAM_IMAGE_DIR": str(folder)}
    return subprocess.run([sys.executable, *LAUNCH, *words], capture_output=True, text=True,
                          cwd=ROOT, env={**environment, **variables}, check=False)  # fmt: skip


def program(folder: Path, name: str, *lines: str) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    path = folder / "bin" / name
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


# --- before anything is begun


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["bild", "cpu"], 64, "did you mean 'build'?"),
        (["build"], 64, "NAME"),
        (["build", "cup"], 64, "did you mean 'cpu'?"),
        (["build", "cpu", "--engin", "podman"], 64, "--engin"),
        (["build", "cpu", "--engine", "lxc"], 64, "No such engine: --engine lxc"),
        (["build", "cpu"], 69, "none of apptainer, singularity, podman, docker on PATH"),
        (["build", "cpu", "--engine", "podman"], 69, "no podman on PATH"),
        (["build", "cpu", "--wheels", "/nonexistent"], 66, "pip download"),
        (["build", "cpu", "--from", "a.tar", "--engine", "podman"], 64, "--from makes a SIF"),
        (["build", "cpu", "--from", "a.tar", "--build-arg", "TORCH=1"], 64, "--from makes a SIF"),
        (["verify", "cpu"], 66, "No such image is recorded"),
        (["rm", "cpu"], 66, "No such image is built"),
        (["pull", "oras://h/a:1", "--name", "cpu"], 64, "--digest"),
        (["pull", "oras://h/a:1", "--name", "cup", "--digest", "x"], 64, "did you mean 'cpu'?"),
        (["publish", "cpu", "--to", "oras://h/a:1"], 69, "on PATH"),
    ],
)
def test_refused_at_once(tmp_path: Path, words: list[str], status: int, message: str) -> None:
    done = here(tmp_path, *words)
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["pull", "docker://h/a:1", "--digest", "1" * 64], 64, "give oras://HOST/NAME:TAG"),
        (["pull", "oras://h/a:1", "--digest", "sha256:12"], 64, "Not a digest"),
        (["publish", "cpu", "--to", "oras://h/a:1"], 66, "No such image is recorded"),
        (["publish", "cpu", "--to", "h/a:1"], 64, "Not a SIF in a registry"),
        (["pull", "oras://h/a:1", "--digest", "1" * 64], 73, "The image was not pulled"),
    ],
)
def test_a_registry_that_cannot_serve(
    tmp_path: Path, words: list[str], status: int, message: str
) -> None:
    program(tmp_path, "apptainer", '[ "$1" = --version ] && echo apptainer version 1.4.5')
    named = ["--name", "cpu"] if words[0] == "pull" else []
    done = here(tmp_path, *words, *named)
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr
    assert not list(tmp_path.glob(".cpu.*[!k]"))  # only the lock


@pytest.mark.parametrize(
    ("name", "says", "needed"),
    [
        ("apptainer", "apptainer version 1.1.9-1.el8", "apptainer 1.2"),
        ("singularity", "singularity-ce version 3.11.4", "singularity 4.0"),
        ("singularity", "apptainer version 1.1.0", "apptainer 1.2"),
        ("podman", "podman version 3.4.2", "podman 4.0"),
    ],
)
def test_an_engine_that_is_too_old(tmp_path: Path, name: str, says: str, needed: str) -> None:
    program(tmp_path, name, f"echo '{says}'")
    done = here(tmp_path, "build", "cpu", "--engine", name)
    assert done.returncode == 69
    assert needed in done.stderr
    assert "too old" in done.stderr


def test_a_misspelt_argument_never_reaches_the_engine(tmp_path: Path) -> None:
    program(tmp_path, "apptainer", f"echo x >> {tmp_path}/started", "echo apptainer version 1.4.5")
    done = here(tmp_path, "build", "cpu", "--build-arg", "TORCHINDEX=x")
    assert done.returncode == 64
    assert "did you mean 'TORCH_INDEX'?" in done.stderr
    assert (tmp_path / "started").read_text().split() == ["x"]  # its version alone


def test_an_image_without_a_known_hash_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """The index does not answer: its address is of no host."""
    program(tmp_path, "apptainer", "echo apptainer version 1.4.5")
    (tmp_path / "site.yaml").write_text(
        "images: {rocm60: {arguments: {BASE: 'base@sha256:12', SNAPSHOT: base, "
        "TORCH: 2.4.1+rocm6.0, TORCH_INDEX: 'http://127.0.0.1:9/whl'}}}\n"
    )
    done = here(tmp_path, "build", "rocm60", "--site", str(tmp_path / "site.yaml"))
    assert done.returncode == 69
    assert "Image rocm60 cannot be built" in done.stderr
    assert "no SHA-256 of pytorch-triton-rocm==3.0.0 is known" in done.stderr
    assert "127.0.0.1:9" in done.stderr
    assert left(tmp_path) == ["bin", "site.yaml"]
    listed = here(tmp_path, "list")
    (line,) = [line for line in listed.stdout.splitlines() if line.startswith("rocm60")]
    assert line.endswith("no SHA-256 of pytorch-triton-rocm==3.0.0 is known")
    assert sum("no SHA-256" in line for line in listed.stdout.splitlines()) == 1


def test_a_build_resolves_a_hash_from_the_index(tmp_path: Path, index: str) -> None:
    """It gets as far as the engine, which is none; the hash is in a lock of the image folder."""
    program(tmp_path, "apptainer", "echo apptainer version 1.4.5", "case $1 in build) exit 1; esac")
    (tmp_path / "site.yaml").write_text(
        "images: {rocm60: {room: [0, 0], arguments: {BASE: 'base@sha256:12', SNAPSHOT: base, "
        f"TORCH: 2.4.1+rocm6.0, TORCH_INDEX: '{index}'}}}}}}\n"
    )
    words = ("--site", str(tmp_path / "site.yaml"), "--allow-one-source")
    done = here(tmp_path, "build", "rocm60", *words)
    assert done.returncode == 73, done.stderr
    lock = (tmp_path / "locks/rocm60.txt").read_text()
    assert f"pytorch-triton-rocm==3.0.0 \\\n    --hash=sha256:{'70' * 32}\n" in lock
    assert "unresolved" not in lock


# --- room


def test_room_is_added_up_for_each_file_system(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    halves = [
        SpaceRequirement(what, tmp_path, free * 2 // 3, f"set {what}") for what in ("ONE", "TWO")
    ]
    require_space(halves[:1])
    with pytest.raises(CannotCreate, match="set TWO"):
        require_space(halves)


def test_the_variables_that_move_a_build(tmp_path: Path) -> None:
    given = {"HOME": "/h", "TMPDIR": "/t", "SINGULARITY_CACHEDIR": "/c"}
    found = {n.what: n for n in apptainer.ENGINE.needs("", (5, 1), tmp_path, given)}
    assert found["unpacking"].folder == Path("/t")
    assert "APPTAINER_TMPDIR" in found["unpacking"].remedy
    assert found["cache"].folder == Path("/c")
    assert "SINGULARITY_CACHEDIR" in found["cache"].remedy
    assert found["image"].size == GIB
    given = {"HOME": "/h", "APPTAINER_TMPDIR": "/a", "TMPDIR": "/t"}
    assert apptainer.ENGINE.needs("", (5, 1), tmp_path, given)[0].folder == Path("/a")


@container
def test_no_room(alone: Engines) -> None:
    small = f"mount -t tmpfs -o size=100m tmpfs {alone.images}"
    done = alone.run(build_argv(alone, "cpu", "apptainer"), before=small, cwd=alone.folder)
    assert done.returncode == 73, done.stderr
    assert "0.1 GiB free" in done.stderr
    assert "set AAM_IMAGE_DIR" in done.stderr
    small = "mount -t tmpfs -o size=100m tmpfs /mnt"
    words = ["env", "APPTAINER_TMPDIR=/mnt", *build_argv(alone, "cpu", "apptainer")]
    done = alone.run(words, before=small, cwd=alone.folder)
    assert done.returncode == 73, done.stderr
    assert "set APPTAINER_TMPDIR" in done.stderr


# --- while it is built


def left(folder: Path) -> list[str]:
    """Return what a build left in the image folder, but for its log and the locks."""
    names = sorted(path.name for path in folder.iterdir())
    return [name for name in names if name != "logs" and not name.endswith(".lock")]


@container
@pytest.mark.slow
def test_a_build_that_fails_half_way_leaves_its_log(alone: Engines) -> None:
    words = build_argv(alone, "cpu", "apptainer", "--build-arg", "TORCH=9.9.9")
    words = [f"BASE={warm_base()}" if word.startswith("BASE=") else word for word in words]
    done = alone.run(words, cwd=alone.folder, timeout=600)
    assert done.returncode == 73, done.stderr
    log = alone.images / "logs/cpu-apptainer.log"
    assert str(log) in done.stderr
    assert "torch==9.9.9" in log.read_text()
    assert left(alone.images) == []


@container
def test_no_network_names_the_step_and_the_way_without(alone: Engines) -> None:
    """In a network namespace of its own, a host has no network."""
    words = ["unshare", "--net", "--map-root-user", *build_argv(alone, "cpu", "apptainer")]
    done = alone.run(words, cwd=alone.folder)
    assert done.returncode == 73, done.stderr
    assert "needs a network for its base, Debian's packages and the wheels" in done.stderr
    assert "--from FILE" in done.stderr
    assert left(alone.images) == []


@container
@pytest.mark.slow
def test_a_disk_that_fills_up_during_a_build_leaves_nothing(alone: Engines) -> None:
    """The image folder is a file system of 20 MiB, and the base takes more as a SIF."""
    archive = alone.images.with_suffix(".tar")
    save = ["podman", "save", "--format", "docker-archive", "--output", str(archive), base(alone)]
    pulled = alone.run(["podman", "pull", "--quiet", base(alone)], user="root")
    assert pulled.returncode == 0, pulled.stderr
    try:
        assert alone.run(save, user="root", timeout=300).returncode == 0
        archive.chmod(0o644)
        small = f"mount -t tmpfs -o size=20m,mode=777 tmpfs {alone.images}"
        build = [PYTHON, *LAUNCH, "build", "cpu", "--engine", "apptainer", "--from", str(archive)]
        # The listing is made in the mount namespace of the build, in which the file system is.
        script = '"$@"; status=$?; ls -A "$AAM_IMAGE_DIR" >&2; exit $status'
        line = ["sh", "-c", script, "sh", *build, "--fast", "--no-test"]
        done = alone.run(line, before=small, cwd=alone.folder, timeout=300)
    finally:
        archive.unlink(missing_ok=True)
    assert done.returncode == 73, done.stderr
    assert "the disk is full" in done.stderr
    listed = done.stderr.splitlines()[-3:]
    assert "logs" in listed
    assert not any(name.endswith(".sif") or name == "images.json" for name in listed)


@container
@pytest.mark.slow
def test_a_wheel_with_another_hash_than_the_lock_ends_the_build(
    alone: Engines,
) -> None:
    """All wheels are those of the lock but for the first, one byte of which is another."""
    altered = Path(shutil.copytree(wheels(), alone.images / "wheels"))
    first = sorted(altered.glob("*.whl"))[0]
    content = first.read_bytes()
    first.unlink()
    first.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    words = build_argv(alone, "cpu", "apptainer")
    words[words.index("--wheels") + 1] = str(altered)
    done = alone.run(words, cwd=alone.folder, timeout=600)
    assert done.returncode == 73, done.stderr
    log = (alone.images / "logs/cpu-apptainer.log").read_text()
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in log
    assert first.name.partition("-")[0] in log
    assert left(alone.images) == ["wheels"]


@container
def test_an_archive_that_is_none(alone: Engines) -> None:
    words = [PYTHON, *LAUNCH, "build", "cpu", "--engine", "apptainer", "--from"]
    done = alone.run([*words, "/nonexistent.tar"], cwd=alone.folder)
    assert done.returncode == 66, done.stderr
    done = alone.run([*words, "/etc/passwd"], cwd=alone.folder)
    assert done.returncode == 73, done.stderr
    assert left(alone.images) == []


# --- a SIF that is not what was built


@container
def test_a_sif_is_locked_before_a_job_uses_it(alone: Engines) -> None:
    place = alone.images / "cpu.sif"
    recipe = alone.images / "small.def"
    recipe.write_text(f"Bootstrap: docker\nFrom: {base(alone)}\n")
    fast = ["--mksquashfs-args", "-comp zstd -Xcompression-level 1"]
    made = alone.run(["apptainer", "build", *fast, str(place), str(recipe)], cwd=alone.images)
    assert made.returncode == 0, made.stderr
    job = [PYTHON, "-m", "launcher.cli", "--dry-run", "--image", "cpu", "--runtime", "apptainer",
           "simulate", "--output-dir", str(alone.images / "out")]  # fmt: skip
    done = alone.run(job, cwd=alone.folder)
    assert done.returncode == 66, done.stderr
    assert "aam-launch images lock cpu" in done.stderr
    lock = alone.run([PYTHON, *LAUNCH, "lock", "cpu"], cwd=alone.folder)
    assert lock.returncode == 0, lock.stderr
    before = hashlib.sha256(place.read_bytes()).hexdigest()
    assert f"sha256:{before}" in lock.stdout
    assert alone.run(job, cwd=alone.folder).returncode == 0
    verify = [PYTHON, *LAUNCH, "verify", "cpu", "--no-test"]
    assert alone.run(verify, cwd=alone.folder).returncode == 0
    with place.open("r+b") as stream:
        stream.seek(-5000, os.SEEK_END)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 1]))
    after = hashlib.sha256(place.read_bytes()).hexdigest()
    done = alone.run(verify, cwd=alone.folder)
    assert done.returncode == 66
    assert f"sha256:{after}" in done.stderr
    assert f"sha256:{before}" in done.stderr
    with place.open("ab") as stream:
        stream.write(b"\0")
    done = alone.run(job, cwd=alone.folder)
    assert done.returncode == 66
    assert "The image is not locked" in done.stderr


# --- digests that are resolved


@container
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


@container
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
    for words in (
        ["images"],
        ["images", "verify", "cpu", "--no-test"],
        ["images", "prune", "--unused", "30"],
        ["env", "show", "--stack", "cpu"],
        ["explain", "simulate", "--output-dir", "out"],
    ):
        line = [shutil.which("unshare") or "", *isolated[1:], sys.executable, "-m", "launcher.cli"]
        done = subprocess.run([*line, *words], cwd=ROOT, env=variables, capture_output=True,
                              text=True, check=False)  # fmt: skip
        assert done.returncode == 0, (words, done.stderr)


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


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """A package index with the wheels of which the lock of rocm60 has no hash."""
    wheel = "pytorch_triton_rocm-3.0.0-cp311-cp311-linux_x86_64.whl"
    page = tmp_path / "served/pytorch-triton-rocm/index.html"
    page.parent.mkdir(parents=True)
    links = [(wheel.replace("cp311", "cp312"), "0" * 64), (wheel, "70" * 32)]
    page.write_text("".join(f'<a href="/x/{w}#sha256={h}">{w}</a>\n' for w, h in links))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "served")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


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


@container
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
