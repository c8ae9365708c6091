"""`aam-launch completion`: print the completion script of a shell."""

from __future__ import annotations

from collections.abc import Sequence

from aam.contract.errors import UsageError
from launcher.completion import SHELLS, script


def run(argv: Sequence[str]) -> int:
    """Print the completions of one shell."""
    if len(argv) != 1:
        remedy = f"write `aam-launch completion {SHELLS[0]}`"
        raise UsageError("Which shell?", f"one of {', '.join(SHELLS)}", remedy)
    print(script(argv[0]), end="")
    return 0
