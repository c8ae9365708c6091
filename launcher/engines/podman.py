"""Podman, rootless or as root.

The user keeps the same numbers and groups inside (--userns keep-id). --ipc=host fails on a host
without /dev/mqueue, so the shared memory is a mount. No option removes what containers.conf adds.
"""

from __future__ import annotations

import pwd
from collections.abc import Mapping

from launcher.engines.engine import ImageBuild, user_namespaces
from launcher.engines.oci import OciEngine
from launcher.host.facts import EngineFact, EngineTraits
from launcher.host.tree import HostTree
from launcher.plan.assembly import Plan
from launcher.system import which


class Podman(OciEngine):
    """Podman 4; `--timestamp` and `--volume` of a build came together with it (its change log)."""

    name = "podman"
    least = (4, 0)
    storage = "{{.Store.GraphRoot}}"
    move = "set graphroot in ~/.config/containers/storage.conf to a folder with room"
    traits = EngineTraits(
        image_format="podman",
        needs_cdi=True,
        hidden=("PODMAN_*", "CONTAINER_*"),  # a default user namespace, a remote host
    )

    def detect(
        self, path: str, tree: HostTree, environment: Mapping[str, str], user_id: int
    ) -> EngineFact:
        rootless = user_id and (user_namespaces(tree) or _no_subordinate_ids(tree, user_id))
        # --group-add=keep-groups is an annotation that crun alone reads (podman-run(1)).
        has_crun = which("crun", f"{environment.get('PATH', '')}:/usr/bin:/usr/libexec/podman")
        lost = "" if not user_id or has_crun else "crun, the runtime that keeps them, is absent"
        return EngineFact(self.name, path, rootless or None, traits=self.traits, loses_groups=lost)

    def runtime_flags(self, plan: Plan) -> list[str]:
        return ["--runtime", "crun"] if plan.groups and plan.user[0] != 0 else []

    def identity_flags(self, plan: Plan) -> list[str]:
        if plan.user[0] == 0:
            argv = [f"--group-add={group}" for group in plan.groups]
        else:
            argv = ["--userns=keep-id", *(["--group-add=keep-groups"] if plan.groups else [])]
        return ["--http-proxy=false", *argv]

    def build_flags(self, build: ImageBuild) -> list[str]:
        plain = ["--format", "docker", "--force-rm", "--layers=false"]
        return [*plain, "--timestamp", str(build.epoch)]


def _no_subordinate_ids(tree: HostTree, user_id: int) -> str | None:
    """Return the missing range of user IDs for rootless podman (subuid(5)), or None."""
    try:
        user = pwd.getpwuid(user_id).pw_name
    except KeyError:
        user = str(user_id)
    for path in ("/etc/subuid", "/etc/subgid"):
        text = tree.read(path)
        if text is None and tree.has(path):  # it may not be read
            return None
        owners = [line.split(":")[0] for line in (text or "").splitlines()]
        if not {user, str(user_id)} & set(owners):
            # A service such as SSSD may hand out the ranges (nsswitch.conf(5), "subid").
            lines = (
                line.split(":") for line in (tree.read("/etc/nsswitch.conf") or "").split("\n")
            )
            services = [pair[1].split() for pair in lines if pair[0].strip() == "subid"]
            if services in ([], [["files"]]):
                return f"{path} has no line for {user}; `usermod --add-subuids` makes one"
    return None


ENGINE = Podman()
