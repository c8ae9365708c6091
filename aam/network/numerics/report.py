"""Check report: the measurements of `aam check` on a stack, as JSON, in a cache and as a table.

A stored report has a key: it is invalid for another driver, GPU architecture, image, version of
`aam` or size of the attention. The cache is a folder with one file for each stack. The variable
`CHECK_REPORTS` names the folder (`aam-launch` sets it and mounts the folder); without the variable
no report is stored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
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
from aam.data.formats.text import read_text
from aam.memory import shown_size
from aam.network.numerics.device import Identity
from aam.network.numerics.probes import FAULTS, HALF
from aam.run_record import launched_by

FORMAT = 2  # version of the JSON format; reports of other versions are rejected

Outcome = Literal["right", "harmless", "wrong", "absent", "failed", "memory", "crashed"]
"""absent: the backend reports that it cannot run. failed: it raised another error. memory: out of
memory. crashed: it ended the process."""

Use = Literal["plain", "masked"]
Status = Literal["right", "wrong", "absent"]
"""right: the backend runs, and is correct or was not measured. wrong: it must not be used. absent:
it cannot run."""

StatusOf = Callable[[str, Use], Status]  # status of a backend, by name, without or with a mask

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
    backward: float | None = None  # the same for the three gradients
    allowed: float = 0.0  # tolerance of both
    fault: str = ""  # name in `aam.network.numerics.probes`
    note: str = ""  # first line of the backend's error

    @property
    def wrong(self) -> bool:
        """Whether the backend runs but must not be used."""
        return self.outcome in WRONG

    @property
    def unusable(self) -> bool:
        """Whether the backend cannot run."""
        return self.outcome in UNUSABLE


@dataclass(frozen=True)
class Cost:
    """Time and memory of one forward and backward pass."""

    backend: str
    dtype: str
    mask: str
    shape: str
    milliseconds: float  # median of several
    peak_bytes: int | None = None  # memory besides the inputs; None on a CPU


@dataclass(frozen=True)
class StackKey:
    """Stack for which a report is valid."""

    image: str  # digest; without an image "native:" and the version of PyTorch
    arch: str
    driver: str  # "kernel ..." for a driver that is part of the kernel
    aam: str
    attention: str  # number and width of the heads that were probed

    @classmethod
    def of(
        cls, stack: Identity, heads: int, width: int, environment: Mapping[str, str]
    ) -> StackKey | None:
        """Return the key of a stack; None if nothing identifies the image."""
        launch = launched_by(environment) or {}
        image = launch.get("digest") if launch.get("image") else f"native:{stack.torch}"
        if not image:
            return None
        driver = stack.driver or "none"
        return cls(str(image), stack.arch, driver, __version__, f"{heads} x {width}")

    def file(self, folder: Path) -> Path:
        """Return the file of the report of this stack."""
        content = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return folder / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.json"

    def load(self, folder: Path) -> tuple[CheckReport | None, str]:
        """Return the stored report of this stack, or None; and why a file there is not used."""
        file = self.file(folder)
        try:
            report = _read(file)
            if report.key != self:
                raise ValueError("it is for another key")
        except FileNotFoundError:
            return None, ""
        except (OSError, ValueError, DataError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            return None, f"'{file}', {str(reason).rstrip('.')}"
        return report, ""

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
    # bytes of GPU memory besides tensors: driver, kernels, BLAS workspace, other processes; None on
    # a CPU
    overhead: int | None = None

    @classmethod
    def from_json(cls, text: str) -> CheckReport:
        """Decode the output of `to_json`."""
        try:
            version = msgspec.json.decode(text, type=_Version).format
            if version != FORMAT:
                reason = f"format {version}, this program reads {FORMAT}"
                raise DataError("A check report of another version", reason, "run the check again")
            report = msgspec.json.decode(text, type=cls)
            if not report.cases or not all(case.backend for case in report.cases):
                raise ValueError("no cases")
        except (ValueError, RecursionError) as error:
            raise DataError(
                "A damaged check report", reason_of(error), "run the check again"
            ) from error
        return report

    def to_json(self) -> str:
        """Return the report as JSON on one line, with its stack and its result in words."""
        content = {
            "format": FORMAT,
            "aam": __version__,
            "stack": str(self.key or ""),
            "verdict": self.summary,
            **dataclasses.asdict(self),
        }
        return dump_json(content)

    def store(self, folder: Path) -> str:
        """Write a report with a key for later runs; return why it cannot be written, or ""."""
        assert self.key is not None
        file = self.key.file(folder)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with atomic_write(file) as temporary:
                # Private and new: no other user may read it or have put a link in its place.
                temporary.touch(mode=0o600, exist_ok=False)
                temporary.write_text(self.to_json())
        except (OSError, CannotCreate) as error:
            return f"'{file}', {error.strerror if isinstance(error, OSError) else error.cause}"
        return ""

    def of(self, backend: str, dtypes: Collection[str] | None = None) -> tuple[Case, ...]:
        """Return the cases of a backend, in all dtypes or in `dtypes`."""
        cases = (case for case in self.cases if case.backend == backend)
        return tuple(case for case in cases if dtypes is None or case.dtype in dtypes)

    def faults(self, backend: str, dtypes: Collection[str] | None = None) -> tuple[str, ...]:
        """Return the names of a backend's faults, each once, in all dtypes or in `dtypes`."""
        names = (c.fault for c in self.of(backend, dtypes) if c.fault)
        return tuple(dict.fromkeys(names))

    @property
    def backends(self) -> tuple[str, ...]:
        """Names of the measured backends, in order."""
        return tuple(dict.fromkeys(case.backend for case in self.cases))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The measured dtypes, in order."""
        return tuple(dict.fromkeys(case.dtype for case in self.cases))

    @property
    def wrong(self) -> bool:
        """Whether a backend that runs is wrong."""
        return any(case.wrong for case in self.cases)

    @property
    def recomputed(self) -> bool:
        """Whether recomputation under gradient checkpointing was measured."""
        return any(case.mask == "recomputed" for case in self.cases)

    @property
    def outcomes(self) -> dict[str, str]:
        """Worst outcome of each backend."""
        return {backend: worst(self.of(backend)) for backend in self.backends}

    @property
    def summary(self) -> str:
        """Result and faults of each backend in one line."""
        results = []
        for backend in self.backends:
            cases = [case for case in self.of(backend) if case.mask != "recomputed"]
            outcome = worst(cases)
            faults = dict.fromkeys(case.fault for case in cases if case.wrong and case.fault)
            text = "wrong" if outcome in WRONG else "right"
            if outcome in UNUSABLE:
                plain = worst([case for case in cases if case.mask == "none"])
                text = "cannot run" if plain in UNUSABLE else "right without masks"
            results.append(f"{backend} {text}" + (f" ({', '.join(faults)})" if faults else ""))
        return ", ".join(results)

    def status_of(self, dtypes: Collection[str], recomputed: bool = False) -> StatusOf:
        """Return the status of each backend; wrong in one use counts as wrong in both."""

        def status_of(backend: str, use: Use) -> Status:
            cases = self.of(backend, dtypes)
            cases = tuple(case for case in cases if recomputed or case.mask != "recomputed")
            if any(case.wrong for case in cases):
                return "wrong"
            outcome = worst([case for case in cases if (case.mask == "none") == (use == "plain")])
            return "absent" if outcome in UNUSABLE else "right"

        return status_of

    def page(self, conclusion: str) -> RenderableType:
        """Return the printed form of the report; `conclusion` is its last line."""
        identity, grid = self.identity, Table.grid(padding=(0, 2))
        arch = f" ({identity['arch']})" if identity["arch"] != "cpu" else ""
        kernels = identity["aotriton"]
        if kernels == "unknown":
            kernels = "unknown: libraries before 0.9 have no version"
        stack = {
            "device": f"{identity['device']}{arch}",
            "driver": identity["driver"],
            "PyTorch": ", ".join(filter(None, (identity["torch"], identity["runtime"]))),
            "aotriton": kernels,
            "Triton": identity["triton"],
            "memory": f"{shown_size(self.overhead)} besides tensors" if self.overhead else "",
        }
        for name, value in stack.items():
            if value:
                grid.add_row(Text(f" {name}", style="dim"), str(value))

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        masks = [mask for mask in HEADS if any(case.mask == mask for case in self.cases)]
        ratios = ["speed"] if self.costs else []
        if any(cost.peak_bytes is not None for cost in self.costs):
            ratios.append("memory")
        for head in (" backend", "dtype"):
            table.add_column(head, no_wrap=True)
        for head in (*(HEADS[mask][0] for mask in masks), "limit", *ratios):
            style = "dim" if head == "limit" else ""
            table.add_column(head, justify="right", style=style, no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        base = {(c.dtype, c.mask, c.shape): c for c in self.costs if c.backend == "math"}
        for name in self.backends:
            for number, dtype in enumerate(self.dtypes):
                cases = self.of(name, [dtype])
                cells: list[str | Text] = [f" {name}" if number == 0 else "", dtype]
                cells += [_cell([case for case in cases if case.mask == mask]) for mask in masks]
                cells.append(f"{max((case.allowed for case in cases), default=0):.0e}")
                # The geometric mean over masks and shapes, relative to math.
                pairs = [
                    (cost, base[key])
                    for cost in self.costs
                    if (cost.backend, cost.dtype) == (name, dtype)
                    and (key := (cost.dtype, cost.mask, cost.shape)) in base
                ]
                figures = {
                    "speed": [b.milliseconds / c.milliseconds for c, b in pairs if c.milliseconds],
                    "memory": [
                        c.peak_bytes / b.peak_bytes
                        for c, b in pairs
                        if c.peak_bytes and b.peak_bytes
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
                end = number == len(self.dtypes) - 1
                table.add_row(*cells, Text(label, style=style), end_section=end)

        figures_of = "Figures: largest difference from float64, of output and gradients"
        if ratios:
            figures_of += f"; {' and '.join(ratios)} relative to math"
        legend = ", ".join(": ".join(HEADS[mask]) for mask in masks if HEADS[mask][1])
        notes = [Text(f"{figures_of}. Masks: {legend}.", style="dim")]
        for name in self.backends:
            for fault in self.faults(name):
                dtypes = [d for d in self.dtypes if fault in self.faults(name, [d])]
                # "wrong in half precision: FAULT" names what is wrong in half precision alone.
                first, _, second = fault.partition(": ")
                kernel_fault = FAULTS[second or first]
                description = f"{HALF.description}; " if second else ""
                description += kernel_fault.description
                title = (f"{name}, {', '.join(dtypes)}: {fault}", "bold")
                notes.append(Text.assemble(title, f": {description}; {kernel_fault.remedy}."))
            for note in sorted({c.note for c in self.of(name) if c.outcome in NOTED}):
                notes.append(Text.assemble((name, "bold"), f": {note}"))
        notes.append(Text(conclusion, style="bold red" if self.wrong else "bold green"))
        return Group(grid, table, *(Padding(note, (0, 0, 0, 1), expand=False) for note in notes))


def worst(cases: Collection[Case]) -> Outcome:
    """Return the worst outcome of cases; "absent" without any."""
    outcomes = {case.outcome for case in cases}
    return next((outcome for outcome in WORST_FIRST if outcome in outcomes), "absent")


@dataclass(frozen=True)
class _Version:
    format: int


MAX_BYTES = 1 << 20  # largest file that is read; a report of `aam check` has 20 kilobytes


def reports_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of the stored reports; None if reports are not stored."""
    folder = environment.get(CHECK_REPORTS)
    return Path(folder) if folder else None


def latest_reports(environment: Mapping[str, str]) -> list[CheckReport]:
    """Return the stored reports that may be used, the latest first."""
    reports, folder = [], reports_folder(environment)
    for file in sorted(folder.glob("*.json")) if folder else ():
        try:
            reports.append(_read(file))
        except (OSError, ValueError, DataError):
            continue
    return sorted(reports, key=lambda report: report.made, reverse=True)


def _read(file: Path) -> CheckReport:
    # A report decides what a run computes with, so a file that another user could have written is
    # not used. No link is followed, and a named pipe does not block the run. Owner and mode are
    # read from the open file, so that it cannot be replaced between the check and the reading.
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
        return CheckReport.from_json(stream.read(MAX_BYTES).decode(errors="replace"))


HEADS = {
    "none": ("no mask", ""),
    "shared": ("one", "one mask for all samples"),
    "each": ("own", "a mask for each sample"),
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


def _cell(cases: Sequence[Case]) -> Text:
    """Return the largest difference of all shapes, or the reason why there is none."""
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


def measured_overhead(report: Path | None) -> int | None:
    """Return the memory of a GPU besides tensors from a check report, else from a stored one."""
    if report is None:
        stored = (stored.overhead for stored in latest_reports(os.environ))
        return next((overhead for overhead in stored if overhead is not None), None)
    overhead = CheckReport.from_json(read_text(report, "check report")).overhead
    if overhead is None:
        raise DataError(
            "The check report has no measurement of GPU memory",
            f"'{report}'",
            "run `aam check --json` on the GPU, with this version",
        )
    return overhead
