"""Gaps of a GPU in pretraining: which waits for batches, copies, synchronisations or launches?

    python benchmarks/gpu_gaps.py [--device cuda] [--json gaps.json]        at most three minutes
    python benchmarks/gpu_gaps.py --device cpu --batch-sizes 8 --width 32 --steps 4 --asvs 200

Each setting (batch size, precision, one with torch.compile) pretrains on a simulated study by
`aam pretrain` with torch.profiler over its last steps, all in the first epoch. The time in which
the device computes is the union of its kernels and copies; what is between is divided by what the
training thread did meanwhile: it waited for the data loader, it waited for the device (a
synchronisation, also that of a blocking copy), or it launched kernels. "Limit" is the largest of
these where the device is idle for a tenth of the time or more. Below the table are the operations
that waited, and the lines of the program at which PyTorch reports a synchronisation
(`torch.cuda.set_sync_debug_mode`; an event that is waited for is none). On a CPU the operations of
PyTorch are in the place of kernels. Times are those of the step log.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import runpy
import sys
import tempfile
import time
import traceback
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from aam.stack.workload import run_workload

Interval = tuple[float, float]

LIMIT = 170.0
"""Seconds that the settings take together; a program that takes longer is ended."""

IDLE = 0.1
"""Part of the time from which on an idle device has a limit."""

SYNCHRONIZATIONS = "AAM_SYNCHRONIZATIONS"
"""Variable with the file to which the profiled program writes its synchronisations."""

WAITS = ("Synchronize", "hipMemcpyWithStream")
"""Parts of the names of calls of CUDA or HIP in which the CPU waits for the device."""

LOADER = "DataLoader"
"""Part of the name under which torch.profiler records the wait for a batch."""


def main() -> None:
    """Measure each setting and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--width", type=int, default=128, help="--embedding-dim")
    parser.add_argument("--asvs", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=8, help="--num-workers")
    parser.add_argument("--steps", type=int, default=12, help="profiled steps; half of them before")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    began, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # As many that all steps are in one epoch: its end, with validation and checkpoint, is rare.
        samples = 3 * max(options.batch_sizes) * (options.steps + warmup_of(options.steps)) // 2
        study = simulate(folder / "study", samples, options.asvs)
        for size, precision, compiled in settings(options.batch_sizes, options.device):
            left = LIMIT - (time.monotonic() - began)
            if left < 5:
                print("No time is left: the other settings are not measured", file=sys.stderr)
                break
            rows.append(measure(study, folder, options, size, precision, compiled, left))
            print_rows(rows[-1:])
    print_rows(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


def settings(sizes: Sequence[int], device: str) -> list[tuple[int, str, bool]]:
    """Return batch size, precision and compilation of each run."""
    plain = [(size, precision, False) for size in sizes for precision in ("none", "bf16")]
    return plain if device == "cpu" else [*plain, (max(sizes), "bf16", True)]


def warmup_of(steps: int) -> int:
    """Return the number of steps before those that are profiled."""
    return max(2, steps // 2)


def simulate(folder: Path, samples: int, asvs: int) -> Path:
    """Write a study of so many samples, as a store."""
    from aam.cli import main as aam

    shape = ("--samples", max(100, samples), "--asvs", asvs, "--richness", min(185, asvs // 3))
    argv = ["example", "--output-dir", folder, *shape, "--depth", 5000, "--subjects", 40]
    assert aam(list(map(str, argv))) == 0
    store = folder / "store.aam"
    paths = ("--table", folder / "table.biom", "--tree", folder / "tree.nwk", "--output", store)
    assert aam(["prepare", *map(str, paths)]) == 0
    return store


def measure(
    store: Path,
    folder: Path,
    options: argparse.Namespace,
    size: int,
    precision: str,
    compiled: bool,
    timeout: float,
) -> dict[str, Any]:
    """Pretrain with one setting; return its figures."""
    warmup = warmup_of(options.steps)
    trace, lines = folder / "trace.json.gz", folder / "lines.json"
    argv = ["--table", store, "--output-dir", folder / "run", "--overwrite", "--epochs", 1000,
            "--batch-size", size, "--embedding-dim", options.width, "--device", options.device,
            "--mixed-precision", precision, "--num-workers", options.workers,
            "--compile-model", "force" if compiled else "off", "--no-check"]  # fmt: skip
    command = [sys.executable, __file__, "pretrain", *map(str, argv)]
    variables = {
        "AAM_TRACE": str(trace),
        "AAM_TRACE_FROM": str(warmup),
        SYNCHRONIZATIONS: str(lines),
    }
    steps = warmup + options.steps
    logged = run_workload(command, steps, folder / "log", timeout, variables=variables)
    setting = {"batch": size, "precision": precision, "compiled": compiled}
    if logged.failure:
        return {**setting, "failure": logged.failure}
    timed = logged.steps[warmup:]
    with gzip.open(trace, "rt") as stream:
        content = json.load(stream)
    return {
        **setting,
        "samples_per_second": sum(s.samples for s in timed) / sum(s.seconds for s in timed),
        **gaps(content["traceEvents"], len(timed)),
        "lines": {line: n / steps for line, n in json.loads(lines.read_text()).items()},
    }


def profiled(argv: Sequence[str], path: Path) -> None:
    """Run `aam`, and write at which lines it synchronises with the device, and how often."""
    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode("warn")
    sys.argv = ["aam", *argv]
    with synchronizations() as lines:
        try:
            runpy.run_module("aam", run_name="__main__")
        finally:
            path.write_text(json.dumps(dict(lines.most_common(8))))


@contextmanager
def synchronizations() -> Iterator[Counter[str]]:
    """Count PyTorch's warnings of synchronisations by the line of this project they are for."""
    project, lines = Path(__file__).parent.parent, Counter[str]()
    shown = warnings.showwarning

    def count(message: Warning | str, *place: Any) -> None:
        if "synchronizing CUDA operation" not in str(message):
            shown(message, *place)
            return
        frames = [
            f"{Path(frame.filename).relative_to(project)}:{frame.lineno}"
            for frame in traceback.extract_stack()[:-1]
            if Path(frame.filename).is_relative_to(project)
            and "site-packages" not in frame.filename
        ]
        # The thread that copies batches to page-locked memory has no line of the project.
        lines[frames[-1] if frames else "a thread of PyTorch"] += 1

    # `aam` hides warnings of libraries unless Python has options for them.
    sys.warnoptions.append("default")
    with warnings.catch_warnings():
        warnings.filterwarnings("always", ".*synchronizing CUDA operation")
        warnings.showwarning = count  # type: ignore[assignment]
        yield lines


def gaps(events: Iterable[dict[str, Any]], steps: int) -> dict[str, Any]:
    """Divide the time between the first and the last kernel of a Chrome trace.

    Returns:
        Fractions of the time: `busy`, and `loader`, `waiting`, `launching` of what is idle;
        `transfer`, in which the device copies (a part of `busy`); for each step the number of
        `kernels` and of waits by the operation that waits (`waits`), and the milliseconds.
    """
    device: list[Interval] = []
    copies: list[Interval] = []
    loading: list[Interval] = []
    waiting: list[tuple[float, float, Any]] = []
    operations: list[tuple[float, float, Any, str]] = []
    for event in events:
        if event.get("ph") != "X":
            continue
        name, kind, start = str(event["name"]), event.get("cat"), float(event["ts"])
        end = start + float(event["dur"])
        if kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            device.append((start, end))
            copies += [(start, end)] if kind == "gpu_memcpy" else []
        elif LOADER in name:
            loading.append((start, end))
        elif kind == "cpu_op":
            operations.append((start, end, event.get("tid"), name))
        elif any(part in name for part in WAITS):
            waiting.append((start, end, event.get("tid")))
    # The operation in which a wait is; none in a call of torch.cuda.synchronize.
    waits = Counter(
        max(
            (op for op in operations if op[0] <= start and end <= op[1] and op[2] == thread),
            key=lambda op: op[1] - op[0],
            default=(0.0, 0.0, thread, "no operation"),
        )[3]
        for start, end, thread in waiting
    )
    calls = [(start, end) for start, end, *_ in operations]
    busy = union(device or calls)
    if not busy:
        return {"failure": "the trace has no operation"}
    first, last = busy[0][0], busy[-1][1]
    span = last - first
    idle = [(end, start) for (_, end), (start, _) in pairwise(busy)]
    # What the training thread did in the idle time: a wait for a batch is one, whatever it calls.
    load = overlap(idle, union(loading))
    wait = overlap(idle, union([*loading, *((start, end) for start, end, _ in waiting)])) - load
    total = sum(end - start for start, end in idle)
    return {
        "busy": 1 - total / span,
        "transfer": sum(end - start for start, end in union(copies)) / span,
        "loader": load / span,
        "waiting": wait / span,
        "launching": (total - load - wait) / span,
        "step_ms": span / 1e3 / steps,
        "kernels": len(device or calls) / steps,
        "waits": {name: number / steps for name, number in waits.most_common(6)},
    }


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Join intervals that overlap.

    >>> union([(4.0, 6.0), (0.0, 2.0), (1.0, 3.0)])
    [(0.0, 3.0), (4.0, 6.0)]
    """
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def overlap(first: Sequence[Interval], second: Sequence[Interval]) -> float:
    """Return the length that two unions of intervals have in common.

    >>> overlap([(0.0, 3.0), (5.0, 6.0)], [(2.0, 5.5)])
    1.5
    """
    starts = [start for start, _ in second]
    length = 0.0
    for start, end in first:
        place = max(0, bisect_right(starts, start) - 1)
        while place < len(second) and second[place][0] < end:
            length += max(0.0, min(end, second[place][1]) - max(start, second[place][0]))
            place += 1
    return length


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table, and below it the waits of each setting."""
    shares = ("busy", "transfer", "loader", "waiting", "launching")
    table = Table(
        "batch", "precision", "samples/s", "ms a step", "kernels", *shares, "limit", box=None
    )
    for column in table.columns[2:-1]:
        column.justify = "right"
    for row in rows:
        precision = f"{row['precision']}{', compiled' if row['compiled'] else ''}"
        if "failure" in row:
            table.add_row(f"{row['batch']:,}", precision, row["failure"])
            continue
        figures = [
            f"{row['samples_per_second']:,.0f}",
            f"{row['step_ms']:.1f}",
            f"{row['kernels']:.0f}",
        ]
        limit = max(shares[2:], key=row.__getitem__) if row["busy"] <= 1 - IDLE else "the device"
        parts = (f"{row[share]:.0%}" for share in shares)
        table.add_row(f"{row['batch']:,}", precision, *figures, *parts, limit)
    console = Console(width=110, highlight=False)
    console.print(table)
    for row in rows:
        for kind in ("waits", "lines"):
            if numbers := row.get(kind):
                named = ", ".join(f"{name} {number:.1f}" for name, number in numbers.items())
                setting = f"batch {row['batch']:,}, {row['precision']}"
                console.print(f"{kind.title()} a step, {setting}: {named}")


if __name__ == "__main__":
    if file := os.environ.get(SYNCHRONIZATIONS):
        profiled(sys.argv[1:], Path(file))
    else:
        main()
