"""Commands of the launcher itself: one module each with `run(launcher_options, argv)`.

A new command is a module here, and a line in `launcher.options.COMMANDS`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeVar

from aam.contract.options import build, parse_options, specs
from launcher.plan.settings import LAUNCHER_OPTIONS

T = TypeVar("T")


def parse_own(options_class: type[T], argv: Sequence[str], command: str) -> T:
    """Return the options of one of the launcher's own commands."""
    options = specs(options_class)
    given = parse_options(options, argv, command, program="aam-launch", others=LAUNCHER_OPTIONS)
    return build(options_class, given)


def print_json(content: object) -> None:
    """Print `content` for programs."""
    print(json.dumps(content, indent=2))
