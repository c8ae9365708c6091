"""AMD: GPUs as the kernel's compute driver (KFD) lists them, ROCm, and visible devices.

Nodes are numbers and sort as such. Old kernels lack gfx_target_version, domain, unique_id and
num_xcc. A node that may not be read belongs to another job: the device cgroup makes the kernel
refuse (kfd_devcgroup_check_permission). Memory is not read: the kernel prints local_mem_size 0.

Visible devices: ROCR_VISIBLE_DEVICES filters what the ROCm runtime enumerates; HIP_VISIBLE_DEVICES
(or, where that is not set, CUDA_VISIBLE_DEVICES) then indexes into what is left, so that two values
that mean the same leave no GPU (rocm.docs.amd.com, "GPU isolation techniques"). It names
GPU_DEVICE_ORDINAL for HIP too, and Slurm sets that beside ROCR_VISIBLE_DEVICES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aam.contract.errors import Problem
from aam.contract.gpus import kfd_address, kfd_properties
from launcher.findings import warning
from launcher.gpus.vendor import DriverRange, Vendor, range_of
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

PRODUCTS = {
    0x6860: ("gfx900", "MI25"),
    0x6861: ("gfx900", "Radeon Pro WX 9100"),
    0x6862: ("gfx900", "Radeon Pro SSG"),
    0x6863: ("gfx900", "Radeon Vega Frontier"),
    0x6864: ("gfx900", "Radeon Pro V340"),
    0x6868: ("gfx900", "Radeon Pro WX 8200"),
    0x686C: ("gfx900", "MI25"),
    0x687F: ("gfx900", "Radeon RX Vega"),
    0x66A0: ("gfx906", "MI60"),
    0x66A1: ("gfx906", "MI50"),
    0x66AF: ("gfx906", "Radeon VII"),
    0x738C: ("gfx908", "MI100"),
    0x738E: ("gfx908", "MI100"),
    0x7408: ("gfx90a", "MI250X"),
    0x740C: ("gfx90a", "MI250"),
    0x740F: ("gfx90a", "MI210"),
    0x74A0: ("gfx942", "MI300A"),
    0x74A1: ("gfx942", "MI300X"),
    0x74A2: ("gfx942", "MI308X"),
    0x74A5: ("gfx942", "MI325X"),
    0x75A0: ("gfx950", "MI350X"),
    0x75A3: ("gfx950", "MI355X"),
    0x73A3: ("gfx1030", "Radeon PRO W6800"),
    0x73A5: ("gfx1030", "Radeon RX 6800, 6900"),
    0x73AF: ("gfx1030", "Radeon RX 6800, 6900"),
    0x73BF: ("gfx1030", "Radeon RX 6800, 6900"),
    0x744C: ("gfx1100", "Radeon RX 7900"),
    0x7480: ("gfx1102", "Radeon RX 7600"),
    0x7483: ("gfx1102", "Radeon RX 7600"),
    0x7550: ("gfx1201", "Radeon RX 9070"),
    0x7551: ("gfx1201", "Radeon AI PRO R9700"),
    0x7590: ("gfx1200", "Radeon RX 9060 XT"),
}
"""PCI device -> arch and product.

Numbers: pci.ids of the PCI ID repository, and the node feature rules of AMD's GPU operator
(github.com/ROCm/gpu-operator, gpu-nfd-default-rule.yaml). Archs: the ROCm documents.
"""

ACCELERATORS = (0x1200, 0x0380)
"""PCI classes of AMD's Instinct: processing accelerator (MI300), display controller (MI50)."""

INTEGRATED = frozenset(
    ["gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1037",
     "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"]
)  # fmt: skip
"""Archs of graphics inside desktop processors (LLVM's AMDGPU usage, column dGPU/APU)."""


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
        f"{NODES}/*/properties",
        "/sys/module/amdgpu/version",
        "/sys/module/amdgpu/initstate",
        "/opt/rocm/.info/version",
        f"{pci.DEVICES}/*/current_compute_partition",
        f"{pci.DEVICES}/*/current_memory_partition",
    )
    variables = OVERRIDES
    install_variables = ("ROCM_PATH", "HIP_PATH")

    def gpus(self, tree: HostTree, live: bool) -> tuple[Gpu, ...]:
        nodes = [_node(tree, name) for name in tree.names(NODES) if name.isdecimal()]
        listed = [gpu for gpu in nodes if gpu]
        if not all(gpu.readable for gpu in listed):  # the cards of the others are unknown
            return tuple(listed)
        cards = {gpu.card for gpu in listed}
        for function in pci.functions(tree, PCI_VENDOR):
            # A device that no table has may be a desktop's display, unless it is an accelerator.
            known = function.device in PRODUCTS or function.pci_class in ACCELERATORS
            if known and function.address.partition(".")[0] not in cards:
                unknown = (None, f"AMD 1002:{function.device:04x}")
                arch, product = PRODUCTS.get(function.device, unknown)
                address = function.address
                held = pci.passed_through(tree, address)
                number = len(listed)
                listed.append(
                    Gpu("amd", number, arch, product, address, driven=False, obstacle=held)
                )
        return tuple(listed)

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
        return any(
            len(known) == len(arch)
            and all(a in ("x", b) for a, b in zip(known[3:], arch[3:], strict=True))
            for known in archs
        )

    def driver_misfit(
        self,
        driver: Driver,
        pins: Mapping[str, str],
        least: str | None,
        ranges: Sequence[DriverRange],
    ) -> str | None:
        known = range_of(driver.version, ranges)
        release = ".".join(pins.get("rocm", "").split(".")[:2])
        if known and release and release not in known.serves:
            return f"{self.driver_text(driver, ranges)}, not {release}"
        return None

    def driver_text(self, driver: Driver, ranges: Sequence[DriverRange]) -> str:
        known = range_of(driver.version, ranges)
        if known is None:
            name = f"driver {driver.version}" if driver.version else "the kernel's own driver"
            return f"{name}, for which the ROCm releases are unknown"
        return f"driver {driver.version} ({known.release}) supports ROCm {known.tested}"

    def driver_warning(self, driver: Driver, ranges: Sequence[DriverRange]) -> Problem | None:
        if range_of(driver.version, ranges):
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
        if not any(served(arch) for arch in archs):
            remedy = (
                f"no image has code for {names}; with --image NAME --force the override runs that "
                "of another arch, and `aam-launch check` measures whether it computes correctly"
            )
        evidence = f"{', '.join(overrides)}, the kernel reports {names}"
        cause = "The arch of the GPUs is overridden"
        return [warning(cause, evidence, remedy)]


def arch_of(version: int) -> str | None:
    """Turn gfx_target_version into a name; minor and step are hexadecimal.

    >>> arch_of(90010), arch_of(90402), arch_of(110003)
    ('gfx90a', 'gfx942', 'gfx1103')
    """
    if version <= 0:
        return None
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _node(tree: HostTree, name: str) -> Gpu | None:
    """Read one node; None for a processor."""
    try:
        keys = kfd_properties(tree.text(f"{NODES}/{name}/properties"))
    except FileNotFoundError:
        return None
    except PermissionError:
        return Gpu("amd", int(name), None, UNREADABLE, "", readable=False)
    if not keys.get("simd_count"):
        return None
    known, product = PRODUCTS.get(keys.get("device_id", 0), (None, ""))
    arch = arch_of(keys.get("gfx_target_version", 0)) or known
    address = kfd_address(keys)
    whole = address.partition(".")[0] + ".0"
    minor, unique = keys.get("drm_render_minor", 0), keys.get("unique_id", 0)
    return Gpu(
        vendor="amd",
        index=int(name),
        arch=arch,
        product=product or f"AMD {arch or 'GPU'}",
        pci=address,
        nodes=(f"/dev/dri/renderD{minor}",) if minor else (),
        uuid=f"GPU-{unique:016x}" if unique else None,
        mode=pci.attribute(tree, whole, "current_compute_partition"),
        memory_mode=pci.attribute(tree, whole, "current_memory_partition"),
        integrated=arch in INTEGRATED,
    )
