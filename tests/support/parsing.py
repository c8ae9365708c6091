"""Options of a command from its arguments, as `aam` makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aam.contract.options.command_line import parse


def built(command: str, argv: Sequence[str]) -> Any:
    """Return the options of a command."""
    return parse([*command.split(), *argv]).build()
