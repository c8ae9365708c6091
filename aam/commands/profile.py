"""`aam profile`: what limits a run, from the output of a profiler or of some steps of a command."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from aam.console import info
from aam.contract.errors import DataError, UsageError
from aam.contract.files import atomic_write, refuse_existing
from aam.contract.options.commands.measure import Profile
from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.commands.train import Train
from aam.performance.measurement.setup import command_of
from aam.performance.measurement.workload import RunPlan, run_workload
from aam.performance.profile import (
    KernelProfile,
    category,
    differences,
    precisions,
    shares,
    verdict,
)
from aam.performance.profile_files import read_profile
from aam.report.speed_page import Bar, write_page

TIMEOUT = 600.0
"""Seconds without a step after which the command counts as hanging."""


def run(options: Profile, measured: Pretrain | Train | tuple[str, ...]) -> None:
    """Print the limit of a run, its categories and longest kernels, or two runs side by side.

    Args:
        options: of `aam profile`.
        measured: options of the command of which steps are recorded; otherwise a file is read.

    Raises:
        UsageError: neither a command nor a file, or no folder for the trace.
        MissingInput: a file does not exist.
        DataError: a file is not a profile, is damaged, or has no kernels; the command fails.
        CannotCreate: the trace of a command exists, or cannot be written.
    """
    if not isinstance(measured, tuple):
        _run_command(options, measured)
        return
    if options.profile is None:
        remedy = "give the output of a profiler, or pretrain or train with its options"
        raise UsageError("`profile` lacks what it reads", "no file was given", remedy)
    first = read_profile(options.profile)
    second = None if options.compare is None else read_profile(options.compare)
    if options.json:
        profiles = [as_plain(p, options.kernels) for p in (first, second) if p is not None]
        print(json.dumps(profiles[0] if second is None else profiles, indent=2))
        return
    console = Console(highlight=False)
    _show(console, first, options.kernels)
    if second is not None:
        console.print()
        _show(console, second, options.kernels)
        _show_differences(console, first, second)


def _run_command(chosen: Profile, measured: Pretrain | Train) -> None:
    """Record some steps of a command, and print their profile."""
    folder = chosen.output_dir
    if folder is None:
        form = "`aam profile --output-dir FOLDER pretrain ...`"
        raise UsageError("`profile` lacks a folder for the trace", "--output-dir", f"give {form}")
    trace = folder / "trace.json.gz"
    refuse_existing(trace, chosen.overwrite)
    steps = chosen.warmup_steps + chosen.profile_steps
    with atomic_write(trace) as temporary:
        variables = {"AAM_TRACE": str(temporary), "AAM_TRACE_FROM": str(chosen.warmup_steps)}
        plan = RunPlan({}, steps, "profile")
        found = run_workload(
            command_of(measured, "profile"), plan, folder / "running", TIMEOUT, variables
        )
        if found.failure:
            raise DataError("The command fails", found.failure, "run it by itself")
    shutil.rmtree(folder / "running", ignore_errors=True)
    # The first steps allocate memory and choose kernels.
    recorded = found.steps[chosen.warmup_steps :]
    wait = sum(step.wait for step in recorded) / sum(step.seconds for step in recorded)
    profile = read_profile(trace)
    if chosen.json:
        print(json.dumps({**as_plain(profile, chosen.kernels, wait), "wait": wait}, indent=2))
    else:
        _show(Console(highlight=False), profile, chosen.kernels, wait)
    bars = [Bar(name, 100 * share) for name, share in shares(profile).items()]
    limit = verdict(profile, wait)
    write_page(
        folder / "report.html",
        f"Profile of {len(recorded)} steps",
        f"{limit.limit}: {limit.advice}.",
        {"Share of the time": bars},
        [],
        unit="%",
    )
    info(f"Trace: {trace}")


def as_plain(profile: KernelProfile, number: int, wait: float = 0.0) -> dict[str, Any]:
    """Return the figures of a profile as JSON.

    Args:
        profile: kernels or operations with their times.
        number: longest kernels to list.
        wait: part of the time in which the network waits for a batch, 0 to 1; it may be the limit
            of the run.
    """
    found = verdict(profile, wait)
    return {
        "source": profile.source,
        "calls": sum(kernel.calls for kernel in profile.kernels),
        "milliseconds": profile.total_ns / 1e6,
        "idle": profile.idle,
        "limit": found.limit,
        "advice": found.advice,
        "shares": shares(profile),
        "precisions": precisions(profile),
        "kernels": [
            {
                "name": kernel.name,
                "category": category(kernel.name),
                "calls": kernel.calls,
                "milliseconds": kernel.total_ns / 1e6,
            }
            for kernel in profile.kernels[:number]
        ],
    }


def _show(console: Console, profile: KernelProfile, number: int, wait: float | None = None) -> None:
    calls = sum(kernel.calls for kernel in profile.kernels)
    console.print(
        f"{profile.source}: {calls} calls of {len(profile.kernels)} "
        f"{'kernels' if profile.device == 'GPU' else 'operations'}, "
        f"{profile.total_ns / 1e6:.3f} ms."
    )
    idle = (
        "not known (totals without start times)" if profile.idle is None else f"{profile.idle:.0%}"
    )
    if profile.device == "GPU":
        console.print(f"GPU idle between the first and the last kernel: {idle}.")
    else:
        console.print(f"Outside operations of PyTorch: {idle}.")
    if wait is not None:
        console.print(f"The network waits for a batch: {wait:.0%} of the time.")
    found = verdict(profile, wait or 0.0)
    console.print(f"Limit: {found.limit}: {found.advice}.")
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
    console.print()
    console.print(categories)
    console.print()
    console.print(kernels)


def _show_differences(console: Console, first: KernelProfile, second: KernelProfile) -> None:
    table = Table(
        "category",
        _right("first, ms"),
        _right("second, ms"),
        _right("ratio"),
        box=None,
        pad_edge=False,
    )
    for name, one, two in differences(first, second):
        table.add_row(name, f"{one:.3f}", f"{two:.3f}", f"{two / one:.2f}" if one else "")
    console.print()
    console.print(table)


def _right(header: str) -> Column:
    return Column(header, justify="right")
