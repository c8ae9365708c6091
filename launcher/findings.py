"""Findings: severity, cause, evidence and remedy of a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["note", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """A problem or remark for the user, with its evidence and remedy."""

    severity: Severity
    cause: str
    evidence: str
    remedy: str = ""

    def __str__(self) -> str:
        sentence = f"{self.cause}: {self.evidence}"
        return f"{sentence}; {self.remedy}." if self.remedy else f"{sentence}."


def warn(findings: tuple[Finding, ...]) -> list[str]:
    """Return the warnings and errors to print before a start."""
    return [f"aam-launch: {f.severity}: {f}" for f in findings if f.severity != "note"]
