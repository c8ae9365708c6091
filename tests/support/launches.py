"""The launcher as a process, and a SIF as a file, for tests of commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = ["pretrain", "--table", "{d}/t.biom", "--output-dir", "{d}/out"]


def launch(folder: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `aam-launch` in a folder, which is also its home; no engine is on its PATH."""
    environment = {"PYTHONPATH": str(ROOT), "HOME": str(folder), "PATH": str(folder), **variables}
    return subprocess.run(
        [sys.executable, "-m", "launcher.cli", *(word.format(d=folder) for word in args)],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        env=environment,
        cwd=folder,
        check=False,
    )


# --- engines


def engine(folder: Path, name: str, answer: str = "") -> Path:
    """Put a program on PATH that notes each start and answers as `name --version` does."""
    program = folder / name
    program.write_text(f"#!/bin/sh\necho $1 >> '{folder}/started'\necho {answer or name}\n")
    program.chmod(0o755)
    return program
