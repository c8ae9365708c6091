"""Request: a command of `aam` with the values of its options, parsed on the host.

A typo, a wrong value or a number out of range is an error on the login node, not after an hour in a
queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from aam.contract.options import ParsedCommand, parse_known
from aam.contract.options import parse as parse_command_line
from launcher.host.facts import Slurm
from launcher.plan.settings import LAUNCHER_OPTIONS

GpuUse = Literal["required", "allocated", "automatic", "never"]
"""Options require a GPU, an allocation has one, one is used where it is there, or none ever."""

JSON = "--json"
SHARED = (JSON, "--force")
"""Options of both programs: of the command where it has them, but for `explain` and the like."""


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

        `--device cpu`, commands without that option and those without the network never use one.
        Another `--device` than `auto` and `--gpus` require one. A Slurm allocation with GPUs does
        so too, so that a job whose GPU is not visible fails in its first second instead of training
        on the processor for its whole allocation, unless an image for the processor is named: GPUs
        often come with a node.
        """
        if not self.computes_on_gpu:
            return "never"
        if self.value("--device") != "auto" or "--gpus" in self.launcher_options:
            return "required"
        return "allocated" if slurm and slurm.gpus else "automatic"


def parse(argv: Sequence[str], *, incomplete: bool = False) -> Request:
    """Parse the arguments after `aam-launch`; the caller handles help and version."""
    launcher_options, rest = parse_known(LAUNCHER_OPTIONS.values(), argv)
    return request_of(launcher_options, rest, incomplete=incomplete)


def request_of(
    launcher_options: Mapping[str, Any], argv: Sequence[str], *, incomplete: bool = False
) -> Request:
    """Return the request of a command line without the launcher's own options."""
    parsed = parse_command_line(
        argv, program="aam-launch", others=LAUNCHER_OPTIONS, incomplete=incomplete
    )
    request = Request(
        parsed.command,
        parsed.given,
        launcher_options,
        wrapped=parsed.wrapped,
        program=parsed.program,
    )
    shared = [flag for flag in SHARED if flag in launcher_options and request.option(flag)]
    if shared and not incomplete:
        given = {**parsed.given, **{flag: launcher_options[flag] for flag in shared}}
        own = {flag: value for flag, value in launcher_options.items() if flag not in shared}
        return replace(request, given=given, launcher_options=own)
    return request
