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


def without_flock(folder: Path) -> str:
    """Return a library in front of flock(2) that answers as Lustre mounted without locks."""
    source, library = folder / "noflock.c", folder / "noflock.so"
    source.write_text(
        "#include <errno.h>\nint flock(int f, int o) { errno = ENOSYS; return -1; }\n"
    )
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", source, "-o", library], check=True)
    return str(library)


# --- engines


def engine(folder: Path, name: str, answer: str = "") -> Path:
    """Put a program on PATH that notes each start and answers as `name --version` does."""
    program = folder / name
    program.write_text(f"#!/bin/sh\necho $1 >> '{folder}/started'\necho {answer or name}\n")
    program.chmod(0o755)
    return program
