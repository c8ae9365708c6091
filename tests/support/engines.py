"""Container engines for tests: images with a probe instead of `aam`, and a user.

The environment variable AAM_ENGINES names a folder with `env.sh`, which makes the engines usable
and sets AAM_TEST_BASE, the image to build from. Apptainer is run as the ordinary user `aamtest`.
The images with the probe are built once for all tests of a machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from launcher.engines.sif import record_of
from launcher.images.index import locked

ROOT = Path(__file__).parents[2]
USER = "aamtest"
PYTHON = "/usr/bin/python3"
LAUNCH = (PYTHON, "-m", "launcher.cli")


@dataclass(frozen=True)
class Engines:
    """A folder that the test user can read, with a copy of the launcher and the images."""

    folder: Path
    state: Path
    images: Path
    home: Path = field(default=Path("/home/aamtest"))

    def run(
        self, args: Sequence[str], *, user: str = USER, before: str = "", **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as `user` with the engines at hand; `before` is run as root just before."""
        command = self.command(args, user=user, before=before)
        return subprocess.run(
            command, capture_output=True, text=True, check=False, **{"timeout": 600, **options}
        )

    def command(self, args: Sequence[str], *, user: str = USER, before: str = "") -> list[str]:
        script = f'. {shlex.quote(str(self.state / "env.sh"))}; exec "$@"'
        variables = {
            "HOME": "/root" if user == "root" else str(self.home),
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin",
            "LANG": "C.UTF-8",
            "PYTHONPATH": f"{self.folder}/code",
            "AAM_IMAGE_DIR": str(self.images),
            "XDG_RUNTIME_DIR": "",
        }
        if "DOCKER_HOST" in os.environ:
            variables["DOCKER_HOST"] = os.environ["DOCKER_HOST"]
        named = [f"{name}={value}" for name, value in variables.items()]
        inner = ["env", "-i", *named, "sh", "-c", script, "sh", *args]
        if user != "root":
            inner = ["runuser", "-u", user, "--", *inner]
        if before:
            inner = ["unshare", "--mount", "sh", "-ec", f'{before}\nexec "$@"', "sh", *inner]
        return inner

    def has_docker(self) -> bool:
        """Tell whether a daemon answers; none can be had on every test machine."""
        return self.run(["docker", "info"]).returncode == 0

    def launch(self, engine: str, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        own = ["--runtime", engine, "--image", "cpu"] if "--image" not in args else []
        own = own or ["--runtime", engine]
        return self.run([*LAUNCH, *own, *args], cwd=self.folder, **options)

    def probe(self, engine: str, *args: str, **options: Any) -> dict[str, Any]:
        done = self.launch(engine, *args, **options)
        assert done.returncode == 0, done.stderr
        output: dict[str, Any] = json.loads(done.stdout)
        return output


def state_folder() -> Path:
    """Return the folder of the engines; skip, or fail in CI, where there are none."""
    state = os.environ.get("AAM_ENGINES")
    if state is None:
        pytest.skip("AAM_ENGINES names no folder with container engines")
    if os.geteuid() != 0:
        pytest.skip("the tests with engines set up devices and users, which takes root")
    return Path(state)


@contextmanager
def open_folder(name: str) -> Iterator[Path]:
    """Make a folder that every user may read, outside of /tmp and of any home, and remove it."""
    folder = Path("/var/tmp") / f"aam-{name}-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_code(target: Path, parts: Iterable[str]) -> None:
    """Copy parts of the project, and the libraries of the launcher."""
    libraries = [Path(str(module.__file__)).parent for module in (yaml, msgspec)]
    for source in (*(ROOT / part for part in parts), *libraries):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target / source.name, ignore=ignored)


def start(folder: Path) -> Engines:
    """Return engines with an image folder that has the probe under the names cpu and rocm63."""
    state = state_folder()
    copy_code(folder / "code", ("aam", "launcher"))
    images = folder / "images"
    images.mkdir()
    engines = Engines(folder, state, images)
    built, tag = _probe_images(engines)
    shutil.copy(built, images / "cpu.sif")
    os.link(images / "cpu.sif", images / "rocm63.sif")
    places = {"podman": {"reference": f"localhost/{tag}"}, "docker": {"reference": tag}}
    listed = {name: {**places, "sif": msgspec.to_builtins(record_of(images / f"{name}.sif"))}
              for name in ("cpu", "rocm63")}  # fmt: skip
    (images / "images.json").write_text(json.dumps(listed))
    return engines


def _probe_images(engines: Engines) -> tuple[Path, str]:
    """Return the SIF and the tag of the images with the probe, which the first call builds."""
    probe = Path(__file__).with_name("probe.py")
    base = engines.run(["sh", "-c", "echo $AAM_TEST_BASE"], user="root").stdout.strip()
    digest = hashlib.sha256(base.encode() + probe.read_bytes()).hexdigest()[:12]
    tag, place = f"aam:probe-{digest}", engines.state / f"aam-probe-{digest}"
    with locked(engines.state, "aam-probe"):
        if not place.is_dir():
            work = place.with_suffix(".new")
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(mode=0o755)
            shutil.copy(probe, work / "probe")
            (work / "probe").chmod(0o755)
            (work / "probe.def").write_text(
                f"Bootstrap: docker\nFrom: {base}\n%files\n    {work}/probe /usr/local/bin/aam\n"
            )
            (work / "Dockerfile").write_text(f"FROM {base}\nCOPY probe /usr/local/bin/aam\n")
            shutil.chown(work, USER)
            _must(engines.run(
                ["env", "APPTAINER_NOHTTPS=1", f"APPTAINER_CACHEDIR={work}/cache",
                 f"APPTAINER_TMPDIR={work}", "apptainer", "--quiet", "build", "--mksquashfs-args",
                 "-comp zstd -Xcompression-level 1", str(work / "cpu.sif"),
                 str(work / "probe.def")], cwd=work))  # fmt: skip
            shutil.rmtree(work / "cache")
            podman = ["podman", "build", "--quiet", "--tag", f"localhost/{tag}", str(work)]
            for user in ("root", USER):
                _must(engines.run(podman, user=user, cwd=work))
            if engines.has_docker():
                _must(engines.run(["docker", "build", "--quiet", "--tag", tag, str(work)],
                                  cwd=work))  # fmt: skip
            work.rename(place)
    return place / "cpu.sif", tag


def _must(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
