"""Docker: its daemon is root, so the user and the user's groups are named by number.

GPUs that need the driver's libraries of the host all go in by --gpus all, and visible devices
select among them; where daemon.json enables CDI, the chosen GPUs alone go in by their CDI names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from aam.contract.errors import Unavailable
from launcher.engines.oci import OciEngine
from launcher.host.facts import CDI_ENABLED, EngineTraits
from launcher.host.tree import HostTree

if TYPE_CHECKING:
    from launcher.engines.base import ImageBuild
    from launcher.engines.build_log import BuildLog
    from launcher.plan.plan import Plan

SOCKET = "/var/run/docker.sock"
DAEMON = "/etc/docker/daemon.json"


class Docker(OciEngine):
    """Docker 23, which builds with BuildKit by default (its change log)."""

    name = "docker"
    least = (23, 0)
    read_only = "readonly"
    storage = "{{.DockerRootDir}}"
    move = "set data-root in /etc/docker/daemon.json to a folder with room"
    traits = EngineTraits(image_format="docker", later_cdi=25)

    def configuration(
        self, path: str, tree: HostTree, environment: Mapping[str, str], user_id: int
    ) -> tuple[str | None, Iterable[tuple[str, str]]]:
        """Return the reason why the daemon cannot be used, if any, and whether it takes CDI."""
        settings = [(CDI_ENABLED, "GPUs go in by their CDI names")] if _cdi(tree) else []
        address = environment.get("DOCKER_HOST", f"unix://{SOCKET}")
        socket = address.removeprefix("unix://")
        if not address.startswith("unix://"):
            return None, settings
        if not os.path.exists(socket):
            return f"no daemon listens at {socket}", ()
        if not os.access(socket, os.R_OK | os.W_OK):
            return f"{socket} may not be used; are you in the group docker?", ()
        return None, settings

    def identity_flags(self, plan: Plan) -> list[str]:
        """Name the user and the groups, and pass all GPUs that need libraries of the host."""
        argv = [f"--user={plan.user[0]}:{plan.user[1]}"]
        argv += [f"--group-add={group}" for group in plan.groups]
        return [*argv, *(["--gpus", "all"] if plan.host_libraries and not plan.cdi else [])]

    def build_flags(self, build: ImageBuild) -> list[str]:
        """Leave out the provenance, which names the builder."""
        return ["--provenance=false"]

    def build(self, build: ImageBuild, log: BuildLog) -> dict[str, Any]:
        """Build an image; refuse --wheels, because Docker mounts no folder in a build."""
        if build.wheels:
            evidence, remedy = f"--wheels {build.wheels}", "use --engine podman or apptainer"
            raise Unavailable("docker mounts no folder while it builds", evidence, remedy)
        return super().build(build, log)


def _cdi(tree: HostTree) -> bool:
    try:
        content = json.loads(tree.read(DAEMON) or "{}")
        return content["features"]["cdi"] is True
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


ENGINE = Docker()
