"""Device nodes that the user may not open, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from launcher.findings import Finding
from launcher.gpus import VENDORS
from launcher.host.facts import Gpu, Host

ABSENT = "A device node is absent"


def denials(host: Host, gpus: Iterable[Gpu]) -> Iterator[Finding]:
    """Yield an error for every device node of `gpus` that is absent or may not be opened."""
    for path, vendor in _nodes(gpus).items():
        node = host.node(path)
        if node is None:
            if host.complete and not VENDORS[vendor].late_nodes:
                remedy = "load the driver again, or ask for a node with GPUs"
                yield Finding("error", ABSENT, path, remedy)
        elif node.access is False:
            remedy = "ask Slurm for GPUs, such as `--gpus 1`"
            evidence = f"a device cgroup refuses {path}, whose permissions would allow it"
            if not node.refused(host.user):
                group = node.group or str(node.gid)
                remedy = f"`sudo usermod -aG {group} $USER`, then log in again"
                evidence = f"{path} belongs to group {group} (mode {node.mode or 0:o})"
            yield Finding("error", "A GPU may not be used", evidence, remedy)


def _nodes(gpus: Iterable[Gpu]) -> dict[str, str]:
    """Return every node that GPUs are used through, with its vendor; the shared ones first."""
    chosen = tuple(gpus)
    found = {path: g.vendor for g in chosen for path in VENDORS[g.vendor].shared_nodes}
    found |= {path: g.vendor for g in chosen for path in g.nodes}
    return found | {path: g.vendor for g in chosen for part in g.instances for path in part.nodes}
