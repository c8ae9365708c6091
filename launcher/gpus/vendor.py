"""The Protocol of a GPU vendor, with the defaults that most vendors share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from aam.contract.errors import Problem
from launcher.host.facts import Driver, Gpu, Host
from launcher.host.tree import HostTree


class DriverRange(msgspec.Struct, frozen=True):
    """A release of a kernel driver and the user spaces that its vendor lists for it."""

    release: str  # the user space that it came with ("6.2"), or its own number ("30.10")
    module: tuple[str, ...]  # first numbers of the kernel module's version
    serves: tuple[str, ...]  # releases of the user space
    confirmed: bool = True  # a published table has it; else it follows from the vendor's rules


class Vendor(Protocol):
    """GPU vendor: detection, driver, visible devices, fitness of images and checks.

    A vendor is a class that inherits this one, sets `name`, `title` and `module`, has `gpus` and
    `driver`, and overrides what differs from the defaults. Adding one is a module and its line in
    `launcher.gpus.VENDORS`; no other module names a vendor.
    """

    name: str  # in the catalog, in sites and in records ("amd")
    title: str  # in messages ("AMD")
    module: str  # the kernel driver's module, for `modprobe`
    visible_devices: str = ""  # the variable that selects devices; the launcher sets this one alone
    # variables that count what `visible_devices` leaves; the first that is set counts
    inner_variables: tuple[str, ...] = ()
    # further variables that select devices; no program gets them
    other_variables: tuple[str, ...] = ()
    # variable and value with which numbers count by PCI address; without it the runtime counts the
    # fastest device first, so devices are selected by UUID. None: it counts as the driver lists.
    order: tuple[str, str] | None = None
    shared_nodes: tuple[str, ...] = ()  # device nodes that all devices share
    # whether the driver's libraries have to come from the host: the engine's own support binds
    # them and every device; else the device nodes of the chosen GPUs are bound one by one
    host_libraries: bool = False
    # options of Apptainer and Singularity that bring in the host's libraries, and keep them out
    library_flags: tuple[str, str] | None = None
    # class of its devices in the Container Device Interface, and the command that describes them
    cdi: tuple[str, str] | None = None
    # prefix of the names of a card's hardware partitions ("MIG-"); empty if none
    instance: str = ""
    one_instance: str = ""  # why one of them is used
    arch_prefix: str = ""  # how the names of its architectures begin ("gfx")
    # field of PyTorch's version.py that is set in a build for this vendor; empty: none computes
    torch_field: str = ""
    files: tuple[str, ...] = ()  # patterns of the files that a capture holds
    variables: tuple[str, ...] = ()  # variables that a capture holds
    # variables that name a user space on the host; no container gets them
    install_variables: tuple[str, ...] = ()

    @property
    def libraries_setting(self) -> str:
        """Setting that requests the host's libraries ("host_rocm"); empty if none does."""
        flags = None if self.host_libraries else self.library_flags
        return f"host_{flags[0].strip('-')}" if flags else ""

    def gpus(self, tree: HostTree, live: bool) -> tuple[Gpu, ...]:
        """List the GPUs in the order of the runtime; `live`: the driver's programs may be run."""
        ...

    def driver(self, tree: HostTree) -> Driver | None:
        """Return the kernel driver and its version, or None if none is loaded."""
        ...

    def user_space(self, tree: HostTree) -> str | None:
        """Return the name and place of a user space on the host itself, or None."""
        return None

    def serves(self, archs: Sequence[str], arch: str) -> bool:
        """Return whether code compiled for `archs` runs on `arch`."""
        return arch in archs

    def capability(self, arch: str) -> int:
        """Return a number by which archs are ordered that are equal in all else."""
        return 0

    def fused(self, archs: Sequence[str], arch: str) -> bool:
        """Return whether fused attention kernels compiled for `archs` run on `arch`."""
        return self.serves(archs, arch)

    def driver_misfit(
        self, driver: Driver, pins: Mapping[str, str], least: str | None,
        ranges: Sequence[DriverRange],
    ) -> str | None:  # fmt: skip
        """Return why a kernel driver cannot serve an image that needs `least`, or None."""
        if driver.version and least and _numbers(driver.version) < _numbers(least):
            return f"it needs driver {least} or later and the host has {driver.version}"
        return None

    def driver_text(self, driver: Driver, ranges: Sequence[DriverRange]) -> str:
        """Return the version of a driver and what it supports, for `explain` and `doctor`."""
        return f"driver {driver.version}" if driver.version else "a driver of unknown version"

    def driver_warning(self, driver: Driver, ranges: Sequence[DriverRange]) -> Problem | None:
        """Return a finding if the user spaces that a driver supports are unknown."""
        return None

    def checks(
        self, host: Host, gpus: Sequence[Gpu], served: Callable[[str], bool]
    ) -> list[Problem]:
        """Return findings about GPUs of this vendor; `served`: an image has code for an arch."""
        return []


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in version.split(".") if digits.isdecimal())
