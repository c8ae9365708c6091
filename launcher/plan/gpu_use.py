"""GPU use of a command: required, automatic or never."""

from __future__ import annotations

from typing import Literal

from launcher.host.facts import Slurm
from launcher.plan.request import Request

GpuUse = Literal["required", "automatic", "never"]


def gpu_use(request: Request, slurm: Slurm | None) -> GpuUse:
    """Return the GPU use of a command line in its allocation.

    `--device cpu` and commands without that option never use one. Another `--device` than `auto`,
    `--gpus` and a Slurm allocation with GPUs require one, so that a job whose GPU is not visible
    fails in its first second instead of training on the processor for its whole allocation.
    """
    device = request.value("--device")
    if device in (None, "cpu"):  # None: the command has no such option
        return "never"
    required = (
        device != "auto" or "--gpus" in request.launcher_options or bool(slurm and slurm.gpus)
    )
    return "required" if required else "automatic"
