"""Inputs of a plan: request, host, catalog, settings, built images, native stack, paths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import msgspec

from aam.contract.installation import install_command
from launcher.host.facts import Host
from launcher.plan.catalog import Catalog
from launcher.plan.mounts import Mount, PathFact
from launcher.plan.request import GpuUse, Request
from launcher.plan.settings import LaunchSettings

NATIVE = "native"
"""Name of the engine that runs no container."""


class BuiltImage(msgspec.Struct, frozen=True):
    """A built image: a file, or a reference to an engine's own storage."""

    image: str  # its name
    engines: tuple[str, ...]  # those that can run it there
    place: str  # the file, the id or the reference
    # "sha256:..." as it was recorded when it was built; of a SIF without a record "sif:...", the id
    # that the build gave it
    digest: str | None = None
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)  # what was measured in it then
    # difference from its record and the remedy; such an image is refused
    mismatch: tuple[str, str] | None = None


class NativeStack(msgspec.Struct, frozen=True):
    """The environment that the launcher runs in, as a stack."""

    python: str  # absolute path of its interpreter
    absent: tuple[str, ...]  # libraries of the model that it lacks
    in_user_site: bool  # `aam` itself is installed in the user's site folder
    torch: str | None  # version of PyTorch ("2.13.0+cpu"), or None
    vendor: str  # whose GPUs that PyTorch can use: a name of `launcher.gpus.VENDORS`, or "cpu"

    @property
    def install(self) -> str:
        """The command that installs those libraries, for messages."""
        return install_command(python=self.python)


class LaunchContext(msgspec.Struct, frozen=True):
    """Facts about the launcher's own process."""

    folder: str  # the current folder
    private: str  # folder of this user, job and node
    home: str  # the user's home folder
    terminal: bool  # standard input and output are a terminal
    requested_mounts: tuple[Mount, ...] = ()  # mounts of --bind and of settings
    # folder in which `aam` keeps its check reports; None: none is mounted
    reports: str | None = None
    # other ranks on this node exchange data with this one through /dev/shm
    shares_memory: bool = False
    # when the launcher began with a plan that will run, in seconds since 1970
    started: float | None = None

    def private_folders(self, below: Iterable[str]) -> tuple[str, ...]:
        """Return the private folder, the one around it, and folders `below` it, each once."""
        inner = (f"{self.private}/{folder}" for folder in dict.fromkeys(below))
        return (os.path.dirname(self.private), self.private, *inner)


class LaunchInputs(msgspec.Struct, frozen=True):
    """Everything that a launch is decided from."""

    request: Request  # the command, its options and those of the launcher
    host: Host  # where it runs; a node of a site for a job
    catalog: Catalog  # images, with those of the configuration
    settings: LaunchSettings  # the requests of the user and of configurations
    built: tuple[BuiltImage, ...]  # images that are built; for a captured host, all images
    native: NativeStack  # the Python environment of the launcher
    context: LaunchContext  # facts about the launcher's own process
    paths: tuple[PathFact, ...] = ()  # the files and folders of the command line

    @property
    def gpu_use(self) -> GpuUse:
        """The use of GPUs by the command in its allocation."""
        return self.request.gpu_use(self.host.slurm)
