"""`aam completion`: print the completion code of a shell, for both programs."""

from __future__ import annotations

from aam.contract.completion import Completion, shell_code


def run(options: Completion) -> None:
    """Print the code that a shell sources."""
    print(shell_code(options.shell), end="")
