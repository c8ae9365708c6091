"""Findings: what a user should know, with its severity, evidence and remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["note", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """Something that a user should know: cause, evidence, remedy."""

    severity: Severity
    cause: str
    evidence: str
    remedy: str = ""

    def __str__(self) -> str:
        sentence = f"{self.cause}: {self.evidence}"
        return f"{sentence}; {self.remedy}." if self.remedy else f"{sentence}."
