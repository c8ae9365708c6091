"""Inputs of a plan: request, host, catalog, settings, built images, native stack, paths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from aam.contract.dataclass import dataclass
from aam.contract.options.command_line import ParsedCommand
from aam.contract.options.command_line import parse as parse_command_line
from aam.contract.options.commands import NETWORK_COMMANDS, STACK_COMMANDS
from aam.contract.records import Sourced
from launcher.host.facts import Host, NativeStack
from launcher.plan.catalog import Catalog
from launcher.plan.mounts import Mount, PathFact
from launcher.plan.settings import LAUNCHER_OPTIONS, LaunchSettings
from launcher.plan.visible_devices import masks_of

NATIVE = "native"  # name of the engine that runs no container
GpuUse = Literal["required", "allocated", "automatic", "never"]
"""Options require a GPU, an allocation has one, a GPU is used if there is one, or none is used."""
USERS = "`pretrain`, and `train` with --pretrained-encoder or --members transformer, use GPUs"
"""Commands that use a GPU, for messages of one that does not."""
JSON = "--json"
SHARED = (JSON, "--force")
"""Options of both programs: of the command if it has them, but for `explain` and the like."""


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

    @cached_property
    def uses_network(self) -> bool:
        """Whether it computes with the network, by the values that are given."""
        return super().uses_network  # built once: it is read 30 times in a launch

    @property
    def needs_pytorch(self) -> bool:
        """Whether it is a command of the network, or trains one; kernel and forest need none."""
        first = self.command.partition(" ")[0]
        if first in (*NETWORK_COMMANDS, *STACK_COMMANDS):
            return True
        return first in ("train", "search") and self.uses_network

    @property
    def cpu_reason(self) -> str:
        """Why the command computes on the CPU whatever GPUs there are; "" if it does not."""
        if self.computes_on_gpu:
            return ""
        if self.value("--device") == "cpu":
            return "--device cpu is requested"
        members = () if self.wrapped else getattr(self.build(), "chosen_members", ())
        runs = f"{' and '.join(members)} run{'s' * (len(members) == 1)}"
        return f"{runs if members else f'`{self.command}` runs'} on the CPU; {USERS}"


def request_of(
    launcher_options: Mapping[str, Any], argv: Sequence[str], *, incomplete: bool = False
) -> Request:
    """Return the request of a command line without the launcher's own options."""
    parsed = parse_command_line(argv, launcher_flags=LAUNCHER_OPTIONS, incomplete=incomplete)
    request = Request(
        parsed.command, parsed.given, launcher_options, wrapped=parsed.wrapped,
        program=parsed.program,
    )  # fmt: skip
    shared = [flag for flag in SHARED if flag in launcher_options and request.option(flag)]
    if shared and not incomplete:
        values = {**parsed.given, **{flag: launcher_options[flag] for flag in shared}}
        remaining = {flag: value for flag, value in launcher_options.items() if flag not in shared}
        return replace(request, given=values, launcher_options=remaining)
    return request


class BuiltImage(msgspec.Struct, frozen=True):
    """A built image: a file, or a reference to an engine's own storage."""

    image: str  # its name
    engines: tuple[str, ...]  # those that can run it there
    place: str  # the file, the id or the reference
    # "sha256:..." as it was recorded; of a SIF without a record "sif:...", the id of its build
    digest: str | None = None
    labels: Mapping[str, str] = {}  # what was measured in it when it was built
    mismatch: tuple[str, str] | None = None  # from its record, and the remedy; it is refused


class LaunchInputs(msgspec.Struct, frozen=True):
    """Everything that a launch is decided from."""

    request: Request  # the command with its options and the launcher's
    host: Host  # the host that runs it; a node of a site for a job
    catalog: Catalog  # images, with the images of the configuration
    settings: LaunchSettings  # the requests of the user and of configurations
    built: tuple[BuiltImage, ...]  # images that are built; for a captured host, all images
    native: NativeStack  # the Python environment of the launcher
    folder: str  # the current folder
    private: str  # folder of this user, job and node
    home: str  # the user's home folder
    terminal: bool  # standard input and output are a terminal
    paths: tuple[PathFact, ...] = ()  # the files and folders of the command line
    requested_mounts: tuple[Mount, ...] = ()  # mounts of --bind and of settings
    reports: str = ""  # folder in which `aam` keeps its check reports; "": none is mounted
    started: float | None = None  # when the launcher began with a plan that will run, since 1970

    def private_folders(self, below: Iterable[str]) -> tuple[str, ...]:
        """Return the private folder, the one around it, and folders `below` it, each once."""
        inner = (f"{self.private}/{folder}" for folder in dict.fromkeys(below))
        return (os.path.dirname(self.private), self.private, *inner)

    @property
    def gpu_use(self) -> GpuUse:
        """How the command uses the GPUs of its allocation.

        An allocation with GPUs requires one, so that a job whose GPU is not visible fails in its
        first second, unless an image for the CPU is named: GPUs often come with a node.
        """
        if not self.request.computes_on_gpu:
            return "never"
        if self.request.value("--device") != "auto" or "--gpus" in self.request.launcher_options:
            return "required"
        return "allocated" if self.host.slurm and self.host.slurm.gpus else "automatic"

    @property
    def masks(self) -> dict[str, Sourced[str]]:
        """Every variable that selects or orders devices, of the shell and as requested."""
        engines = (*self.host.engines, *self.host.absent_engines)
        prefixes = {engine.traits.inside for engine in engines} - {""}
        return masks_of(self.host.environment, self.settings.env, prefixes)

    @property
    def absolute_request(self) -> Request:
        """The request with absolute paths, as a program in another folder needs them."""
        absolute: dict[str, list[Path]] = {}
        for fact in self.paths:
            absolute.setdefault(fact.flag, []).append(Path(fact.absolute))
        return self.request.with_values({
            flag: tuple(absolute[flag]) if isinstance(value, tuple) else absolute[flag][0]
            for flag, value in self.request.given.items() if flag in absolute
        })  # fmt: skip
