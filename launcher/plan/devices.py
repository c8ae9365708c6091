"""Device nodes that the user may not open, and what would open them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from launcher.host.access import refused
from launcher.host.amd import KFD
from launcher.host.facts import Gpu, Host
from launcher.plan.decision import Finding

ABSENT = "A device node is absent"


def denials(host: Host, paths: Iterable[str]) -> Iterator[Finding]:
    """Yield an error for every node of `paths` that may not be opened, or is not there.

    NVIDIA's nodes may be absent: the driver's own helper makes them when CUDA first starts.
    """
    for path in paths:
        node = host.node(path)
        if node is None:
            if host.complete and not path.startswith("/dev/nvidia"):
                remedy = "load the driver again, or ask for a node with GPUs"
                yield Finding("error", ABSENT, path, remedy)
        elif node.access is False:
            remedy = "ask Slurm for GPUs, such as `--gpus 1`"
            evidence = f"a device cgroup refuses {path}, whose permissions would allow it"
            if not refused(node, host.user):
                group = node.group or str(node.gid)
                remedy = f"`sudo usermod -aG {group} $USER`, then log in again"
                evidence = f"{path} belongs to group {group} (mode {node.mode or 0:o})"
            yield Finding("error", "A GPU may not be used", evidence, remedy)


def needed(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Return the nodes that these GPUs are used through: AMD's share one."""
    chosen = tuple(gpus)
    shared = (KFD,) if any(gpu.vendor == "amd" for gpu in chosen) else ()
    return shared + tuple(path for gpu in chosen for path in gpu.nodes)
