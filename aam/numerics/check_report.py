"""Check report: the measurements of `aam check` on a stack, as data and as JSON.

A report that is kept has a key: another driver, GPU architecture, image, version of `aam` or size
of the attention makes it invalid.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, get_args

from aam import __version__
from aam.contract.errors import DataError
from aam.contract.options.field import from_plain, to_plain

FORMAT = 2
"""Version of the JSON format; reports of other versions are rejected."""

Outcome = Literal["right", "harmless", "wrong", "absent", "failed", "memory", "crashed"]
"""absent: the backend reports that it cannot run. failed: it raised another error. memory: out of
memory. crashed: it ended the process."""

WRONG: tuple[Outcome, ...] = ("crashed", "wrong")
UNUSABLE: tuple[Outcome, ...] = ("absent", "failed", "memory")
WORST_FIRST: tuple[Outcome, ...] = (*WRONG, *UNUSABLE, "harmless", "right")


@dataclass(frozen=True)
class Case:
    """Result of one probe of one backend.

    Attributes:
        outcome: result of the probe, one of `Outcome`.
        shape, members: name of the probe's shape and its number of members.
        forward: largest difference of the output, relative to the largest true value.
        backward: largest relative difference of the three gradients.
        allowed: tolerance of both.
        fault: name of a fault of `aam.numerics.faults`; "" if none.
        note: first line of the backend's error, where it raised one.
    """

    backend: str
    dtype: str
    mask: str
    outcome: Outcome
    shape: str = ""
    members: int = 0
    forward: float | None = None
    backward: float | None = None
    allowed: float = 0.0
    fault: str = ""
    note: str = ""


@dataclass(frozen=True)
class Cost:
    """Time and memory of one forward and backward pass.

    Attributes:
        milliseconds: median of several.
        peak_bytes: memory beyond the inputs; None on a CPU, where it is not measured.
    """

    backend: str
    dtype: str
    mask: str
    shape: str
    milliseconds: float
    peak_bytes: int | None = None


@dataclass(frozen=True)
class StackKey:
    """Stack for which a report is valid.

    Attributes:
        image: digest of the image; "file:..." of a file without one, "native:..." and the version
            of PyTorch without an image.
        driver: version of its kernel driver; "kernel ..." of one that is part of the kernel.
        attention: number and width of the heads that were probed.
    """

    image: str
    arch: str
    driver: str
    aam: str
    attention: str

    def __str__(self) -> str:
        image = self.image if len(self.image) < 30 else f"{self.image[:19]}..."
        return f"{self.arch}, driver {self.driver}, {image}, aam {self.aam}, heads {self.attention}"


@dataclass(frozen=True)
class CheckReport:
    """Result of one `aam check`.

    Attributes:
        made: time in UTC.
        identity: identity of the stack (`aam.numerics.stack_identity`), as plain values.
        key: stack for which it is valid; None for a report that is not stored.
        overhead: bytes of GPU memory that are no tensors: driver, kernels, BLAS workspace, and
            other processes; None on a CPU.
    """

    made: str
    quick: bool
    seconds: float
    identity: dict[str, Any]
    cases: tuple[Case, ...]
    costs: tuple[Cost, ...] = ()
    key: StackKey | None = None
    overhead: int | None = None

    def of(self, backend: str, dtypes: Collection[str]) -> tuple[Case, ...]:
        """Return the cases of a backend in some dtypes."""
        return tuple(c for c in self.cases if c.backend == backend and c.dtype in dtypes)

    def faults(self, backend: str, dtypes: Collection[str]) -> tuple[str, ...]:
        """Return the names of a backend's faults in some dtypes, each once."""
        found = (c.fault for c in self.of(backend, dtypes) if c.fault)
        return tuple(dict.fromkeys(found))

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
    found = {case.outcome for case in cases}
    return next((outcome for outcome in WORST_FIRST if outcome in found), "absent")


def summary(report: CheckReport) -> str:
    """Return one line with the result and the faults of each backend."""
    parts = []
    for backend in report.backends:
        cases = [c for c in report.of(backend, report.dtypes) if c.mask != "recomputed"]
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
        **to_plain(report),
    }
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def from_json(text: str) -> CheckReport:
    """Parse the JSON of `to_json`.

    Raises:
        DataError: the document is damaged, or of another format.
    """
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            reason = f"format {content['format']}, this program reads {FORMAT}"
            raise DataError("A check report of another version", reason, "run the check again")
        key = content.get("key")
        cases = tuple(_case(case) for case in content["cases"])
        if not cases:
            raise ValueError("no cases")
        return CheckReport(
            made=str(content["made"]),
            quick=bool(content["quick"]),
            seconds=float(content["seconds"]),
            identity=dict(content["identity"]),
            cases=cases,
            costs=tuple(Cost(**cost) for cost in content["costs"]),
            key=key
            and StackKey(**{name: str(key[name]) for name in StackKey.__dataclass_fields__}),
            overhead=None if (size := content.get("overhead")) is None else int(size),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError("A damaged check report", reason, "run the check again") from error


def _case(content: dict[str, Any]) -> Case:
    case = from_plain(Case, content)
    if case.outcome not in get_args(Outcome) or not case.backend:
        raise ValueError(f"no such outcome: {case.outcome}")
    return case
