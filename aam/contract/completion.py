"""Shell completion of both programs by argcomplete, from the declarations of their options.

The shell starts the program at each Tab, so that the names of images and sites are complete.
argcomplete rather than shtab, because shtab has no fish and writes fixed names into its scripts.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from aam.contract.dataclass import dataclass
from aam.contract.options import OptionSpec, required_option, specs
from aam.contract.options.command_line import CONFIG, Parser
from aam.contract.options.commands import WRAPPERS, names, options_of

REQUESTED = "_ARGCOMPLETE"
"""Variable of argcomplete: its shell code starts the program for a completion."""


@dataclass(frozen=True)
class Completion:
    """Print the shell code that completes the commands of both programs on Tab.

    Examples:
        source <(aam completion bash)
        aam completion fish > ~/.config/fish/completions/aam.fish
    """

    shell: Literal["bash", "zsh", "fish"] = required_option("Your shell.", first=True)


Values = Mapping[str, Callable[[], Iterable[str]]]


def shell_code(shell: str) -> str:
    """Return the code that makes a shell complete both programs."""
    from argcomplete.shell_integration import shellcode

    code: str = shellcode(["aam", "aam-launch"], shell=shell)
    return code


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the candidates for the argument that is being typed, and exit."""
    import argcomplete

    argcomplete.autocomplete(parser, always_complete_options=False)


def add_commands(
    parser: argparse.ArgumentParser,
    commands: Mapping[str, Iterable[OptionSpec]],
    values: Values | None = None,
) -> dict[str, Parser]:
    """Add commands and their options to a parser; return the parsers by command."""
    parsers: dict[str, Parser] = {}
    groups = {"": parser.add_subparsers(parser_class=Parser)}
    for name, options in commands.items():
        first, _, second = name.partition(" ")
        if second and first not in groups:
            outer = parsers.get(first) or groups[""].add_parser(first)
            groups[first] = outer.add_subparsers(parser_class=Parser)
        parsers[name] = groups[first if second else ""].add_parser(second or first)
        add_options(parsers[name], options, values)
        if name in WRAPPERS:
            add_commands(parsers[name], {sub: commands[sub] for sub in WRAPPERS[name]}, values)
    return parsers


def add_options(
    parser: Parser, options: Iterable[OptionSpec], values: Values | None = None
) -> None:
    """Add options with candidates for their values; without candidates the shell offers files."""
    for spec in {spec.flag: spec for spec in options}.values():
        candidates = (values or {}).get(spec.flag)
        first = [parser.add_argument(spec.field, nargs="*")] if spec.first else []
        for action in (parser.add(spec), *first):
            if candidates or spec.choices:
                action.completer = (  # type: ignore[attr-defined]
                    lambda candidates=candidates, spec=spec, **_: [
                        str(value) for value in (candidates() if candidates else spec.choices)
                    ]
                )


def commands_of_aam() -> dict[str, tuple[OptionSpec, ...]]:
    """Return the commands of `aam` and their options."""
    return {name: (*options_of(name), CONFIG) for name in names()}


def aam_parser() -> Parser:
    """Return the parser of every command line of `aam`."""
    parser = Parser(prog="aam")
    add_commands(parser, {**commands_of_aam(), "completion": specs(Completion)})
    return parser
