"""Docker: where its daemon is root, the user and the user's groups are named by number.

A rootless daemon (its socket is the user's own, named by DOCKER_HOST) maps the user to root inside,
and no group of the host. GPUs that need the host's libraries all go in by --gpus all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec.structs import replace

from aam.contract.errors import Unavailable
from launcher.engines.engine import BuildLog, ImageBuild, ImageRecord
from launcher.engines.oci import OciEngine
from launcher.host.facts import EngineFact, EngineTraits
from launcher.host.tree import HostTree
from launcher.plan.assembly import Plan

SOCKET = "/var/run/docker.sock"


class Docker(OciEngine):
    """Docker 23 or newer: it builds with BuildKit by default (its change log)."""

    name = "docker"
    least = (23, 0)
    storage = "{{.DockerRootDir}}"
    move = "set data-root in /etc/docker/daemon.json to a folder with room"
    traits = EngineTraits(image_format="docker")

    def detect(
        self, path: str, tree: HostTree, environment: Mapping[str, str], user_id: int
    ) -> EngineFact:
        fact = EngineFact(self.name, path, traits=self.traits)
        private = f"{environment.get('XDG_RUNTIME_DIR') or f'/run/user/{user_id}'}/docker.sock"
        usual = private if os.path.exists(private) and not os.path.exists(SOCKET) else SOCKET
        address = environment.get("DOCKER_HOST") or f"unix://{usual}"
        socket = address.removeprefix("unix://")
        if not address.startswith("unix://") or environment.get("DOCKER_CONTEXT"):
            return fact
        if not os.path.exists(socket):
            return replace(fact, obstacle=f"no daemon listens at {socket}")
        if not os.access(socket, os.R_OK | os.W_OK):
            return replace(fact, obstacle=f"{socket} may not be used; are you in the group docker?")
        rootless = user_id != 0 and os.stat(socket).st_uid == user_id
        return replace(fact, maps_root=rootless)

    def identity_flags(self, plan: Plan) -> list[str]:
        argv = [f"--user={plan.user[0]}:{plan.user[1]}"]
        argv += [f"--group-add={group}" for group in plan.groups]
        return [*argv, *(["--gpus", "all"] if plan.host_libraries else [])]

    def build_flags(self, build: ImageBuild) -> list[str]:
        return ["--provenance=false"]

    def build(self, build: ImageBuild, log: BuildLog) -> ImageRecord:
        if build.wheels:
            evidence, remedy = f"--wheels {build.wheels}", "use --engine podman or apptainer"
            raise Unavailable("docker mounts no folder while it builds", evidence, remedy)
        return super().build(build, log)


ENGINE = Docker()
