"""Commands of the launcher: a module with `run(launcher_options, argv)` and a line in COMMANDS."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from aam.contract.errors import printable
from aam.contract.options import build, specs
from aam.contract.options.command_line import parse_options
from launcher.plan.settings import LAUNCHER_OPTIONS

T = TypeVar("T")
PROGRAM = (sys.executable, str(Path(__file__).parents[1]))
"""Command line that starts this launcher again, whatever lies in the current folder."""
COMMANDS: dict[str, dict[str, str]] = {
    "Understand": {"explain": "launcher.commands.explain.Explain",
                   "doctor": "launcher.commands.doctor.Doctor"},
    "Images": {"images": "launcher.commands.images.Images",
               "images build": "launcher.images.build.ImagesBuild",
               "images pull": "launcher.commands.images.ImagesPull",
               "images verify": "launcher.commands.images.ImagesVerify"},
    "Slurm": {"submit": "launcher.slurm.script.SubmitOptions",
              "jobs": "launcher.commands.jobs.Jobs",
              "jobs cancel": "launcher.commands.jobs.JobsCancel"},
    "Set up": {"completion": "aam.contract.completion.Completion"},
}  # fmt: skip
"""Group of the help page -> command -> options class; the first word of a command is its module."""
NAMES = tuple(name for group in COMMANDS.values() for name in group)
COLUMN = re.compile(r"\s*(?:\S+(?: \S+)* {2,})?")
"""What stands before the last column of a line: a subject and the spaces after it."""
FORWARDING = ("explain", "submit")  # commands that a command line of `aam` follows
HOST = "--host"
"""Option that names a captured host; `READ` of `launcher.cli` lists the commands that take it."""


def find(command: str) -> type:
    """Return the options class of a command; only its module is imported."""
    reference = next(group[command] for group in COMMANDS.values() if command in group)
    module, _, class_name = reference.rpartition(".")
    options_class: type = getattr(importlib.import_module(module), class_name)
    return options_class


def parse_own(options_class: type[T], argv: Sequence[str], command: str) -> T:
    """Return the options of one of the launcher's own commands."""
    values = parse_options(specs(options_class), argv, command, launcher_flags=LAUNCHER_OPTIONS)
    return build(options_class, values)


def show(*lines: str) -> None:
    """Print lines for people, escaped; on a terminal a long line goes on below its last column."""
    width = os.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in lines:
        text = printable(line, len(line) * 10)
        if 40 < width < len(text):
            from textwrap import fill  # 2 ms of a launch without

            column = COLUMN.match(text)
            indent = " " * min(column.end() if column else 0, width // 2)
            text = fill(text, width, subsequent_indent=indent, break_long_words=False,
                        break_on_hyphens=False)  # fmt: skip
        print(text)


def print_json(content: object) -> None:
    """Print `content` for programs."""
    print(json.dumps(content, indent=2))
