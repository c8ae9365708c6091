"""Benchmark of the launcher's start time: `make bench`.

Medians of 20 starts each, in alternation, so that other load affects all alike: processor time, to
which the limits apply, and wall time. The limit before `exec` is 100 ms more than `python -c pass`.
With an image

    python benchmarks/launch.py --sif IMAGE.sif

also compares a launch with Apptainer with `apptainer exec` of the same program in the same image;
the limit there is 100 ms.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 20


# Installed programs have bytecode; a working tree writes it at the first start.
ENVIRONMENT = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}


def seconds(command: list[str]) -> tuple[float, float]:
    """Return the processor time and the wall time of a command."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
        env=ENVIRONMENT,
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def medians(commands: dict[str, list[str]]) -> dict[str, tuple[float, ...]]:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for command in commands.values():
        seconds(command)  # once for the disk cache
    for _ in range(ROUNDS):
        for name, command in commands.items():
            taken[name].append(seconds(command))
    return {
        name: tuple(map(statistics.median, zip(*each, strict=True))) for name, each in taken.items()
    }


def table(title: str, commands: dict[str, list[str]], limit: float) -> None:
    found = medians(commands)
    base, *_ = next(iter(found.values()))
    print(f"\n{title}\n{'':<34}{'processor':>10}{'more':>10}{'limit':>10}{'times':>10}{'wall':>10}")
    for name, (value, wall) in found.items():
        more = "" if value == base else f"{1e3 * (value - base):+.0f} ms"
        bound = "" if value == base else f"{1e3 * limit:.0f} ms"
        times = f"{value / base:.1f}"
        print(
            f"{name:<34}{1e3 * value:>7.0f} ms{more:>10}{bound:>10}{times:>10}{1e3 * wall:>7.0f} ms"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sif", type=Path)
    sif = parser.parse_args().sif
    # The code of the installed command.
    code = "from launcher.cli import run; run()"
    launch = [sys.executable, "-c", code]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "t.biom"
        file.touch()
        arguments = ["pretrain", "--table", str(file), "--output-dir", f"{folder}/out"]
        table(
            "Before exec",
            {
                "python -c pass": [sys.executable, "-c", "pass"],
                "aam-launch --dry-run pretrain": [*launch, "--dry-run", *arguments],
                "aam-launch explain pretrain": [*launch, "explain", *arguments],
                "aam-launch pretrain --tabel": [*launch, "pretrain", "--tabel", "x"],
            },
            0.100,
        )
        if sif:
            arguments = ["example", "--output-dir", f"{folder}/out", "--samples", "0"]
            table(
                f"Through Apptainer, {sif.name}",
                {
                    "apptainer exec IMAGE aam example": [
                        "apptainer",
                        "exec",
                        str(sif),
                        "aam",
                        *arguments,
                    ],
                    "aam-launch example": [*launch, "--image", str(sif), *arguments],
                },
                0.100,
            )


if __name__ == "__main__":
    main()
