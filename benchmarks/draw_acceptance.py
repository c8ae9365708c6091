"""Tables of docs/: measured stacks (stack.md), images (versions.md), GPUs (containers.md).

    python benchmarks/draw_acceptance.py

replaces what stands between `<!-- NAME -->` and `<!-- end -->`: from docs/acceptance/*.json the
measurements, from launcher/catalog.yaml the images and the GPUs that they serve. A file is the
acceptance.json of `aam acceptance` (docs/stack.md), named after its host, such as mi300a.json.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aam.network.numerics.device import has_bf16
from aam.network.numerics.report import WRONG
from aam.stack.acceptance_run import AcceptanceFile, ImageRun, read
from launcher.gpus import VENDORS
from launcher.gpus.amd import products
from launcher.plan.catalog import Catalog, shipped
from launcher.plan.hardware import fused, preference, serves

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "acceptance"
STACK, VERSIONS, CONTAINERS = (
    ROOT / "docs" / name for name in ("stack.md", "versions.md", "containers.md")
)
CARDS = {
    # Compute capabilities: https://developer.nvidia.com/cuda-gpus.
    "sm_50": "GTX 750, Quadro M1200", "sm_52": "M40, M60, GTX 900", "sm_60": "P100",
    "sm_61": "P4, P40, GTX 10", "sm_70": "V100, Titan V", "sm_75": "T4, GTX 16, RTX 20, Quadro RTX",
    "sm_80": "A100, A30", "sm_86": "A10, A40, RTX 30, RTX A6000",
    "sm_89": "L4, L40S, RTX 40, RTX 4000 to 6000 Ada", "sm_90": "H100, H200, GH200",
    "sm_100": "B200, GB200", "sm_103": "B300, GB300",
    "sm_120": "RTX 50, RTX PRO 6000", "sm_121": "GB10 (DGX Spark)",
    # Those without a PCI device in `launcher.gpus.amd`: the ROCm documents.
    "gfx1100": "Radeon PRO W7800, W7900", "gfx1101": "Radeon RX 7700, 7800, PRO W7700",
    "gfx1150": "Radeon 890M", "gfx1151": "Radeon 8060S",
}  # fmt: skip
"""Cards of an architecture, where the launcher has no product names."""

PINS = ("aotriton", "triton", "python")
"""Pins of an image besides those in its title."""

Files = Mapping[str, AcceptanceFile]


def read_files(folder: Path = FOLDER) -> dict[str, AcceptanceFile]:
    """Return the content of the files by name.

    Raises:
        AamError: a file is not what `aam acceptance` wrote.
    """
    return {path.name: read(path) for path in sorted(folder.glob("*.json"))}


def stacks(files: Files, catalog: Catalog) -> str:
    """Return the table of what was measured on each host with each image, and what was not."""
    lines = ["| GPU | image | nodes | attention right | wrong | parts | date |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    vendors = {vendor.name: vendor.title for vendor in VENDORS.values() if vendor.torch_field}
    names = [image.name for image in catalog.images]
    for name, content in files.items():
        vendors.pop(vendor_of(content.host) or "", None)
        for run in content.runs:
            outcomes = backends_of(run) if "check" in run.parts else {}
            right = ", ".join(sorted(backend for backend, bad in outcomes.items() if not bad))
            wrong = ", ".join(sorted(backend for backend, bad in outcomes.items() if bad))
            image = f"{run.image or 'native'}, PyTorch {run.torch}"
            cells = [_text(cell) for cell in (image, run.nodes, right, wrong)]
            lines.append(_row(_gpu(name, content), *cells, _verdicts(run), _text(run.date[:10])))
            names = [other for other in names if other != run.image]
    missing = [*(f"GPUs of {title}" for title in vendors.values()), *(f"`{n}`" for n in names)]
    return "\n".join(lines) + f"\n\nNot measured: {', '.join(missing) or 'nothing'}."


def definitions(catalog: Catalog) -> str:
    """Return the table of what each image pins, its size, and the drivers that serve it."""
    lines = ["| name | pins | GiB to build, of the image | kernel driver |", "|---|---|---|---|"]
    for image in catalog.images:
        more = [f"{name} {image.pins[name]}" for name in PINS if name in image.pins]
        ranges = catalog.drivers.get(image.vendor or "", ())
        drivers = [known.release for known in ranges if image.pins.get("rocm") in known.serves]
        driver = f"{image.least_driver} or later" if image.least_driver else ", ".join(drivers)
        cells = ", ".join([image.title, *more]), f"{image.room[0]:g}, {image.room[1]:g}"
        lines.append(_row(f"`{image.name}`", *cells, driver or "none"))
    return "\n".join(lines)


def gpus(catalog: Catalog) -> str:
    """Return the table of the images that serve each GPU, the one that a launch prefers first."""
    cards: dict[str, list[str]] = {arch: [names] for arch, names in CARDS.items()}
    for arch, product in products().values():
        known = cards.setdefault(arch, [])
        if product not in known:
            known.append(product)
    lines = ["| GPU | architecture | images, the preferred one first | attention, precision |",
             "|---|---|---|---|"]  # fmt: skip
    for vendor in ("amd", "nvidia"):
        prefix = VENDORS[vendor].arch_prefix
        archs = [arch for arch in cards if prefix and arch.startswith(prefix)]
        for arch in sorted(
            archs, key=lambda arch: int(arch.removeprefix(prefix), 16), reverse=True
        ):
            images = [image for image in catalog.images if image.vendor == vendor]
            images = [image for image in images if serves(image, arch)]
            images.sort(key=lambda image: preference(image, arch, catalog))
            attention = "fused" if images and fused(images[0], arch) else "math"
            precision = "bf16" if has_bf16(arch) else "fp32"
            named = ", ".join(f"`{image.name}`" for image in images)
            if images:
                lines.append(_row(", ".join(cards[arch]), arch, named, f"{attention}, {precision}"))
    return "\n".join(lines)


def vendor_of(host: Mapping[str, Any]) -> str | None:
    arch = str(host.get("arch"))
    found = (v.name for v in VENDORS.values() if v.arch_prefix and arch.startswith(v.arch_prefix))
    return next(found, None)


def backends_of(run: ImageRun) -> dict[str, bool]:
    """Return whether each backend that can run is wrong on some GPU."""
    bad: dict[str, bool] = defaultdict(bool)
    for device in run.parts["check"].measured["devices"]:
        for backend, outcome in device["backends"].items():
            if outcome in (*WRONG, "right", "harmless"):
                bad[backend] |= outcome in WRONG
    return bad


def _verdicts(run: ImageRun) -> str:
    """Return the parts by verdict, those as predicted by their number."""
    parts: dict[str, list[str]] = defaultdict(list)
    for name, part in run.parts.items():
        parts[part.verdict].append(name)
    good = len(parts.pop("as predicted", ()))
    return "; ".join(
        [f"{good} as predicted", *(f"{verdict}: {', '.join(of)}" for verdict, of in parts.items())]
    )


def _gpu(name: str, content: AcceptanceFile) -> str:
    gpus = content.host.get("gpus") or [content.host.get("cpu", "CPU")]
    count = f"{len(gpus)} x " if len(gpus) > 1 else ""
    return f"[{count}{_text(gpus[0])} ({_text(content.host.get('arch'))})](acceptance/{name})"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _text(value: object) -> str:
    """Return a text of a file without the characters that mean something in a table."""
    return re.sub(r"[^\w .,:+()@/-]", " ", str(value))[:80] or "none"


def page(old: str, name: str, drawn: str) -> str:
    """Return a page with another table of a name."""
    return re.sub(
        rf"(?<=<!-- {name} -->\n\n).*?(?=\n\n<!-- end -->)",
        lambda _: drawn,
        old,
        flags=re.DOTALL,
    )


def pages(files: Files, catalog: Catalog) -> dict[Path, str]:
    """Return the pages with their tables."""
    tables = (
        (STACK, "acceptance", stacks(files, catalog)),
        (VERSIONS, "images", definitions(catalog)),
        (CONTAINERS, "gpus", gpus(catalog)),
    )
    texts = {path: path.read_text(encoding="utf-8") for path in (STACK, VERSIONS, CONTAINERS)}
    for path, name, drawn in tables:
        texts[path] = page(texts[path], name, drawn)
    return texts


def main() -> None:
    """Write the tables."""
    for path, text in pages(read_files(), shipped()).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
