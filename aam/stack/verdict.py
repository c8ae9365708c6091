"""What was measured about a stack, as plain JSON, and what it means for each backend.

A verdict that came with a launch bears the key that it was made for: another driver, arch, image or
version of `aam` makes it worthless. Needs no torch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, get_args

from aam import __version__
from aam.errors import DataError
from aam.options.field import from_plain, to_plain

FORMAT = 1
"""Version of the document; another one is not read."""

Outcome = Literal["right", "harmless", "wrong", "absent", "failed", "memory", "crashed"]
"""absent: the backend says that it cannot run. failed: it stopped with another error. memory: out
of memory. crashed: it took the process with it."""

WRONG: tuple[Outcome, ...] = ("crashed", "wrong")
UNUSABLE: tuple[Outcome, ...] = ("absent", "failed", "memory")


@dataclass(frozen=True)
class Case:
    """The answer of a backend to one probe.

    Attributes:
        backend, dtype, mask: what was asked of whom.
        outcome: see `Outcome`.
        shape, members: sizes; left out where a verdict is handed over.
        forward: largest difference of the output, in units of the largest true value.
        backward: that of the three gradients.
        allowed: the tolerance of both.
        fault: name of a fault of `aam.stack.faults`; "" if none.
        note: first line of what the backend said, where it did not answer.
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
        peak_bytes: memory beyond the inputs; None where nobody counts it (a processor).
    """

    backend: str
    dtype: str
    mask: str
    shape: str
    milliseconds: float
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Key:
    """What a verdict was made for.

    Attributes:
        image: digest of the image, or "native" and the version of PyTorch.
        arch: of the GPU.
        driver: version of its kernel driver, or of the kernel that it came with.
        aam: version of this program.
    """

    image: str
    arch: str
    driver: str
    aam: str


@dataclass(frozen=True)
class Verdict:
    """Everything that one check found.

    Attributes:
        made: when, in UTC.
        quick: only the quick probes were made.
        seconds: how long it took.
        identity: of the stack, see `aam.stack.identity`, as plain values.
        key: what it is for; None for one that stays here.
    """

    made: str
    quick: bool
    seconds: float
    identity: dict[str, Any]
    cases: tuple[Case, ...]
    costs: tuple[Cost, ...] = ()
    key: Key | None = None

    def of(self, backend: str, dtypes: Collection[str]) -> tuple[Case, ...]:
        """Return the cases of a backend in some dtypes."""
        return tuple(c for c in self.cases if c.backend == backend and c.dtype in dtypes)

    def faults(self, backend: str, dtypes: Collection[str]) -> tuple[str, ...]:
        """Name the faults of a backend in some dtypes, each once."""
        found = (c.fault for c in self.of(backend, dtypes) if c.fault)
        return tuple(dict.fromkeys(found))

    @property
    def backends(self) -> tuple[str, ...]:
        """Name the backends that were asked, in order."""
        return tuple(dict.fromkeys(case.backend for case in self.cases))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Name the dtypes that were asked for, in order."""
        return tuple(dict.fromkeys(case.dtype for case in self.cases))

    @property
    def wrong(self) -> bool:
        """A usable backend is wrong."""
        return any(case.outcome in WRONG for case in self.cases)


def worst(cases: Collection[Case]) -> Outcome:
    """Return the outcome that counts: wrong in one case is wrong, absent in one is absent."""
    found = {case.outcome for case in cases}
    order: tuple[Outcome, ...] = (*WRONG, *UNUSABLE, "harmless", "right")
    return next((outcome for outcome in order if outcome in found), "absent")


def to_json(verdict: Verdict) -> str:
    """Return the document of a verdict, on one line."""
    content = {"format": FORMAT, "aam": __version__, **to_plain(verdict)}
    content["cases"] = [dataclasses.asdict(case) for case in verdict.cases]
    content["costs"] = [dataclasses.asdict(cost) for cost in verdict.costs]
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def from_json(text: str) -> Verdict:
    """Undo `to_json`.

    Raises:
        DataError: it is damaged, or of another format.
    """
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            reason = f"format {content['format']}, this program reads {FORMAT}"
            raise DataError("A verdict of another version", reason, "run the check again")
        key = content.get("key")
        verdict = Verdict(
            made=str(content["made"]),
            quick=bool(content["quick"]),
            seconds=float(content["seconds"]),
            identity=dict(content["identity"]),
            cases=tuple(_case(case) for case in content["cases"]),
            costs=tuple(Cost(**cost) for cost in content["costs"]),
            key=key and Key(**{name: str(key[name]) for name in Key.__dataclass_fields__}),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError("A damaged verdict", reason, "run the check again") from error
    return verdict


def _case(content: dict[str, Any]) -> Case:
    case = from_plain(Case, content)
    if case.outcome not in get_args(Outcome) or not case.backend:
        raise ValueError(f"no such outcome: {case.outcome}")
    return case
