"""Options of the launcher itself, accepted anywhere among those of `aam`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from aam.contract.errors import UsageError
from launcher.plan.settings import SETTING_SPECS

SWITCHES = {
    "--dry-run": "Print the command line that would run, and stop.",
    "--force": "Run in an image that does not fit this host; the record says so.",
    "--json": "explain, doctor, images, jobs, site: print JSON.",
    "--recheck": "Measure again whether the GPU computes attention right.",
    "--help": "Show this page, or the options of a command.",
    "--version": "Print the version.",
}
WITH_VALUE = {
    "--host": "explain, doctor: another host, captured in a tar or a folder.",
    "--gpus": "pretrain, train: a process for each of so many GPUs; they share every batch.",
    "--capture": "doctor: write what decisions about this host rest on to a tar.",
}
LAUNCHER_FLAGS: dict[str, str] = {
    **SWITCHES,
    **WITH_VALUE,
    **{spec.flag: spec.help for spec in SETTING_SPECS.values() if spec.flag},
}
"""The launcher's own options; no option of `aam` may bear one of these names."""

HELP = ("-h", "--help")
NUMBER = re.compile(r"-\.?\d")
_SWITCHES = {
    *SWITCHES,
    *(spec.flag for spec in SETTING_SPECS.values() if spec.value_type == "switch"),
}


def split_launcher_options(argv: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Split a command line into the launcher's own options and the rest.

    Raises:
        UsageError: one of them lacks its value, or has one that it does not take.
    """
    launcher_options: dict[str, tuple[str, ...]] = {}
    rest: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        flag = name.replace("_", "-") if name.startswith("--") else name
        if flag not in LAUNCHER_FLAGS:
            rest.append(argument)
        elif flag in _SWITCHES:
            if equals:
                raise UsageError("A switch takes no value", argument, f"write {flag}")
            launcher_options[flag] = ()
        else:
            found = value if equals else next(arguments, None)
            if found is None or (not equals and names_an_option(found)):
                raise UsageError("An option without its value", flag, "write the value after it")
            launcher_options[flag] = (*launcher_options.get(flag, ()), found)
    return launcher_options, rest


def takes_value(argument: str) -> bool:
    """Return whether an argument is an option of the launcher that takes a value."""
    return argument in LAUNCHER_FLAGS and argument not in _SWITCHES


def as_arguments(launcher_options: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the launcher's own options as command-line arguments.

    >>> spelled({"--image": ("cpu",), "--force": ()})
    ['--image=cpu', '--force']
    """
    return [
        w
        for flag, given in launcher_options.items()
        for w in ([f"{flag}={v}" for v in given] or [flag])
    ]


def names_an_option(argument: str) -> bool:
    """Return whether an argument is an option; a negative number is a value."""
    return argument.startswith("-") and argument != "-" and not NUMBER.match(argument)
