"""Apptainer, SingularityCE and SingularityPro 4: `exec` in a SIF, contained.

--contain gives a minimal /dev, no home and no `bind path` of the site but /etc/hosts and
/etc/localtime; --cleanenv no variable of the host. `mount hostfs = yes` of a site holds even under
--contain, hence --no-mount hostfs. AMD's devices are bound one by one; --rocm is refused unless
a site asks for it, because it puts the host's ROCm libraries before the image's, and --no-rocm (in
no help page, but an option of Apptainer and of Singularity 4.1) overrules `always use rocm = yes`.
NVIDIA's driver libraries can only come from the host, hence --nv.

Under --contain /dev/shm is the container's own, and a mount there is skipped with a warning. Ranks
in containers of their own do not share it; RCCL and NCCL see that by its device number and take
another way (shmCanConnect in transport/shm.cc).
"""

from __future__ import annotations

from launcher.engines.words import fields, program
from launcher.gpus import VENDORS
from launcher.plan.plan import Plan


def contained(host_libraries: str) -> list[str]:
    """Return what every container is started with; job scripts hold it too.

    Args:
        host_libraries: the vendor whose libraries of the host are bound; those of the others are
            kept out, whatever the site's configuration says.
    """
    words = ["exec", "--contain", "--cleanenv", "--no-eval", "--no-home"]
    words += ["--no-mount", "tmp,hostfs"]
    for vendor in VENDORS.values():
        if vendor.library_flags:
            bring, keep_out = vendor.library_flags
            words.append(bring if vendor.name == host_libraries else keep_out)
    return words


def command(plan: Plan) -> tuple[str, ...]:
    """Return the command line."""
    assert plan.place is not None
    words = [plan.program, *contained(plan.host_libraries), "--pwd", plan.workdir]
    for mount in plan.mounts:
        mode = [] if mount.writable else ["ro"]
        source, target = f"source={mount.source}", f"destination={mount.target}"
        words += ["--mount", fields("type=bind", source, target, *mode)]
    for device in plan.devices:
        words += ["--mount", fields("type=bind", f"source={device}", f"destination={device}")]
    return (*words, plan.place, *program(plan))
