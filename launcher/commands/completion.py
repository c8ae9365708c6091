"""`aam-launch completion`: print the completion code of a shell, for both programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aam.contract.completion import Completion, shell_code
from launcher.commands import parse_own


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Print the completions of one shell."""
    print(shell_code(parse_own(Completion, argv, "completion").shell), end="")
    return 0
