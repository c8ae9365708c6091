"""The page of an acceptance, and the settings that it recommends.

A line for each part, then plots and a table for each list of figures that a part measured.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aam.acceptance.memory import EXPANDABLE, SEGMENTS
from aam.acceptance.part import AcceptancePart
from aam.acceptance.result import AcceptanceFile, ImageRun, PartResult
from aam.console import duration
from aam.contract import schema
from aam.contract.errors import DataError
from aam.contract.files import write_text
from aam.memory import GIB, shown_size
from aam.number_format import significant
from aam.report.base import Drawing
from aam.report.figures.acceptance_plots import memory_figure, scaling_figure
from aam.report.page import render
from aam.report.pictures import Picture
from aam.report.speed_page import Bar, bar_figure
from aam.report.terminal import Table

FILE = "report.html"
SETTINGS = "settings.yaml"

SAVES = 0.95
"""Share of the reserved memory below which expandable segments are recommended."""

_HEADINGS = {
    "all_reduce": "all-reduce, GB/s",
    "difference": "losses differ by",
    "dtype": "precision",
    "gain": "times as fast",
    "host": "memory of the host",
    "largest": "share of allowed rounding",
    "links": "links, GB/s",
    "milliseconds": "ms",
    "one": "one rank, samples/s",
    "peak_bytes": "peak memory",
    "products": "matrix products, TFLOP/s",
    "rss": "host memory",
    "samples": "samples/s",
    "share": "share of peak",
    "shares": "share of time",
    "spread": "±",
    "wait": "waits for batches",
    "wire": "wire, GB/s",
}
"""Heading of a measured value, with its unit, where its name does not say it."""

_HIDDEN = ("rates", "backends", "losses", "network")
"""Columns that repeat others, and lines of text that would make a table too wide."""

_BYTES = (
    "predicted", "allocated", "reserved", "rss", "peak_bytes", "overhead", "memory", "host",
)  # fmt: skip
_SHARES = ("share", "shares", "wait", "idle", "largest")


def write(folder: Path, content: AcceptanceFile, parts: Mapping[str, AcceptancePart]) -> None:
    """Write the page, and the settings if some were chosen.

    Raises:
        DataError: the values of a part are not of its schema.
        CannotCreate: a file cannot be written.
    """
    _require_shapes(folder, content, parts)
    verdicts = [(run.title, list(_lines(run, parts))) for run in content.runs]
    drawings = [drawing for run in content.runs for drawing in _drawings(run)]
    text = render(
        "acceptance.html.j2",
        title="Acceptance",
        lead=_lead(content),
        verdicts=verdicts,
        pictures=[Picture.of(f"plot{number}", one) for number, one in enumerate(drawings)],
        tables=[
            table
            for run in content.runs
            for table in _tables(run, parts, f"{run.title}: " if len(content.runs) > 1 else "")
        ],
    )
    write_text(folder / FILE, text)
    if (settings := recommended(content)) is not None:
        write_text(folder / SETTINGS, settings)


def _require_shapes(
    folder: Path, content: AcceptanceFile, parts: Mapping[str, AcceptancePart]
) -> None:
    values = [("host", content.host)]
    values += [(name, found.measured) for run in content.runs for name, found in run.parts.items()]
    for name, measured in values:
        try:
            if name in parts and measured:
                schema.parse(dict(parts[name].shape), measured, name)
        except schema.Mismatch as error:
            raise DataError(
                "The acceptance file is damaged",
                f"'{folder}', {error}",
                "measure the part again with --overwrite",
            ) from error


def _lead(content: AcceptanceFile) -> str:
    host = content.host
    driver = f", driver {host['driver']}" if host.get("driver") else ""
    kernel = f"kernel {host.get('kernel')}"
    return f"{_hardware(host)}{driver}, {kernel}, measured by aam {content.aam}."


def _hardware(host: Mapping[str, Any]) -> str:
    gpus = host.get("gpus")
    if not gpus:
        return str(host.get("cpu", "a CPU"))
    return f"{len(gpus)} x {gpus[0]} ({host.get('arch')})"


def _lines(run: ImageRun, parts: Mapping[str, AcceptancePart]) -> Iterator[tuple[str, ...]]:
    """Yield name, title, verdict, sentence and time of each part, in the order of the registry."""
    order = {name: number for number, name in enumerate(parts)}
    for name in sorted(run.parts, key=lambda name: order.get(name, len(order))):
        found, title = run.parts[name], parts[name].title if name in parts else ""
        busy = f" While it was measured {found.busy}." if found.busy else ""
        yield name, title, found.verdict, found.summary + busy, duration(found.seconds)


def _drawings(run: ImageRun) -> Iterator[Drawing]:
    speed, memory, ranks = (_measured(run, name) for name in ("speed", "memory", "ranks"))
    if speed:
        bars = [
            Bar(r["setting"], r["samples"], r["spread"] or 0.0)
            for r in speed["runs"]
            if r["samples"]
        ]
        title = "Samples per second"
        spoken = ", ".join(f"{bar.label} {significant(bar.value)}" for bar in bars)
        if bars:
            yield Drawing(bar_figure(title, bars, "samples/s"), run.title, f"{title}: {spoken}")
    if memory:
        rows = memory["runs"]
        names = [f"{row['command']}, {row['setting']}" for row in rows]
        predicted = [row["predicted"] / GIB for row in rows]
        found = [row["allocated"] and row["allocated"] / GIB for row in rows]
        spoken = ", ".join(f"{n} {p:.3g} GiB" for n, p in zip(names, predicted, strict=True))
        figure = memory_figure(names, predicted, found)
        yield Drawing(figure, run.title, f"Predicted memory: {spoken}")
    if ranks:
        together = [one for one in ranks["runs"] if one["samples"] and one["one"]]
        numbers = [one["ranks"] for one in together]
        gains = [one["samples"] / one["one"] for one in together]
        pairs = zip(numbers, gains, strict=True)
        spoken = ", ".join(f"{number} ranks {gain:.2f}" for number, gain in pairs)
        yield Drawing(scaling_figure(numbers, gains), run.title, f"Times as fast as one: {spoken}")


def _measured(run: ImageRun, name: str) -> Mapping[str, Any]:
    found = run.parts.get(name)
    return {} if found is None else found.measured


def _tables(run: ImageRun, parts: Mapping[str, AcceptancePart], before: str) -> Iterator[Table]:
    for name, *_ in _lines(run, parts):
        found: PartResult = run.parts[name]
        for key, value in found.measured.items():
            heading = f"{before}{name}, {_heading(key)}"
            if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
                yield _rows(heading, value)
            elif isinstance(value, dict) and value and key != "rates":
                pairs = [[str(label), _cell(key, one)] for label, one in value.items()]
                # Lines of the library of collectives: below the table they are wrapped.
                note = "\n".join(found.measured.get("network", ()))
                yield Table(heading, ["", _heading(key)], pairs, note)


def _rows(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of records, without the columns that are empty in all of them."""
    keys = list(dict.fromkeys(key for row in rows for key in row if key not in _HIDDEN))
    used = [key for key in keys if any(row.get(key) not in (None, "", [], {}) for row in rows)]
    cells = [[_cell(key, row.get(key)) for key in used] for row in rows]
    return Table(title, [_heading(key) for key in used], cells)


def _heading(key: str) -> str:
    return _HEADINGS.get(key, key.replace("_", " "))


def _cell(key: str, value: Any) -> str:
    """Format a value with the unit of its name; "" where there is none."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int | float):
        if key in _BYTES:
            return shown_size(round(value))
        if key in _SHARES:
            return f"{value:.1%}"
        return f"{value:,}" if isinstance(value, int) else significant(value)
    if isinstance(value, list):
        return ", ".join(_cell(key, item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(key, item)}" for name, item in value.items())
    return str(value)


def recommended(content: AcceptanceFile) -> str | None:
    """Return settings of the launcher: what `aam tune` chose with the fastest image; else None.

    Of several images the fastest is preferred. The batch size stands in a comment: another one
    changes the training.
    """
    runs = [run for run in content.runs if run.nodes == 1 and _measured(run, "settings")]
    if not runs:
        return None
    best = max(runs, key=lambda run: _measured(run, "settings")["samples"] or 0.0)
    found = _measured(best, "settings")
    chosen = found["values"] if found["gain"] > 1 else {}
    notes = [
        f"Settings for {_hardware(content.host)} and {best.title}, the fastest that was measured. "
        "`aam tune` chose them on a simulated study; they train the same network."
    ]
    speeds = [row for row in _measured(best, "speed").get("runs", ()) if row["samples"]]
    if speeds:
        fastest = max(speeds, key=lambda row: row["samples"])
        notes.append(
            f"Fastest: {fastest['setting']}, {significant(fastest['samples'])} samples/s; another "
            "batch size is another training."
        )
    options = {name.removeprefix("--"): value for name, value in chosen.items()}
    tuned = {"options": options, "env": _variables(best)}
    lines = [f"# {line}" for note in notes for line in textwrap.wrap(note, 96)]
    arch = content.host.get("arch", "cpu")
    lines += ["tuned:", f"  {arch}:", *(f"    {k}: {json.dumps(v)}" for k, v in tuned.items())]
    if best.image and len(names := {run.image for run in runs}) > 1:
        why = f"the fastest of {len(names)} images that were measured"
        lines.append(f"images: {json.dumps({best.image: {'prefer': {arch: why}}})}")
    return "\n".join(lines) + "\n"


def _variables(run: ImageRun) -> dict[str, str]:
    """Return the variables that save memory: expandable segments, where they do."""
    rows = [row for row in _measured(run, "memory").get("runs", ()) if row["reserved"]]
    reserved = {row["setting"]: row["reserved"] for row in rows if row["command"] == "pretrain"}
    for name, size in reserved.items():
        plain = reserved.get(name.removesuffix(f", {SEGMENTS}"))
        if name.endswith(SEGMENTS) and plain and size < SAVES * plain:
            return {EXPANDABLE[0]: EXPANDABLE[1]}
    return {}
