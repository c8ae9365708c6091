"""The page of a report, parsed, for tests of reports."""

from __future__ import annotations

from pathlib import Path

from aam.cli import main


def report(folder: Path, *more: str) -> str:
    assert main(["report", "--run-dir", str(folder), *more]) == 0
    return (folder / "report.html").read_text(encoding="utf-8")
