"""What keeps the launcher from starting a program, each with its exit status (sysexits.h).

The sentences and the statuses are those of `aam`; a host brings two kinds more. Any other status
that `aam-launch` exits with is that of the program it became.
"""

from __future__ import annotations

from aam.errors import AamError as LaunchError
from aam.errors import CannotCreate, MissingInput, Unavailable, UsageError

__all__ = [
    "CannotCreate",
    "ConfigurationError",
    "LaunchError",
    "MissingInput",
    "NotPermitted",
    "Unavailable",
    "UsageError",
]


class NotPermitted(LaunchError):
    """A device or a folder that this user may not use (EX_NOPERM)."""

    status = 77


class ConfigurationError(LaunchError):
    """A configuration file, a variable or a mask that makes no sense (EX_CONFIG)."""

    status = 78
