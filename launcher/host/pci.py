"""PCI bus: display controllers and accelerators, with or without a driver."""

from __future__ import annotations

from typing import NamedTuple

from launcher.host.tree import HostTree

DEVICES = "/sys/bus/pci/devices"
DISPLAY, ACCELERATOR = 0x03, 0x12  # base classes of the PCI code assignment specification


class PciFunction(NamedTuple):
    """A PCI function of class display (0x03) or processing accelerator (0x12)."""

    address: str
    vendor: int
    device: int
    pci_class: int

    def __str__(self) -> str:
        return f"{self.address} {self.vendor:04x}:{self.device:04x} {self.pci_class:04x}"


def functions(tree: HostTree, vendor: int | None = None) -> tuple[PciFunction, ...]:
    """List the graphics and accelerator functions, of one vendor or all, by address."""
    matching = []
    for address in sorted(tree.names(DEVICES)):
        pci_class = number(tree, address, "class")
        if pci_class is None or pci_class >> 16 not in (DISPLAY, ACCELERATOR):
            continue  # a node has hundreds of functions of other classes
        maker, device = number(tree, address, "vendor"), number(tree, address, "device")
        if maker is not None and device is not None and vendor in (None, maker):
            matching.append(PciFunction(address, maker, device, pci_class >> 8))
    return tuple(matching)


def attribute(tree: HostTree, address: str, name: str) -> str | None:
    """Return an attribute of a device, such as `current_compute_partition`, or None."""
    return tree.read(f"{DEVICES}/{address}/{name}") or None


def passed_through(tree: HostTree, address: str) -> str:
    """Return the obstacle of a device that is held for a virtual machine; "" if it is not."""
    lines = (attribute(tree, address, "uevent") or "").splitlines()
    return "vfio-pci holds it for a virtual machine" if "DRIVER=vfio-pci" in lines else ""


def number(tree: HostTree, address: str, name: str) -> int | None:
    """Return a hexadecimal attribute of a device, such as `device`, or None."""
    try:
        return int(attribute(tree, address, name) or "", 16)
    except ValueError:
        return None
