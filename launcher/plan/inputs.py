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
    """A built image: a file, or a reference to an engine's own storage.

    Attributes:
        image: its name.
        engines: those that can run it there.
        place: the file, the id or the reference.
        digest: "sha256:..." as it was recorded when it was built; of a SIF without a record
            "sif:...", the id that the build gave it.
        labels: what was measured in it then.
        mismatch: difference from its record and the remedy; such an image is refused.
    """

    image: str
    engines: tuple[str, ...]
    place: str
    digest: str | None = None
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    mismatch: tuple[str, str] | None = None


class NativeStack(msgspec.Struct, frozen=True):
    """The environment that the launcher runs in, as a stack.

    Attributes:
        python: absolute path of its interpreter.
        absent: libraries of the model that it lacks.
        in_user_site: `aam` itself is installed in the user's site folder.
        torch: version of PyTorch ("2.13.0+cpu"), or None.
        vendor: whose GPUs that PyTorch can use: a name of `launcher.gpus.VENDORS`, or "cpu".
    """

    python: str
    absent: tuple[str, ...]
    in_user_site: bool
    torch: str | None
    vendor: str

    @property
    def install(self) -> str:
        """The command that installs those libraries, for messages."""
        return install_command(python=self.python)


class LaunchContext(msgspec.Struct, frozen=True):
    """Facts about the launcher's own process.

    Attributes:
        folder: the current folder.
        private: folder of this user, job and node.
        home: the user's home folder.
        terminal: standard input and output are a terminal.
        requested_mounts: mounts of --bind and of settings.
        reports: folder in which `aam` keeps its check reports; None: none is mounted.
        shares_memory: other ranks on this node exchange data with this one through /dev/shm.
        started: when the launcher began with a plan that will run, in seconds since 1970.
    """

    folder: str
    private: str
    home: str
    terminal: bool
    requested_mounts: tuple[Mount, ...] = ()
    reports: str | None = None
    shares_memory: bool = False
    started: float | None = None

    def private_folders(self, below: Iterable[str]) -> tuple[str, ...]:
        """Return the private folder, the one around it, and folders `below` it, each once."""
        inner = (f"{self.private}/{folder}" for folder in dict.fromkeys(below))
        return (os.path.dirname(self.private), self.private, *inner)


class LaunchInputs(msgspec.Struct, frozen=True):
    """Everything that a launch is decided from.

    Attributes:
        request: the command, its options and those of the launcher.
        host: where it runs; a node of a site for a job.
        catalog: images, with those of the configuration.
        settings: the requests of the user and of configurations.
        built: images that are built; for a captured host, all images.
        native: the Python environment of the launcher.
        context: facts about the launcher's own process.
        paths: the files and folders of the command line.
    """

    request: Request
    host: Host
    catalog: Catalog
    settings: LaunchSettings
    built: tuple[BuiltImage, ...]
    native: NativeStack
    context: LaunchContext
    paths: tuple[PathFact, ...] = ()

    @property
    def gpu_use(self) -> GpuUse:
        """The use of GPUs by the command in its allocation."""
        return self.request.gpu_use(self.host.slurm)
