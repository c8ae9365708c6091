"""Access to device nodes: file permissions and device cgroups.

The kernel consults the device cgroup in access(2) as in open(2) (fs/namei.c, inode_permission), so
a node whose permissions allow what access(2) denied belongs to another job or needs an allocation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from launcher.host.facts import DeviceNode, Gpu, User


def permitted(node: DeviceNode, user: User | None) -> bool:
    """Return whether the permissions of a node let the user read and write; always for root."""
    if user is None or node.mode is None:
        return False
    if user.uid == 0:
        return True
    ours = node.gid in (user.gid, *user.groups)
    needed = 0o060 if ours else 0o006
    return node.mode & needed == needed


def refused(node: DeviceNode, user: User | None) -> bool:
    """Return whether a device cgroup refuses a node that its permissions would open."""
    return node.access is False and permitted(node, user)


def confined(
    gpus: Sequence[Gpu], nodes: Sequence[DeviceNode], user: User | None
) -> tuple[Gpu, ...]:
    """Mark GPUs that this process may not use, and drop MIG instances that it may not use.

    A GPU may not be used if a cgroup refuses its device node, or if it has no device node while
    another GPU of its vendor has one, as in a container with a part of the host's GPUs.
    """
    by_path = {node.path: node for node in nodes}

    def ours(path: str) -> bool:
        node = by_path.get(path)
        return node is not None and not refused(node, user)

    kept = []
    for vendor in dict.fromkeys(gpu.vendor for gpu in gpus):
        same = [gpu for gpu in gpus if gpu.vendor == vendor]
        some = any(path in by_path for gpu in same for path in gpu.nodes)
        for gpu in same:
            if some and gpu.nodes and not all(ours(path) for path in gpu.nodes):
                gpu = replace(gpu, readable=False)
            parts = tuple(
                part for part in gpu.instances
                if not part.nodes or all(_usable(by_path.get(path)) for path in part.nodes)
            )  # fmt: skip
            # If none opens, their access is unknown, as in old captures.
            kept.append(replace(gpu, instances=parts) if parts else gpu)
    return tuple(kept)


def _usable(node: DeviceNode | None) -> bool:
    return node is not None and node.access is not False
