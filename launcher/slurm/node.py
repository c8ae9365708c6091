"""Node of a job: its GPUs, the CPUs near them, its network, and copies of inputs on its disk."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from aam.contract.errors import CannotCreate, MissingInput
from aam.contract.files import sha256
from launcher.host.facts import Gpu, Host, numbers
from launcher.slurm import log

SYS = Path("/sys")
GB = 10**9


def gpus(host: Host, vendor: str | None = None) -> list[Gpu]:
    """Return the GPUs, of a vendor or all, that this process may use, in their runtime's order."""
    usable = (gpu for gpu in host.gpus if gpu.driven and gpu.readable and not gpu.integrated)
    return [gpu for gpu in usable if vendor in (None, gpu.vendor)]


def cpus_near(address: str, sys: Path = SYS) -> set[int]:
    """Return the CPUs of the NUMA node of a PCI device; empty if sysfs states none."""
    # A partition of a card has a function of its own; it may have no device.
    for name in (address, f"{address[:-1]}0"):
        try:
            numa = int((sys / "bus/pci/devices" / name / "numa_node").read_text())
            if numa >= 0:
                cpu_list = (sys / f"devices/system/node/node{numa}/cpulist").read_text()
                return set(numbers(cpu_list) or ())
        except (OSError, ValueError):
            continue
    return set()


def interfaces(patterns: Sequence[str], sys: Path = SYS) -> list[str]:
    """Return the network interfaces that match the first pattern that any interface matches."""
    names = (sorted(path.name for path in (sys / "class/net").glob(p)) for p in patterns)
    return next(filter(None, names), [])


def network(
    present: Mapping[str, str], patterns: Sequence[str], plugin: Sequence[str], sys: Path = SYS
) -> dict[str, str]:
    """Return the variables with which NCCL, RCCL and gloo use the fast network."""
    names = interfaces(patterns, sys)
    variables: dict[str, str] = {}
    if names:
        variables |= {"NCCL_SOCKET_IFNAME": ",".join(names), "GLOO_SOCKET_IFNAME": names[0]}
    for folder in plugin:
        for name in ("librccl-net.so", "libnccl-net.so"):
            if os.path.exists(f"{folder}/{name}"):
                variables.setdefault("NCCL_NET_PLUGIN", f"{folder}/{name}")
    return {name: value for name, value in variables.items() if name not in present}


def stage(paths: Sequence[Path], folder: Path, most_gb: int) -> dict[Path, Path]:
    """Copy input files to the node's own disk once for all its ranks, and verify each copy.

    No input is copied if all exceed `most_gb` or the free space, or if the disk is in memory.
    """
    disk = f"'{folder}' on {os.uname().nodename}"
    copies: dict[Path, Path] = {}
    for path in dict.fromkeys(paths):
        if path.is_file():
            # The size and time of the original are in the name, so that an old copy is not used.
            facts = path.stat()
            copies[path] = folder / f"{len(copies)}-{facts.st_size}-{facts.st_mtime_ns}"
    total = sum(path.stat().st_size for path in copies)
    if not copies or total > most_gb * GB:
        if copies:
            log(f"inputs of {total / GB:.3g} GB are not copied; --stage is {most_gb} GB")
        return {}
    argv = ["stat", "--file-system", "--format=%T", str(folder.parent)]
    kind = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        log(f"{disk} is in memory; inputs are not copied")
        return {}
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = {path: copy for path, copy in copies.items() if not copy.exists()}
        needed, free = sum(path.stat().st_size for path in missing), shutil.disk_usage(folder).free
        if needed > free:
            log(f"{disk} has {free / GB:.3g} GB free, the inputs take {needed / GB:.3g}; they "
                "are not copied")  # fmt: skip
            return {}
        for path, copy in missing.items():
            _copy(path, copy)
    if missing:
        log(f"{len(missing)} input files are copied to {disk}")
    return copies


def _copy(source: Path, target: Path) -> None:
    """Copy a file and compare the SHA-256 of the source with the SHA-256 of the copy on disk."""
    partial, digest = target.with_name(f"{target.name}.part"), hashlib.sha256()
    try:
        with source.open("rb") as original, partial.open("wb") as copy:
            while block := original.read(1 << 20):
                digest.update(block)
                copy.write(block)
            copy.flush()
            os.fsync(copy.fileno())
        if sha256(partial) != digest.hexdigest() or source.stat().st_size != partial.stat().st_size:
            evidence = f"'{source}', '{partial}' on {os.uname().nodename}"
            remedy = "submit the job again when the file is complete"
            raise MissingInput("The copy of an input differs from it", evidence, remedy)
        partial.rename(target)  # its existence says that it is verified
    except OSError as error:
        evidence = f"'{source}' to '{target}' on {os.uname().nodename}, {error.strerror}"
        remedy = "start the job again, or give --stage 0"
        raise CannotCreate("An input cannot be staged", evidence, remedy) from error
    finally:
        with suppress(OSError):
            partial.unlink()
