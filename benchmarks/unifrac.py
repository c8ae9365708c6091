"""Benchmark of UniFrac matrices: `python benchmarks/unifrac.py FOLDER [SAMPLES] [TIPS]`.

A simulated study in FOLDER, made if it is missing: SAMPLES samples (1,000) of about 180 ASVs each
out of TIPS (10,000). Each line is a process that reads table and tree and writes the matrix in
float64 as HDF5, with one thread: `aam unifrac`, and `ssu` of unifrac-binaries where it is
installed. CPU-seconds are user and system time of the process; the memory is its largest resident
size.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from aam.contract.options.commands.studies import Example
from aam.data.simulation import simulate, write_study

METRICS = ("unweighted", "weighted_normalized")


def main() -> None:
    """Make the study if it is missing, run every engine and metric, print a table."""
    folder = Path(sys.argv[1])
    samples, tips = (int(word) for word in (sys.argv[2:] + ["1000", "10000"][len(sys.argv) - 2 :]))
    study = folder / f"unifrac-{samples}-{tips}"
    if not (study / "metadata.tsv").exists():
        options = Example(
            output_dir=study, samples=samples, asvs=tips, richness=185, depth=10_000, subjects=40
        )
        write_study(simulate(options), options)
    rows = Table(title=f"{samples:,} samples, {tips:,} tips, one thread, float64")
    for name in ("engine", "metric", "CPU-seconds", "peak MiB"):
        rows.add_column(name, justify="left" if name in ("engine", "metric") else "right")
    for metric in METRICS:
        for engine, command in commands(study, metric).items():
            seconds, peak = measured(command)
            rows.add_row(engine, metric, f"{seconds:.1f}", f"{peak:.0f}")
    Console(width=100).print(rows)


def commands(study: Path, metric: str) -> dict[str, list[str]]:
    """Return the command line of each engine that is installed."""
    table, tree = str(study / "table.biom"), str(study / "tree.nwk")
    aam = [sys.executable, "-m", "aam", "unifrac", "--table", table, "--tree", tree]
    aam += ["--output", str(study / "aam.h5"), "--unifrac-metric", metric, "--overwrite"]
    found = {"aam": [*aam, "--device", "cpu"]}
    if ssu := shutil.which("ssu"):
        args = ["-i", table, "-t", tree, "-o", str(study / "ssu.h5"), "-m", f"{metric}_fp64"]
        found["ssu"] = [ssu, *args, "-r", "hdf5_fp64", "--pcoa", "0"]
    return found


def measured(command: list[str]) -> tuple[float, float]:
    """Run a command with one thread; return its CPU-seconds and its peak memory in MiB."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = os.posix_spawn(command[0], command, environment)
    _, status, usage = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
