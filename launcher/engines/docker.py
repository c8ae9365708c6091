"""Docker: its daemon is root, so the user and his groups are named by number.

NVIDIA's devices all go in (--gpus all needs the NVIDIA container toolkit) and the mask chooses.
"""

from __future__ import annotations

from launcher.engines.words import ENV, fields, program
from launcher.plan.plan import Plan


def command(plan: Plan) -> tuple[str, ...]:
    """Return the command line."""
    assert plan.place is not None
    words = [plan.program, "run", "--rm", "--interactive", "--pull=never", "--read-only"]
    words += ["--tty"] if plan.terminal else []
    words += ["--network=host", "--pid=host"]
    words += ["--log-driver=none", "--no-healthcheck", "--security-opt=label=disable"]
    words += [f"--user={plan.user[0]}:{plan.user[1]}"]
    words += [f"--group-add={group}" for group in plan.groups]
    for device in plan.devices:
        words += ["--device", device]
    words += ["--security-opt=seccomp=unconfined"] if plan.devices else []
    words += ["--gpus", "all"] if plan.cdi else []
    for mount in plan.mounts:
        mode = [] if mount.writable else ["readonly"]
        source, target = f"source={mount.source}", f"target={mount.target}"
        words += ["--mount", fields("type=bind", source, target, *mode)]
    words += ["--workdir", plan.workdir, "--entrypoint", ENV, plan.place]
    return (*words, *program(plan)[1:])
