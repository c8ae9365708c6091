"""Commands of the launcher itself: one module each with `run(argv)`; shared helpers.

A new command is a module here and its line in `launcher.help.LAUNCHER_COMMANDS`.
"""

from __future__ import annotations

from collections.abc import Sequence

from aam.contract.errors import UsageError


def no_more(argv: Sequence[str], command: str) -> None:
    """Refuse arguments that a command does not take.

    Raises:
        UsageError: there are some.
    """
    if argv:
        remedy = f"see `aam-launch {command} --help`"
        raise UsageError(f"`{command}` takes no such argument", f"'{argv[0]}'", remedy)


def print_json(content: object) -> None:
    """Print `content` for programs."""
    import json

    print(json.dumps(content, indent=2))
