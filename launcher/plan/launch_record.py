"""Record of a launch, which `aam` stores in run.json: enough to repeat it."""

from __future__ import annotations

import sys

from launcher.host.facts import Host
from launcher.plan.candidates import NATIVE
from launcher.plan.inputs import LaunchInputs
from launcher.plan.plan import Plan

RECORD = "AAM_PLAN"
"""The variable that hands the plan to `aam`, which keeps it in the record of the run."""

MAX_VARIABLE_BYTES = 100_000
"""Bytes of a variable: Linux takes 131072 (MAX_ARG_STRLEN, execve(2)). Mounts go first."""

PASSING = ("--dry-run", "--json", "--host")
"""Options that are about showing a plan, not about the run."""


def record(plan: Plan, inputs: LaunchInputs) -> dict[str, object]:
    """Return the launch as run.json stores it, complete enough to repeat it."""
    request, host = inputs.request, inputs.host
    launcher_options: dict[str, list[str]] = {}
    for flag, value in request.launcher_options.items():
        if flag in PASSING:
            continue
        if isinstance(value, bool):
            launcher_options[flag if value else f"--no-{flag[2:]}"] = []
        else:
            launcher_options[flag] = list(map(str, value if isinstance(value, tuple) else (value,)))
    driver = host.driver(plan.gpus[0].vendor) if plan.gpus else None
    return {
        "command": request.command,
        "arguments": list(request.arguments),
        "launcher_options": launcher_options,
        "folder": inputs.context.folder,
        "host": host.name,
        "engine": plan.engine,
        "engine_version": engine_version(plan, host),
        "program": plan.program,
        "image": plan.image,
        "place": plan.place,
        "digest": plan.digest,
        "stack": plan.stack,
        "gpus": [f"{gpu.product} ({gpu.arch}) at {gpu.pci}" for gpu in plan.gpus],
        "driver": driver.version if driver else None,
        "kernel": host.kernel,
        "job": host.slurm.job if host.slurm else None,
        "mounts": [[m.source, m.target, "rw" if m.writable else "ro"] for m in plan.mounts],
        "devices": list(plan.devices),
        "forced": list(plan.forced),
        "decisions": [
            [d.subject, d.value, d.why, d.source]
            for d in plan.decisions
            if d.subject not in ("mount", "variable", "kept out", "device", "not used")
        ],
    }


def engine_version(plan: Plan, host: Host) -> str | None:
    """Return the version of the engine; of Python for a native launch."""
    if plan.engine == NATIVE:
        return sys.version.split()[0]
    fact = host.engine(plan.engine)
    return fact.version if fact else None
