"""OCI engines, shared by podman and Docker, which store images themselves.

Network and processes are the host's, as under Apptainer: ranks have to find each other, and a
program that is not process 1 gets its signals. An image is never pulled.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aam.contract.errors import MissingInput
from launcher import system
from launcher.engines.base import (
    ENV,
    GIB,
    LABELS,
    PYTHON,
    SMOKE,
    WHEELS,
    Builder,
    BuildLog,
    Engine,
    ImageBuild,
    SpaceRequirement,
    labels,
    program,
)  # fmt: skip
from launcher.plan.mounts import mount_option
from launcher.plan.plan import Plan

REPOSITORY = "localhost/aam"


class OciEngine(Engine, Builder):
    """An engine with a storage; its subclasses add the options that differ."""

    storage: str  # template of `info` for the folder of the storage
    move: str  # how to move that folder

    @abstractmethod
    def identity_flags(self, plan: Plan) -> list[str]:
        """Return the options for the user, the user's groups and devices with a CDI description."""

    @abstractmethod
    def build_flags(self, build: ImageBuild) -> list[str]:
        """Return the options that make two builds of the same inputs equal."""

    def runtime_flags(self, plan: Plan) -> list[str]:
        """Return the options before `run`, which choose what starts a container."""
        return []

    def command(self, plan: Plan) -> tuple[str, ...]:
        assert plan.place is not None
        argv = [plan.program, *self.runtime_flags(plan), "run", "--rm", "--interactive"]
        argv += ["--pull=never", "--read-only", *(["--tty"] if plan.terminal else [])]
        argv += ["--network=host", "--pid=host", "--log-driver=none", "--no-healthcheck"]
        argv += ["--security-opt=label=disable", *self.identity_flags(plan)]
        for device in (*plan.devices, *plan.cdi):
            argv += ["--device", device]
        # AMD's own advice for memory that host and device share (ROCm documents, "Docker").
        of_amd = plan.devices and not plan.host_libraries
        argv += ["--security-opt=seccomp=unconfined"] if of_amd else []
        for mount in plan.mounts:
            argv += mount_option(mount.source, mount.target, mount.writable)
        argv += [word for name in plan.unseen for word in ("--env", name)]
        argv += ["--workdir", plan.workdir, "--entrypoint", ENV]
        return (*argv, plan.place, *program(plan)[1:])

    def needs(
        self, program: str, room: tuple[float, float], folder: Path, variables: Mapping[str, str]
    ) -> list[SpaceRequirement]:
        done = system.run([program, "info", "--format", self.storage])
        output = done.stdout.strip()
        if done.returncode or not output.startswith("/"):
            return []
        return [SpaceRequirement("storage", Path(output), int(room[0] * GIB), self.move)]

    def build(self, build: ImageBuild, log: BuildLog) -> dict[str, Any]:
        bare, aside = f"{REPOSITORY}:{build.name}-bare", f"{REPOSITORY}:{build.name}-new"
        reference = f"{REPOSITORY}:{build.name}"
        try:
            log.run(self.build_argv(build, bare), build.context)
            found = labels(self.exec_argv(build.program, bare, ["cat", LABELS]), build.name)
            # Labels are known when the image is there; a second build from it adds them.
            recipe = build.scratch / "labels" / "Dockerfile"
            recipe.parent.mkdir()
            recipe.write_text(f"FROM {bare}\n")
            argv = [build.program, "build", "--file", str(recipe), "--tag", aside]
            options = [option for k, v in found.items() for option in ("--label", f"{k}={v}")]
            log.run([*argv, *self.build_flags(build), *options, str(recipe.parent)], recipe.parent)
            if build.test:
                log.step("test")
                log.run(self.exec_argv(build.program, aside, [PYTHON, SMOKE]), build.scratch)
            log.run([build.program, "tag", aside, reference], build.scratch)
        finally:
            for tag in (aside, bare):
                system.run([build.program, "rmi", tag])
        return {"reference": reference, **inspected(build.program, reference), "labels": found}

    def pull(self, build: ImageBuild, reference: str, log: BuildLog) -> dict[str, Any]:
        own = f"{REPOSITORY}:{build.name}"
        log.run([build.program, "pull", reference], build.scratch)
        found = labels(self.exec_argv(build.program, reference, ["cat", LABELS]), build.name)
        log.run([build.program, "tag", reference, own], build.scratch)
        return {"reference": own, **inspected(build.program, reference), "labels": found}

    def build_argv(self, build: ImageBuild, tag: str) -> list[str]:
        """Return the command that builds an image of its definition."""
        recipe = build.context / "containers" / f"{build.name}.Dockerfile"
        argv = [build.program, "build", "--file", str(recipe), "--tag", tag]
        argv += self.build_flags(build)
        argv += ["--volume", f"{build.wheels}:{WHEELS}:ro"] if build.wheels else []
        for key, value in build.arguments.items():
            argv += ["--build-arg", f"{key}={value}"]
        return [*argv, str(build.context)]

    def exec_argv(self, program: str, place: str, argv: Sequence[str]) -> list[str]:
        start = [program, "run", "--rm", "--network=none", "--read-only", "--tmpfs=/tmp"]
        start += ["--pull=never", "--no-healthcheck", "--user=65534:65534"]
        return [*start, "--entrypoint", argv[0], place, *argv[1:]]

    def exists(self, program: str, recorded: Mapping[str, Any], place: Path) -> bool:
        return bool(recorded.get("id")) and inspected(program, str(recorded["id"])) != {}

    def verify(self, program: str, name: str, recorded: Mapping[str, Any], place: Path) -> str:
        reference = str(recorded["reference"])
        now = inspected(program, reference).get("id", "gone")
        if now != recorded.get("id"):
            evidence = f"{reference} is {now}, recorded was {recorded.get('id')}"
            remedy = f"build it again: `aam-launch images build {name} --rebuild`"
            raise MissingInput("The image is another one", evidence, remedy)
        return str(recorded["id"])


def inspected(program: str, image: str) -> dict[str, Any]:
    """Return id, digest and size of an image of a storage; nothing if it has none."""
    done = system.run([program, "image", "inspect", image])
    if done.returncode:
        return {}
    output = json.loads(done.stdout)[0]
    ident = "sha256:" + str(output["Id"]).removeprefix("sha256:")
    digest = str(output.get("Digest") or ident)
    return {"id": ident, "digest": digest, "bytes": int(output["Size"])}
