"""Findings and decisions: what the launcher reports, with evidence, reason, source and remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Literal

import msgspec

from aam.contract.errors import AamError, NotPermitted, Unavailable, UsageError, printable

Severity = Literal["note", "warning", "error"]

REQUESTED = "requested"
"""Reason of what a user or a configuration has set."""


class Finding(msgspec.Struct, frozen=True):
    """A problem or remark, with its evidence and remedy: a note, a warning, or a refusal."""

    severity: Severity
    cause: str
    evidence: str
    remedy: str = ""
    status: int | None = None  # exit status of a launch that it refuses, where it is not 69

    def __str__(self) -> str:
        return f"{self.brief}; {self.remedy}." if self.remedy else f"{self.brief}."

    @property
    def brief(self) -> str:
        """Cause and evidence on one line."""
        return f"{self.cause}: {self.evidence}"

    @property
    def error(self) -> AamError:
        """The error of a launch that it refuses."""
        kinds = {kind.status: kind for kind in (NotPermitted, UsageError)}
        kind = kinds[self.status] if self.status else Unavailable
        return kind(self.cause, self.evidence, self.remedy)

    def as_warning(self) -> Finding:
        """Return it as a warning."""
        return msgspec.structs.replace(self, severity="warning")


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
