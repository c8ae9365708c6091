"""Measured stacks in docs/stack.md and docs/containers.md, from docs/acceptance/*.json.

    python benchmarks/draw_acceptance.py

replaces the table between the two comments of each page. A file is the acceptance.json of `aam
acceptance` (docs/acceptance.md), named after its host, such as mi300a.json. PyTorch is not needed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aam.acceptance.runner import AcceptanceFile, ImageRun, read
from aam.numerics.report import WRONG
from launcher.gpus import VENDORS
from launcher.plan.catalog import Catalog, shipped

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "acceptance"
PAGES = {"stacks": ROOT / "docs" / "stack.md", "images": ROOT / "docs" / "containers.md"}
NOT_MEASURED = "not measured"

Files = Mapping[str, AcceptanceFile]


def read_files(folder: Path = FOLDER) -> dict[str, AcceptanceFile]:
    """Return the content of the files by name.

    Raises:
        AamError: a file is not what `aam acceptance` wrote.
    """
    return {path.name: read(path) for path in sorted(folder.glob("*.json"))}


def stacks(files: Files) -> str:
    """Return the table of the attention backends that were measured, by GPU and PyTorch."""
    lines = ["| GPU | PyTorch | image | right | wrong | golden run | date |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    vendors = {vendor.name: vendor.title for vendor in VENDORS.values() if vendor.torch_field}
    for name, content in files.items():
        vendors.pop(vendor_of(content.host) or "", None)
        for run in content.runs:
            if "check" in run.parts:
                outcomes = backends_of(run)
                right = sorted(one for one, bad in outcomes.items() if not bad)
                wrong = sorted(one for one, bad in outcomes.items() if bad)
                golden = run.parts["golden"].verdict if "golden" in run.parts else NOT_MEASURED
                cells = run.torch, run.image or "native", ", ".join(right), ", ".join(wrong), golden
                lines.append(_row(_gpu(name, content), *map(_text, (*cells, run.date[:10]))))
    lines += [_row(title, NOT_MEASURED, *[""] * 5) for title in vendors.values()]
    return "\n".join(lines)


def images(files: Files, catalog: Catalog) -> str:
    """Return the table of the verdicts of each image on each GPU."""
    lines = ["| image | GPU | nodes | verdicts | date |", "|---|---|---|---|---|"]
    rows: dict[str, list[str]] = {f"`{image.name}`": [] for image in catalog.images}
    for name, content in files.items():
        for run in content.runs:
            image, torch, date = map(_text, (run.image, run.torch, run.date[:10]))
            title = f"`{image}`" if run.image else f"native, PyTorch {torch}"
            cells = _gpu(name, content), str(run.nodes), _verdicts(run), date
            rows.setdefault(title, []).append(_row(title, *cells))
    for title, found in rows.items():
        lines += found or [_row(title, NOT_MEASURED, *[""] * 3)]
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


def page(old: str, drawn: str) -> str:
    """Return a page with another table."""
    return re.sub(
        r"(?<=<!-- acceptance -->\n\n).*?(?=\n\n<!-- end -->)",
        lambda _: drawn,
        old,
        flags=re.DOTALL,
    )


def pages(files: Files, catalog: Catalog) -> dict[Path, str]:
    """Return the pages with their tables."""
    drawn = {"stacks": stacks(files), "images": images(files, catalog)}
    return {path: page(path.read_text(encoding="utf-8"), drawn[k]) for k, path in PAGES.items()}


def main() -> None:
    """Write the tables."""
    for path, text in pages(read_files(), shipped()).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
