"""Options of every command, declared once with the standard library alone."""

from aam.contract.options.commands import COMMANDS, find, names, split
from aam.contract.options.field import (
    OptionSpec,
    Role,
    check,
    from_plain,
    option,
    specs,
    spell_out,
    to_plain,
    words_of,
)

__all__ = [
    "COMMANDS",
    "OptionSpec",
    "Role",
    "check",
    "find",
    "from_plain",
    "names",
    "option",
    "specs",
    "spell_out",
    "split",
    "to_plain",
    "words_of",
]
