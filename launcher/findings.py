"""Findings and decisions: what the launcher reports, with evidence, reason, source and remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Literal

import msgspec

from aam.contract.errors import AamError, Problem

REQUESTED = "requested"
"""Reason of what a user or a configuration has set."""


class Finding(Problem):
    """A problem that refuses nothing."""

    def __init__(
        self, severity: Literal["note", "warning"], cause: str, evidence: str, remedy: str = ""
    ) -> None:
        super().__init__(cause, evidence, remedy)
        self.severity = severity


def warning(error: AamError) -> Finding:
    """Return a warning of what an error would refuse."""
    return Finding("warning", error.cause, error.evidence, error.remedy)


def entries(findings: Iterable[Finding | AamError]) -> list[dict[str, str]]:
    """Return findings for programs."""
    return [{name: getattr(finding, name) for name in ("severity", "cause", "evidence", "remedy")}
            for finding in findings]  # fmt: skip


def warn(findings: Iterable[Finding]) -> None:
    """Print the warnings before a start."""
    for finding in findings:
        if finding.severity == "warning":
            print(f"aam-launch: warning: {finding}", file=sys.stderr)


class Decision(msgspec.Struct, frozen=True):
    """One decision."""

    subject: str  # what is decided: "image", "engine", "flag", "mount", "variable", ...
    value: str  # what was decided
    why: str  # the reason, with its evidence
    # where it came from: "host", "catalog", "default", a file and line, a variable, "command line"
    source: str
