"""Registry of GPU vendors, each a module with a `Vendor`, and functions over all of them."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.gpus.amd import Amd
from launcher.gpus.nvidia import Nvidia
from launcher.gpus.vendor import Vendor
from launcher.host.facts import Driver, Gpu

VENDORS: dict[str, Vendor] = {vendor.name: vendor for vendor in (Amd(), Nvidia())}
"""By name, in the order in which their GPUs are listed."""


def device_nodes(gpus: Iterable[Gpu], drivers: Iterable[Driver] = ()) -> dict[str, str]:
    """Return the device nodes that GPUs are used through, with their vendor; shared ones first."""
    chosen = tuple(gpus)
    present = {gpu.vendor for gpu in chosen} | {driver.vendor for driver in drivers}
    nodes = {
        path: name for name in VENDORS if name in present for path in VENDORS[name].shared_nodes
    }
    nodes |= {path: gpu.vendor for gpu in chosen for path in gpu.nodes}
    return nodes | {p: gpu.vendor for gpu in chosen for mig in gpu.instances for p in mig.nodes}


def unused(bus: Iterable[str]) -> str:
    """Return the sentence about GPUs of Intel on the PCI bus; "" for none but graphics."""
    places = [f.split()[0] for f in bus if f.split()[1].startswith("8086:")]
    addresses = [address for address in places if address != "0000:00:02.0"]
    return f"no image is for GPUs of Intel (at {', '.join(addresses)})" if addresses else ""


def title(name: str) -> str:
    """Return the title of a vendor; the name itself if it is not registered."""
    return VENDORS[name].title if name in VENDORS else name
