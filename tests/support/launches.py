"""The launcher as a process, and a SIF as a file, for tests of commands."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

from aam.contract.options.command_line import parse_known
from launcher.cli import main
from launcher.plan.inputs import Request, request_of
from launcher.plan.settings import LAUNCHER_OPTIONS

ROOT = Path(__file__).parents[2]
RUN = ["pretrain", "--table", "{d}/t.biom", "--output-dir", "{d}/out"]


def launch(folder: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `aam-launch` in a folder, which is also its home; no engine is on its PATH."""
    environment = {"HOME": str(folder), "PATH": str(folder), **variables}
    return forked([word.format(d=folder) for word in args], folder, environment)


def parse(argv: Sequence[str], *, incomplete: bool = False) -> Request:
    """Return the request of the arguments after `aam-launch`."""
    options, rest = parse_known(LAUNCHER_OPTIONS.values(), argv)
    return request_of(options, rest, incomplete=incomplete)


def forked(
    args: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `aam-launch` in a process of its own that needs not start Python and import it first.

    Args:
        environment: all its variables but PYTHONPATH; LD_PRELOAD works in a new program alone.
    """
    environment = {"PYTHONPATH": str(ROOT), **environment}
    if "LD_PRELOAD" in environment:
        line = [sys.executable, "-m", "launcher.cli", *args]
        return subprocess.run(line, capture_output=True, text=True, env=environment, cwd=folder,
                              check=False)  # fmt: skip
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = os.fork()
        if child == 0:
            _become(args, folder, environment, output, errors)
        _, ended = os.waitpid(child, 0)
        texts = []
        for stream in (output, errors):
            stream.seek(0)
            texts.append(stream.read().decode(errors="surrogateescape"))
    return subprocess.CompletedProcess(list(args), os.waitstatus_to_exitcode(ended), *texts)


def _become(
    args: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    output: IO[bytes],
    errors: IO[bytes],
) -> NoReturn:
    """Run `aam-launch` in the child process of a fork, and end it."""
    status = 1
    try:
        gc.disable()  # it would copy all pages of the parent, 0.12 s of processor time
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        files = (os.open(os.devnull, os.O_RDONLY), output.fileno(), errors.fileno())
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        status = main(list(args))
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def without_flock(folder: Path) -> str:
    """Return a library in front of flock(2) that answers as Lustre mounted without locks."""
    source, library = folder / "noflock.c", folder / "noflock.so"
    source.write_text(
        "#include <errno.h>\nint flock(int f, int o) { errno = ENOSYS; return -1; }\n"
    )
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", source, "-o", library], check=True)
    return str(library)


# --- programs and images


def program(path: Path, *lines: str) -> Path:
    """Write a program of some lines of shell."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def engine(folder: Path, name: str, answer: str = "") -> Path:
    """Put a program on PATH that notes each start and answers as `name --version` does."""
    return program(folder / name, f"echo $1 >> '{folder}/started'", f"echo {answer or name}")


def sif(path: Path, *, name: bytes = b"u" * 16) -> Path:
    """Write a file that begins as a SIF; `name` is the id that a build gives it."""
    head = b"#!/usr/bin/env run-singularity\n\x00SIF_MAGIC\x0001\x0002\x00"
    path.write_bytes(head + name + bytes(100))
    return path
