"""Tables of docs/containers.md: for each image its pins, their sources, and what is unverified.

`make definitions` writes them between the two marks, from launcher/catalog.yaml, the locks and
containers/sources.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs/containers.md"
BEGIN = "<!-- tables of the stacks: `make definitions` writes them -->\n"
END = "<!-- end of the tables of the stacks -->\n"
PIN = re.compile(r"^(?:# sha256: (.*)\n)?([a-z0-9._-]+)==(\S+) +(\\|# unresolved)$", re.MULTILINE)
CPU = "cpu"
OF_TORCH = re.compile(r"torch|(pytorch-)?triton(-rocm)?")
TITLES = {
    "base": "base",
    "python": "Python",
    "rocm": "ROCm",
    "cuda": "CUDA",
    "torch": "PyTorch",
    "triton": "Triton",
    "aotriton": "aotriton",
    "archs": "GPUs of PyTorch",
    "attention": "GPUs with fused attention",
    "driver": "kernel driver",
}


def document() -> str:
    """Return the text of docs/containers.md with the tables as they are now."""
    catalog = yaml.safe_load((ROOT / "launcher/catalog.yaml").read_text())
    sources = yaml.safe_load((ROOT / "containers/sources.yaml").read_text())
    tables = "\n".join(
        table(name, image, catalog["drivers"], sources) for name, image in catalog["images"].items()
    )
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{tables}\n{END}{rest.partition(END)[2]}"


def table(
    name: str, image: Mapping[str, Any], drivers: Mapping[str, Any], sources: Mapping[str, Any]
) -> str:
    """Return the section of an image.

    Raises:
        KeyError: a fact of the catalog has no source in containers/sources.yaml.
    """
    of_image = sources["images"][name]
    lines = [f"### {name}: {image['title']}", "", "| fact | value | source | measured |",
             "|---|---|---|---|"]  # fmt: skip
    unverified = []
    for fact, value in facts(image, drivers):
        source = sources["sources"][of_image[fact]]
        measured = source.get("measured", False)
        unverified += [] if measured else [TITLES[fact]]
        answer = "yes" if measured else "no"
        lines.append(f"| {TITLES[fact]} | {value} | {source['title']} | {answer} |")
    for pin, source in hashes((ROOT / f"containers/locks/{name}.txt").read_text()):
        answer = "yes" if name == CPU else "no"  # pip compares it when the tests build
        lines.append(f"| SHA-256 of {pin} | in the lock | {source} | {answer} |")
    if name == CPU:
        built, where = "and run it", "on any host"
    else:
        built, where = (
            "with PyTorch's CPU build instead of its own",
            "on a host with one of its GPUs",
        )
    command = f"`aam-launch images verify {name}` verifies it {where}"
    lines += ["", f"The tests build it on a stand-in base {built}.",
              f"Unverified: {', '.join(unverified)}; {command}.", ""]  # fmt: skip
    return "\n".join(lines)


def facts(image: Mapping[str, Any], drivers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the facts that the catalog states about an image, with their values."""
    yield "base", image["arguments"]["BASE"].partition("@")[0]
    yield from image["pins"].items()
    for key in ("archs", "attention"):
        if image.get(key):
            yield key, ", ".join(image[key])
    if "least_driver" in image:
        yield "driver", f"{image['least_driver']} or later"
    elif "rocm" in image["pins"]:
        release = ".".join(image["pins"]["rocm"].split(".")[:2])
        releases = drivers[image["vendor"]]
        serving = [key for key, driver in releases.items() if release in driver["serves"]]
        yield "driver", ", ".join(serving)


def hashes(lock: str) -> Iterator[tuple[str, str]]:
    """Yield PyTorch's own packages in a lock, with the sources of their hashes."""
    index = lock.partition("# torch: ")[2].partition("\n")[0]
    origin = "package index (PyPI)" if index == "pypi" else f"package index ({index})"
    for source, project, version, mark in PIN.findall(lock):
        if OF_TORCH.fullmatch(project):
            unknown = "**none known**: it cannot be built without the index"
            yield f"{project} {version}", unknown if mark != "\\" else source or origin
