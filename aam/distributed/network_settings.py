"""Network settings of NCCL, RCCL, gloo and libfabric: check of interfaces, and description.

The settings are variables of the environment, which a site file may set. A wrong one causes a late
error or none (traffic takes the slow network), so they are checked and printed at the start.
"""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Mapping
from pathlib import Path

from aam.contract.errors import UsageError

_FAMILIES = ("NCCL_", "RCCL_", "FI_", "GLOO_", "OFI_", "HSA_FORCE_FINE_GRAIN_PCIE")
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_PLUGINS = ("NCCL_NET_PLUGIN", "RCCL_NET_PLUGIN")


def interfaces(root: Path = Path("/")) -> list[str]:
    """Return the names of the network interfaces of this node."""
    folder = root / "sys/class/net"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def check_interfaces(variables: Mapping[str, str], root: Path = Path("/")) -> None:
    """Refuse settings that name network interfaces which do not exist.

    Args:
        variables: variables of the environment.
        root: root of the file system, another one for a capture.

    Raises:
        UsageError: names the variable, its value and the interfaces of this node.
    """
    existing = interfaces(root)
    for name in _INTERFACES:
        value = variables.get(name, "")
        # "^a,b" leaves out, "=a" means exactly; without that mark a name is a prefix.
        if not value or value.startswith("^") or not existing:
            continue
        # NCCL matches prefixes, gloo complete names.
        exact = value.startswith("=") or name.startswith("GLOO")
        named = value.lstrip("=").split(",")
        missing = [
            prefix
            for prefix in named
            if not any(i == prefix if exact else i.startswith(prefix) for i in existing)
        ]
        if len(missing) == len(named):
            raise UsageError(
                "The network interface does not exist",
                f"{name}={value}; this node has {', '.join(existing)}",
                "correct the site file or --env",
            )


def describe(variables: Mapping[str, str], device: str, root: Path = Path("/")) -> list[str]:
    """Return lines with the backend, the settings, the interfaces and the network plugin.

    Args:
        variables: variables of the environment.
        device: type of the device, "cpu" or "cuda".
        root: root of the file system, another one for a capture.
    """
    existing = interfaces(root)
    if device == "cpu":
        chosen = variables.get("GLOO_SOCKET_IFNAME", "chosen by gloo")
        return [f"Network: gloo over TCP, interface {chosen}; this node has {', '.join(existing)}."]
    given = [f"{n}={v}" for n, v in sorted(variables.items()) if n.startswith(_FAMILIES)]
    lines = [f"Network: {', '.join(given) or 'no settings'}; this node has {', '.join(existing)}."]
    plugin = next((variables[name] for name in _PLUGINS if variables.get(name)), None)
    if plugin not in (None, "none"):
        lines.append(f"Network plugin '{plugin}': {_plugin(str(plugin), variables)}.")
    return lines


def _plugin(name: str, variables: Mapping[str, str]) -> str:
    """Return where the library of a plugin is, searched as NCCL and RCCL do."""
    names = (name, f"libnccl-net-{name}.so", f"librccl-net-{name}.so")
    for folder in filter(None, ["", *variables.get("LD_LIBRARY_PATH", "").split(os.pathsep)]):
        for file in names:
            if (Path(folder) / file).is_file():
                return f"found at {Path(folder) / file}"
    stems = [file.removeprefix("lib").removesuffix(".so") for file in names]
    if any(ctypes.util.find_library(stem) for stem in stems):
        return "found among the system's libraries"
    return "not found; traffic goes over sockets"
