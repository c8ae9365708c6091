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

from msgspec.structs import asdict

from aam.contract.errors import CannotCreate
from aam.contract.files import atomic_write
from launcher import system
from launcher.detect import CDI_FOLDERS
from launcher.engines import native
from launcher.gpus import VENDORS
from launcher.host.facts import Host
from launcher.host.pci import DEVICES
from launcher.host.tree import MANIFEST
from launcher.plan.environment import LEAKS
from launcher.plan.visible_devices import visible_devices_variables

PLACES = ("/proc/sys/kernel/hostname", "/proc/sys/kernel/osrelease",
          "/proc/sys/user/max_user_namespaces",
          *(f"{folder}/*" for folder in CDI_FOLDERS))  # fmt: skip
SLURM_VARIABLES = ("SLURM_JOB_ID", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_STEP_NUM_TASKS",
                   "SLURM_NTASKS", "SLURM_STEP_NUM_NODES")  # fmt: skip
"""The variables of Slurm that decisions read."""
ATTRIBUTES = ("vendor", "device", "class", "uevent")


def write(host: Host, file: Path) -> int:
    """Write the capture and return the number of files in it."""
    vendors = VENDORS.values()
    places = [*PLACES, *(pattern for vendor in vendors for pattern in vendor.files)]
    paths = [str(path) for pattern in places for path in sorted(Path("/").glob(pattern[1:]))]
    attributes = (f"{DEVICES}/{function.split()[0]}/{name}"
                  for function in host.bus for name in ATTRIBUTES)  # fmt: skip
    paths += filter(os.path.exists, attributes)
    # By name, not by a pattern: SLURM_JWT is the user's password for the cluster.
    prefixes = {engine.traits.inside for engine in (*host.engines, *host.absent_engines)} | {""}
    masks = [prefix + name for prefix in sorted(prefixes) for name in visible_devices_variables()]
    names = (*SLURM_VARIABLES, *masks, *(name for vendor in vendors for name in vendor.variables))
    variables = {name: host.environment[name] for name in names if name in host.environment}
    manifest = {
        "machine": host.machine,
        "user": host.user and asdict(host.user),
        "environment": variables | {n: "set" for n in LEAKS if host.environment.get(n)},
        "nodes": {node.path: asdict(node) for node in host.nodes},
        "engines": [{k: v for k, v in asdict(e).items() if k != "traits"} for e in host.engines],
        "native": asdict(native.detect_stack()),
        "archs": {gpu.pci: gpu.arch for gpu in host.gpus if gpu.pci and gpu.arch},
    }
    content = {MANIFEST: (json.dumps(manifest, indent=1).encode(), 0o644)}
    for path in paths:
        content[path.lstrip("/")] = (b"", 0o444)  # of a library its presence is the fact
        if ".so" not in os.path.basename(path):
            try:
                content[path.lstrip("/")] = (system.regular(path), 0o444)
            except (OSError, ValueError):  # an unreadable file has mode 000
                content[path.lstrip("/")] = (b"", 0)
    if not any(path.startswith("/sys") for path in paths):
        content["sys/.keep"] = (b"", 0o644)
    try:
        with atomic_write(file) as temporary, tarfile.open(temporary, "w") as archive:
            for name, (text, mode) in content.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(text), mode
                archive.addfile(member, io.BytesIO(text))
    except OSError as error:
        cause, evidence = "The capture cannot be written", f"'{file}', {error.strerror}"
        raise CannotCreate(cause, evidence, "choose another file") from error
    return len(paths) + 1
