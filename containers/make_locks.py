"""Locks of the images: each Python package by version and hash (`make locks`).

    make_locks.py [NAME ...]

uv resolves against PyPI and keeps the versions of requirements.lock as far as this PyTorch
allows, so that images have the versions of the tests. The versions suit every Python that an image
has, and the hashes are those of its wheels for each of them.

PyTorch and the packages that it pins are last, below a line `# torch: INDEX`. The index of
PyTorch's ROCm and CPU builds is not queried: hashes and the comments with their sources are kept
from the existing lock. A new version is written into it by hand, with the hash and its source.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tomllib
import yaml

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "containers/locks"
PYTHONS, PLATFORM = ("3.11", "3.12"), "{}-manylinux_2_36"  # Debian 12 on a processor
WITH_TORCH = re.compile(r"(torch|triton|nvidia-.*|cuda-.*|pytorch-triton-rocm|triton-rocm)==")
WHEEL = (
    r"-(?:{0}-{0}|cp3(?:[2-9]|1[0-{2}])-abi3|(?:py2\.)?py3-none)"
    r"-(?:any|(?:many)?linux\S*{1})\.whl$"
)
HEAD = """\
# Every Python package of the image {name}, by version and hash; made by `make locks`.
# Python {pythons} on {platform}. What follows `# torch:` comes from that index.
"""


def main(names: list[str]) -> int:
    """Write the locks of the named images, by default of all."""
    images = yaml.safe_load((ROOT / "launcher/catalog.yaml").read_text())["images"]
    for name in names or images:
        path = LOCKS / f"{name}.txt"
        held = path.read_text() if path.is_file() else ""
        (machine,) = images[name]["machines"]
        found = resolve(images[name]["pins"]["torch"], machine)
        text = lock(name, images[name], found, held)
        aside = path.with_name(f".{path.name}.new")
        aside.write_text(text)
        aside.rename(path)
        print(f"{path.relative_to(ROOT)}: {text.count('==')} packages")
    return 0


def resolve(torch: str, machine: str) -> list[str]:
    """Return what uv finds for the extras `model` and `search` with this release of PyTorch.

    The versions suit every Python of the images, and each has the hashes of its wheels for them
    on the processor `machine`.
    """
    with tempfile.TemporaryDirectory() as folder:
        # uv prefers the versions in its output file, but may change them.
        pins, torch_only = Path(folder, "pins.txt"), Path(folder, "torch.txt")
        held = (ROOT / "requirements.lock").read_text().splitlines()
        pins.write_text("\n".join(line for line in held if not WITH_TORCH.match(line)))
        torch_only.write_text(f"torch=={torch}\n")
        extras = ("--extra", "model", "--extra", "search")
        model = (*extras, "--override", torch_only, "--output-file", pins)
        _uv(PYTHONS[0], machine, *model, "pyproject.toml")
        hashes: dict[str, set[str]] = {}
        for python in PYTHONS:
            wheels = Path(folder, f"pylock.{python.replace('.', '')}.toml")
            _uv(python, machine, "--no-deps", "--format", "pylock.toml", "--output-file", wheels,
                pins)  # fmt: skip
            for package in tomllib.loads(wheels.read_text())["packages"]:
                pin = f"{package['name']}=={package['version']}"
                hashes.setdefault(pin, set()).update(_hashes(package, python, machine))
    return [
        " \\\n".join([pin, *(f"    --hash=sha256:{value}" for value in sorted(values))])
        for pin, values in hashes.items()
    ]


def _uv(python: str, machine: str, *arguments: str | Path) -> None:
    fixed = ["--no-config", "--no-annotate", "--no-header", "--only-binary", ":all:"]
    platform = ["--python-version", python, "--python-platform", PLATFORM.format(machine)]
    subprocess.run(["uv", "pip", "compile", "--quiet", *fixed, *platform, *arguments], cwd=ROOT,
                   stdout=subprocess.DEVNULL, check=True)  # fmt: skip


def _hashes(package: dict[str, Any], python: str, machine: str) -> list[str]:
    """Return the hashes of a package's wheels for one Python and processor."""
    suits = re.compile(WHEEL.format(f"cp{python.replace('.', '')}", machine, python[-1]))
    found = [
        wheel["hashes"]["sha256"]
        for wheel in package["wheels"]
        if suits.search(wheel["url"].rpartition("/")[2])
    ]
    if not found:
        raise SystemExit(f"{package['name']}=={package['version']} has no wheel for Python "
                         f"{python} on {PLATFORM.format(machine)}")  # fmt: skip
    return found


def lock(name: str, image: dict[str, object], found: list[str], held: str) -> str:
    """Return the text of a lock; `held` is the text of the existing one."""
    arguments, pins = image["arguments"], image["pins"]
    assert isinstance(arguments, dict)
    assert isinstance(pins, dict)
    index, torch = arguments["TORCH_INDEX"], arguments["TORCH"]
    common = [line for line in found if not WITH_TORCH.match(line)]
    if index == "pypi":
        of_torch = [line for line in found if WITH_TORCH.match(line)]
    else:
        of_torch = [_kept(f"torch=={torch}", held)]
        if "rocm" in pins:
            # The name of Triton's build for ROCm since PyTorch 2.10.
            triton = "triton-rocm" if _release(torch) >= (2, 10) else "pytorch-triton-rocm"
            of_torch += [_kept(f"{triton}=={pins['triton']}", held)] if "triton" in pins else []
    head = HEAD.format(
        name=name, pythons=" and ".join(PYTHONS), platform=PLATFORM.format(*image["machines"])
    )
    return "\n".join([head.rstrip(), *common, f"# torch: {index}", *of_torch]) + "\n"


def _kept(pin: str, held: str) -> str:
    """Return a pin with its hashes in the existing lock, and the comments with their source.

    Raises:
        SystemExit: it is not there.
    """
    known = re.search(
        rf"^(?:# sha256: .*\n)*{re.escape(pin)} \\\n(?:    --hash=\S+(?: \\\n|\n?))+",
        held, re.MULTILINE,
    )  # fmt: skip
    if known is None:
        raise SystemExit(f"The lock has no hash of {pin}: add it with `--hash=sha256:` and a line "
                         "`# sha256: SOURCE` above it, then run this again.")  # fmt: skip
    return known[0].rstrip("\n")


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split("."))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
