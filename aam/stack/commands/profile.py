"""`aam profile`: what limits a run, from the output of a profiler or of some steps of a command."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from aam.console import info
from aam.contract.errors import DataError, UsageError
from aam.contract.files import atomic_write, refuse_existing
from aam.contract.options.commands.measure import Profile
from aam.contract.options.commands.train import Pretrain, Train
from aam.stack.kernel_profiles import (
    KernelProfile,
    as_plain,
    category,
    precisions,
    read_profile,
    shares,
    verdict,
)
from aam.stack.workload import aam_workload, run_workload

TIMEOUT = 600.0
"""Seconds without a step after which the command counts as hanging."""


def run_profile(options: Profile, measured: Pretrain | Train | tuple[str, ...]) -> None:
    """Print the limit of a run, its categories and longest kernels, or two runs side by side."""
    if not isinstance(measured, tuple):
        _record(options, measured)
        return
    if options.profile is None:
        remedy = "give the output of a profiler, or pretrain or train with its options"
        raise UsageError("`profile` lacks what it reads", "no file was given", remedy)
    profiles = [read_profile(path) for path in (options.profile, options.compare) if path]
    if options.json:
        summaries = [as_plain(profile, options.kernels) for profile in profiles]
        print(json.dumps(summaries if len(summaries) > 1 else summaries[0], indent=2))
        return
    console = Console(highlight=False)
    for number, profile in enumerate(profiles):
        if number:
            console.print()
        _show(console, profile, options.kernels)
    if len(profiles) > 1:
        first, second = (
            {label: share * profile.total_ns / 1e6 for label, share in shares(profile).items()}
            for profile in profiles
        )
        heads = ("first, ms", "second, ms", "ratio")
        table = Table("category", *map(_right, heads), box=None, pad_edge=False)
        rows = [(label, first.get(label, 0.0), second.get(label, 0.0)) for label in first | second]
        for label, before, after in sorted(rows, key=lambda row: -abs(row[2] - row[1])):
            ratio = f"{after / before:.2f}" if before else ""
            table.add_row(label, f"{before:.3f}", f"{after:.3f}", ratio)
        console.print()
        console.print(table)


def _record(options: Profile, measured: Pretrain | Train) -> None:
    """Record some steps of a command, and print their profile."""
    folder = options.output_dir
    if folder is None:
        form = "`aam profile --output-dir FOLDER pretrain ...`"
        raise UsageError("`profile` lacks a folder for the trace", "--output-dir", f"give {form}")
    trace = folder / "trace.json.gz"
    refuse_existing(trace, options.overwrite)
    steps = options.warmup_steps + options.profile_steps
    with (
        atomic_write(trace) as temporary,
        tempfile.TemporaryDirectory(prefix="running-", dir=folder) as name,
    ):
        running = Path(name)
        argv = aam_workload(measured, "profile")({}, running)
        variables = {"AAM_TRACE": str(temporary), "AAM_TRACE_FROM": str(options.warmup_steps)}
        logged = run_workload(argv, steps, running, TIMEOUT, variables=variables)
        if logged.failure:
            raise DataError("The command fails", logged.failure, "run it by itself")
    # The first steps allocate memory and choose kernels.
    recorded = logged.steps[options.warmup_steps :]
    wait = sum(step.wait for step in recorded) / sum(step.seconds for step in recorded)
    profile = read_profile(trace)
    if options.json:
        print(json.dumps({**as_plain(profile, options.kernels, wait), "wait": wait}, indent=2))
    else:
        _show(Console(highlight=False), profile, options.kernels, wait)
    info(f"Trace: {trace}")


def _show(console: Console, profile: KernelProfile, number: int, wait: float | None = None) -> None:
    """Print the limit of a profile, its categories and its `number` longest kernels."""
    what = "kernels" if profile.device == "GPU" else "operations"
    console.print(
        f"{profile.source}: {profile.calls} calls of {len(profile.kernels)} {what}, "
        f"{profile.total_ns / 1e6:.3f} ms."
    )
    idle = "not known (totals without start times)"
    if profile.idle is not None:
        idle = f"{profile.idle:.0%}"
    if profile.device == "GPU":
        console.print(f"GPU idle between the first and the last kernel: {idle}.")
    else:
        console.print(f"Outside operations of PyTorch: {idle}.")
    if wait is not None:
        console.print(f"The network waits for a batch: {wait:.0%} of the time.")
    console.print(f"Limit: {': '.join(verdict(profile, wait or 0.0))}.")
    if profile.device == "GPU" and (products := precisions(profile)):
        shown = ", ".join(f"{name} {share:.0%}" for name, share in products.items())
        console.print(f"Precision of the matrix products, by their names: {shown}.")
    categories = Table("category", _right("share"), box=None, pad_edge=False)
    for name, share in shares(profile).items():
        categories.add_row(name, f"{share:.1%}")
    heads = [*map(_right, ("ms", "share", "calls")), Column("category")]
    kernels = Table(*heads, box=None, pad_edge=False, expand=True)
    # The only flexible column: names are cut to what the others leave, and numbers never.
    kernels.add_column("kernel", no_wrap=True, overflow="ellipsis", ratio=1)
    for kernel in profile.kernels[:number]:
        kernels.add_row(
            f"{kernel.total_ns / 1e6:.3f}",
            f"{kernel.total_ns / profile.total_ns:.1%}",
            str(kernel.calls),
            category(kernel.name),
            # rich reads square brackets as markup, and C++ names of kernels have them.
            escape(re.sub(r"^void |at::native::|\(anonymous namespace\)::", "", kernel.name)),
        )
    for table in (categories, kernels):
        console.print()
        console.print(table)


def _right(header: str) -> Column:
    return Column(header, justify="right")
