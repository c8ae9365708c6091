"""Docker: where its daemon is root, the user and the user's groups are named by number.

A rootless daemon (its socket is the user's own, named by DOCKER_HOST or by a context) maps the user
to root inside, and no other number or group of the host to itself.

GPUs that need the driver's libraries of the host all go in by --gpus all, and visible devices
select among them; where daemon.json enables CDI, the chosen GPUs alone go in by their CDI names.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aam.contract.errors import Unavailable
from launcher import documents
from launcher.engines.oci import OciEngine
from launcher.host.facts import CDI_ENABLED, EngineFact, EngineTraits
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
    storage = "{{.DockerRootDir}}"
    move = "set data-root in /etc/docker/daemon.json to a folder with room"
    traits = EngineTraits(image_format="docker", later_cdi=25)

    def detect(
        self, path: str, tree: HostTree, environment: Mapping[str, str], user_id: int
    ) -> EngineFact:
        """Return the reason why the daemon cannot be used, if any, and what it does."""
        fact = EngineFact(self.name, path, traits=self.traits)
        settings = [(CDI_ENABLED, "GPUs go in by their CDI names")] if _cdi(tree) else []
        address, named_by = endpoint(environment)
        socket = address.removeprefix("unix://")
        if not address.startswith("unix://"):
            return replace(fact, conf=tuple(settings))
        if not os.path.exists(socket):
            return replace(fact, obstacle=f"no daemon listens at {socket} ({named_by})")
        if not os.access(socket, os.R_OK | os.W_OK):
            return replace(fact, obstacle=f"{socket} may not be used; are you in the group docker?")
        rootless = user_id != 0 and os.stat(socket).st_uid == user_id
        if rootless:
            settings.append((f"rootless daemon of {named_by}", "you are root inside"))
        return replace(fact, conf=tuple(settings), maps_root=rootless)

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


def endpoint(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the address of the daemon and what names it.

    DOCKER_CONTEXT comes before DOCKER_HOST, and that before the context of the configuration
    (docs.docker.com, "Docker contexts").
    """
    home = environment.get("HOME", "/")
    folder = Path(environment.get("DOCKER_CONFIG") or f"{home}/.docker")
    context = environment.get("DOCKER_CONTEXT")
    if not context and environment.get("DOCKER_HOST"):
        return environment["DOCKER_HOST"], "DOCKER_HOST"
    context = context or str(_document(folder / "config.json").get("currentContext") or "")
    if context and context != "default":
        import hashlib  # with OpenSSL; a start without a context saves 3 ms

        ident = hashlib.sha256(context.encode()).hexdigest()
        meta = _document(folder / "contexts/meta" / ident / "meta.json")
        with contextlib.suppress(KeyError, TypeError):
            return str(meta["Endpoints"]["docker"]["Host"]), f"context {context}"
    return f"unix://{SOCKET}", "the default"


def _document(path: Path) -> dict[str, Any]:
    """Return a JSON mapping; an empty one for a file that is not there or is none."""
    try:
        content = documents.parsed(documents.regular(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _cdi(tree: HostTree) -> bool:
    try:
        content = json.loads(tree.read(DAEMON) or "{}")
        return content["features"]["cdi"] is True
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


ENGINE = Docker()
