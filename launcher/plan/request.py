"""Request: a command of `aam` and the options of the launcher, parsed on the host.

A typo, a wrong value or a number out of range is an error on the login node, not after an hour in a
queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aam.contract.options import (
    OptionSpec,
    ParsedCommand,
    parse_command,
    parse_known,
    specs,
    split_command,
)
from aam.contract.options.field import ONE_OR_MORE, option
from launcher.host.facts import Slurm
from launcher.plan.settings import FILES_ONLY, SETTING_SPECS


@dataclass(frozen=True)
class LaunchOptions:
    """Options of the launcher."""

    dry_run: bool = option(
        "Print what would run, and stop: a command line, or the script of a job.",
        default=False,
        basic=True,
    )
    gpus: int | None = option(
        "Number of GPUs; pretrain and train start a process for each, and they share every batch.",
        default=None,
        takes=ONE_OR_MORE,
        basic=True,
    )
    force: bool = option(
        "Run in an image that does not fit this host; the run record notes it.", default=False
    )
    recheck: bool = option(
        "Measure again whether the GPU computes attention correctly.", default=False
    )
    json: bool = option("Print JSON.", default=False)
    host: Path | None = option(
        "Decide for another host, captured in a tar or a folder.", default=None, role="input"
    )


LAUNCHER_OPTIONS: dict[str, OptionSpec] = {
    spec.flag: spec
    for spec in (
        *(spec for key, spec in SETTING_SPECS.items() if key not in FILES_ONLY),
        *specs(LaunchOptions),
    )
}
"""The launcher's own options by flag; no option of `aam` has one of these names but --json."""


GpuUse = Literal["required", "automatic", "never"]

JSON = "--json"
"""The option of both programs: of `explain` and similar commands, else of the command."""


@dataclass(frozen=True)
class Request(ParsedCommand):
    """A command of `aam`, and the launcher's own options that are given, flag -> value."""

    launcher_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dry_run(self) -> bool:
        """Print the command line instead of running it."""
        return bool(self.launcher_options.get("--dry-run"))

    @property
    def force(self) -> bool:
        """Run in an image that does not fit."""
        return bool(self.launcher_options.get("--force"))

    def gpu_use(self, slurm: Slurm | None) -> GpuUse:
        """Return the GPU use of the command in its allocation.

        `--device cpu` and commands without that option never use one. Another `--device` than
        `auto`, `--gpus` and a Slurm allocation with GPUs require one, so that a job whose GPU is
        not visible fails in its first second instead of training on the processor for its whole
        allocation.
        """
        device = self.value("--device")
        if device in (None, "cpu"):  # None: the command has no such option
            return "never"
        allocated = "--gpus" in self.launcher_options or bool(slurm and slurm.gpus)
        return "required" if device != "auto" or allocated else "automatic"


def parse(argv: Sequence[str], *, incomplete: bool = False) -> Request:
    """Parse the arguments after `aam-launch`; the caller handles help and version.

    Args:
        argv: the arguments.
        incomplete: allow required options to be absent (for `explain`).

    Raises:
        UsageError: see `request_of`.
    """
    launcher_options, rest = parse_known(LAUNCHER_OPTIONS.values(), argv)
    return request_of(launcher_options, rest, incomplete=incomplete)


def request_of(
    launcher_options: Mapping[str, Any], argv: Sequence[str], *, incomplete: bool = False
) -> Request:
    """Return the request of a command line without the launcher's own options.

    Raises:
        UsageError: an unknown command or option, an option without its value, a value that does not
            suit its option, or a required option that is not given.
    """
    command, rest = split_command(argv, program="aam-launch")
    given = parse_command(
        command, rest, program="aam-launch", others=LAUNCHER_OPTIONS, incomplete=incomplete
    )
    request = Request(command, given, launcher_options)
    if JSON in launcher_options and request.option(JSON) and not incomplete:
        own = {flag: value for flag, value in launcher_options.items() if flag != JSON}
        return Request(command, {**given, JSON: True}, own)
    return request
