"""Registry of GPU vendors, and functions over all of them.

A new vendor is a module with a class that inherits `launcher.gpus.base.Vendor`, and a line here.
"""

from __future__ import annotations

from collections.abc import Iterable

from launcher.gpus.amd import Amd
from launcher.gpus.base import Vendor
from launcher.gpus.intel import Intel
from launcher.gpus.nvidia import Nvidia
from launcher.host.facts import Gpu

VENDORS: dict[str, Vendor] = {vendor.name: vendor for vendor in (Amd(), Nvidia(), Intel())}
"""By name, in the order in which their GPUs are listed."""


def device_nodes(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Return the device nodes that GPUs are used through, the shared ones first."""
    chosen = tuple(gpus)
    vendors = dict.fromkeys(gpu.vendor for gpu in chosen)
    shared = [path for name in vendors for path in VENDORS[name].shared_nodes]
    return (*shared, *(path for gpu in chosen for path in gpu.nodes))


def host_libraries(name: str, requested: bool) -> str:
    """Return the vendor whose host libraries go into a container: required or requested."""
    vendor = VENDORS.get(name)
    needed = vendor and (vendor.host_libraries or (requested and vendor.library_flags))
    return name if needed else ""


def visible_devices_variables() -> tuple[str, ...]:
    """Return every variable that selects devices; the launcher removes those it does not set."""
    found: list[str] = []
    for vendor in VENDORS.values():
        found += [vendor.visible_devices, *vendor.inner_variables, *vendor.other_variables]
    return tuple(dict.fromkeys(filter(None, found)))


def title(name: str) -> str:
    """Return the title of a vendor; the name itself if it is not registered."""
    return VENDORS[name].title if name in VENDORS else name
