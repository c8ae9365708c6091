"""Podman, rootless or as root.

The user keeps his numbers inside (--userns keep-id) and his groups. The network, the processes and
the shared memory (a mount; --ipc=host fails where a host has no /dev/mqueue) are the host's, as
under Apptainer: ranks have to find each other, and a program that is not process 1 gets its
signals. The image is never pulled.
"""

from __future__ import annotations

from launcher.engines.words import ENV, fields, program
from launcher.plan.plan import Plan


def command(plan: Plan) -> tuple[str, ...]:
    """Return the command line."""
    assert plan.place is not None
    words = [plan.program, "run", "--rm", "--interactive", "--pull=never", "--read-only"]
    words += ["--tty"] if plan.terminal else []
    words += ["--network=host", "--pid=host", "--http-proxy=false"]
    words += ["--log-driver=none", "--no-healthcheck", "--security-opt=label=disable"]
    if plan.user[0] != 0:
        words += ["--userns=keep-id"]
        # Supplementary groups of the user cannot be named in his own user namespace.
        words += ["--group-add=keep-groups"] if plan.groups else []
    else:
        words += [f"--group-add={group}" for group in plan.groups]
    for device in plan.devices:
        words += ["--device", device]
    # AMD's own advice for memory that host and device share (ROCm documents, "Docker").
    words += ["--security-opt=seccomp=unconfined"] if plan.devices else []
    words += ["--device", plan.cdi] if plan.cdi else []
    for mount in plan.mounts:
        mode = [] if mount.writable else ["ro"]
        source, target = f"source={mount.source}", f"target={mount.target}"
        words += ["--mount", fields("type=bind", source, target, *mode)]
    words += ["--workdir", plan.workdir, "--entrypoint", ENV, plan.place]
    return (*words, *program(plan)[1:])
