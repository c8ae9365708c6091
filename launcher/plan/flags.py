"""Flags that a stack needs, because of a fault that is known of it."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.findings import Finding
from launcher.plan.catalog import StackFault
from launcher.plan.decision import Decision
from launcher.plan.request import Request, options_of


def required(
    request: Request, faults: Sequence[StackFault]
) -> tuple[list[str], list[Decision], list[Finding]]:
    """Return the words to add to a command, the decisions, and warnings.

    What the user set himself stays; where it is what the fault is about, he is warned.
    """
    words: list[str] = []
    decisions: list[Decision] = []
    findings: list[Finding] = []
    known = options_of(request.command)
    for fault in faults:
        flag, *values = fault.flags
        positive = flag if flag in known else "--" + flag.removeprefix("--no-")
        if positive not in known:
            continue
        said = last_setting(request, positive)
        if said is None:
            words += fault.flags
            why = f"{fault.reason} ({fault.source})"
            decisions.append(Decision("flag", " ".join(fault.flags), why, fault.known_from))
        elif said != [flag, *values]:
            remedy = f"{' '.join(fault.flags)} is what it needs"
            findings.append(
                Finding("warning", "A choice that is known to go wrong here",
                        f"{' '.join(said)}: {fault.reason}", remedy)
            )  # fmt: skip
    return words, decisions, findings


def last_setting(request: Request, flag: str) -> list[str] | None:
    """Return the last words that set `flag`, in the usual spelling, or None."""
    said = None
    words = request.words
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        spelled = name.replace("_", "-")
        if spelled == flag or spelled == "--no-" + flag[2:]:
            following = words[place + 1 : place + 2]
            plain = [w for w in following if not w.startswith("-")]
            said = [spelled, *([value] if equals else plain)]
    return said
