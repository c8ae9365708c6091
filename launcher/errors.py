"""What keeps the launcher from starting a program, each with its exit status (sysexits.h).

A message is one sentence: what is wrong, the evidence and what to do. Any other status that
`aam-launch` exits with is that of the program it became.
"""

from __future__ import annotations


class LaunchError(Exception):
    """Base of everything that a user or a host can cause.

    Args:
        cause: what is wrong, without a full stop.
        evidence: the words, paths or names concerned.
        remedy: what the user can do about it.
    """

    status = 70

    def __init__(self, cause: str, evidence: str, remedy: str) -> None:
        self.cause, self.evidence, self.remedy = cause, evidence, remedy
        super().__init__(cause, evidence, remedy)

    def __str__(self) -> str:
        end = "" if self.remedy.endswith("?") else "."
        return f"{self.cause}: {self.evidence}; {self.remedy}{end}"


class UsageError(LaunchError):
    """A command or an option that does not exist, or lacks its value (EX_USAGE)."""

    status = 64


class MissingInput(LaunchError):
    """An input that is not there or may not be read (EX_NOINPUT)."""

    status = 66


class Unavailable(LaunchError):
    """Nothing to run the program with (EX_UNAVAILABLE)."""

    status = 69


class CannotCreate(LaunchError):
    """Output, or a folder of the launcher's own, that cannot be written (EX_CANTCREAT)."""

    status = 73


class NotPermitted(LaunchError):
    """A device or a folder that this user may not use (EX_NOPERM)."""

    status = 77


class ConfigurationError(LaunchError):
    """A configuration file, or a variable that makes no sense (EX_CONFIG)."""

    status = 78
