"""Capture of a host: a tar with the facts that decisions are made from, for support and tests.

It holds the few files of sysfs and procfs that `launcher.host` reads, and a manifest: the user,
the device nodes, the engines, and those variables that matter; no other variables.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import msgspec

from aam.contract.errors import CannotCreate
from aam.contract.files import atomic_write
from launcher import system
from launcher.detect import CDI_FOLDERS, SLURM_VARIABLES
from launcher.engines import native
from launcher.gpus import VENDORS
from launcher.host.facts import Host
from launcher.host.pci import DEVICES
from launcher.host.tree import MANIFEST
from launcher.plan.environment import LEAKS
from launcher.plan.visible_devices import visible_devices_variables

PLACES = (
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/user/max_user_namespaces",
    *(f"{folder}/*" for folder in CDI_FOLDERS),
)
ATTRIBUTES = ("vendor", "device", "class", "uevent")


def write(host: Host, file: Path) -> int:
    """Write the capture and return the number of files in it."""
    vendors = VENDORS.values()
    places = [*PLACES, *(place for vendor in vendors for place in vendor.files)]
    paths = [str(path) for place in places for path in sorted(Path("/").glob(place[1:]))]
    for function in host.bus:
        folder = f"{DEVICES}/{function.split()[0]}"
        paths += [p for name in ATTRIBUTES if os.path.exists(p := f"{folder}/{name}")]
    # By name, not by a pattern: SLURM_JWT is the user's password for the cluster.
    of_vendors = [name for vendor in vendors for name in vendor.variables]
    inside = {engine.traits.inside for engine in (*host.engines, *host.absent_engines)} | {""}
    masks = [prefix + name for prefix in sorted(inside) for name in visible_devices_variables()]
    kept = (*SLURM_VARIABLES, *masks, *of_vendors)
    variables = {name: host.environment[name] for name in kept if name in host.environment}
    engines = [msgspec.structs.asdict(engine) for engine in host.engines]
    manifest = {
        "machine": host.machine,
        "user": host.user and msgspec.structs.asdict(host.user),
        "environment": variables | {n: "set" for n in LEAKS if host.environment.get(n)},
        "nodes": {node.path: msgspec.structs.asdict(node) for node in host.nodes},
        "engines": [{k: v for k, v in engine.items() if k != "traits"} for engine in engines],
        "native": msgspec.structs.asdict(native.detect_stack()),
        "archs": {gpu.pci: gpu.arch for gpu in host.gpus if gpu.pci and gpu.arch},
    }

    def add(name: str, content: bytes, mode: int) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(content), mode
        archive.addfile(member, io.BytesIO(content))

    try:
        with atomic_write(file) as temporary, tarfile.open(temporary, "w") as archive:
            add(MANIFEST, json.dumps(manifest, indent=1).encode(), 0o644)
            for path in paths:
                content, mode = b"", 0o444  # of a library its presence is the fact
                if ".so" not in os.path.basename(path):
                    try:
                        content = system.regular(path)
                    except (OSError, ValueError):  # an unreadable file has mode 000
                        mode = 0
                add(path.lstrip("/"), content, mode)
            if not any(path.startswith("/sys") for path in paths):
                add("sys/.keep", b"", 0o644)
    except OSError as error:
        cause, evidence = "The capture cannot be written", f"'{file}', {error.strerror}"
        raise CannotCreate(cause, evidence, "choose another file") from error
    return len(paths) + 1
