"""Docker: its daemon is root, so the user and the user's groups are named by number.

Devices with a CDI description all go in by --gpus all, and visible devices select among them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from aam.contract.errors import Unavailable
from launcher.engines.base import ImageBuild
from launcher.engines.build_log import BuildLog
from launcher.engines.oci import OciEngine
from launcher.host.facts import EngineTraits
from launcher.host.tree import HostTree

if TYPE_CHECKING:
    from launcher.plan.plan import Plan

SOCKET = "/var/run/docker.sock"


class Docker(OciEngine):
    """Docker 23, which builds with BuildKit by default (its change log)."""

    name = "docker"
    least = (23, 0)
    read_only = "readonly"
    storage = "{{.DockerRootDir}}"
    move = "set data-root in /etc/docker/daemon.json to a folder with room"
    traits = EngineTraits(image_format="docker")

    def configuration(
        self, path: str, tree: HostTree, environment: Mapping[str, str], user_id: int
    ) -> tuple[str | None, Iterable[tuple[str, str]]]:
        """Return the reason why the daemon cannot be used, if any."""
        address = environment.get("DOCKER_HOST", f"unix://{SOCKET}")
        socket = address.removeprefix("unix://")
        if not address.startswith("unix://"):
            return None, ()
        if not os.path.exists(socket):
            return f"no daemon listens at {socket}", ()
        if not os.access(socket, os.R_OK | os.W_OK):
            return f"{socket} may not be used; are you in the group docker?", ()
        return None, ()

    def identity_flags(self, plan: Plan) -> list[str]:
        """Name the user and the groups, and pass all devices with a CDI description."""
        argv = [f"--user={plan.user[0]}:{plan.user[1]}"]
        argv += [f"--group-add={group}" for group in plan.groups]
        return [*argv, *(["--gpus", "all"] if plan.cdi else [])]

    def build_flags(self, build: ImageBuild) -> list[str]:
        """Leave out the provenance, which names the builder."""
        return ["--provenance=false"]

    def build(self, build: ImageBuild, log: BuildLog) -> dict[str, Any]:
        """Build an image; refuse --wheels, because Docker mounts no folder in a build."""
        if build.wheels:
            evidence, remedy = f"--wheels {build.wheels}", "use --engine podman or apptainer"
            raise Unavailable("docker mounts no folder while it builds", evidence, remedy)
        return super().build(build, log)


ENGINE = Docker()
