"""Definitions of the images, from the templates and the catalog (`make definitions`).

    make_definitions.py

Writes containers/NAME.def and containers/NAME.Dockerfile for each image of launcher/catalog.yaml,
and launcher/catalog.json, its content with the CRC-32 of the YAML.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
CONTAINERS = ROOT / "containers"
ENDINGS = ("def", "Dockerfile")


def main() -> int:
    """Write every definition."""
    for file, text in definitions().items():
        (CONTAINERS / file).write_text(text)
    text = (ROOT / "launcher/catalog.yaml").read_bytes()
    (ROOT / "launcher/catalog.json").write_text(compiled(text))
    return 0


def compiled(text: bytes) -> str:
    """Return the catalog as JSON, an image on a line."""
    content, parts = yaml.safe_load(text), []
    for key in ("images", "drivers", "faults"):
        entries = (f"{json.dumps(name)}: {json.dumps(e)}" for name, e in content[key].items())
        parts.append(f'"{key}": {{\n' + ",\n".join(entries) + "\n}")
    return f'{{"crc32": {zlib.crc32(text)}, "content": {{\n' + ",\n".join(parts) + "\n}}\n"


def definitions() -> dict[str, str]:
    """Return the text of every definition by its file name."""
    images = yaml.safe_load((ROOT / "launcher/catalog.yaml").read_text())["images"]
    return {
        f"{name}.{ending}": definition(name, image, ending)
        for name, image in images.items()
        for ending in ENDINGS
    }


def definition(name: str, image: Mapping[str, Any], ending: str) -> str:
    """Return the definition of an image; BASE is named by its digest alone."""
    arguments = image["arguments"]
    tag, _, digest = arguments["BASE"].partition("@")
    base = f"{tag.rpartition(':')[0]}@{digest}" if digest else tag
    values = {"NAME": name, "TITLE": image["title"], "TAG": tag, **arguments, "BASE": base}
    template = (CONTAINERS / f"templates/image.{ending}").read_text()
    return re.sub(r"@([A-Z_]+)@", lambda found: values[found[1]], template)


if __name__ == "__main__":
    sys.exit(main())
