"""Options of every command, declared once with the standard library alone."""

from aam.contract.options.commands import COMMANDS, find, names, split
from aam.contract.options.field import (
    OptionSpec,
    Role,
    check,
    complete_arguments,
    fits,
    from_plain,
    literal_values,
    option,
    specs,
    to_plain,
)

__all__ = [
    "COMMANDS",
    "OptionSpec",
    "Role",
    "check",
    "find",
    "fits",
    "from_plain",
    "names",
    "option",
    "specs",
    "complete_arguments",
    "split",
    "to_plain",
    "literal_values",
]
