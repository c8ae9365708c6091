"""Detection of a host: the facts of this host or of a capture, as one `Host`.

`detect` starts no program; `with_versions` caches the versions of engines by time and size.
"""

from __future__ import annotations

import grp
import json
import os
import re
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from aam.contract.errors import AamError, CannotCreate
from aam.contract.files import atomic_write
from aam.contract.records import read_json
from launcher import system
from launcher.engines import ENGINES, containers
from launcher.gpus import VENDORS, device_nodes
from launcher.host import pci
from launcher.host.facts import (
    DeviceNode,
    EngineFact,
    Gpu,
    Host,
    Slurm,
    User,
    numbers,
    whole_number,
)  # fmt: skip
from launcher.host.tree import HostTree, open_tree

PATIENCE = 10  # seconds
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
NUMBER = re.compile(r"\d+(?:\.\d+)+[^\s,]*")


def detect(root: Path = Path("/"), environment: Mapping[str, str] | None = None) -> Host:
    """Read a host below `root`: "/", a folder holding sys/, proc/ and dev/, or a tar of one."""
    tree = open_tree(root)
    live = tree.name == "/"
    variables: Mapping[str, str] = os.environ if live else tree.manifest.environment
    variables = variables if environment is None else environment
    live_user = User(os.geteuid(), os.getegid(), tuple(sorted(os.getgroups())))
    user = live_user if live else tree.manifest.user
    gpus = tuple(
        replace(gpu, arch=gpu.arch or tree.manifest.archs.get(gpu.pci))
        for vendor in VENDORS.values() for gpu in vendor.gpus(tree, live)
    )  # fmt: skip
    drivers = tuple(driver for vendor in VENDORS.values() if (driver := vendor.driver(tree)))
    spaces = {name: vendor.user_space(tree) for name, vendor in VENDORS.items()}
    look = _look if live else partial(_recorded, tree)
    nodes = tuple(node for path in device_nodes(gpus, drivers) if (node := look(path)))
    # The engines: detected on this host, as the capture recorded them on another.
    user_id, search = user.uid if user else 0, variables.get("PATH", os.defpath)
    if live:
        paths = ((engine, system.which(engine.name, search)) for engine in containers())
        engines = tuple(e.detect(path, tree, variables, user_id) for e, path in paths if path)
    else:
        engines = tuple(replace(fact, traits=ENGINES[fact.name].traits)
                        for fact in tree.manifest.engines if fact.name in ENGINES)  # fmt: skip
    names = {fact.name for fact in engines}
    # Files of the Container Device Interface name the vendors whose GPUs they describe.
    files = (f"{folder}/{name}" for folder in CDI_FOLDERS for name in tree.names(folder))
    described = [tree.read(file) or "" for file in files]
    return Host(
        root=tree.name, name=tree.read("/proc/sys/kernel/hostname") or "unknown",
        kernel=tree.read("/proc/sys/kernel/osrelease") or "unknown",
        machine=os.uname().machine if live else tree.manifest.machine,
        gpus=tuple(_confined(gpus, nodes, user)), nodes=nodes, drivers=drivers, engines=engines,
        absent_engines=tuple(EngineFact(engine.name, engine.name, traits=engine.traits)
                             for engine in containers() if engine.name not in names),
        slurm=slurm(variables), user=user,
        user_space={name: space for name, space in spaces.items() if space},
        cdi=tuple(name for name, vendor in VENDORS.items()
                  if vendor.cdi and any(vendor.cdi[0] in text for text in described)),
        bus=tuple(map(str, pci.functions(tree))), environment=dict(variables),
        complete=live or tree.manifest.complete, native=tree.manifest.native,
    )  # fmt: skip


def slurm(variables: Mapping[str, str]) -> Slurm | None:
    """Read the allocation from Slurm's variables (sbatch(1), srun(1), "OUTPUT ENVIRONMENT")."""
    job = variables.get("SLURM_JOB_ID")
    if not job:
        return None
    gpu_numbers = variables.get("SLURM_STEP_GPUS") or variables.get("SLURM_JOB_GPUS")
    tasks = variables.get("SLURM_STEP_NUM_TASKS") or variables.get("SLURM_NTASKS", "1")
    ranks, nodes = (whole_number(variables.get(f"SLURM_STEP_NUM_{counted}", "")) or 1
                    for counted in ("TASKS", "NODES"))  # fmt: skip
    return Slurm(
        job=job, gpus=numbers(gpu_numbers) if gpu_numbers else None, tasks=whole_number(tasks) or 1,
        shares_node=ranks > nodes,
    )  # fmt: skip


def _look(path: str) -> DeviceNode | None:
    group = None
    try:
        facts = os.stat(path)
        group = grp.getgrgid(facts.st_gid).gr_name
    except OSError:
        return None
    except KeyError:  # the number has no name
        pass
    access = os.access(path, os.R_OK | os.W_OK)
    return DeviceNode(path, facts.st_gid, group, facts.st_mode & 0o7777, access)


def _recorded(tree: HostTree, path: str) -> DeviceNode | None:
    if node := tree.manifest.nodes.get(path):
        return replace(node, path=path)
    return DeviceNode(path) if tree.has(path) else None


def _confined(gpus: Sequence[Gpu], nodes: Sequence[DeviceNode], user: User | None) -> list[Gpu]:
    """Mark GPUs that this process may not use, and drop MIG instances that it may not use.

    A cgroup refuses their node, or they have none while another GPU of the vendor has one.
    """
    by_path = {node.path: node for node in nodes}
    refused = {node.path for node in nodes if node.refused(user)}
    usable = {node.path for node in nodes if node.access is not False}
    usable_gpus = []
    for vendor in dict.fromkeys(gpu.vendor for gpu in gpus):
        same = [gpu for gpu in gpus if gpu.vendor == vendor]
        has_nodes = any(path in by_path for gpu in same for path in gpu.nodes)
        for gpu in same:
            if has_nodes and not all(path in by_path and path not in refused for path in gpu.nodes):
                gpu = replace(gpu, readable=False)
            instances = tuple(mig for mig in gpu.instances if usable.issuperset(mig.nodes))
            # If none opens, their access is unknown, as in old captures.
            usable_gpus.append(replace(gpu, instances=instances) if instances else gpu)
    return usable_gpus


def with_versions(host: Host, startable: Container[str]) -> Host:
    """Return the host with the versions of its engines; engines in `startable` may be started."""
    cache = system.user_folder("XDG_CACHE_HOME", os.environ) / "engines"
    engines = []
    for engine in host.engines:
        # The version that `PROGRAM --version` printed before, else what it prints now.
        program, facts = engine.path, os.stat(engine.path)
        name = f"{facts.st_dev:x}-{facts.st_ino:x}-{facts.st_mtime_ns:x}-{facts.st_size:x}"
        cache_file, version = cache / f"version-{name}.json", None
        with suppress(AamError):
            stored = read_json(cache_file, dict[str, str], "version") if cache_file.exists() else {}
            version = stored.get("version") if stored.get("program") == program else None
        if version is None and engine.name in startable:
            match = None
            with suppress(OSError):  # a TimeoutError among them
                match = NUMBER.search(system.run([program, "--version"], PATIENCE).stdout)
            if match:
                version = match[0]
                # If the cache cannot be written, the version is determined again next time.
                with suppress(OSError, CannotCreate), atomic_write(cache_file) as temporary:
                    temporary.write_text(json.dumps({"program": program, "version": version}))
        engines.append(replace(engine, version=version))
    return replace(host, engines=tuple(engines))
