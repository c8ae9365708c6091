"""Intel: GPUs on the PCI bus with the render nodes of their kernel driver (i915 or xe).

/sys/class/drm/cardN/device is a link to the PCI device, whose folder `drm` names the nodes, so the
bus alone is read. Graphics inside a processor is at 0000:00:02.0. `aam` does not use PyTorch's
`xpu` and no image is for Intel: its GPUs are listed, and a launch that would pass them over is
refused.
"""

from __future__ import annotations

from launcher.gpus.base import Vendor
from launcher.host import pci
from launcher.host.facts import Driver, Gpu, whole_number
from launcher.host.tree import HostTree

PCI_VENDOR = 0x8086
MODULES = ("xe", "i915")
INTEGRATED = "0000:00:02.0"

PRODUCTS = {
    0x0BD5: ("pvc", "Data Center GPU Max 1550"),
    0x0BD6: ("pvc", "Data Center GPU Max 1550"),
    0x0BD7: ("pvc", "Data Center GPU Max 1350"),
    0x0BD8: ("pvc", "Data Center GPU Max 1350"),
    0x0BD9: ("pvc", "Data Center GPU Max 1100"),
    0x0BDA: ("pvc", "Data Center GPU Max 1100"),
    0x0BDB: ("pvc", "Data Center GPU Max 1100"),
    0x56C0: ("dg2", "Data Center GPU Flex 170"),
    0x56C1: ("dg2", "Data Center GPU Flex 140"),
    0x56A0: ("dg2", "Arc A770"),
    0x56A1: ("dg2", "Arc A750"),
    0x56A2: ("dg2", "Arc A580"),
    0x56A5: ("dg2", "Arc A380"),
    0x56A6: ("dg2", "Arc A310"),
    0x5690: ("dg2", "Arc A770M"),
    0x5691: ("dg2", "Arc A730M"),
    0x5692: ("dg2", "Arc A550M"),
    0x5693: ("dg2", "Arc A370M"),
    0x5694: ("dg2", "Arc A350M"),
    0x56B0: ("dg2", "Arc Pro A30M"),
    0x56B1: ("dg2", "Arc Pro A40/A50"),
    0xE20B: ("bmg", "Arc B580"),
    0xE20C: ("bmg", "Arc B570"),
}
"""PCI device -> arch (as Intel's compiler names it, `-device`) and product; pci.ids."""


class Intel(Vendor):
    """GPUs of Intel, which programs use through Level Zero."""

    name = "intel"
    title = "Intel"
    module = "xe"
    visible_devices = "ZE_AFFINITY_MASK"
    other_variables = ("ONEAPI_DEVICE_SELECTOR",)
    files = (
        *(f"/sys/module/{m}/{name}" for m in MODULES for name in ("version", "initstate")),
        "/sys/bus/pci/devices/*/drm/renderD*/dev",
    )

    def gpus(self, tree: HostTree, live: bool) -> tuple[Gpu, ...]:
        """List the GPUs by PCI address; one without a render node has no driver."""
        found: list[Gpu] = []
        for function in pci.functions(tree, PCI_VENDOR):
            names = tree.names(f"{pci.DEVICES}/{function.address}/drm")
            nodes = [name for name in names if name.startswith("renderD")]
            arch, product = PRODUCTS.get(function.device, (None, f"8086:{function.device:04x}"))
            minor = whole_number(nodes[0].removeprefix("renderD")) if nodes else None
            found.append(
                Gpu(
                    vendor="intel",
                    index=len(found) if minor is None else minor,
                    arch=arch,
                    product=f"Intel {product}",
                    pci=function.address,
                    nodes=tuple(f"/dev/dri/{name}" for name in nodes),
                    integrated=function.address == INTEGRATED,
                    driven=bool(nodes),
                )
            )
        return tuple(found)

    def driver(self, tree: HostTree) -> Driver | None:
        """Return the kernel driver; only Intel's own packages state a version."""
        for module in MODULES:
            path = f"/sys/module/{module}/version"
            version = tree.read(path)
            if version is not None or tree.has(f"/sys/module/{module}"):
                source = path if version is not None else f"{module} came with the kernel"
                return Driver("intel", version, source)
        return None
