"""Selection of the attention backends from what is known of each. Pure.

`aam` selects with it before a run, and `aam-launch explain` shows the same selection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from aam.contract.check_report import UNUSABLE, WRONG, CheckReport, worst
from aam.contract.errors import Unavailable
from aam.contract.options.groups import AttnImplementation

BACKENDS = ("auto", "flash", "mem_efficient", "math")
"""PyTorch's backends in order of preference; auto leaves the choice to PyTorch."""

Use = Literal["plain", "masked"]
Status = Literal["right", "harmless", "wrong", "absent"]
"""right: correct, or it runs and was never measured. harmless: wrong where no model can notice.
wrong: not to be used. absent: cannot run."""

StatusOf = Callable[[str, Use], Status]
"""The status of a backend, by name, without or with a mask."""

REPLACEMENTS = ("flash", "mem_efficient", "math", "auto")
"""Substitutes for another backend: fused kernels first, and by name, so that the run record says
which kernel computed."""


@dataclass(frozen=True)
class AttentionChoice:
    """The backends of a run.

    Attributes:
        plain: where no mask is needed.
        masked: where one is.
        warnings: why they are not the requested one; empty if they are.
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
    """Select the requested backend where it computes right, the next right one elsewhere.

    Args:
        requested: value of --attn-implementation.
        backends: names of the backends there are.
        status_of: called as rarely as possible, since a trial costs time on a GPU.
        device: name of the device, for the warnings.

    Raises:
        Unavailable: no backend computes right.
    """
    wanted = "auto" if requested == "sdpa" else requested
    rest = [name for name in REPLACEMENTS if name in backends and name != wanted]
    plain = _first([wanted, *rest], "plain", status_of)
    masked = _first([wanted, *rest], "masked", status_of)
    warnings = _warnings(wanted, plain, masked, status_of, device)
    return AttentionChoice(plain, masked, tuple(warnings))


def reported_status(
    report: CheckReport, dtypes: Collection[str], recomputed: bool = False
) -> StatusOf:
    """Return the status of each backend by a report; one that is wrong in one use is never used.

    Args:
        report: of `aam check` for this stack.
        dtypes: those that the run computes in.
        recomputed: the run uses gradient checkpointing.
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
    harmless = None
    for name in candidates:
        status = status_of(name, use)
        if status == "right":
            return name
        if status == "harmless" and harmless is None:
            harmless = name
    if harmless is None:
        raise Unavailable(
            "No attention backend computes right here",
            ", ".join(f"{name} {status_of(name, use)}" for name in candidates),
            "run `aam check`; --device cpu computes right, --no-check runs all the same",
        )
    return harmless


def _warnings(wanted: str, plain: str, masked: str, status_of: StatusOf, device: str) -> list[str]:
    if wanted == plain == masked:
        return []
    flag = f"--attn-implementation {wanted}"
    if wanted == plain:
        why = _why(status_of(wanted, "masked"), "takes no mask", "with masks", device)
        return [f"{flag} {why}; {masked} runs where there is one."]
    why = _why(status_of(wanted, "plain"), "cannot run", "", device)
    used = f"{plain} runs" if plain == masked else f"{plain}, and {masked} with masks, run"
    return [f"{flag} {why}; {used} instead."]


def _why(status: Status, absent: str, where: str, device: str) -> str:
    if status == "absent":
        return f"{absent} on {device}"
    return " ".join(f"computes wrong {where} on {device}".split())
