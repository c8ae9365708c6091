"""Findings and decisions: what the launcher reports, with evidence, reason, source and remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Literal

import msgspec

from aam.contract.errors import printable

Severity = Literal["note", "warning", "error"]

REQUESTED = "requested"
"""Reason of what a user or a configuration has set."""


class Finding(msgspec.Struct, frozen=True):
    """A problem or remark for the user, with its evidence and remedy."""

    severity: Severity
    cause: str
    evidence: str
    remedy: str = ""

    def __str__(self) -> str:
        sentence = f"{self.cause}: {self.evidence}"
        return f"{sentence}; {self.remedy}." if self.remedy else f"{sentence}."


def warn(findings: Iterable[Finding]) -> None:
    """Print the warnings and errors before a start."""
    for finding in findings:
        if finding.severity != "note":
            print(f"aam-launch: {finding.severity}: {printable(str(finding))}", file=sys.stderr)


class Decision(msgspec.Struct, frozen=True):
    """One decision."""

    subject: str  # what is decided: "image", "engine", "flag", "mount", "variable", ...
    value: str  # what was decided
    why: str  # the reason, with its evidence
    # where it came from: "host", "catalog", "default", a file and line, a variable, "command line"
    source: str
