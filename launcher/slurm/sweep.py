"""A grid of options for an array of jobs, read from YAML.

    lr: [0.001, 0.0003]
    seed: [1, 2, 3]

makes six tasks, each with an output folder of its own below that of the command line.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from aam.contract.errors import ConfigurationError
from aam.contract.suggestions import nearest
from launcher.plan.request import options_of, parse
from launcher.plan.settings import Entry

MOST = 1000
"""More tasks than Slurm takes by default (MaxArraySize is 1001, slurm.conf(5))."""


def tasks_of(
    command: str, arguments: Sequence[str], grid: Mapping[str, Entry]
) -> tuple[list[str], tuple[tuple[str, ...], ...]]:
    """Return the arguments that all tasks share, and those of each.

    Args:
        command: a command of `aam` with --output-dir.
        grid: option (without its dashes) -> its values.

    Raises:
        ConfigurationError: an option that the command lacks, one without values, too many tasks.
        UsageError: a value that does not suit its option.
    """
    known = options_of(command)
    columns: list[list[tuple[str, ...]]] = []
    for key, entry in grid.items():
        flag = "--" + key.replace("_", "-")
        if flag not in known or known[flag].role != "value":
            values = [f[2:] for f, spec in known.items() if spec.role == "value"]
            evidence = f"'{key}' in {entry.where}"
            remedy = nearest(key, values, f"see `aam-launch {command} --help`")
            raise ConfigurationError(f"`{command}` has no such option to vary", evidence, remedy)
        if not isinstance(entry.value, list) or not entry.value:
            evidence = f"'{key}' in {entry.where} is {entry.value!r}"
            raise ConfigurationError("No list of values", evidence, "write `option: [a, b]`")
        columns.append([_spelled(flag, value, entry) for value in entry.value])
    total = math.prod(map(len, columns)) if columns else 0
    if not 0 < total <= MOST:
        evidence = f"{total} combinations"
        raise ConfigurationError("No array", evidence, f"1 to {MOST} can be submitted at once")
    varied = {"--" + key.replace("_", "-") for key in grid}
    shared, folder = _without(arguments, {*varied, "--output-dir"})
    tasks = []
    for row in itertools.product(*columns):
        own = [*itertools.chain.from_iterable(row)]
        task = (*own, "--output-dir", f"{folder}/{_name(own)}")
        parse([command, *shared, *task])
        tasks.append(task)
    return shared, tuple(tasks)


def _spelled(flag: str, value: Any, entry: Entry) -> tuple[str, ...]:
    for part in value if isinstance(value, list) else [value]:
        if not isinstance(part, (str, int, float)):  # a date, a mapping
            evidence = f"'{part}' in {entry.where}"
            raise ConfigurationError("Not a value of an option", evidence, "write it in quotes")
    if isinstance(value, bool):
        return (flag if value else "--no-" + flag[2:],)
    if isinstance(value, list):
        return (flag, *map(str, value))
    return (flag, str(value))


def _without(arguments: Sequence[str], dropped: set[str]) -> tuple[list[str], str]:
    """Return the arguments without some options, and the last output folder that was given."""
    kept: list[str] = []
    folder, flag = "", ""
    for argument in arguments:
        if argument.startswith("--"):
            flag, equals, value = argument.partition("=")
            flag = flag.replace("_", "-")
            folder = value if flag == "--output-dir" and equals else folder
        elif flag == "--output-dir":
            folder = argument
        if flag not in dropped and "--" + flag.removeprefix("--no-") not in dropped:
            kept.append(argument)
    return kept, folder


def _name(own: Sequence[str]) -> str:
    """Return a folder's name for the options of a task.

    >>> _name(["--lr", "0.001", "--seed", "1"])
    'lr-0.001_seed-1'
    """
    text = "".join(
        f"_{argument[2:]}" if argument.startswith("--") else f"-{argument}" for argument in own
    )
    return re.sub(r"[^A-Za-z0-9._=-]", "-", text[1:])
