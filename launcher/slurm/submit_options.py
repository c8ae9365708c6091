"""Options of `aam-launch submit` itself, and time limits as Slurm writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aam.contract.errors import UsageError
from launcher.plan.launcher_options import names_an_option

FLAGS: dict[str, tuple[str, str]] = {
    "--nodes": ("N", "Nodes of the job; 1 by default."),
    "--gpus": ("N", "GPUs of each node, a rank for each; all of them by default for training."),
    "--time": ("TIME", "Time limit, as 24:00:00 or 1-12; the site's longest by default."),
    "--job-name": ("NAME", "Name of the job; the command by default."),
    "--partition": ("NAME", "Partition; the site's by default."),
    "--account": ("NAME", "Account that is charged."),
    "--qos": ("NAME", "Quality of service."),
    "--reservation": ("NAME", "Reservation."),
    "--array": ("FILE", "A job for each combination of the option values in a YAML file."),
    "--warn-seconds": ("N", "How long before its limit a job saves and is queued again."),
}
"""Flag -> what its value is called, and its help."""

SWITCHES = {"--no-requeue": "Let a job end at its time limit."}
_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<h>\d+)(?::(?P<hm>\d+)(?::(?P<hms>\d+))?)?"
    r"|(?P<a>\d+)(?::(?P<b>\d+)(?::(?P<c>\d+))?)?)\Z"
)


@dataclass(frozen=True)
class SubmitOptions:
    """Options of a job; flag -> value."""

    given: Mapping[str, str]

    def text(self, flag: str) -> str:
        """Return a value, or nothing."""
        return self.given.get(flag, "")

    def number(self, flag: str, default: int) -> int:
        """Return a whole number above zero.

        Raises:
            UsageError: it is something else.
        """
        if flag not in self.given:
            return default
        text = self.given[flag]
        if not text.isdecimal() or int(text) == 0:
            evidence = f"{flag} '{text}'"
            raise UsageError("A value that does not suit its option", evidence, "give 1 or more")
        return int(text)


def split_submit_options(arguments: Sequence[str]) -> tuple[SubmitOptions, list[str]]:
    """Split the options of `submit` from a command line, wherever they stand.

    Raises:
        UsageError: one lacks its value, or holds what no script may hold.
    """
    given: dict[str, str] = {}
    rest: list[str] = []
    left = iter(arguments)
    for argument in left:
        name, equals, value = argument.partition("=")
        flag = name.replace("_", "-") if name.startswith("--") else name
        if flag in SWITCHES:
            given[flag] = "yes"
        elif flag not in FLAGS:
            rest.append(argument)
        else:
            found = value if equals else next(left, None)
            if found is None or (not equals and names_an_option(found)):
                raise UsageError("An option without its value", flag, "write the value after it")
            if not found.isprintable() or not found:
                evidence = f"{flag} {found!r}"
                raise UsageError("A value that no job script can hold", evidence, "choose another")
            given[flag] = found
    return SubmitOptions(given), rest


def seconds(time: str) -> int:
    """Return a time limit of Slurm in seconds (sbatch(1), --time).

    Raises:
        UsageError: it is not a time limit.

    >>> [seconds(t) for t in ("90", "1:30", "24:00:00", "1-12", "2-0:30")]
    [5400, 90, 86400, 129600, 174600]
    """
    found = _TIME.match(time)
    if not found:
        evidence = f"--time '{time}'"
        raise UsageError("Not a time", evidence, "write it as 24:00:00, 1-12 or 90 (minutes)")
    part = {name: int(value or 0) for name, value in found.groupdict().items()}
    if found["days"]:
        return part["days"] * 86400 + part["h"] * 3600 + part["hm"] * 60 + part["hms"]
    if found["c"]:
        return part["a"] * 3600 + part["b"] * 60 + part["c"]
    return part["a"] * 60 + part["b"]
