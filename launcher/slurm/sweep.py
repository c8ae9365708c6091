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
from aam.contract.options import arguments, options_of
from aam.contract.options.config_file import typed
from aam.contract.options.field import flag_of
from aam.contract.yaml_document import Entry
from launcher.options.submit import MOST_TASKS
from launcher.plan.request import Request

FOLDER = "--output-dir"


def tasks_of(
    request: Request, grid: Mapping[str, Entry]
) -> tuple[Request, tuple[tuple[str, ...], ...]]:
    """Return the request without the options that vary, and the arguments of each task.

    Args:
        request: a command of `aam` with --output-dir, which is absolute.
        grid: option (without its dashes) -> its values.

    Raises:
        ConfigurationError: an option without values, a value twice, too many tasks, no output
            folder.
        UsageError: a value that does not suit its option.
    """
    columns: list[list[dict[str, Any]]] = []
    for key, entry in grid.items():
        spec = request.option(flag_of(key))
        assert spec is not None, key  # `grid` has options of the command alone
        if not isinstance(entry.value, list) or not entry.value:
            evidence = f"'{key}' in {entry.where} is {entry.value!r}"
            raise ConfigurationError("No list of values", evidence, "write `option: [a, b]`")
        values = [typed(spec, Entry(value, entry.where)) for value in entry.value]
        twice = next((v for v, one in enumerate(values) if one in values[:v]), None)
        if twice is not None:
            evidence = f"{entry.value[twice]!r} of '{key}' in {entry.where}"
            raise ConfigurationError("A value twice", evidence, "keep one of them")
        columns.append(values)
    total = math.prod(map(len, columns))
    if not columns or total > MOST_TASKS:
        evidence = f"{total if columns else 0} combinations"
        raise ConfigurationError(
            "No array", evidence, f"1 to {MOST_TASKS} can be submitted at once"
        )
    if FOLDER not in request.given:
        evidence = f"`{request.command}` writes files, not a folder"
        raise ConfigurationError(
            "No folder for each job of the array", evidence, "leave --array out"
        )
    varied = {flag_of(key) for key in grid}
    shared = {k: v for k, v in request.given.items() if k not in varied and k != FOLDER}
    options = options_of(request.command)
    rows = [
        arguments(options, {flag: value for one in row for flag, value in one.items()})
        for row in itertools.product(*columns)
    ]
    names = [_name(varying) for varying in rows]
    # Different values can have one name, as "depth > 800" and "depth < 800".
    if len(set(names)) < len(names):
        names = [f"{name}_{number}" for number, name in enumerate(names)]
    tasks = tuple(
        (*varying, FOLDER, f"{request.given[FOLDER]}/{name}")
        for varying, name in zip(rows, names, strict=True)
    )
    return Request(request.command, shared), tasks


def _name(varying: Sequence[str]) -> str:
    """Return a folder's name for the options of a task.

    >>> _name(["--lr", "0.001", "--seed", "1"])
    'lr-0.001_seed-1'
    """
    text = "".join(f"_{part[2:]}" if part.startswith("--") else f"-{part}" for part in varying)
    return re.sub(r"[^A-Za-z0-9._=-]", "-", text[1:])
