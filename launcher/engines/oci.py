"""OCI engines: what podman and Docker share. They store images themselves; none is ever pulled.

Network and processes are the host's, as under Apptainer: ranks have to find each other.
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from launcher import system
from launcher.engines import engine
from launcher.plan.assembly import Plan
from launcher.plan.environment import unset
from launcher.plan.mounts import mount_option

REPOSITORY = "localhost/aam"


class OciEngine(engine.Engine, engine.Builder):
    """An engine with a storage; its subclasses add the options that differ."""

    storage: str  # template of `info` for the folder of the storage
    move: str  # how to move that folder

    @abstractmethod
    def identity_flags(self, plan: Plan) -> list[str]:
        """Return the options for the user, the user's groups and devices with a CDI description."""

    @abstractmethod
    def build_flags(self, build: engine.ImageBuild) -> list[str]:
        """Return the options that make two builds of the same inputs equal."""

    def runtime_flags(self, plan: Plan) -> list[str]:
        """Return the options before `run` that choose what starts a container."""
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
        argv += ["--workdir", plan.workdir, "--entrypoint", engine.ENV]
        return (*argv, plan.place, *engine.program(plan)[1:])

    def build(self, build: engine.ImageBuild, log: engine.BuildLog) -> engine.ImageRecord:
        storage = system.run([build.program, "info", "--format", self.storage]).stdout.strip()
        if storage.startswith("/"):
            size = int(build.room[0] * engine.GIB)
            engine.require_room([("storage", Path(storage), size, self.move)])
        bare, aside = f"{REPOSITORY}:{build.name}-bare", f"{REPOSITORY}:{build.name}-new"
        reference = f"{REPOSITORY}:{build.name}"
        try:
            log.run(self.build_argv(build, bare), build.context)
            labels_argv = self.exec_argv(build.program, bare, engine.SHOW_LABELS)
            measured = engine.labels(labels_argv, build.name)
            # Labels are known when the image is there; a second build from it adds them.
            recipe = build.scratch / "labels" / "Dockerfile"
            recipe.parent.mkdir()
            recipe.write_text(f"FROM {bare}\n")
            argv = [build.program, "build", "--file", str(recipe), "--tag", aside]
            options = [option for k, v in measured.items() for option in ("--label", f"{k}={v}")]
            log.run([*argv, *self.build_flags(build), *options, str(recipe.parent)], recipe.parent)
            if build.test:
                log.step("test")
                log.run(self.exec_argv(build.program, aside, engine.TEST), build.scratch)
            log.run([build.program, "tag", aside, reference], build.scratch)
        finally:
            for tag in (aside, bare):
                system.run([build.program, "rmi", tag])
        return replace(inspected(build.program, reference), reference=reference, labels=measured)

    def pull(
        self, build: engine.ImageBuild, reference: engine.ImageReference, log: engine.BuildLog
    ) -> engine.ImageRecord:
        tag, source = f"{REPOSITORY}:{build.name}", str(reference)
        log.run([build.program, "pull", source], build.scratch)
        labels_argv = self.exec_argv(build.program, source, engine.SHOW_LABELS)
        measured = engine.labels(labels_argv, build.name)
        log.run([build.program, "tag", source, tag], build.scratch)
        return replace(inspected(build.program, source), reference=tag, labels=measured)

    def build_argv(self, build: engine.ImageBuild, tag: str) -> list[str]:
        """Return the command that builds an image of its definition."""
        recipe = build.context / "containers" / f"{build.name}.Dockerfile"
        argv = [build.program, "build", "--file", str(recipe), "--tag", tag]
        argv += self.build_flags(build)
        argv += ["--volume", f"{build.wheels}:{engine.WHEELS}:ro"] if build.wheels else []
        for key, value in build.arguments.items():
            argv += ["--build-arg", f"{key}={value}"]
        return [*argv, str(build.context)]

    def exec_argv(self, program: str, image: str, argv: Sequence[str]) -> list[str]:
        start = [program, "run", "--rm", "--network=none", "--read-only", "--tmpfs=/tmp"]
        start += ["--pull=never", "--no-healthcheck", "--user=65534:65534"]
        return [*start, "--entrypoint", argv[0], image, *argv[1:]]

    def verify(self, build: engine.ImageBuild, recorded: engine.ImageRecord) -> None:
        reference = recorded.reference or f"{REPOSITORY}:{build.name}"
        now = inspected(build.program, reference).id or "gone"
        engine.require_same(build.name, reference, now, recorded.id)
        if build.test:
            hidden = unset(os.environ, self.traits)
            environment = {k: v for k, v in os.environ.items() if k not in hidden}
            argv = self.exec_argv(build.program, now, engine.TEST)
            engine.run_test(argv, build.minutes, environment)


def inspected(program: str, image: str) -> engine.ImageRecord:
    """Return id, digest and size of an image of a storage; an empty record if it has none."""
    done = system.run([program, "image", "inspect", image])
    if done.returncode:
        return engine.ImageRecord()
    output = json.loads(done.stdout)[0]
    ident = "sha256:" + str(output["Id"]).removeprefix("sha256:")
    digest = str(output.get("Digest") or ident)
    return engine.ImageRecord(id=ident, digest=digest, bytes=int(output["Size"]))
