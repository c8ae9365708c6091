"""Check report: the measurements of `aam check` on a stack; its JSON, its cache and its table.

A report that is kept has a key: another driver, GPU architecture, image, version of `aam` or size
of the attention makes it invalid. The cache is the folder of the variable `CHECK_REPORTS`, which
`aam-launch` sets and mounts, with one file for each stack; without it nothing is kept.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from aam.contract.errors import CannotCreate, DataError, reason_of
from aam.contract.files import atomic_write, dump_json
from aam.contract.gpus import CHECK_REPORTS
from aam.contract.version import __version__
from aam.memory import shown_size
from aam.network.numerics.device import Identity
from aam.network.numerics.faults import FAULTS, HALF
from aam.run_record import launched_by

FORMAT = 2  # version of the JSON format; reports of other versions are rejected

Outcome = Literal["right", "harmless", "wrong", "absent", "failed", "memory", "crashed"]
"""absent: the backend reports that it cannot run. failed: it raised another error. memory: out of
memory. crashed: it ended the process."""

WRONG: tuple[Outcome, ...] = ("crashed", "wrong")
UNUSABLE: tuple[Outcome, ...] = ("absent", "failed", "memory")
WORST_FIRST: tuple[Outcome, ...] = (*WRONG, *UNUSABLE, "harmless", "right")


@dataclass(frozen=True)
class Case:
    """Result of one probe of one backend."""

    backend: str
    dtype: str
    mask: str
    outcome: Outcome
    shape: str = ""
    members: int = 0
    forward: float | None = None  # largest difference of the output over the largest true value
    backward: float | None = None  # of the three gradients
    allowed: float = 0.0  # tolerance of both
    fault: str = ""  # name in `aam.network.numerics.faults`
    note: str = ""  # first line of the backend's error


@dataclass(frozen=True)
class Cost:
    """Time and memory of one forward and backward pass."""

    backend: str
    dtype: str
    mask: str
    shape: str
    milliseconds: float  # median of several
    peak_bytes: int | None = None  # beyond the inputs; None on a CPU, where it is not measured


@dataclass(frozen=True)
class StackKey:
    """Stack for which a report is valid."""

    image: str  # digest; "native:..." and the version of PyTorch without an image
    arch: str
    driver: str  # "kernel ..." of one that is part of the kernel
    aam: str
    attention: str  # number and width of the heads that were probed

    def __str__(self) -> str:
        image = self.image if len(self.image) < 30 else f"{self.image[:19]}..."
        return f"{self.arch}, driver {self.driver}, {image}, aam {self.aam}, heads {self.attention}"


@dataclass(frozen=True)
class CheckReport:
    """Result of one `aam check`."""

    made: str  # time in UTC
    quick: bool
    seconds: float
    identity: dict[str, Any]  # `Identity` of the stack
    cases: tuple[Case, ...]
    costs: tuple[Cost, ...] = ()
    key: StackKey | None = None  # None for a report that is not stored
    # Bytes of GPU memory that are no tensors: driver, kernels, BLAS workspace, and other processes;
    # None on a CPU.
    overhead: int | None = None

    def of(self, backend: str, dtypes: Collection[str] | None = None) -> tuple[Case, ...]:
        """Return the cases of a backend, in all or some dtypes."""
        cases = (case for case in self.cases if case.backend == backend)
        return tuple(case for case in cases if dtypes is None or case.dtype in dtypes)

    def faults(self, backend: str, dtypes: Collection[str] | None = None) -> tuple[str, ...]:
        """Return the names of a backend's faults in all or some dtypes, each once."""
        names = (c.fault for c in self.of(backend, dtypes) if c.fault)
        return tuple(dict.fromkeys(names))

    @property
    def backends(self) -> tuple[str, ...]:
        """The measured backends, in order."""
        return tuple(dict.fromkeys(case.backend for case in self.cases))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The measured dtypes, in order."""
        return tuple(dict.fromkeys(case.dtype for case in self.cases))

    @property
    def wrong(self) -> bool:
        """True if a backend that runs is wrong."""
        return any(case.outcome in WRONG for case in self.cases)

    @property
    def recomputed(self) -> bool:
        """True if recomputation under gradient checkpointing was measured."""
        return any(case.mask == "recomputed" for case in self.cases)


def worst(cases: Collection[Case]) -> Outcome:
    """Return the worst outcome of some cases; "absent" where there is none."""
    outcomes = {case.outcome for case in cases}
    return next((outcome for outcome in WORST_FIRST if outcome in outcomes), "absent")


def summary(report: CheckReport) -> str:
    """Return one line with the result and the faults of each backend."""
    parts = []
    for backend in report.backends:
        cases = [c for c in report.of(backend) if c.mask != "recomputed"]
        outcome = worst(cases)
        faults = dict.fromkeys(c.fault for c in cases if c.outcome in WRONG and c.fault)
        text = "wrong" if outcome in WRONG else "right"
        if outcome in UNUSABLE:
            plain = worst([case for case in cases if case.mask == "none"])
            text = "cannot run" if plain in UNUSABLE else "right without masks"
        parts.append(f"{backend} {text}" + (f" ({', '.join(faults)})" if faults else ""))
    return ", ".join(parts)


def to_json(report: CheckReport) -> str:
    """Return a report as JSON on one line, with its stack and its result in words."""
    content = {
        "format": FORMAT,
        "aam": __version__,
        "stack": str(report.key or ""),
        "verdict": summary(report),
        **dataclasses.asdict(report),
    }
    return dump_json(content)


def from_json(text: str) -> CheckReport:
    """Decode the JSON of `to_json`."""
    try:
        version = msgspec.json.decode(text, type=_Version).format
        if version != FORMAT:
            reason = f"format {version}, this program reads {FORMAT}"
            raise DataError("A check report of another version", reason, "run the check again")
        report = msgspec.json.decode(text, type=CheckReport)
        if not report.cases or not all(case.backend for case in report.cases):
            raise ValueError("no cases")
    except (ValueError, RecursionError) as error:
        raise DataError(
            "A damaged check report", reason_of(error), "run the check again"
        ) from error
    return report


@dataclass(frozen=True)
class _Version:
    format: int


MAX_BYTES = 1 << 20  # bytes of a report; those of `aam check` have 20 kilobytes


def reports_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of the reports, or None if none is kept."""
    named = environment.get(CHECK_REPORTS)
    return Path(named) if named else None


def key_of(
    here: Identity, heads: int, width: int, environment: Mapping[str, str]
) -> StackKey | None:
    """Return the key of the reports of this stack; None if nothing identifies the image."""
    launch = launched_by(environment) or {}
    image = launch.get("digest") if launch.get("image") else f"native:{here.torch}"
    if not image:
        return None
    driver = here.driver or "none"
    return StackKey(str(image), here.arch, driver, __version__, f"{heads} x {width}")


def report_file(key: StackKey, folder: Path) -> Path:
    """Return the file of a key."""
    content = json.dumps(dataclasses.asdict(key), sort_keys=True)
    return folder / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.json"


def load_report(key: StackKey, folder: Path) -> tuple[CheckReport | None, str]:
    """Return the report that is kept for a key, or None; and why a file there is not used."""
    file = report_file(key, folder)
    try:
        report = _read(file)
        if report.key != key:
            raise ValueError("it is for another key")
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, DataError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return None, f"'{file}', {str(reason).rstrip('.')}"
    return report, ""


def latest_reports(folder: Path) -> list[CheckReport]:
    """Return the reports that may be used, the latest first."""
    reports = []
    for file in sorted(folder.glob("*.json")):
        try:
            reports.append(_read(file))
        except (OSError, ValueError, DataError):
            continue
    return sorted(reports, key=lambda report: report.made, reverse=True)


def store_report(report: CheckReport, folder: Path) -> str:
    """Write a report with a key for later runs; return why it cannot be written, or ""."""
    assert report.key is not None
    file = report_file(report.key, folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_write(file) as temporary:
            # Private and new: another user may neither read it nor have put a link there.
            temporary.touch(mode=0o600, exist_ok=False)
            temporary.write_text(to_json(report))
    except (OSError, CannotCreate) as error:
        return f"'{file}', {error.strerror if isinstance(error, OSError) else error.cause}"
    return ""


def _read(file: Path) -> CheckReport:
    # A report decides what a run computes with, so a file that another user could have written is
    # not used. No link is followed, and a named pipe does not block the run. Facts are those of the
    # open file, so that it cannot be replaced between the check and the reading.
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb") as stream:
        status = os.fstat(handle)
        for facts in (status, os.stat(file.parent)):
            if facts.st_uid != os.geteuid():
                raise ValueError("it belongs to another user")
            if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ValueError("others may write it")
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        return from_json(stream.read(MAX_BYTES).decode(errors="replace"))


HEADS = {
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

NOTED = ("failed", "memory", "crashed")  # outcomes whose note is printed


def page(report: CheckReport, conclusion: str) -> RenderableType:
    """Return the printed form of a check report; `conclusion` is its last line."""
    identity, grid = report.identity, Table.grid(padding=(0, 2))
    arch = f" ({identity['arch']})" if identity["arch"] != "cpu" else ""
    kernels = identity["aotriton"]
    if kernels == "unknown":
        kernels = "unknown: libraries before 0.9 have no version"
    named = {
        "device": f"{identity['device']}{arch}",
        "driver": identity["driver"],
        "PyTorch": ", ".join(filter(None, (identity["torch"], identity["runtime"]))),
        "aotriton": kernels,
        "Triton": identity["triton"],
        "memory": f"{shown_size(report.overhead)} besides tensors" if report.overhead else "",
    }
    for name, value in named.items():
        if value:
            grid.add_row(Text(f" {name}", style="dim"), str(value))

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    masks = [mask for mask in HEADS if any(case.mask == mask for case in report.cases)]
    ratios = ["speed"] if report.costs else []
    if any(cost.peak_bytes is not None for cost in report.costs):
        ratios.append("memory")
    for head in (" backend", "dtype"):
        table.add_column(head, no_wrap=True)
    for head in (*(HEADS[mask][0] for mask in masks), "limit", *ratios):
        style = "dim" if head == "limit" else ""
        table.add_column(head, justify="right", style=style, no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    base = {(c.dtype, c.mask, c.shape): c for c in report.costs if c.backend == "math"}
    for name in report.backends:
        for place, dtype in enumerate(report.dtypes):
            cases = report.of(name, [dtype])
            cells: list[str | Text] = [f" {name}" if place == 0 else "", dtype]
            cells += [_cell([case for case in cases if case.mask == mask]) for mask in masks]
            cells.append(f"{max((case.allowed for case in cases), default=0):.0e}")
            # Relative to math, the geometric mean over masks and shapes.
            pairs = [
                (cost, base[key])
                for cost in report.costs
                if (cost.backend, cost.dtype) == (name, dtype)
                and (key := (cost.dtype, cost.mask, cost.shape)) in base
            ]
            figures = {
                "speed": [b.milliseconds / c.milliseconds for c, b in pairs if c.milliseconds],
                "memory": [
                    c.peak_bytes / b.peak_bytes for c, b in pairs if c.peak_bytes and b.peak_bytes
                ],
            }
            for ratio in ratios:
                form = ".1f" if ratio == "speed" else ".2f"
                values = figures[ratio]
                mean = f"{statistics.geometric_mean(values):{form}} x" if values else "-"
                cells.append(mean)
            outcome = worst(cases)
            label, style = LABELS[outcome]
            if outcome == "absent" and any(case.outcome == "right" for case in cases):
                label, style = "right, no masks", "green"
            end = place == len(report.dtypes) - 1
            table.add_row(*cells, Text(label, style=style), end_section=end)

    figures_of = "Figures: largest difference from float64, of output and gradients"
    if ratios:
        figures_of += f"; {' and '.join(ratios)} relative to math"
    legend = ", ".join(": ".join(HEADS[mask]) for mask in masks if HEADS[mask][1])
    notes = [Text(f"{figures_of}. Masks: {legend}.", style="dim")]
    for name in report.backends:
        for fault in report.faults(name):
            dtypes = [d for d in report.dtypes if fault in report.faults(name, [d])]
            # A fault of half precision alone has the name of what is wrong there behind it.
            first, _, rest = fault.partition(": ")
            known = FAULTS[rest or first]
            what = f"{HALF.what}; {known.what}" if rest else known.what
            title = (f"{name}, {', '.join(dtypes)}: {fault}", "bold")
            notes.append(Text.assemble(title, f": {what}; {known.remedy}."))
        for note in sorted({c.note for c in report.of(name) if c.outcome in NOTED}):
            notes.append(Text.assemble((name, "bold"), f": {note}"))
    notes.append(Text(conclusion, style="bold red" if report.wrong else "bold green"))
    return Group(grid, table, *(Padding(note, (0, 0, 0, 1), expand=False) for note in notes))


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
