"""Facts about the device that a workload uses, measured in a child process.

The process that measures holds no GPU itself: its memory would count against its children's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass

from aam.contract.errors import Unavailable

CONTEXT = 1 << 30
"""Bytes of GPU memory that the process which measures may itself take: its context."""


@dataclass(frozen=True)
class DeviceFacts:
    """Facts about a device.

    Attributes:
        name: name such as "NVIDIA H200" or "CPU, 2 cores".
        arch: architecture such as gfx942 or sm_90; "cpu" for a CPU.
        torch: version of PyTorch.
        cores: CPU cores of this process.
        used: bytes of its memory that all processes take, 0 for a CPU.
        load: processes that ran or waited for a core in the last minute, on average.
        compile_fault: why torch.compile fails with this PyTorch; "" if it does not.
    """

    name: str
    arch: str
    torch: str
    cores: int
    used: int
    load: float
    compile_fault: str = ""

    @property
    def gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.arch != "cpu"

    @property
    def busy(self) -> str:
        """How others use the device at the same time; "" if they do not."""
        if self.gpu and self.used > CONTEXT:
            return f"other processes use {self.used / 2**30:.1f} GiB of {self.name}"
        if not self.gpu and self.load > 0.5 * self.cores:
            return f"other processes use the CPU: load {self.load:.1f} on {self.cores} cores"
        return ""


def device_facts(device: str) -> DeviceFacts:
    """Return the facts about the device that `--device` names.

    Raises:
        Unavailable: there is no GPU, or PyTorch cannot start on it.
    """
    argv = [sys.executable, "-m", __name__, device]
    done = subprocess.run(argv, capture_output=True, text=True)
    try:
        # The last line alone: libraries print warnings above it.
        found = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise Unavailable(
            "The device cannot be used", f"--device {device}: {last[:300]}", "see `aam check`"
        ) from None
    if "error" in found:
        raise Unavailable(*found["error"])
    return DeviceFacts(**found)


def _measure(device: str) -> dict[str, object]:
    """Return the facts, or the parts of an error, in the child process."""
    # Before PyTorch is imported, which loads the CPU itself.
    load = os.getloadavg()[0]
    # Imported by the child alone.
    import torch

    from aam.contract.options import build
    from aam.contract.options.device import DeviceOptions
    from aam.numerics.device import arch_of, choose_device, compile_fault, hardware_name, is_gpu

    try:
        chosen = choose_device(build(DeviceOptions, {"--device": device}))
    except Unavailable as error:
        return {"error": [error.cause, error.evidence, error.remedy]}
    cores, used = len(os.sched_getaffinity(0)), 0
    if is_gpu(chosen):
        free, total = torch.cuda.mem_get_info(chosen)
        used = total - free
    name, arch = hardware_name(chosen), arch_of(chosen)
    fault = compile_fault() if is_gpu(chosen) else ""
    return asdict(DeviceFacts(name, arch, torch.__version__, cores, used, load, fault))


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1])))
