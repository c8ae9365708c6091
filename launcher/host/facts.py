"""Facts about a host as frozen records, and the numbers that files and variables hold."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

LONGEST_LIST = 4096  # members of a list of GPUs; no node has as many


class GpuInstance(msgspec.Struct, frozen=True):
    """A hardware partition of a card that is a device of its own."""

    gpu: int  # number of its GPU instance
    compute: int  # number of its compute instance within that
    nodes: tuple[str, ...] = ()  # the capability nodes without which it cannot be opened

    @property
    def place(self) -> str:
        """GPU and compute instance, "1/0"."""
        return f"{self.gpu}/{self.compute}"


class Gpu(msgspec.Struct, frozen=True):
    """One device that a runtime would enumerate: a card, or a partition of one."""

    vendor: str  # name in `launcher.gpus.VENDORS`
    index: int  # number by which the kernel driver lists it; orders the list
    arch: str | None  # "gfx942", "sm_90", or None if it is unknown
    product: str  # name for messages
    pci: str  # address, "0000:02:00.0"; empty for a device whose facts may not be read
    nodes: tuple[str, ...] = ()  # its own ("/dev/dri/renderD136"), without shared ones
    uuid: str | None = None  # name of the device, or of the whole card for its partitions
    mode: str | None = None  # compute partition ("SPX", "CPX", "MIG"), or None
    memory_mode: str | None = None  # memory partition ("NPS1", "NPS4"), or None
    integrated: bool = False  # part of a desktop processor, used only alone, if an image can
    readable: bool = True  # False if the kernel or a cgroup refuses: it is another job's
    driven: bool = True  # False if only the PCI bus lists it, because no driver is loaded
    instances: tuple[GpuInstance, ...] = ()  # the hardware partitions that may be opened
    obstacle: str = ""  # why no image can use it, whatever its arch

    @property
    def card(self) -> str:
        """PCI domain, bus and device: the partitions of one card share them."""
        return self.pci.partition(".")[0]


class DeviceNode(msgspec.Struct, frozen=True):
    """A device node; `access`, the outcome of access(2), is None in a capture."""

    path: str = ""  # of a capture the key of its manifest
    gid: int | None = None
    group: str | None = None
    mode: int | None = None
    access: bool | None = None

    def refused(self, user: User | None) -> bool:
        """Return whether a device cgroup refuses a node that its permissions would open.

        The kernel consults it in access(2) as in open(2) (fs/namei.c, inode_permission).
        """
        if self.access is not False or user is None or self.mode is None:
            return False
        needed = 0o060 if self.gid in (user.gid, *user.groups) else 0o006
        return user.uid == 0 or self.mode & needed == needed


class Driver(msgspec.Struct, frozen=True):
    """A kernel driver: its version, None if it comes with the kernel, and the file that has it."""

    vendor: str
    version: str | None
    source: str


class EngineTraits(msgspec.Struct, frozen=True):
    """Properties of an engine that decisions depend on."""

    image_format: str = ""  # "sif" for files, else the own storage; empty: it runs no image
    own_shm: bool = False  # a container keeps a /dev/shm of its own; the host's cannot be mounted
    host_libraries: bool = False  # it can put the host's GPU libraries before the image's
    needs_cdi: bool = False  # it brings in the driver's libraries of the host by CDI alone
    hidden: tuple[str, ...] = ()  # patterns of variables that would change what it does
    passed: tuple[str, ...] = ()  # variables that reach it although a pattern hides them
    several_ranks: bool = False  # it starts jobs of several ranks without set-up of the nodes
    inside: str = ""  # prefix of its variables that it sets in a container ("APPTAINERENV_")
    ends_value: str = ""  # a character after which it loses the value of such a variable


class EngineFact(msgspec.Struct, frozen=True):
    """A container engine on PATH."""

    name: str  # as --runtime takes it
    path: str  # of its program
    obstacle: str | None = None  # why it cannot start a container here, or None
    version: str | None = None  # None unless the engine was started to read it (`launcher.detect`)
    traits: EngineTraits = EngineTraits()  # properties that decisions depend on
    maps_root: bool = False  # the user is root inside, and no group of the user exists there
    loses_groups: str = ""  # why a container does not have the groups of the user, or ""


class Slurm(msgspec.Struct, frozen=True):
    """The allocation this process runs in; `gpus` are Slurm's numbers of whole-node devices."""

    job: str
    gpus: tuple[int, ...] | None
    tasks: int
    shares_node: bool = False  # other tasks of its step run here, and share /dev/shm


class User(msgspec.Struct, frozen=True):
    """The user of this process: user ID, group ID and groups."""

    uid: int
    gid: int
    groups: tuple[int, ...]


class NativeStack(msgspec.Struct, frozen=True):
    """The environment that the launcher runs in, as a stack."""

    python: str  # absolute path of its interpreter
    absent: tuple[str, ...]  # libraries of the model that it lacks
    in_user_site: bool  # `aam` itself is installed in the user's site folder
    torch: str | None  # version of PyTorch ("2.13.0+cpu"), or None
    vendor: str  # whose GPUs that PyTorch can use: a name of `launcher.gpus.VENDORS`, or "cpu"
    import_path: str = ""  # folder of PYTHONPATH that has `aam`; "" if it is installed


class Host(msgspec.Struct, frozen=True):
    """Facts about a host that decisions are made from."""

    root: str  # the root of the facts: "/", or a capture
    name: str  # host name
    kernel: str  # release, "5.14.21-150500.55.49_13.0.56-cray_shasta_c"
    machine: str  # processor, "x86_64"
    gpus: tuple[Gpu, ...]  # every GPU by vendor, in the order in which a runtime counts them
    nodes: tuple[DeviceNode, ...]  # device nodes by path
    drivers: tuple[Driver, ...]  # kernel drivers that are loaded
    engines: tuple[EngineFact, ...]  # container engines on PATH
    slurm: Slurm | None  # the allocation, or None
    user: User | None  # None if a capture does not record one
    user_space: Mapping[str, str] = {}  # by vendor, on the host itself; no image should see it
    cdi: tuple[str, ...] = ()  # vendors whose GPUs are described for the Container Device Interface
    bus: tuple[str, ...] = ()  # display and accelerator functions, "0000:65:00.0 1a03:2000 0300"
    environment: Mapping[str, str] = {}  # variables of the process
    complete: bool = True  # nodes and engines are known: this host, or a capture with a manifest
    stated: bool = False  # by a site: what is not stated is unknown, not absent
    absent_engines: tuple[EngineFact, ...] = ()  # registered engines that this host does not have
    native: NativeStack | None = None  # the launcher's environment that a capture records

    @property
    def live(self) -> bool:
        """This very host, not a capture of one."""
        return self.root == "/"

    @property
    def replays(self) -> bool:
        """Its engines and native environment are recorded: this host, or a capture of one."""
        return self.live or self.native is not None

    def node(self, path: str) -> DeviceNode | None:
        """Return the device node at `path`, or None."""
        return next((node for node in self.nodes if node.path == path), None)

    def driver(self, vendor: str) -> Driver | None:
        """Return the driver of `vendor`, or None."""
        return next((driver for driver in self.drivers if driver.vendor == vendor), None)

    def engine(self, name: str) -> EngineFact | None:
        """Return the engine called `name`, or None."""
        return next((engine for engine in self.engines if engine.name == name), None)

    def traits(self, name: str) -> EngineTraits:
        """Return the traits of an engine, whether or not this host has it."""
        engines = (*self.engines, *self.absent_engines)
        return next((engine.traits for engine in engines if engine.name == name), EngineTraits())


def whole_number(text: str) -> int | None:
    """Return a decimal number of a file or a variable; None for anything else.

    >>> whole_number("128"), whole_number("-1"), whole_number("9" * 5000)
    (128, None, None)
    """
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= 20 else None


def numbers(text: str) -> tuple[int, ...] | None:
    """Read "0,2-4" as (0, 2, 3, 4); None for anything else and for long ranges."""
    values: list[int] = []
    for item in text.split(","):
        first, _, last = item.partition("-")
        start, end = whole_number(first), whole_number(last or first)
        if start is None or end is None or end - start > LONGEST_LIST:
            return None
        values.extend(range(start, end + 1))
    return tuple(values)
