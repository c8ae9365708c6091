"""Image commands that fail, for tests: programs on PATH, and what is left in the image folder."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

from tests.support.engines import ROOT

LAUNCH = ("-m", "launcher.cli", "images")


def here(folder: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `aam-launch images` natively, with nothing but the given programs on PATH."""
    environment = {"PATH": str(folder / "bin"), "HOME": str(folder), "AAM_IMAGE_DIR": str(folder)}
    return subprocess.run([sys.executable, *LAUNCH, *args], capture_output=True, text=True,
                          cwd=ROOT, env={**environment, **variables}, check=False)  # fmt: skip


def program(folder: Path, name: str, *lines: str) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    path = folder / "bin" / name
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def left(folder: Path) -> list[str]:
    """Return what a build left in the image folder, but for its log and the locks."""
    names = sorted(path.name for path in folder.iterdir())
    return [name for name in names if name != "logs" and not name.endswith(".lock")]
