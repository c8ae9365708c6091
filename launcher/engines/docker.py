"""Docker: its daemon is root, so the user and his groups are named by number.

NVIDIA's devices all go in (--gpus all needs the NVIDIA container toolkit) and the mask chooses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aam.contract.errors import Unavailable
from launcher.engines.base import BuildLog, ImageBuild
from launcher.engines.installed import which
from launcher.engines.oci import OciEngine
from launcher.host.facts import EngineFact, EngineTraits
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

    def detect(
        self, tree: HostTree, environment: Mapping[str, str], user_id: int
    ) -> EngineFact | None:
        """Find the program and its daemon."""
        path = which(self.name, environment.get("PATH", os.defpath))
        if path is None:
            return None
        return EngineFact(self.name, path, _obstacle(environment), traits=self.traits)

    def identity_flags(self, plan: Plan) -> list[str]:
        """Name the user and his groups, and give NVIDIA's devices."""
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


def _obstacle(environment: Mapping[str, str]) -> str | None:
    address = environment.get("DOCKER_HOST", f"unix://{SOCKET}")
    if not address.startswith("unix://"):
        return None
    socket = address.removeprefix("unix://")
    if not os.path.exists(socket):
        return f"no daemon listens at {socket}"
    if not os.access(socket, os.R_OK | os.W_OK):
        return f"{socket} may not be used; are you in the group docker?"
    return None


ENGINE = Docker()
