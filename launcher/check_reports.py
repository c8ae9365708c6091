"""Stored reports of `aam check`, for display: `aam` alone writes them and decides by them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher import documents

MOST = 200
"""Reports that are read; one of a stack has about 20 kB."""


@dataclass(frozen=True)
class StoredReport:
    """What a report states, as `aam` wrote it.

    Attributes:
        file: its place.
        image: digest of the image; "native:..." without an image.
        arch: architecture of the GPU.
        stack: image, architecture, driver and version of `aam` in words.
        made: time in UTC.
        verdict: the result for each attention backend, on one line.
    """

    file: str
    image: str
    arch: str
    stack: str
    made: str
    verdict: str


def folder(variables: Mapping[str, str]) -> Path:
    """Return the folder of the reports, which a launch mounts."""
    return documents.user_folder("XDG_CACHE_HOME", variables) / "check-reports"


def stored(place: Path) -> list[StoredReport]:
    """Return the reports in a folder, the latest first; files that are no report are left out."""
    found = []
    latest = sorted(place.glob("*.json"), key=lambda file: file.lstat().st_mtime, reverse=True)
    for file in latest[:MOST]:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = documents.parsed(documents.regular(file))
            key = content["key"]
            texts = (key["image"], key["arch"], *(content[n] for n in ("stack", "made", "verdict")))
            found.append(StoredReport(str(file), *(_printable(text) for text in texts)))
    return sorted(found, key=lambda report: report.made, reverse=True)


def _printable(text: str) -> str:
    """Return a text without control characters, of at most 300 characters."""
    return "".join(mark if mark.isprintable() else "?" for mark in str(text))[:300]
