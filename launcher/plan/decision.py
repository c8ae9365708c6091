"""What was decided, why, and where that came from; and what deserves a warning."""

from __future__ import annotations

from typing import Literal

from aam.options.frozen import dataclass

Severity = Literal["note", "warning", "error"]


@dataclass(frozen=True)
class Decision:
    """One decision.

    Attributes:
        subject: what is decided: "image", "engine", "flag", "mount", "variable", ...
        value: what was decided.
        why: the reason, with its evidence.
        source: where it came from: "host", "catalog", "default", a file and line, a variable,
            "command line".
    """

    subject: str
    value: str
    why: str
    source: str


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
