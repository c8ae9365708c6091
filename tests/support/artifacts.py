"""QIIME 2 artifacts for tests."""

from __future__ import annotations

import zipfile
from pathlib import Path

UUID = "5f2a3c3e-0b6f-4d5b-9a55-2d9c1f6f1c11"


def write_artifact(path: Path, kind: str, files: dict[str, bytes]) -> Path:
    """Write a .qza as QIIME 2 lays it out, without provenance."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{UUID}/VERSION", "QIIME 2\narchive: 5\nframework: 2024.5.0\n")
        archive.writestr(f"{UUID}/metadata.yaml", f"uuid: {UUID}\ntype: {kind}\nformat: X\n")
        for name, data in files.items():
            archive.writestr(f"{UUID}/data/{name}", data)
    return path
