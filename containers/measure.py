"""Labels of an image, measured inside it during its build and written to /opt/aam/labels.json.

    measure.py NAME BASE SNAPSHOT TORCH TORCH_INDEX

A property that cannot be measured has no label; the catalog states it. Nothing here needs a GPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

AAM = Path("/opt/aam")
AOTRITON = re.compile(r"libaotriton_v2\.so\.(\d+\.\d+(?:\.\d+)?)$")
COMMENT = re.compile(rb"AOTriton (\d+\.\d+(?:\.\d+)?)")
IMAGES = re.compile(r"amd-(gfx[0-9a-fx]+)")
EMBEDDED = re.compile(rb"amd-(gfx[0-9a-fx]+)")
TENSILE = re.compile(r"TensileLibrary_(?:lazy_)?(gfx[0-9a-f]+)\.dat")
DISTRIBUTION = "attention-all-microbes"
TRITONS = ("triton", "pytorch-triton-rocm", "triton-rocm")


def main(build_arguments: list[str]) -> int:
    """Write the labels and print them."""
    name, base, snapshot, torch, index = build_arguments
    lock = (AAM / "lock.txt").read_bytes()
    arguments = {"BASE": base, "SNAPSHOT": snapshot, "TORCH": torch, "TORCH_INDEX": index}
    labels = {
        "org.opencontainers.image.title": f"aam {name}",
        "org.opencontainers.image.licenses": "BSD-3-Clause",
        "org.opencontainers.image.version": version(DISTRIBUTION),
        "org.opencontainers.image.base.name": base.partition("@")[0],
        "org.opencontainers.image.base.digest": base.partition("@")[2],
        "org.opencontainers.image.revision": _revision(AAM / "containers/revision"),
        "org.aam.name": name,
        "org.aam.version": version(DISTRIBUTION),
        "org.aam.source": digest(AAM / "source/aam"),
        "org.aam.python": platform.python_version(),
        "org.aam.glibc": platform.libc_ver()[1],
        "org.aam.debian": Path("/etc/debian_version").read_text().strip(),
        "org.aam.lock": f"sha256:{hashlib.sha256(lock).hexdigest()}",
        "org.aam.packages": packages(),
        "org.aam.arguments": " ".join(f"{key}={value}" for key, value in arguments.items()),
        "org.aam.triton": next(filter(None, map(_version, TRITONS)), ""),
        **of_torch(),
    }
    known = {key: value for key, value in sorted(labels.items()) if value}
    (AAM / "labels.json").write_text(json.dumps(known, indent=1) + "\n")
    for key, value in known.items():
        print(f"{key:<38} {value}")
    return 0


def of_torch() -> dict[str, str]:
    """Return the labels of PyTorch and of the libraries in its folder."""
    import torch

    library = Path(torch.__file__).parent / "lib"
    hip, cuda = torch.version.hip, torch.version.cuda
    # Builds for the CPU do not have this function; it needs no GPU.
    archs = getattr(torch._C, "_cuda_getArchFlags", lambda: None)() or ""
    found = {"org.aam.torch": str(torch.__version__), "org.aam.archs": archs}
    if hip:
        found["org.aam.archs"] = " ".join(computing_archs(archs.split(), library))
        found["org.aam.hip"] = hip
        found["org.aam.rocm"] = rocm(library) or ".".join(hip.split(".")[:2])
        found["org.aam.aotriton"] = aotriton(library) or ""
        found["org.aam.attention-archs"] = " ".join(attention_archs(library))
    elif cuda:
        found["org.aam.cuda"] = cuda
    return found


def rocm(library: Path) -> str | None:
    """Return the release of ROCm from the wheel's librocm-core (rocm_version.h, getROCmVersion)."""
    for path in sorted(library.glob("librocm-core*.so*")):
        numbers = [ctypes.c_uint() for _ in range(3)]
        try:
            get_version = ctypes.CDLL(str(path)).getROCmVersion
        except (OSError, AttributeError):
            continue
        if get_version(*(ctypes.byref(number) for number in numbers)) == 0:
            return ".".join(str(number.value) for number in numbers)
    return None


def aotriton(library: Path) -> str | None:
    """Return the version of aotriton from the name of its library or its ELF comment."""
    paths = sorted(library.glob("libaotriton*.so*"))
    named = [found[1] for path in paths if (found := AOTRITON.search(path.name))]
    if named:
        return named[0]
    versions = [found[1].decode() for path in paths if (found := COMMENT.search(path.read_bytes()))]
    return versions[0] if versions else None


def attention_archs(library: Path) -> list[str]:
    """List the architectures of aotriton's kernels: folders beside it, or names in its library."""
    folders = {found[1] for path in library.glob("aotriton.images/*")
               if (found := IMAGES.fullmatch(path.name))}  # fmt: skip
    if not folders:
        for path in library.glob("libaotriton*.so*"):
            folders |= {name.decode() for name in EMBEDDED.findall(path.read_bytes())}
    return sorted(folders)


def computing_archs(flags: Iterable[str], library: Path) -> list[str]:
    """Return those of PyTorch's architectures for which the wheel has kernels of rocBLAS.

    The first matrix product aborts on any other ("Cannot read TensileLibrary.dat ... for GPU arch",
    pytorch issue 179865). hipBLASLt does not count: where it has no kernels PyTorch takes rocBLAS.
    Features (gfx90a:xnack-) have no files of their own.
    """
    files = (library / "rocblas/library").rglob("TensileLibrary_*.dat")
    archs = {found[1] for path in files if (found := TENSILE.fullmatch(path.name))}
    return [flag for flag in flags if flag.partition(":")[0] in archs]


def packages() -> str:
    """Return a digest of the names and versions of all Python packages."""
    names = sorted(f"{d.metadata['Name'].lower()}=={d.version}" for d in distributions())
    return f"sha256:{hashlib.sha256(chr(10).join(names).encode()).hexdigest()}"


def digest(folder: Path) -> str:
    """Return a digest of the names and contents of the files of a folder."""
    total = hashlib.sha256()
    for path in _files(folder):
        total.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
        total.update(path.read_bytes())
    return f"sha256:{total.hexdigest()}"


def _files(folder: Path) -> Iterable[Path]:
    return (path for path in sorted(folder.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts)  # fmt: skip


def _revision(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def label_lines(labels: Mapping[str, str]) -> list[str]:
    """Return labels in the form that Apptainer reads during a build: name, space, value."""
    return [f"{key} {value}" for key, value in labels.items()]


if __name__ == "__main__":
    if sys.argv[1:] == ["--apptainer"]:
        print("\n".join(label_lines(json.loads((AAM / "labels.json").read_text()))))
    else:
        sys.exit(main(sys.argv[1:]))
