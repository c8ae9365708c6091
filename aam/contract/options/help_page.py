"""Help pages of both programs: required and basic options; all with --help-all."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from aam.contract.options import OptionSpec, summary
from aam.contract.options.command_line import HELP_ALL, leading_flags, metavar
from aam.contract.options.commands import COMMANDS, EVERYDAY, WRAPPERS, find
from aam.contract.options.conditions import of_member
from aam.contract.version import __version__

WIDEST = 100  # most columns of a line, for readability
COLUMN = 26  # first column of the help text of an option
LONGEST_CHOICES = 24  # most characters of choices beside the flag; longer ones follow the help text


def overview(
    program: str,
    command_groups: Mapping[str, Mapping[str, type]] | None = None,
    more: Mapping[str, Mapping[str, type]] | None = None,
    *,
    everything: bool,
) -> str:
    """Return the first help page: everyday commands described, other commands by name."""
    described = [group for group in COMMANDS if everything or group == EVERYDAY]
    classes = {group: {name: find(name) for name in COMMANDS[group]} for group in described}
    groups: dict[str, Mapping[str, type | None]] = {
        EVERYDAY: classes.pop(EVERYDAY),
        **(command_groups or {}),
    }
    later = {group: COMMANDS[group] for group in COMMANDS if group != EVERYDAY}
    if everything:
        groups |= {**classes, **(more or {})}
    lines = [f"usage: {program} COMMAND [OPTIONS]", "", f"Attention All Microbes {__version__}"]
    for group, commands in groups.items():
        lines += ["", group]
        for name, options_class in commands.items():
            lines += _wrapped(f"  {name:<16} ", summary(cast(type, options_class)), 19)
    if not everything:
        lines += ["", "More"]
        for group, names in {**later, **(more or {})}.items():
            lines += _wrapped(f"  {group:<16} ", ", ".join(names), 19)
    pages = f"`{program} COMMAND --help` lists the options of a command"
    everywhere = f", `{program} {HELP_ALL}` describes all commands"
    lines += ["", *_wrapped("", f"{pages}{'' if everything else everywhere}.", 0)]
    return "\n".join(lines)


def page(
    program: str,
    command: str,
    options_class: type,
    options: Sequence[OptionSpec],
    more: Iterable[tuple[str, Iterable[OptionSpec]]] = (),
    *,
    everything: bool,
) -> str:
    """Return the help page of a command: usage, summary, options in sections, examples."""
    usage = f"{program} {command}"
    required = [spec for spec in options if spec.required]
    members = hasattr(options_class, "chosen_members")
    sections: dict[str, list[OptionSpec]] = {"Required options": required, "Options": []}
    of_members: dict[str, list[OptionSpec]] = {}
    for spec in options:
        # Required options have a section of their own, on the short page too.
        if spec.required or not (spec.basic or everything):
            continue
        if members and of_member(spec):
            title = f"{spec.only_for.capitalize()} only"
            of_members.setdefault(title, []).append(spec)
        elif spec.basic:
            sections["Options"].append(spec)
        else:
            title = "Further options" if spec.group == summary(options_class) else spec.group
            sections.setdefault(title.rstrip("."), []).append(spec)
    # Last, since most runs train without a network.
    sections |= of_members
    for title, specs in more:
        sections[title] = [spec for spec in specs if everything or spec.basic]
    leading = leading_flags(command)
    demanded = {spec.flag for spec in required}
    names = {flag: flag[2:].replace("-", "_").upper() for flag in leading}
    values = [name if flag in demanded else f"[{name}]" for flag, name in names.items()]
    values += [
        f"{'' if spec.first else spec.flag + ' '}{metavar(spec)}"
        for spec in required
        if not (leading and spec.flag in (*leading, "--output-dir"))
    ]
    taken = ["|".join(WRAPPERS[command]), "..."] if command in WRAPPERS else []
    lines = _wrapped("usage: ", " ".join([usage, *values, "[OPTIONS]", *taken]), 11)
    text, _, examples = (options_class.__doc__ or "").partition("Examples:\n")
    for paragraph in text.strip().split("\n\n"):
        lines += ["", *_wrapped("", " ".join(paragraph.split()), 0)]
    for title, specs in sections.items():
        lines += ["", *section(title, specs)] if specs else []
    if command in WRAPPERS:
        pages = ", ".join(f"`{program} {name} --help`" for name in WRAPPERS[command])
        lines += ["", *_wrapped("", f"Options of the wrapped command: {pages}.", 0)]
    if not everything:
        lines += ["", f"`{usage} {HELP_ALL}` lists all options."]
    lines += ["", "Examples"] if examples else []
    for example in examples.strip().splitlines():
        line = " ".join(example.split()).replace(f"aam {command}", usage)
        together = re.sub(r"(--\S+) (?!--)", "\\1\0", line)  # a flag and its value
        *broken, last = (
            piece.replace("\0", " ") for piece in _wrapped("  ", together, 6, margin=2)
        )
        lines += [*(f"{piece} \\" for piece in broken), last]
    return "\n".join(lines)


def section(title: str, options: Iterable[OptionSpec]) -> list[str]:
    """Return the lines of a section: title, then flag, value, help and default of each option."""
    page = _wrapped("", title, 0)
    for spec in options:
        value, text = metavar(spec), spec.help + requirements(spec)
        if spec.choices and len(value) > LONGEST_CHOICES:
            text += f" Choices: {', '.join(map(str, spec.choices))}."
            value = "CHOICE"
        if spec.default is True:
            text += f" (default: on; --no-{spec.flag[2:]} turns it off)"
        elif not spec.required and spec.default not in (None, "", (), False):
            text += f" (default: {shown(spec.default)})"
        flag = f"  {spec.flag} {value} ".rstrip() + " "
        lines = _wrapped(" " * COLUMN, text, COLUMN)
        if len(flag) > COLUMN:
            page += [flag.rstrip(), *lines]
        else:
            page += [flag.ljust(COLUMN) + lines[0][COLUMN:], *lines[1:]]
    return page


def shown(value: object) -> str:
    """Return the text of a default."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _wrapped(head: str, text: str, indent: int, margin: int = 0) -> list[str]:
    """Wrap `head` and a text to the terminal's width, later lines indented."""
    return textwrap.wrap(
        text,
        min(WIDEST, shutil.get_terminal_size().columns) - margin,
        initial_indent=head,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def requirements(spec: OptionSpec) -> str:
    """Return the help text about the conditions of an option."""
    text = ""
    for title, conditions in (
        ("Needs", spec.needs), ("Not with", spec.excludes), ("Only with", spec.only_with)
    ):  # fmt: skip
        if isinstance(conditions, Mapping):
            texts = [f"{condition} ({value})" for value, condition in conditions.items()]
        else:
            texts = list(conditions)
        if title == "Needs":  # the heading states the member
            texts = [condition for condition in texts if not condition.startswith("--members")]
        text += f" {title} {', '.join(texts)}." if texts else ""
    return text
