"""Options of every command, declared once; their command line, help pages and values in files."""

from aam.contract.options.command_line import (
    CONFIG,
    HELP,
    HELP_ALL,
    arguments,
    before_program,
    check,
    parse_known,
    parse_options,
)
from aam.contract.options.commands import (
    COMMANDS,
    find,
    names,
    options_of,
    parse_command,
    split_command,
)
from aam.contract.options.field import (
    SYNONYMS,
    OptionSpec,
    Role,
    build,
    fits,
    from_plain,
    option,
    replaced,
    specs,
    to_plain,
)
from aam.contract.options.parsed import ParsedCommand, parse

__all__ = [
    "COMMANDS",
    "CONFIG",
    "HELP",
    "HELP_ALL",
    "SYNONYMS",
    "OptionSpec",
    "ParsedCommand",
    "Role",
    "arguments",
    "before_program",
    "build",
    "check",
    "find",
    "fits",
    "from_plain",
    "names",
    "option",
    "options_of",
    "parse",
    "parse_command",
    "parse_known",
    "parse_options",
    "replaced",
    "specs",
    "split_command",
    "to_plain",
]
