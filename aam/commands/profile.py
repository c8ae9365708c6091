"""`aam profile`: what limits a run on a GPU, from the output of a profiler."""

from __future__ import annotations

import json
import re
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from aam.contract.options.commands.stack import Profile
from aam.performance.profile import (
    KernelProfile,
    category,
    differences,
    precisions,
    shares,
    verdict,
)
from aam.performance.profile_files import read_profile


def run(options: Profile) -> None:
    """Print the limit of a run, its categories and longest kernels, or two runs side by side.

    Raises:
        MissingInput: a file does not exist.
        DataError: a file is not a profile, is damaged, or has no kernels.
    """
    first = read_profile(options.profile)
    second = None if options.compare is None else read_profile(options.compare)
    if options.json:
        profiles = [_as_plain(p, options.kernels) for p in (first, second) if p is not None]
        print(json.dumps(profiles[0] if second is None else profiles, indent=2))
        return
    console = Console(highlight=False)
    _show(console, first, options.kernels)
    if second is not None:
        console.print()
        _show(console, second, options.kernels)
        _show_differences(console, first, second)


def _as_plain(profile: KernelProfile, number: int) -> dict[str, Any]:
    found = verdict(profile)
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


def _show(console: Console, profile: KernelProfile, number: int) -> None:
    calls = sum(kernel.calls for kernel in profile.kernels)
    console.print(
        f"{profile.source}: {calls} calls of {len(profile.kernels)} kernels, "
        f"{profile.total_ns / 1e6:.3f} ms."
    )
    idle = (
        "not known (totals without start times)" if profile.idle is None else f"{profile.idle:.0%}"
    )
    console.print(f"GPU idle between the first and the last kernel: {idle}.")
    found = verdict(profile)
    console.print(f"Limit: {found.limit}: {found.advice}.")
    if products := precisions(profile):
        shown = ", ".join(f"{name} {share:.0%}" for name, share in products.items())
        console.print(f"Precision of the matrix products, by their names: {shown}.")
    categories = Table("category", _right("share"), box=None, pad_edge=False)
    for name, share in shares(profile).items():
        categories.add_row(name, f"{share:.1%}")
    kernels = Table(*map(_right, ("ms", "share", "calls")), "category", box=None, pad_edge=False)
    kernels.add_column("kernel", no_wrap=True, overflow="ellipsis")
    for kernel in profile.kernels[:number]:
        kernels.add_row(
            f"{kernel.total_ns / 1e6:.3f}",
            f"{kernel.total_ns / profile.total_ns:.1%}",
            str(kernel.calls),
            category(kernel.name),
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
