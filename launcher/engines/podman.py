"""Podman, rootless or as root.

The user keeps his numbers inside (--userns keep-id) and his groups. The shared memory is the host's
by a mount; --ipc=host fails where a host has no /dev/mqueue. Docker Hub's images have no part in
this: --pull=never.

containers.conf of the site or the user adds variables, mounts and devices to every container, and
no option takes them away again; `explain` and `doctor` show what it adds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcher.engines import containers_conf
from launcher.engines.base import ImageBuild
from launcher.engines.installed import user_namespaces, which
from launcher.engines.oci import OciEngine
from launcher.host.facts import EngineFact, EngineTraits
from launcher.host.tree import HostTree

if TYPE_CHECKING:
    from launcher.plan.plan import Plan


class Podman(OciEngine):
    """Podman 4; `--timestamp` and `--volume` of a build came together with it (its change log)."""

    name = "podman"
    least = (4, 0)
    read_only = "ro"
    storage = "{{.Store.GraphRoot}}"
    save_flags = ("--format", "docker-archive")
    move = "set graphroot in ~/.config/containers/storage.conf to a folder with room"
    traits = EngineTraits(
        image_format="podman",
        needs_cdi=True,
        hidden=("PODMAN_*", "CONTAINER_*"),  # a default user namespace, a remote host
    )

    def detect(
        self, tree: HostTree, environment: Mapping[str, str], user_id: int
    ) -> EngineFact | None:
        """Return the program, its obstacle if any, and the settings that add to containers."""
        path = which(self.name, environment.get("PATH", os.defpath))
        if path is None:
            return None
        obstacle = None
        if user_id != 0:
            obstacle = user_namespaces(tree) or _no_subordinate_ids(tree, user_id)
        conf = tuple(containers_conf.additions(tree, environment, user_id))
        return EngineFact(self.name, path, obstacle, conf=conf, traits=self.traits)

    def identity_flags(self, plan: Plan) -> list[str]:
        """Keep the numbers of the user and his groups, which cannot be named one by one."""
        if plan.user[0] == 0:
            argv = [f"--group-add={group}" for group in plan.groups]
        else:
            argv = ["--userns=keep-id", *(["--group-add=keep-groups"] if plan.groups else [])]
        argv += ["--device", plan.cdi] if plan.cdi else []
        return ["--http-proxy=false", *argv]

    def build_flags(self, build: ImageBuild) -> list[str]:
        """Set the date of all files; without layers a failed build leaves nothing behind."""
        plain = ["--format", "docker", "--force-rm", "--layers=false"]
        return [*plain, "--timestamp", str(build.epoch)]


def _no_subordinate_ids(tree: HostTree, user_id: int) -> str | None:
    """Return the missing range of user IDs for rootless podman (subuid(5)), or None."""
    import pwd

    try:
        user = pwd.getpwuid(user_id).pw_name
    except KeyError:
        user = str(user_id)
    for path in ("/etc/subuid", "/etc/subgid"):
        try:
            owners = [line.split(":")[0] for line in tree.text(path).splitlines()]
        except FileNotFoundError:
            owners = []
        except OSError:
            return None
        if not {user, str(user_id)} & set(owners) and not _subordinate_ids_elsewhere(tree):
            return f"{path} has no line for {user}; `usermod --add-subuids` makes one"
    return None


def _subordinate_ids_elsewhere(tree: HostTree) -> bool:
    """Return whether a service such as SSSD hands out the ranges (nsswitch.conf(5), "subid")."""
    try:
        lines = tree.text("/etc/nsswitch.conf").splitlines()
    except OSError:
        return False
    return any(
        line.split(":")[0].strip() == "subid" and line.split(":")[1].split() != ["files"]
        for line in lines
        if ":" in line
    )


ENGINE = Podman()
