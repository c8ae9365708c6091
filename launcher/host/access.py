"""Who may open a device node: its permissions, and a device cgroup that refuses all the same.

The kernel asks a device cgroup in access(2) as in open(2) (fs/namei.c, inode_permission), so a node
whose permissions allow what access(2) denied is another job's, or nobody's without an allocation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from launcher.host.facts import DeviceNode, Gpu, User


def permitted(node: DeviceNode, user: User | None) -> bool:
    """Tell whether the permissions of a node let the user read and write; root may everything."""
    if user is None or node.mode is None:
        return False
    if user.uid == 0:
        return True
    ours = node.gid in (user.gid, *user.groups)
    needed = 0o060 if ours else 0o006
    return node.mode & needed == needed


def refused(node: DeviceNode, user: User | None) -> bool:
    """Tell whether a device cgroup refuses a node that its permissions would open."""
    return node.access is False and permitted(node, user)


def confined(
    gpus: Sequence[Gpu], nodes: Sequence[DeviceNode], user: User | None
) -> tuple[Gpu, ...]:
    """Mark the GPUs that are not ours to use, and leave out the MIG instances that are not.

    Not ours is a GPU whose device node a cgroup refuses, or that has none here while another of
    its vendor has: that is how a container is given a part of its host.
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
            # Without a single one that opens, nothing is known about them: a capture of old.
            kept.append(replace(gpu, instances=parts) if parts else gpu)
    return tuple(kept)


def _usable(node: DeviceNode | None) -> bool:
    return node is not None and node.access is not False
