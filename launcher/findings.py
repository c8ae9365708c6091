"""Findings and decisions: what the launcher reports, with evidence, reason, source and remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import msgspec

from aam.contract.errors import Problem

REQUESTED = "requested"  # reason of what a user or a configuration has set


def warning(cause: str, evidence: str, remedy: str = "") -> Problem:
    """Return a problem that does not stop a launch."""
    return Problem(cause, evidence, remedy, "warning")


def as_warning(problem: Problem) -> Problem:
    """Return an error as a warning."""
    return warning(problem.cause, problem.evidence, problem.remedy)


def entries(findings: Iterable[Problem]) -> list[dict[str, str]]:
    """Return findings for programs."""
    return [{name: getattr(finding, name) for name in ("severity", "cause", "evidence", "remedy")}
            for finding in findings]  # fmt: skip


def warn(findings: Iterable[Problem]) -> None:
    """Print the warnings before a start."""
    for finding in findings:
        if finding.severity == "warning":
            print(f"aam-launch: warning: {finding}", file=sys.stderr)


class Decision(msgspec.Struct, frozen=True):
    """One decision."""

    subject: str  # what is decided: "image", "engine", "flag", "mount", "variable", ...
    value: str  # what was decided
    why: str  # the reason, with its evidence
    # its origin: "host", "catalog", "default", a file and line, a variable, "command line"
    source: str
