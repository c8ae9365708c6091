"""Selection of the attention backends by the status of each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from aam.contract.errors import Unavailable
from aam.contract.options.device import AttnImplementation
from aam.model.attention import backend_name
from aam.numerics.check_report import UNUSABLE, WRONG, CheckReport, worst

Use = Literal["plain", "masked"]
Status = Literal["right", "harmless", "wrong", "absent"]
"""right: correct, or it runs and was not measured. harmless: wrong without effect on a model.
wrong: must not be used. absent: cannot run."""

StatusOf = Callable[[str, Use], Status]
"""The status of a backend, by name, without or with a mask."""

REPLACEMENTS = ("flash", "mem_efficient", "math", "auto")
"""Substitutes for another backend: fused kernels first, and by name, so that the run record names
the kernel that computed."""


@dataclass(frozen=True)
class AttentionChoice:
    """The backends of a run.

    Attributes:
        plain: used where no mask is needed.
        masked: used where a mask is needed.
        warnings: reasons for another backend than the requested one; empty if it is used.
    """

    plain: str
    masked: str
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        both = f"{self.plain}, and {self.masked} with masks"
        return self.plain if self.plain == self.masked else both


def select_backends(
    requested: AttnImplementation, backends: Sequence[str], status_of: StatusOf, device: str
) -> AttentionChoice:
    """Select the requested backend where it is correct, else the next correct one.

    Args:
        requested: value of --attn-implementation.
        backends: names of the candidates.
        status_of: status of a backend by its name and use.
        device: type of the device, for messages.

    Raises:
        Unavailable: no backend is correct.

    >>> status = {"flash": "wrong", "math": "right"}
    >>> choice = select_backends("flash", list(status), lambda name, use: status[name], "cuda")
    >>> choice.plain, choice.masked, len(choice.warnings)
    ('math', 'math', 1)
    """
    preferred = backend_name(requested)
    rest = [name for name in REPLACEMENTS if name in backends and name != preferred]
    plain = _first([preferred, *rest], "plain", status_of)
    masked = _first([preferred, *rest], "masked", status_of)
    warnings = _warnings(preferred, plain, masked, status_of, device)
    return AttentionChoice(plain, masked, tuple(warnings))


def reported_status(
    report: CheckReport, dtypes: Collection[str], recomputed: bool = False
) -> StatusOf:
    """Return the status of each backend by a report; a backend wrong in one use is wrong in both.

    Args:
        dtypes: names of the types in which the run computes.
        recomputed: whether the run uses gradient checkpointing.
    """

    def status_of(backend: str, use: Use) -> Status:
        cases = [
            case for case in report.of(backend, dtypes) if recomputed or case.mask != "recomputed"
        ]
        if any(case.outcome in WRONG for case in cases):
            return "wrong"
        outcome = worst([case for case in cases if (case.mask == "none") == (use == "plain")])
        if outcome in UNUSABLE:
            return "absent"
        return "harmless" if outcome == "harmless" else "right"

    return status_of


def _first(candidates: Sequence[str], use: Use, status_of: StatusOf) -> str:
    # The first correct one ends the search, since a trial costs time on a GPU.
    harmless = None
    for name in candidates:
        status = status_of(name, use)
        if status == "right":
            return name
        if status == "harmless" and harmless is None:
            harmless = name
    if harmless is None:
        raise Unavailable(
            "No attention backend computes correctly on this device",
            ", ".join(f"{name} {status_of(name, use)}" for name in candidates),
            "`aam check` measures again, `aam-launch images` lists other images, --device cpu "
            "computes correctly, --no-check skips the check",
        )
    return harmless


def _warnings(
    preferred: str, plain: str, masked: str, status_of: StatusOf, device: str
) -> list[str]:
    if preferred == plain == masked:
        return []
    flag = f"--attn-implementation {preferred}"
    if preferred == plain:
        reason = _reason(status_of(preferred, "masked"), "supports no mask", "with masks", device)
        return [f"{flag} {reason}; {masked} runs where there is one."]
    reason = _reason(status_of(preferred, "plain"), "cannot run", "", device)
    used = f"{plain} runs" if plain == masked else f"{plain}, and {masked} with masks, run"
    return [f"{flag} {reason}; {used} instead."]


def _reason(status: Status, absent: str, where: str, device: str) -> str:
    if status == "absent":
        return f"{absent} on {device}"
    return " ".join(f"computes wrong {where} on {device}".split())
