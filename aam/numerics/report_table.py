"""The check report as a table for the terminal: the stack, and a row for each backend and dtype."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from aam.contract.errors import Unavailable
from aam.memory import shown_size
from aam.model.attention import BACKENDS
from aam.numerics.attention_selection import reported_status, select_backends
from aam.numerics.check_report import UNUSABLE, WRONG, Case, CheckReport, Cost, worst
from aam.numerics.faults import FAULTS, HALF

MASKS = {
    "none": ("no mask", ""),
    "shared": ("one", "one mask for all samples"),
    "each": ("own", "one for each"),
    "empty": ("empty", "samples without members"),
    "recomputed": ("again", "recomputed in the backward pass"),
}
"""Mask -> column heading and its explanation, if it needs one."""

LABELS = {
    "right": ("right", "green"),
    "harmless": ("harmless", "yellow"),
    "wrong": ("WRONG", "bold red"),
    "crashed": ("CRASHED", "bold red"),
    "absent": ("cannot run", "dim"),
    "failed": ("fails", "red"),
    "memory": ("out of memory", "yellow"),
}
"""Outcome -> label and style."""

NOTED = ("failed", "memory", "crashed")
"""Outcomes whose note is printed."""


def show(report: CheckReport) -> None:
    """Print a check report on standard output."""
    console = Console(highlight=False, width=None if Console().is_terminal else 120)
    console.print(page(report))


def page(report: CheckReport) -> RenderableType:
    """Return the printed form of a check report."""
    parts: list[RenderableType] = [_stack(report), _table(report)]
    parts += [Padding(note, (0, 0, 0, 1), expand=False) for note in _notes(report)]
    return Group(*parts)


def _stack(report: CheckReport) -> Table:
    identity = report.identity
    kernels = identity["aotriton"]
    if kernels == "unknown":
        kernels = "unknown: libraries before 0.9 have no version"
    named = {
        "device": identity["device"]
        + (f" ({identity['arch']})" if identity["arch"] != "cpu" else ""),
        "driver": identity["driver"],
        "PyTorch": ", ".join(filter(None, (identity["torch"], identity["runtime"]))),
        "aotriton": kernels,
        "Triton": identity["triton"],
        "memory": f"{shown_size(report.overhead)} besides tensors" if report.overhead else "",
    }
    grid = Table.grid(padding=(0, 2))
    for name, value in named.items():
        if value:
            grid.add_row(Text(f" {name}", style="dim"), str(value))
    return grid


def _table(report: CheckReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(" backend", no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    masks = [mask for mask in MASKS if any(case.mask == mask for case in report.cases)]
    for mask in masks:
        table.add_column(MASKS[mask][0], justify="right", no_wrap=True)
    table.add_column("limit", justify="right", style="dim", no_wrap=True)
    timed = bool(report.costs)
    counted = any(cost.peak_bytes is not None for cost in report.costs)
    if timed:
        table.add_column("speed", justify="right", no_wrap=True)
    if counted:
        table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for name in report.backends:
        for place, dtype in enumerate(report.dtypes):
            cases = report.of(name, [dtype])
            cells: list[str | Text] = [f" {name}" if place == 0 else "", dtype]
            cells += [_cell([case for case in cases if case.mask == mask]) for mask in masks]
            cells.append(f"{max((case.allowed for case in cases), default=0):.0e}")
            cells += [_speed(report.costs, name, dtype)] if timed else []
            cells += [_memory(report.costs, name, dtype)] if counted else []
            table.add_row(*cells, _word(cases), end_section=place == len(report.dtypes) - 1)
    return table


def _cell(cases: Sequence[Case]) -> Text:
    """Return the largest difference over the shapes, or the reason why there is none."""
    outcome = worst(cases)
    style = LABELS[outcome][1] if outcome != "right" else ""
    if outcome in UNUSABLE:
        return Text("-", style="dim")
    figures = [f for case in cases for f in (case.forward, case.backward) if f is not None]
    if outcome in (*WRONG, "harmless"):
        lacking = any(case.forward is None or case.backward is None for case in cases)
        if lacking or not figures:
            return Text("NaN" if outcome != "crashed" else "crash", style=style)
    return Text(f"{max(figures):.0e}", style=style)


def _word(cases: Sequence[Case]) -> Text:
    outcome = worst(cases)
    if outcome == "absent" and any(case.outcome == "right" for case in cases):
        return Text("right, no masks", style="green")
    label, style = LABELS[outcome]
    return Text(label, style=style)


def _speed(costs: Sequence[Cost], name: str, dtype: str) -> str:
    pairs = _against_math(costs, name, dtype)
    return _mean([b.milliseconds / c.milliseconds for c, b in pairs if c.milliseconds], ".1f")


def _memory(costs: Sequence[Cost], name: str, dtype: str) -> str:
    pairs = _against_math(costs, name, dtype)
    peaks = ((cost.peak_bytes, base.peak_bytes) for cost, base in pairs)
    return _mean([own / of_math for own, of_math in peaks if own and of_math], ".2f")


def _mean(ratios: Sequence[float], form: str) -> str:
    return f"{statistics.geometric_mean(ratios):{form}} x" if ratios else "-"


def _against_math(costs: Sequence[Cost], name: str, dtype: str) -> Iterator[tuple[Cost, Cost]]:
    math_costs = {(c.dtype, c.mask, c.shape): c for c in costs if c.backend == "math"}
    for cost in costs:
        base = math_costs.get((cost.dtype, cost.mask, cost.shape))
        if cost.backend == name and cost.dtype == dtype and base is not None:
            yield cost, base


def _notes(report: CheckReport) -> Iterator[Text]:
    """Yield the explanation of the figures, of faults, and of the backends that `aam` uses."""
    figures = "Figures: largest difference from float64, of output and gradients"
    if report.costs:
        figures += "; speed" + (" and memory" if report.costs[0].peak_bytes is not None else "")
        figures += " relative to math"
    masks = {case.mask for case in report.cases}
    legend = ", ".join(f"{name}: {what}" for mask, (name, what) in MASKS.items()
                      if what and mask in masks)  # fmt: skip
    yield Text(f"{figures}. Masks: {legend}.", style="dim")
    for name in report.backends:
        for fault in report.faults(name, report.dtypes):
            dtypes = [d for d in report.dtypes if fault in report.faults(name, [d])]
            yield Text.assemble(
                (f"{name}, {', '.join(dtypes)}: {fault}", "bold"), f": {explain(fault)}"
            )
        noted = (c for c in report.of(name, report.dtypes) if c.outcome in NOTED)
        for note in sorted({case.note for case in noted}):
            yield Text.assemble((name, "bold"), f": {note}")
    yield _conclusion(report)


def explain(fault: str) -> str:
    """Return a sentence on a fault and its remedy; `fault` may have the prefix of `HALF`."""
    first, _, rest = fault.partition(": ")
    known = FAULTS[rest or first]
    what = f"{HALF.what}; {known.what}" if rest else known.what
    return f"{what}; {known.remedy}."


def _conclusion(report: CheckReport) -> Text:
    try:
        status_of = reported_status(report, report.dtypes)
        uses = select_backends("auto", BACKENDS, status_of, "this device")
    except Unavailable as error:
        return Text(str(error), style="bold red")
    bad = [name for name in report.backends if worst(report.of(name, report.dtypes)) in WRONG]
    seconds = math.ceil(report.seconds)
    if bad:
        return Text(
            f"Wrong here: {', '.join(bad)}. aam uses {uses}. ({seconds} s)", style="bold red"
        )
    return Text(f"Right here. aam uses {uses}. ({seconds} s)", style="bold green")
