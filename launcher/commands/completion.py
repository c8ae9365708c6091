"""`aam-launch completion`: completion code of a shell, and the parser of every command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aam.contract.completion import (
    Completion,
    Values,
    add_commands,
    add_options,
    commands_of_aam,
    shell_code,
)
from aam.contract.errors import AamError
from aam.contract.options import specs
from aam.contract.options.command_line import Parser
from launcher import config
from launcher.commands import FORWARDING, NAMES, find, parse_own
from launcher.plan.settings import LAUNCHER_OPTIONS


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Print the completions of one shell."""
    print(shell_code(parse_own(Completion, argv, "completion").shell), end="")
    return 0


def launcher_parser() -> Parser:
    """Return the parser, with the names of engines, images and sites as candidates."""
    values: Values = {"--runtime": config.runtimes, "--site": config.sites, "--image": _images}
    anywhere = tuple(LAUNCHER_OPTIONS.values())
    of_aam = {name: (*options, *anywhere) for name, options in commands_of_aam().items()}
    of_launcher = {name: (*specs(find(name)), *anywhere) for name in NAMES}
    parser = Parser(prog="aam-launch")
    add_options(parser, anywhere, values)
    parsers = add_commands(parser, {**of_aam, **of_launcher}, values)
    for name in FORWARDING:
        nested = {sub: (*options, *of_launcher[name]) for sub, options in of_aam.items()}
        add_commands(parsers[name], nested, values)
    return parser


def _images() -> Iterator[str]:
    try:
        yield from (image.name for image in config.configured({})[1].images)
    except AamError:  # a broken configuration gives no candidates
        return
