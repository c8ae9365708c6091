"""The PCI bus: which display controllers and accelerators are plugged in, driver or not."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.host.tree import HostTree

DEVICES = "/sys/bus/pci/devices"
DISPLAY, ACCELERATOR = 0x03, 0x12  # base classes of the PCI code assignment specification


@dataclass(frozen=True)
class PciFunction:
    """A PCI function of class display (0x03) or processing accelerator (0x12)."""

    address: str
    vendor: int
    device: int
    pci_class: int

    def __str__(self) -> str:
        return f"{self.address} {self.vendor:04x}:{self.device:04x} {self.pci_class:04x}"


def functions(tree: HostTree) -> tuple[PciFunction, ...]:
    """List the graphics and accelerator functions in the order of their addresses."""
    found = []
    for address in sorted(tree.names(DEVICES)):
        pci_class = number(tree, address, "class")
        if pci_class is None or pci_class >> 16 not in (DISPLAY, ACCELERATOR):
            continue
        vendor = number(tree, address, "vendor")
        device = number(tree, address, "device")
        if vendor is not None and device is not None:
            found.append(PciFunction(address, vendor, device, pci_class >> 8))
    return tuple(found)


def attribute(tree: HostTree, address: str, name: str) -> str | None:
    """Return an attribute of a device, such as `current_compute_partition`, or None."""
    try:
        return tree.text(f"{DEVICES}/{address}/{name}").strip() or None
    except OSError:
        return None


def number(tree: HostTree, address: str, name: str) -> int | None:
    """Return a hexadecimal attribute of a device, such as `device`, or None."""
    try:
        return int(attribute(tree, address, name) or "", 16)
    except ValueError:
        return None
