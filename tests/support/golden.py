"""Folder of the golden run that the repository keeps."""

from __future__ import annotations

from pathlib import Path

KEPT = Path(__file__).parents[1] / "golden"
