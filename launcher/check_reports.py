"""Stored reports of `aam check`, for display: `aam` alone writes them and decides by them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from aam.contract.errors import AamError, printable
from aam.contract.records import read_json
from launcher import system

MAX_REPORTS = 200
"""Reports that are read; one of a stack has about 20 kB."""


class StoredReport(msgspec.Struct, frozen=True):
    """What a report states, as `aam` wrote it."""

    file: str  # its place
    image: str  # digest of the image; "native:..." without an image
    arch: str  # architecture of the GPU
    stack: str  # image, architecture, driver and version of `aam` in words
    made: str  # time in UTC
    verdict: str  # the result for each attention backend, on one line


def folder(variables: Mapping[str, str]) -> Path:
    """Return the folder of the reports, which a launch mounts."""
    return system.user_folder("XDG_CACHE_HOME", variables) / "check-reports"


class _Key(msgspec.Struct):
    image: str
    arch: str


class _Report(msgspec.Struct):
    key: _Key
    stack: str
    made: str
    verdict: str


def stored(place: Path) -> list[StoredReport]:
    """Return the reports in a folder, the latest first; files that are no report are left out."""
    found = []
    latest = sorted(place.glob("*.json"), key=lambda file: file.lstat().st_mtime, reverse=True)
    for file in latest[:MAX_REPORTS]:
        with contextlib.suppress(AamError):
            report = read_json(file, _Report, "check report")
            texts = (report.key.image, report.key.arch, report.stack, report.made, report.verdict)
            found.append(StoredReport(str(file), *(printable(text, 300) for text in texts)))
    return sorted(found, key=lambda report: report.made, reverse=True)
