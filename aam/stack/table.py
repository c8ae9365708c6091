"""A verdict for people: what the stack is, a row for each backend and dtype, and what it means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from aam.errors import Unavailable
from aam.model.attention import TORCH
from aam.stack.choice import choose
from aam.stack.faults import FAULTS, HALF
from aam.stack.guard import Need, of_verdict
from aam.stack.verdict import UNUSABLE, WRONG, Case, Cost, Verdict, worst

MASKS = {
    "none": ("no mask", ""),
    "shared": ("one", "one mask for all samples"),
    "each": ("own", "one for each"),
    "empty": ("empty", "samples without members"),
    "recomputed": ("again", "recomputed in the backward pass"),
}
"""Heading of each kind of mask, and what it means where the heading does not say."""

WORDS = {
    "right": ("right", "green"),
    "harmless": ("harmless", "yellow"),
    "wrong": ("WRONG", "bold red"),
    "crashed": ("CRASHED", "bold red"),
    "absent": ("cannot run", "dim"),
    "failed": ("fails", "red"),
    "memory": ("out of memory", "yellow"),
}
"""Outcome -> the word that is shown, and its style."""

TELLING = ("failed", "memory", "crashed")
"""Outcomes whose note is worth a line."""


def show(verdict: Verdict) -> None:
    """Print a verdict on standard output."""
    console = Console(highlight=False, width=None if Console().is_terminal else 120)
    console.print(page(verdict))


def page(verdict: Verdict) -> RenderableType:
    """Lay a verdict out."""
    parts: list[RenderableType] = [_stack(verdict), _table(verdict)]
    parts += [Padding(note, (0, 0, 0, 1), expand=False) for note in _notes(verdict)]
    return Group(*parts)


def _stack(verdict: Verdict) -> Table:
    said = verdict.identity
    kernels = said["aotriton"]
    if kernels == "unknown":
        kernels = "unknown: the library does not say, as before 0.9"
    named = {
        "device": said["device"] + (f" ({said['arch']})" if said["arch"] != "cpu" else ""),
        "driver": said["driver"],
        "PyTorch": ", ".join(filter(None, (said["torch"], said["runtime"]))),
        "aotriton": kernels,
        "Triton": said["triton"],
    }
    grid = Table.grid(padding=(0, 2))
    for name, value in named.items():
        if value:
            grid.add_row(Text(f" {name}", style="dim"), str(value))
    return grid


def _table(verdict: Verdict) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(" backend", no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    asked = [mask for mask in MASKS if any(case.mask == mask for case in verdict.cases)]
    for mask in asked:
        table.add_column(MASKS[mask][0], justify="right", no_wrap=True)
    table.add_column("limit", justify="right", style="dim", no_wrap=True)
    timed = bool(verdict.costs)
    counted = any(cost.peak_bytes is not None for cost in verdict.costs)
    if timed:
        table.add_column("speed", justify="right", no_wrap=True)
    if counted:
        table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for name in verdict.backends:
        for place, dtype in enumerate(verdict.dtypes):
            cases = verdict.of(name, [dtype])
            cells: list[str | Text] = [f" {name}" if place == 0 else "", dtype]
            cells += [_cell([case for case in cases if case.mask == mask]) for mask in asked]
            cells.append(f"{max((case.allowed for case in cases), default=0):.0e}")
            cells += [_speed(verdict.costs, name, dtype)] if timed else []
            cells += [_memory(verdict.costs, name, dtype)] if counted else []
            table.add_row(*cells, _word(cases), end_section=place == len(verdict.dtypes) - 1)
    return table


def _cell(cases: Sequence[Case]) -> Text:
    """Show the largest difference of the shapes, or why there is none."""
    outcome = worst(cases)
    style = WORDS[outcome][1] if outcome != "right" else ""
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
    word, style = WORDS[outcome]
    return Text(word, style=style)


def _speed(costs: Sequence[Cost], name: str, dtype: str) -> str:
    found = [base.milliseconds / cost.milliseconds
             for cost, base in _against_math(costs, name, dtype) if cost.milliseconds]  # fmt: skip
    return f"{statistics.geometric_mean(found):.1f} x" if found else "-"


def _memory(costs: Sequence[Cost], name: str, dtype: str) -> str:
    found = [cost.peak_bytes / base.peak_bytes
             for cost, base in _against_math(costs, name, dtype)
             if cost.peak_bytes and base.peak_bytes]  # fmt: skip
    return f"{statistics.geometric_mean(found):.2f} x" if found else "-"


def _against_math(costs: Sequence[Cost], name: str, dtype: str) -> Iterator[tuple[Cost, Cost]]:
    math_costs = {(c.dtype, c.mask, c.shape): c for c in costs if c.backend == "math"}
    for cost in costs:
        base = math_costs.get((cost.dtype, cost.mask, cost.shape))
        if cost.backend == name and cost.dtype == dtype and base is not None:
            yield cost, base


def _notes(verdict: Verdict) -> Iterator[Text]:
    """Say what the figures are, what is wrong and what `aam` does about it."""
    figures = "Figures: largest difference from float64, of output and gradients"
    if verdict.costs:
        figures += "; speed" + (" and memory" if verdict.costs[0].peak_bytes is not None else "")
        figures += " relative to math"
    asked = {case.mask for case in verdict.cases}
    masks = ", ".join(f"{name}: {what}" for mask, (name, what) in MASKS.items()
                      if what and mask in asked)  # fmt: skip
    yield Text(f"{figures}. Masks: {masks}.", style="dim")
    for name in verdict.backends:
        for fault in verdict.faults(name, verdict.dtypes):
            dtypes = [d for d in verdict.dtypes if fault in verdict.faults(name, [d])]
            yield Text.assemble(
                (f"{name}, {', '.join(dtypes)}: {fault}", "bold"), f": {explain(fault)}"
            )
        told = (c for c in verdict.of(name, verdict.dtypes) if c.outcome in TELLING)
        for note in sorted({case.note for case in told}):
            yield Text.assemble((name, "bold"), f": {note}")
    yield _conclusion(verdict)


def explain(fault: str) -> str:
    """Return what a fault is and what helps, as a sentence; `fault` may name the dtype too."""
    first, _, rest = fault.partition(": ")
    known = FAULTS[rest or first]
    what = f"{HALF.what}; {known.what}" if rest else known.what
    return f"{what}; {known.remedy}."


def _conclusion(verdict: Verdict) -> Text:
    try:
        known = of_verdict(verdict, Need("auto", dtypes=verdict.dtypes))
        chosen = choose("auto", TORCH, known, "this device").backends
    except Unavailable as error:
        return Text(str(error), style="bold red")
    bad = [name for name in verdict.backends if worst(verdict.of(name, verdict.dtypes)) in WRONG]
    uses = (
        chosen.plain.name
        if chosen.plain is chosen.masked
        else f"{chosen.plain.name}, and {chosen.masked.name} with masks"
    )
    seconds = math.ceil(verdict.seconds)
    if bad:
        return Text(
            f"Wrong here: {', '.join(bad)}. aam uses {uses}. ({seconds} s)", style="bold red"
        )
    return Text(f"Right here. aam uses {uses}. ({seconds} s)", style="bold green")
