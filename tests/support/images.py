"""Images for tests: a copy of the project, wheels, and images that are built once.

Everything lies below AAM_ENGINES (see tests.support.engines), is made by the first that asks
and can be read by every user. The product's own lock lets one worker build and the others wait.

PyTorch's builds for ROCm and CUDA are replaced by stand-ins: wheels of a few files, from which the
labels of an image are measured. In the copy of the project the locks of `rocm63` and `cuda128` have
their hashes, and of the other packages the few that `aam --version` and the measurement import.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from launcher.images.index import LIST, locked
from tests.support.engines import LAUNCH, ROOT, USER, Engines, copy_code, state_folder

PARTS = ("aam", "launcher", "containers")
WHEEL_TAGS = [f"manylinux_2_{minor}" for minor in range(5, 37)]
WHEEL_TAGS += ["manylinux2014", "manylinux2010", "manylinux1", "linux"]
CATALOG = yaml.safe_load((ROOT / "launcher/catalog.yaml").read_text())["images"]
LOCKS = ROOT / "containers/locks"
SMALL = ("argcomplete", "msgspec", "numpy", "pyyaml")
"""The packages of `rocm63` and `cuda128` in the tests, besides PyTorch."""
ROCM63 = ("torch==2.7.1+rocm6.3", "pytorch-triton-rocm==3.3.1")
"""The stand-ins of `rocm63`."""

SITE = "small.yaml"
PYTORCH_INDEX = "https://download.pytorch.org/whl/cpu"

STAND_INS: dict[str, dict[str, str]] = {
    "torch==2.7.1+rocm6.3": {
        "torch/__init__.py": "from torch import _C, cuda, version\n"
        "__version__ = version.__version__\nclass Tensor: ...\n",  # for scipy
        "torch/version.py": "__version__ = '2.7.1+rocm6.3'\nhip = '6.3.42131-fa1d09cbd'\n"
        "cuda = None\n",
        "torch/_C.py": "def _cuda_getArchFlags():\n    return 'gfx90a:xnack- gfx942'\n",
        "torch/cuda.py": "def is_available():\n    return False\n",  # which skbio calls
        "torch/lib/libaotriton_v2.so.0.9.2": "",
        "torch/lib/aotriton.images/amd-gfx942/kernels": "",
        "torch/lib/rocblas/library/TensileLibrary_lazy_gfx942.dat": "",
    },
    "pytorch-triton-rocm==3.3.1": {"triton/__init__.py": ""},
    "torch==2.10.0": {
        "torch/__init__.py": "from torch import _C, version\n__version__ = version.__version__\n",
        "torch/version.py": "__version__ = '2.10.0+cu128'\nhip = None\ncuda = '12.8'\n",
        "torch/_C.py": "def _cuda_getArchFlags():\n    return 'sm_70 sm_90'\n",
        "torch/lib/libtorch.so": "",
    },
}
"""Files of the wheels in the place of PyTorch's builds for GPUs, by their pin."""


IMAGES = (*LAUNCH, "images")


def workshop() -> Engines:
    """Return engines with a copy of the project and a shared image folder."""
    state = state_folder()
    images = state / "aam-images"
    with locked(state, "aam-workshop"):
        if not images.is_dir():
            images.mkdir(mode=0o755)
            shutil.chown(images, USER, USER)
        return Engines(_copy(state), state, images)


def cpu_sif() -> Path:
    """Return the whole image `cpu` as a SIF; the first call builds it, in two to seven minutes.

    Its own test, two runs of `aam`, runs at night.
    """
    engines = workshop()
    argv = build_argv(engines, "cpu", "apptainer", "--no-test")
    done = engines.run(argv, cwd=engines.folder, timeout=1500)
    assert done.returncode == 0, done.stderr
    return engines.images / "cpu.sif"


def build_argv(engines: Engines, name: str, engine: str, *more: str) -> list[str]:
    """Return the command that builds an image on the stand-in base, as fast as can be."""
    return [
        *(*IMAGES, "build", name, "--engine", engine),
        *("--site", f"{engines.folder}/{SITE}"),
        *("--build-arg", f"BASE={base(engines, CATALOG[name]['pins']['python'])}"),
        *("--build-arg", "SNAPSHOT=base", "--wheels", str(wheels())),
        *more,
    ]


def base(engines: Engines, python: str = "3.11") -> str:
    """Return the reference of the stand-in base image with a Python, with its digest."""
    name = {"3.11": "AAM_TEST_BASE", "3.12": "AAM_TEST_BASE_312"}[python]
    return engines.run(["sh", "-c", f"echo ${name}"], user="root").stdout.strip()


def wheels() -> Path:
    """Return a folder with the wheels of the tests' images; the first call fetches them."""
    state = Path(os.environ["AAM_ENGINES"])
    needed = [(LOCKS / f"{name}.txt").read_bytes() for name in ("cpu", "rocm63")]
    total = hashlib.sha256(b"".join([*needed, repr((STAND_INS, SMALL)).encode()])).hexdigest()
    folder = state / f"aam-wheels-{total[:12]}"
    with locked(state, "aam-wheels"):
        if not folder.is_dir():
            aside = folder.with_suffix(".new")
            shutil.rmtree(aside, ignore_errors=True)
            fetch(LOCKS / "cpu.txt", "3.11", aside)
            fetch_rocm63(aside, SMALL)
            aside.chmod(0o755)
            aside.rename(folder)
    return folder


def fetch_rocm63(folder: Path, names: Iterable[str] = ()) -> None:
    """Fetch wheels of `rocm63`, all or the named ones, and write the stand-ins."""
    folder.mkdir(exist_ok=True)
    listed = folder / "rocm63.txt"
    listed.write_text(packages_of(LOCKS / "rocm63.txt", names))
    fetch(listed, "3.12", folder)
    for pin, files in STAND_INS.items():
        name, content = wheel(pin, files)
        (folder / name).write_bytes(content)


def packages_of(lock: Path, names: Iterable[str] = ()) -> str:
    """Return the packages of a lock but for PyTorch's part: all, or the named ones."""
    packages = re.split(r"\n(?=\S)", lock.read_text().partition("# torch: ")[0].rstrip())
    kept = [text for text in packages if not names or text.partition("==")[0] in names]
    return "\n".join(text for text in kept if not text.startswith("#")) + "\n"


def wheel(pin: str, files: Mapping[str, str]) -> tuple[str, bytes]:
    """Return the file name and the content of a wheel, the same for the same files."""
    name, _, version = pin.partition("==")
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    whole = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in whole.items()]
    whole[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"])
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, text in whole.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return f"{info.removesuffix('.dist-info')}-py3-none-any.whl", stream.getvalue()


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def fetch(lock: Path, python: str, folder: Path, *more: str) -> None:
    """Fetch the wheels of a lock for an image's Python, whatever Python this is."""
    done = pip("download", lock, python, "--dest", str(folder), *more)
    if done.returncode:
        # PyTorch's CPU build may lie in a folder that pip's configuration names; else its index
        # has it.
        done = pip("download", lock, python, "--dest", str(folder), "--extra-index-url",
                   PYTORCH_INDEX)  # fmt: skip
    assert done.returncode == 0, done.stderr


def pip(
    command: str, lock: Path, python: str, *more: str, machine: str = "x86_64"
) -> subprocess.CompletedProcess[str]:
    """Run a command of pip on the wheels of a lock, for a Python and a processor of the images."""
    abi = f"cp{python.replace('.', '')}"
    program = [sys.executable if _has_pip(sys.executable) else "python3", "-m", "pip", command]
    program += ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    program += ["--python-version", python, "--implementation", "cp"]
    program += ["--abi", abi, "--abi", "abi3", "--abi", "none"]
    program += [word for tag in WHEEL_TAGS for word in ("--platform", f"{tag}_{machine}")]
    program += ["--requirement", str(lock), *more]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def _has_pip(python: str) -> bool:
    return subprocess.run([python, "-c", "import pip"], capture_output=True).returncode == 0


def _copy(state: Path) -> Path:
    """Copy the project to where the test user can read it, once for each state of the project."""
    total = hashlib.sha256(repr((STAND_INS, SMALL)).encode())
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                total.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    folder = state / f"aam-project-{total.hexdigest()[:12]}"
    if not folder.is_dir():
        aside = folder.with_suffix(".new")
        shutil.rmtree(aside, ignore_errors=True)
        copy_code(aside / "code", PARTS)
        locks = aside / "code/containers/locks"
        write_lock(locks / "rocm63.txt", SMALL, ROCM63)
        write_lock(locks / "cuda128.txt", SMALL, ("torch==2.10.0",))
        # What is built here is as small as `cpu`, whatever its name asks room for.
        small = {"images": {name: {"room": [5, 1]} for name in CATALOG}}
        (aside / SITE).write_text(yaml.safe_dump(small))
        subprocess.run(["chmod", "-R", "a+rX", str(aside)], check=True)
        aside.rename(folder)
    return folder


def write_lock(lock: Path, names: Iterable[str], pins: Iterable[str]) -> None:
    """Write the named packages of the project's lock, by default all, and stand-ins for PyTorch."""
    lines = [packages_of(LOCKS / lock.name, names), "# torch: pypi\n"]
    for pin in pins:
        value = hashlib.sha256(wheel(pin, STAND_INS[pin])[1]).hexdigest()
        lines.append(f"{pin} \\\n    --hash=sha256:{value}\n")
    lock.write_text("".join(lines))


def in_podman() -> Engines:
    """Return engines with an image folder of root's own.

    Root's, because the storage of an ordinary user here copies every layer in full.
    """
    engines = workshop()
    folder = engines.state / "aam-images-root"
    folder.mkdir(mode=0o755, exist_ok=True)
    return Engines(engines.folder, engines.state, folder)


def podman_image(name: str) -> Engines:
    """Return engines whose image folder, root's own, has an image for podman."""
    engines = in_podman()
    test = ["--no-test"] if name != "cpu" else []  # with a stand-in for PyTorch it cannot train
    done = as_root(engines, build_argv(engines, name, "podman", *test))
    assert done.returncode == 0, done.stderr
    return engines


def as_root(engines: Engines, args: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of the launcher as root, whose storage podman uses."""
    return engines.run(args, user="root", cwd=engines.folder, timeout=1500)


def left(folder: Path) -> list[str]:
    """Return what a build left in the image folder, but for its log and the locks."""
    names = sorted(path.name for path in folder.iterdir())
    return [name for name in names if name != "logs" and not name.endswith(".lock")]


def forget(engines: Engines, name: str) -> None:
    """Remove an image from images.json."""
    with locked(engines.images, LIST):
        path = engines.images / LIST
        entries = json.loads(path.read_text())
        del entries[name]
        path.write_text(json.dumps(entries))


def recorded(engines: Engines, name: str, kind: str) -> Any:
    """Return what images.json holds of an image."""
    return json.loads((engines.images / "images.json").read_text())[name][kind]


def base_with_pytorch() -> str:
    """Return a stand-in base, in the loopback registry, in which pip finds the PyTorch of `cpu`."""
    engines = in_podman()
    (file,) = wheels().glob("torch-*+cpu-*.whl")
    name = f"{base(engines).partition('@')[0].rpartition('/')[0]}/base-with-pytorch"
    key = hashlib.sha256(f"{base(engines)} {file.name}".encode()).hexdigest()[:12]
    place = engines.state / f"aam-{key}.digest"
    with locked(engines.state, "aam-base-with-pytorch"):
        if not place.is_file():
            context = engines.state / f"aam-{key}"
            shutil.rmtree(context, ignore_errors=True)
            context.mkdir()
            os.link(file, context / file.name)
            # The pip of the stand-in base looks for wheels in this folder, too.
            (context / "Dockerfile").write_text(f"FROM {base(engines)}\nCOPY *.whl /opt/wheels/\n")
            make = ["podman", "build", "--quiet", "--tag", f"{name}:{key}", str(context)]
            push = ["podman", "push", "--quiet", "--digestfile", f"{place}.new", f"{name}:{key}"]
            for argv in (make, push):
                done = as_root(engines, argv)
                assert done.returncode == 0, done.stderr
            Path(f"{place}.new").rename(place)
            shutil.rmtree(context)
    return f"{name}@{place.read_text().strip()}"
