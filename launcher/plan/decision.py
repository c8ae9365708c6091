"""Decisions of the launcher with their reason and source."""

from __future__ import annotations

from dataclasses import dataclass

REQUESTED = "requested"
"""Reason of what a user or a configuration has set."""


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
