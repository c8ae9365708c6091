"""AMD: GPUs as the kernel's compute driver (KFD) lists them, ROCm, and visible devices.

Old kernels lack gfx_target_version, domain, unique_id and num_xcc. A node that may not be read
belongs to another job: the device cgroup makes the kernel refuse (kfd_devcgroup_check_permission).
Memory is not read: the kernel prints local_mem_size 0. HIP_VISIBLE_DEVICES indexes into what
ROCR_VISIBLE_DEVICES leaves (rocm.docs.amd.com, "GPU isolation techniques").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aam.contract.errors import Problem
from launcher.findings import warning
from launcher.gpus.vendor import DriverRange, Vendor
from launcher.host import pci
from launcher.host.facts import Driver, Gpu, Host
from launcher.host.tree import HostTree

PCI_VENDOR = 0x1002
NODES = "/sys/class/kfd/kfd/topology/nodes"
KFD = "/dev/kfd"
OVERRIDES = ("HSA_OVERRIDE_GFX_VERSION",
             *(f"HSA_OVERRIDE_GFX_VERSION_{number}" for number in range(64)))  # fmt: skip
"""For all GPUs, and for the one of a number; an empty one is an override too."""
UNREADABLE = "a GPU of another job"
CHIPS = Path(__file__).with_name("amd_chips.txt")
Products = dict[int, tuple[str, str]]
ACCELERATORS = (0x1200, 0x0380)
"""PCI classes of AMD's Instinct: processing accelerator (MI300), display controller (MI50)."""
INTEGRATED = frozenset(
    ["gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1037",
     "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"]
)  # fmt: skip
"""Archs of graphics inside desktop processors (LLVM's AMDGPU usage, column dGPU/APU)."""


def kfd_properties(text: str) -> dict[str, int]:
    """Return the numeric properties ("name value" lines) of a node of AMD's compute driver.

    Source: drivers/gpu/drm/amd/amdkfd/kfd_topology.c, `node_show`.
    """
    pairs = (line.split() for line in text.splitlines())
    return {
        pair[0]: int(pair[1])
        for pair in pairs
        if len(pair) == 2 and pair[1].isascii() and pair[1].isdecimal() and len(pair[1]) <= 20
    }


def kfd_address(properties: dict[str, int]) -> str:
    """Return the PCI address of a node of AMD's compute driver.

    All GPUs of a host can have the same location_id (MI300A has), and only the domain differs.

    >>> kfd_address({"domain": 3, "location_id": 512}), kfd_address({"location_id": 1287})
    ('0003:02:00.0', '0000:05:00.7')
    """
    domain, location = properties.get("domain", 0), properties.get("location_id", 0)
    return f"{domain:04x}:{location >> 8 & 255:02x}:{location >> 3 & 31:02x}.{location & 7}"


class Amd(Vendor):
    """GPUs of AMD, used through ROCm; images bring ROCm, the host only the kernel driver."""

    name = "amd"
    title = "AMD"
    module = "amdgpu"
    visible_devices = "ROCR_VISIBLE_DEVICES"
    inner_variables = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
    other_variables = ("AMD_VISIBLE_DEVICES",)
    shared_nodes = (KFD,)
    library_flags = ("--rocm", "--no-rocm")
    torch_field = "hip"
    arch_prefix = "gfx"
    files = (
        f"{NODES}/*/properties", "/sys/module/amdgpu/version", "/sys/module/amdgpu/initstate",
        "/opt/rocm/.info/version", f"{pci.DEVICES}/*/current_compute_partition",
        f"{pci.DEVICES}/*/current_memory_partition",
    )  # fmt: skip
    variables = OVERRIDES
    install_variables = ("ROCM_PATH", "HIP_PATH")

    def gpus(self, tree: HostTree, live: bool) -> tuple[Gpu, ...]:
        table = products()
        nodes = [_node(tree, name, table) for name in tree.names(NODES) if name.isdecimal()]
        present = [gpu for gpu in nodes if gpu]
        if not all(gpu.readable for gpu in present):  # the cards of the others are unknown
            return tuple(present)
        cards = {gpu.card for gpu in present}
        for function in pci.functions(tree, PCI_VENDOR):
            address, device = function.address, function.device
            # A device that no table has may be a desktop's display, unless it is an accelerator.
            supported = device in table or function.pci_class in ACCELERATORS
            if supported and address.partition(".")[0] not in cards:
                arch, product = table.get(device, (None, f"AMD 1002:{device:04x}"))
                present.append(Gpu("amd", len(present), arch, product, address, driven=False,
                                  obstacle=pci.passed_through(tree, address)))  # fmt: skip
        return tuple(present)

    def driver(self, tree: HostTree) -> Driver | None:
        path = "/sys/module/amdgpu/version"
        version = tree.read(path)
        if version is not None:
            return Driver("amd", version, path)
        if tree.has("/sys/module/amdgpu") or tree.has(NODES):
            return Driver("amd", None, f"{path} is absent, so it came with the kernel")
        return None

    def user_space(self, tree: HostTree) -> str | None:
        version = tree.read("/opt/rocm/.info/version")
        return f"ROCm {version} in /opt/rocm" if version else None

    def fused(self, archs: Sequence[str], arch: str) -> bool:
        same = (candidate[3:] for candidate in archs if len(candidate) == len(arch))
        return any(all(a in ("x", b) for a, b in zip(k, arch[3:], strict=True)) for k in same)

    def driver_misfit(
        self, driver: Driver, pins: Mapping[str, str], least: str | None,
        ranges: Sequence[DriverRange],
    ) -> str | None:  # fmt: skip
        versions = _range_of(driver.version, ranges)
        release = ".".join(pins.get("rocm", "").split(".")[:2])
        if versions and release and release not in versions.serves:
            return f"{self.driver_text(driver, ranges)}, not {release}"
        return None

    def driver_text(self, driver: Driver, ranges: Sequence[DriverRange]) -> str:
        versions = _range_of(driver.version, ranges)
        if versions is None:
            name = f"driver {driver.version}" if driver.version else "the kernel's own driver"
            return f"{name}, whose ROCm releases are unknown"
        doubt = "" if versions.confirmed else " (by the vendor's rules, unconfirmed)"
        releases = f"{', '.join(versions.serves)}{doubt}"
        return f"driver {driver.version} ({versions.release}) supports ROCm {releases}"

    def driver_warning(self, driver: Driver, ranges: Sequence[DriverRange]) -> Problem | None:
        if _range_of(driver.version, ranges):
            return None
        evidence = f"amdgpu {driver.version} is not in the catalog"
        if driver.version is None:
            evidence = f"amdgpu states no version ({driver.source})"
        cause = "The ROCm releases that the driver supports are unknown"
        remedy = ("no image is refused because of it; `aam-launch check` measures whether the one "
                  "that is chosen computes correctly")  # fmt: skip
        return Problem(cause, evidence, remedy, "warning" if driver.version else "note")

    def checks(
        self, host: Host, gpus: Sequence[Gpu], served: Callable[[str], bool]
    ) -> list[Problem]:
        overrides = [f"{name}={host.environment[name]}" for name in OVERRIDES
                     if name in host.environment]  # fmt: skip
        archs = sorted({gpu.arch for gpu in gpus if gpu.arch})
        if not overrides or not archs:
            return []
        names = ", ".join(archs)
        remedy = f"unset it: images have code for {names}"
        if not any(map(served, archs)):
            remedy = (f"no image has code for {names}; with --image NAME --force the override runs "
                      "code for another arch, and `aam-launch check` measures whether it computes "
                      "correctly")  # fmt: skip
        evidence = f"{', '.join(overrides)}, the kernel reports {names}"
        return [warning("The arch of the GPUs is overridden", evidence, remedy)]


def products() -> Products:
    """Read the table of chips: PCI device -> arch and product."""
    rows = (line.split(maxsplit=2) for line in CHIPS.read_text().splitlines() if line[0] != "#")
    return {int(device, 16): (arch, product)
            for arch, devices, product in rows for device in devices.split(",")}  # fmt: skip


def arch_of(version: int) -> str | None:
    """Turn gfx_target_version into a name; minor and step are hexadecimal.

    >>> arch_of(90010), arch_of(90402), arch_of(110003)
    ('gfx90a', 'gfx942', 'gfx1103')
    """
    if version <= 0:
        return None
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _node(tree: HostTree, name: str, table: Products) -> Gpu | None:
    """Read one node; None for a processor."""
    try:
        keys = kfd_properties(tree.text(f"{NODES}/{name}/properties"))
    except FileNotFoundError:
        return None
    except PermissionError:
        return Gpu("amd", int(name), None, UNREADABLE, "", readable=False)
    if not keys.get("simd_count"):
        return None
    listed_arch, product = table.get(keys.get("device_id", 0), (None, ""))
    arch = arch_of(keys.get("gfx_target_version", 0)) or listed_arch
    address = kfd_address(keys)
    function = address.partition(".")[0] + ".0"
    minor, unique = keys.get("drm_render_minor", 0), keys.get("unique_id", 0)
    return Gpu(
        vendor="amd", index=int(name), arch=arch, product=product or f"AMD {arch or 'GPU'}",
        pci=address, nodes=(f"/dev/dri/renderD{minor}",) if minor else (),
        uuid=f"GPU-{unique:016x}" if unique else None,
        mode=pci.attribute(tree, function, "current_compute_partition"),
        memory_mode=pci.attribute(tree, function, "current_memory_partition"),
        integrated=arch in INTEGRATED,
    )  # fmt: skip


def _range_of(version: str | None, ranges: Sequence[DriverRange]) -> DriverRange | None:
    """Return the driver range of a kernel module's version, or None.

    >>> known = DriverRange("6.0", ("6.3",), ("6.1", "6.2"))
    >>> _range_of("6.3.6", [known]) is known, _range_of("6.30", [known])
    (True, None)
    """
    prefixes = ((entry, tuple(f"{prefix}." for prefix in entry.module)) for entry in ranges)
    return next((entry for entry, begin in prefixes if f"{version}.".startswith(begin)), None)
