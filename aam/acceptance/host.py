"""Parts `host` and `launch`: what the image sees of the host, and what starting it took."""

from __future__ import annotations

import csv
import glob
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from aam.acceptance.part import Context, Evaluation, Measurement
from aam.acceptance.result import Values
from aam.contract.run_record import launched_by
from aam.memory import GIB, memory_available
from aam.numerics.device import arch_of, gpu_names, select_gpu
from aam.numerics.stack_identity import identify, processor
from aam.performance.measurement.device import CONTEXT

HOST = {
    "gpus": list[str],
    "arch": str,
    "driver?": (None, str),
    "torch": str,
    "runtime?": (None, str),
    "kernel": str,
    "cpu": str,
    "cores": int,
    "memory": int,
    "gpu_memory": list[int],
    "used": list[int],
    "settings": dict[str, list[str]],
}
"""Schema of the measured values of the part `host`.

`memory` and `gpu_memory` are bytes; `used` are those that other processes had on each GPU before;
`settings` are partition modes, power limits, clocks and firmware of each GPU, as far as the kernel
or the vendor's tool shows them.
"""

LAUNCH = {
    "launcher": bool,
    "overhead?": (None, float),
    "mounts?": (None, {"read-only": int, "read-write": int}),
    "visible": int,
    "planned?": (None, int),
    "memory": int,
}
"""Schema of the measured values of the part `launch`; `overhead` in seconds."""

SLOW_LAUNCH = 30.0
"""Seconds from the launcher to the program: images of 10 GB start within 10 s from a local disk."""

_SYSFS = {
    "compute partition": "current_compute_partition",
    "memory partition": "current_memory_partition",
    "vbios": "vbios_version",
    "power limit, µW": "hwmon/hwmon*/power1_cap",
    "performance level": "power_dpm_force_performance_level",
    "firmware of SMC": "fw_version/smc_fw_version",
}
"""Files of an AMD GPU below /sys/class/drm/card*/device; they have one line."""
_CLOCKS = {"shader clock": "pp_dpm_sclk", "memory clock": "pp_dpm_mclk"}
"""Files with a line for each clock, the highest last."""
_QUERY = "power.limit,clocks.max.sm,clocks.max.memory,vbios_version,mig.mode.current"


def measure_host(context: Context) -> Measurement:
    """Collect the facts about host, GPUs and image."""
    names = gpu_names() if context.gpu else []
    devices = [select_gpu(number) for number in range(len(names))] or [torch.device("cpu")]
    memory = [torch.cuda.mem_get_info(device) for device in devices] if names else []
    stack = identify(devices[0])
    return Measurement(
        {
            "gpus": names,
            "arch": arch_of(devices[0]),
            "driver": stack.driver,
            "torch": stack.torch,
            "runtime": stack.runtime,
            "kernel": platform.release(),
            "cpu": processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "gpu_memory": [total for _, total in memory],
            # Without the context of this process, which is no use by others.
            "used": [max(0, total - free - CONTEXT) for free, total in memory],
            "settings": gpu_settings() if names else {},
        }
    )


def gpu_settings(root: Path = Path("/")) -> dict[str, list[str]]:
    """Return modes, limits and clocks of each GPU by name, from sysfs or the vendor's tool.

    Args:
        root: root of the file system that is read.

    Returns:
        Name of a setting -> its text for each GPU, 64 at most.

    >>> gpu_settings(Path("no-such-folder"))
    {}
    """
    found: dict[str, list[str]] = {}
    for device in sorted(glob.glob(str(root / "sys/class/drm/card[0-9]*/device"))):
        for name, pattern in {**_SYSFS, **_CLOCKS}.items():
            for file in glob.glob(f"{device}/{pattern}"):
                lines = _lines(Path(file))
                if lines:
                    found.setdefault(name, []).append(lines[-1].strip(" *"))
    tool = shutil.which("nvidia-smi")
    # The tool describes this host, not the files of a captured one.
    if not found and tool and root == Path("/"):
        argv = [tool, f"--query-gpu={_QUERY}", "--format=csv,noheader"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
        rows = list(csv.reader(done.stdout.splitlines(), skipinitialspace=True))
        for number, name in enumerate(_QUERY.split(",")):
            found[name] = [row[number] for row in rows if len(row) > number]
    return {name: values[:64] for name, values in found.items() if values}


def _lines(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            return stream.read(4096).splitlines()
    except OSError:
        return []


def evaluate_host(measured: Values, expected: Values) -> Evaluation:
    """Name the GPUs, and those that others use; a host is as it is."""
    gpus = measured["gpus"]
    what = f"{len(gpus)} x {gpus[0]} ({measured['arch']})" if gpus else measured["cpu"]
    used = [f"{size / GIB:.1f} GiB of GPU {k}" for k, size in enumerate(measured["used"]) if size]
    sentence = f"{what}, torch {measured['torch']}."
    if len(set(gpus)) > 1:
        sentence += f" The GPUs differ: {', '.join(sorted(set(gpus)))}."
    if used:
        sentence += f" Others use {', '.join(used)}: figures are not those of GPUs of your own."
    return Evaluation("as predicted", sentence)


def measure_launch(context: Context) -> Measurement:
    """Compare what the launcher planned with what this process sees."""
    plan = launched_by(os.environ)
    mounts = _mounts(plan)
    started = plan.get("started") if plan else None
    overhead = None
    if isinstance(started, int | float):
        # The clocks of two nodes may differ by more than a start takes.
        overhead = max(0.0, context.started - started)
    gpus = plan.get("gpus") if plan else None
    planned = len(gpus) if isinstance(gpus, list) and context.gpu else None
    measured = {
        "launcher": plan is not None,
        "overhead": overhead,
        "mounts": mounts,
        "visible": len(gpu_names()) if context.gpu else 0,
        "planned": planned,
        "memory": memory_available(),
    }
    return Measurement(measured, {"overhead": SLOW_LAUNCH, "visible": planned})


def _mounts(plan: Mapping[str, Any] | None) -> dict[str, int] | None:
    listed = plan.get("mounts") if plan else None
    if not isinstance(listed, list):
        return None
    writable = sum(1 for mount in listed if isinstance(mount, list) and mount[-1:] == ["rw"])
    return {"read-only": len(listed) - writable, "read-write": writable}


def evaluate_launch(measured: Values, expected: Values) -> Evaluation:
    """Compare the GPUs that are visible with those planned, and the overhead with its limit.

    >>> evaluate_launch({"launcher": True, "visible": 1, "planned": 2}, {}).summary
    '1 GPUs are visible, 2 were planned.'
    """
    if not measured["launcher"]:
        return Evaluation("not possible here", "The program was not started by aam-launch.")
    visible, planned = measured["visible"], measured.get("planned")
    if planned is not None and visible != planned:
        return Evaluation("wrong", f"{visible} GPUs are visible, {planned} were planned.")
    parts = [f"{visible} GPUs visible"]
    if mounts := measured.get("mounts"):
        parts.append(f"{mounts['read-only']} mounts read-only, {mounts['read-write']} read-write")
    overhead = measured.get("overhead")
    if overhead is None:
        return Evaluation("as predicted", f"{', '.join(parts)}.")
    sentence = f"{', '.join(parts)}; {overhead:.1f} s from the launcher to the program."
    return Evaluation("slower" if overhead > SLOW_LAUNCH else "as predicted", sentence)
