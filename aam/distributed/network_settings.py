"""What the network between GPUs was told, held against what this machine has.

RCCL and NCCL take their settings from the environment, where a site file puts them. A wrong one
shows late or not at all (traffic goes over the slow network), so what is there is looked at once
and said.
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
    """Return the names of the network interfaces of this machine."""
    folder = root / "sys/class/net"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def check(variables: Mapping[str, str], root: Path = Path("/")) -> None:
    """Refuse interfaces that do not exist.

    Raises:
        UsageError: names the variable, the interface and those that exist.
    """
    there = interfaces(root)
    for name in _INTERFACES:
        asked = variables.get(name, "")
        # "^a,b" leaves out, "=a" means exactly; without that mark a name is a prefix.
        if not asked or asked.startswith("^") or not there:
            continue
        exact = asked.startswith("=") or name.startswith("GLOO")
        words = asked.lstrip("=").split(",")
        missing = [
            word
            for word in words
            if not any(i == word if exact else i.startswith(word) for i in there)
        ]
        if len(missing) == len(words):
            raise UsageError(
                "A network interface that does not exist",
                f"{name}={asked}; this machine has {', '.join(there)}",
                "correct the site file, or --env",
            )


def found(variables: Mapping[str, str], device: str, root: Path = Path("/")) -> list[str]:
    """Return the lines that tell how ranks will talk, and what was found of it."""
    there = interfaces(root)
    if device == "cpu":
        chosen = variables.get("GLOO_SOCKET_IFNAME", "chosen by gloo")
        return [f"Network: gloo over TCP, interface {chosen}; there are {', '.join(there)}."]
    given = [f"{n}={v}" for n, v in sorted(variables.items()) if n.startswith(_FAMILIES)]
    lines = [f"Network: {', '.join(given) or 'no settings'}; there are {', '.join(there)}."]
    plugin = next((variables[name] for name in _PLUGINS if variables.get(name)), None)
    if plugin not in (None, "none"):
        lines.append(f"Network plugin '{plugin}': {_plugin(str(plugin), variables)}.")
    return lines


def _plugin(name: str, variables: Mapping[str, str]) -> str:
    """Say where the library of a plugin is; RCCL and NCCL look for it in the same way."""
    words = (name, f"libnccl-net-{name}.so", f"librccl-net-{name}.so")
    for folder in filter(None, ["", *variables.get("LD_LIBRARY_PATH", "").split(os.pathsep)]):
        for word in words:
            if (Path(folder) / word).is_file():
                return f"found at {Path(folder) / word}"
    stems = [word.removeprefix("lib").removesuffix(".so") for word in words]
    if any(ctypes.util.find_library(stem) for stem in stems):
        return "found among the system's libraries"
    return "not found; traffic goes over sockets"
